//! A state as CPython's pickler writes it, thing by thing, memo entry by memo entry. It checks nothing: reading back
//! does.

use std::collections::{BTreeMap, BTreeSet};

use super::build::{NODE_FIELDS, STATE_FIELDS};
use super::opcode::{self as op, Global};
use super::output::{Memo, Output};
use super::seen::{Seen, Sighting};
use crate::rendezvous::node::NodeDesc;
use crate::rendezvous::state::{Extra, State};
use crate::rendezvous::time::WallTime;

/// About what one node takes with its heartbeat.
const BYTES_PER_NODE: usize = 120;

/// The bytes of `state`.
pub(super) fn write(state: &State) -> Vec<u8> {
    let nodes = state.last_heartbeats.len().max(state.participants.len());
    let mut writer = Writer {
        out: Output::new(512 + nodes * BYTES_PER_NODE),
        seen: Seen::default(),
        node_names: None,
        time_names: None,
    };
    writer.state(state);
    writer.out.finish()
}

/// What all nodes share, once the first is written.
#[derive(Clone, Copy)]
struct NodeNames {
    class: Memo,
    fields: [Memo; 3],
}

/// What all times share, once the first is written.
#[derive(Clone, Copy)]
struct TimeNames {
    class: Memo,
    utc: Memo,
}

struct Writer<'a> {
    out: Output,
    seen: Seen<'a>,
    node_names: Option<NodeNames>,
    time_names: Option<TimeNames>,
}

/// The module of torch's classes is the first thing written.
const TORCH_MODULE: Memo = 0;

impl<'a> Writer<'a> {
    // ---- lists ----

    fn dict<V>(&mut self, nodes: &'a BTreeMap<NodeDesc, V>, value: impl Fn(&mut Self, &'a V)) {
        self.out.value(op::EMPTY_DICT);
        self.out.memoize();
        self.seen.begin();
        let entry = |writer: &mut Self, (node, held)| {
            writer.node(node);
            value(writer, held);
        };
        if nodes.len() == 1 {
            nodes.iter().for_each(|only| entry(self, only));
            self.out.op(op::SET_ITEM);
        } else {
            self.batches(nodes.iter(), op::SET_ITEMS, entry);
        }
    }

    fn set(&mut self, nodes: &'a BTreeSet<NodeDesc>) {
        self.out.value(op::EMPTY_SET);
        self.out.memoize();
        self.seen.begin();
        self.batches(nodes.iter(), op::ADD_ITEMS, Self::node);
    }

    /// A full batch is always followed by another, even by an empty one: that is how CPython learns that it was the
    /// last.
    fn batches<E>(
        &mut self,
        mut entries: impl ExactSizeIterator<Item = E>,
        finish: u8,
        write: impl Fn(&mut Self, E),
    ) {
        let mut more = entries.len() > 0;
        while more {
            more = entries.len() >= op::BATCH;
            self.out.op(op::MARK);
            entries.by_ref().take(op::BATCH).for_each(|entry| write(self, entry));
            self.out.op(finish);
        }
    }

    // ---- what a state is made of ----

    fn state(&mut self, state: &'a State) {
        self.out.text(op::TORCH);
        self.out.class_name(Global::State);
        self.out.new_object();
        self.attributes(state);
        self.out.op(op::BUILD);
    }

    /// All in one batch, of whatever size.
    fn attributes(&mut self, state: &'a State) {
        let [round, complete, deadline, closed, participants, wait_list, redundancy_list, last_heartbeats] =
            STATE_FIELDS;
        self.out.value(op::EMPTY_DICT);
        self.out.memoize();
        self.out.op(op::MARK);
        self.out.text(round);
        match i64::try_from(state.round) {
            Ok(round) => self.out.int(round),
            Err(_) => self.out.long(state.round.into()),
        }
        self.out.text(complete);
        self.out.bool(state.complete);
        self.out.text(deadline);
        match state.deadline {
            Some(deadline) => self.time(deadline),
            None => self.out.value(op::NONE),
        }
        self.out.text(closed);
        self.out.bool(state.closed);
        self.out.text(participants);
        self.dict(&state.participants, |writer, rank| writer.out.int(*rank));
        self.out.text(wait_list);
        self.set(&state.wait_list);
        self.out.text(redundancy_list);
        self.set(&state.redundancy_list);
        self.out.text(last_heartbeats);
        self.dict(&state.last_heartbeats, |writer, time| writer.time(*time));
        for (name, value) in &state.extra {
            self.out.text(name);
            self.extra(value);
        }
        self.out.op(op::SET_ITEMS);
    }

    fn extra(&mut self, value: &Extra) {
        match value {
            Extra::None => self.out.value(op::NONE),
            Extra::Bool(value) => self.out.bool(*value),
            Extra::Int(value) => self.out.int(*value),
            Extra::Text(value) => {
                self.out.text(value);
            }
            Extra::Time(value) => self.time(*value),
        }
    }

    fn node(&mut self, node: &'a NodeDesc) {
        let addr = match self.seen.find(node) {
            Sighting::Node(memo) => return self.out.recall(memo),
            Sighting::Addr(memo) => Some(memo),
            Sighting::New => None,
        };
        let known = self.node_names;
        let class = match known {
            Some(names) => self.out.recalled(names.class),
            None => self.out.class_in(TORCH_MODULE, Global::Node),
        };
        let object = self.out.new_object();
        self.out.value(op::EMPTY_DICT);
        self.out.memoize();
        self.out.op(op::MARK);
        let [addr_name, pid_name, local_id_name] = NODE_FIELDS;
        let [known_addr, known_pid, known_local_id] = known.map_or([None; 3], |names| names.fields.map(Some));
        let addr_name = self.out.text_or_recall(addr_name, known_addr);
        let addr = self.out.text_or_recall(&node.addr, addr);
        let pid_name = self.out.text_or_recall(pid_name, known_pid);
        self.out.int(node.pid);
        let local_id_name = self.out.text_or_recall(local_id_name, known_local_id);
        self.out.int(node.local_id);
        self.out.op(op::SET_ITEMS);
        self.out.op(op::BUILD);
        self.node_names = Some(NodeNames { class, fields: [addr_name, pid_name, local_id_name] });
        self.seen.remember(node, object, addr);
    }

    /// Always a new one: two nodes may have the same moment, but never the same Python object.
    fn time(&mut self, time: WallTime) {
        let stamp = time.to_stamp();
        let names = match self.time_names {
            Some(names) => {
                self.out.recall(names.class);
                self.out.stamp(stamp);
                self.out.recall(names.utc);
                names
            }
            None => {
                let module = self.out.text(op::DATETIME);
                let class = self.out.class_name(Global::DateTime);
                self.out.stamp(stamp);
                TimeNames { class, utc: self.utc(module) }
            }
        };
        self.out.call(op::TUPLE2);
        self.time_names = Some(names);
    }

    fn utc(&mut self, datetime_module: Memo) -> Memo {
        self.out.class_in(datetime_module, Global::TimeZone);
        self.out.class_in(datetime_module, Global::TimeDelta);
        (0..3).for_each(|_| self.out.int(0));
        self.out.call(op::TUPLE3);
        self.out.call(op::TUPLE1)
    }
}
