//! A state as a pickle of protocol 4, without frames. It checks nothing: reading back does.
//!
//! What all nodes or all times refer to is written once and put into the memo, and so is each address and each node.
//! Nothing else is put aside, which makes the state no longer than torch's.

use super::opcode as op;
use crate::rendezvous::node::NodeDesc;
use crate::rendezvous::state::{Extra, State};
use crate::rendezvous::time::WallTime;

/// About what one node takes with its heartbeat.
const BYTES_PER_NODE: usize = 120;

/// Index of something in the memo.
type Memo = u32;

/// What nodes or times refer to.
#[derive(Clone, Copy)]
enum Shared {
    Torch,
    DateTime,
    NodeClass,
    Addr,
    Pid,
    LocalId,
    TimeClass,
    Utc,
}

struct Writer<'a> {
    bytes: Vec<u8>,
    /// How many things are in the memo.
    memo: Memo,
    shared: [Option<Memo>; 8],
    /// The address of the node that was written last: nodes of one host follow each other.
    addr: Option<(&'a str, Memo)>,
}

/// Returns the bytes of `state`.
pub(super) fn write(state: &State) -> Vec<u8> {
    let nodes = state.last_heartbeats.len().max(state.participants.len());
    let bytes = Vec::with_capacity(512 + nodes * BYTES_PER_NODE);
    let mut writer = Writer { bytes, memo: 0, shared: [None; 8], addr: None };
    writer.put(&[op::PROTO, 4]);
    writer.state(state);
    writer.put(&[op::STOP]);
    writer.bytes
}

impl<'a> Writer<'a> {
    // ---- objects ----

    fn state(&mut self, state: &'a State) {
        self.class(Shared::Torch, op::TORCH, "_RendezvousState");
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

        let mut written = Vec::with_capacity(state.last_heartbeats.len());
        self.text("participants");
        self.put(&[op::EMPTY_DICT, op::MARK]);
        for (node, rank) in &state.participants {
            written.push((node, self.node(node)));
            self.int((*rank).into());
        }
        self.put(&[op::SET_ITEMS]);
        for (name, nodes) in [("wait_list", &state.wait_list), ("redundancy_list", &state.redundancy_list)] {
            self.text(name);
            self.put(&[op::EMPTY_SET, op::MARK]);
            written.extend(nodes.iter().map(|node| (node, self.node(node))));
            self.put(&[op::ADD_ITEMS]);
        }

        self.text("last_heartbeats");
        self.put(&[op::EMPTY_DICT, op::MARK]);
        // Both are in the order of the nodes, so one pass finds the nodes that were written above.
        written.sort();
        let mut written = written.into_iter().peekable();
        for (node, time) in &state.last_heartbeats {
            while written.next_if(|(other, _)| *other < node).is_some() {}
            match written.peek() {
                Some((other, memo)) if *other == node => self.recall(*memo),
                _ => _ = self.node(node),
            }
            self.time(*time);
        }
        self.put(&[op::SET_ITEMS]);

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

    /// Writes the node and puts it into the memo.
    fn node(&mut self, node: &'a NodeDesc) -> Memo {
        self.shared(Shared::NodeClass, |writer| writer.class(Shared::Torch, op::TORCH, "_NodeDesc"));
        self.put(&[op::EMPTY_TUPLE, op::NEW_OBJ, op::EMPTY_DICT, op::MARK]);
        self.shared(Shared::Addr, |writer| writer.text("addr"));
        match self.addr {
            Some((addr, memo)) if *addr == *node.addr => self.recall(memo),
            _ => {
                self.text(&node.addr);
                self.addr = Some((&node.addr, self.memoize()));
            }
        }
        self.shared(Shared::Pid, |writer| writer.text("pid"));
        self.int(node.pid.into());
        self.shared(Shared::LocalId, |writer| writer.text("local_id"));
        self.int(node.local_id.into());
        self.put(&[op::SET_ITEMS, op::BUILD]);
        self.memoize()
    }

    fn time(&mut self, time: WallTime) {
        self.shared(Shared::TimeClass, |writer| writer.class(Shared::DateTime, "datetime", "datetime"));
        let stamp = time.to_stamp();
        self.put(&[op::SHORT_BIN_BYTES, stamp.len() as u8]);
        self.put(&stamp);
        self.shared(Shared::Utc, |writer| {
            writer.class(Shared::DateTime, "datetime", "timezone");
            writer.class(Shared::DateTime, "datetime", "timedelta");
            (0..3).for_each(|_| writer.int(0));
            writer.put(&[op::TUPLE3, op::REDUCE, op::TUPLE1, op::REDUCE]);
        });
        self.put(&[op::TUPLE2, op::REDUCE]);
    }

    fn class(&mut self, shared: Shared, module: &str, name: &str) {
        self.shared(shared, |writer| writer.text(module));
        self.text(name);
        self.put(&[op::STACK_GLOBAL]);
    }

    // ---- memo ----

    /// Writes the thing itself the first time, and a reference from then on.
    fn shared(&mut self, thing: Shared, write: impl FnOnce(&mut Self)) {
        match self.shared[thing as usize] {
            Some(memo) => self.recall(memo),
            None => {
                write(self);
                self.shared[thing as usize] = Some(self.memoize());
            }
        }
    }

    fn memoize(&mut self) -> Memo {
        self.put(&[op::MEMOIZE]);
        self.memo += 1;
        self.memo - 1
    }

    fn recall(&mut self, memo: Memo) {
        match u8::try_from(memo) {
            Ok(memo) => self.put(&[op::BIN_GET, memo]),
            Err(_) => {
                self.put(&[op::LONG_BIN_GET]);
                self.put(&memo.to_le_bytes());
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
            // Nine bytes hold any `i64` or `u64` with its sign.
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
