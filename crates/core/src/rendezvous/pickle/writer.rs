//! Writes a state as a pickle of protocol 4, without frames. The caller checks the result by decoding it.
//!
//! The writer memoizes classes, modules, the attribute names of nodes, addresses, nodes and UTC, which usually occur
//! more than once. It memoizes nothing else, because each memo entry costs a byte and a state must not be larger than
//! if torch had written it.

use std::collections::{BTreeMap, BTreeSet};

use super::opcode as op;
use crate::rendezvous::state::{Extra, NodeDesc, State};
use crate::rendezvous::time::WallTime;

/// The approximate size of one node with its heartbeat, for the initial capacity of the buffer.
const BYTES_PER_NODE: usize = 120;

/// An object that is written once and then referenced through the memo.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Shared<'a> {
    Text(&'a str),
    Class(&'a str),
    Utc,
    Node(&'a NodeDesc),
}

struct Writer<'a> {
    bytes: Vec<u8>,
    /// The memo index of each object that has been written.
    memo: BTreeMap<Shared<'a>, u32>,
}

/// Returns the bytes of `state`.
pub(super) fn write(state: &State) -> Vec<u8> {
    let nodes = state.last_heartbeats.len().max(state.participants.len());
    let bytes = Vec::with_capacity(512 + nodes * BYTES_PER_NODE);
    let mut writer = Writer { bytes, memo: BTreeMap::new() };
    writer.put(&[op::PROTO, 4]);
    writer.state(state);
    writer.put(&[op::STOP]);
    writer.bytes
}

impl<'a> Writer<'a> {
    // ---- objects ----

    fn state(&mut self, state: &'a State) {
        self.class(op::TORCH_MODULE, "_RendezvousState");
        self.put(&[op::EMPTY_TUPLE, op::NEW_OBJ, op::EMPTY_DICT, op::MARK]);
        self.text("round");
        self.int(state.round.into());
        self.text("complete");
        self.bool(state.complete);
        self.text("deadline");
        match state.deadline {
            Some(deadline) => self.time(deadline),
            None => self.put(&[op::NONE]),
        }
        self.text("closed");
        self.bool(state.closed);
        self.text("participants");
        self.dict(&state.participants, |writer, rank| writer.int((*rank).into()));
        self.text("wait_list");
        self.set(&state.wait_list);
        self.text("redundancy_list");
        self.set(&state.redundancy_list);
        self.text("last_heartbeats");
        self.dict(&state.last_heartbeats, |writer, time| writer.time(*time));
        for (name, value) in &state.extra {
            self.text(name);
            match value {
                Extra::None => self.put(&[op::NONE]),
                Extra::Bool(value) => self.bool(*value),
                Extra::Int(value) => self.int((*value).into()),
                Extra::Text(value) => self.text(value),
                Extra::Time(value) => self.time(*value),
            }
        }
        self.put(&[op::SET_ITEMS, op::BUILD]);
    }

    fn dict<V>(&mut self, entries: &'a BTreeMap<NodeDesc, V>, write: impl Fn(&mut Self, &V)) {
        self.put(&[op::EMPTY_DICT, op::MARK]);
        for (node, value) in entries {
            self.node(node);
            write(self, value);
        }
        self.put(&[op::SET_ITEMS]);
    }

    fn set(&mut self, nodes: &'a BTreeSet<NodeDesc>) {
        self.put(&[op::EMPTY_SET, op::MARK]);
        nodes.iter().for_each(|node| self.node(node));
        self.put(&[op::ADD_ITEMS]);
    }

    fn node(&mut self, node: &'a NodeDesc) {
        self.shared(Shared::Node(node), |writer| {
            writer.class(op::TORCH_MODULE, "_NodeDesc");
            writer.put(&[op::EMPTY_TUPLE, op::NEW_OBJ, op::EMPTY_DICT, op::MARK]);
            writer.shared_text("addr");
            writer.shared_text(&node.addr);
            writer.shared_text("pid");
            writer.int(node.pid.into());
            writer.shared_text("local_id");
            writer.int(node.local_id.into());
            writer.put(&[op::SET_ITEMS, op::BUILD]);
        });
    }

    fn time(&mut self, time: WallTime) {
        self.class("datetime", "datetime");
        let stamp = time.to_stamp();
        self.put(&[op::SHORT_BIN_BYTES, stamp.len() as u8]);
        self.put(&stamp);
        self.shared(Shared::Utc, |writer| {
            writer.class("datetime", "timezone");
            writer.class("datetime", "timedelta");
            (0..3).for_each(|_| writer.int(0));
            writer.put(&[op::TUPLE3, op::REDUCE, op::TUPLE1, op::REDUCE]);
        });
        self.put(&[op::TUPLE2, op::REDUCE]);
    }

    fn class(&mut self, module: &'static str, name: &'static str) {
        self.shared(Shared::Class(name), |writer| {
            writer.shared_text(module);
            writer.text(name);
            writer.put(&[op::STACK_GLOBAL]);
        });
    }

    fn shared_text(&mut self, text: &'a str) {
        self.shared(Shared::Text(text), |writer| writer.text(text));
    }

    /// Writes the object with `write` the first time, and a reference to its memo entry from then on.
    fn shared(&mut self, object: Shared<'a>, write: impl FnOnce(&mut Self)) {
        match self.memo.get(&object).map(|index| (*index, u8::try_from(*index))) {
            Some((_, Ok(index))) => self.put(&[op::BIN_GET, index]),
            Some((index, Err(_))) => {
                self.put(&[op::LONG_BIN_GET]);
                self.put(&index.to_le_bytes());
            }
            None => {
                write(self);
                self.put(&[op::MEMOIZE]);
                self.memo.insert(object, self.memo.len() as u32);
            }
        }
    }

    // ---- plain values ----

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn bool(&mut self, value: bool) {
        self.put(&[if value { op::NEW_TRUE } else { op::NEW_FALSE }]);
    }

    fn int(&mut self, number: i128) {
        if let Ok(number) = u8::try_from(number) {
            self.put(&[op::BIN_INT1, number]);
        } else if let Ok(number) = i32::try_from(number) {
            self.put(&[op::BIN_INT]);
            self.put(&number.to_le_bytes());
        } else {
            // Every `i64` and every `u64` fits into 9 bytes as a signed number.
            self.put(&[op::LONG1, 9]);
            self.put(&number.to_le_bytes()[..9]);
        }
    }

    fn text(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(len) => self.put(&[op::SHORT_BIN_UNICODE, len]),
            Err(_) => {
                self.put(&[op::BIN_UNICODE]);
                self.put(&(text.len() as u32).to_le_bytes());
            }
        }
        self.put(text.as_bytes());
    }
}
