//! What a node and a state are made of: attributes in, the object out. It reads no bytes and knows no opcodes.

use std::collections::{BTreeMap, BTreeSet};

use super::input::Input;
use super::item::{Entry, Item, Span};
use super::tables::Tables;
use crate::error::printable;
use crate::limits::Limits;
use crate::rendezvous::error::StateError;
use crate::rendezvous::node::NodeDesc;
use crate::rendezvous::state::{Extra, State};
use crate::rendezvous::time::WallTime;

/// The names of a node's attributes, in torch's order.
pub(super) const NODE_FIELDS: [&str; 3] = ["addr", "pid", "local_id"];
/// The names of a state's attributes, in torch's order.
pub(super) const STATE_FIELDS: [&str; 8] = [
    "round",
    "complete",
    "deadline",
    "closed",
    "participants",
    "wait_list",
    "redundancy_list",
    "last_heartbeats",
];
/// The attributes that every state has. Torch 2.2 has no redundancy list.
const REQUIRED_STATE_FIELDS: [&str; 7] =
    ["round", "complete", "deadline", "closed", "participants", "wait_list", "last_heartbeats"];
const REDUNDANCY_LIST: &str = "redundancy_list";

pub(super) fn node(input: &Input<'_>, limits: &Limits, attributes: &[Entry]) -> Result<NodeDesc, StateError> {
    let object = Object { input, name: "node" };
    let [addr, pid, local_id] = object.fields(NODE_FIELDS, attributes, |name, value| {
        // Nodes are compared by all they are made of, so a part we don't know can't be passed over.
        Err(object.unknown(name, value))
    })?;
    let addr = match addr {
        Item::Text(addr) if addr.len as usize <= limits.host_len => input.str_of(addr).into(),
        Item::Text(addr) => {
            let (len, limit) = (addr.len as usize, limits.host_len);
            return Err(StateError::HostTooLong { len, limit, at: input.at });
        }
        found => return Err(object.wrong("addr", found.kind(), "a str")),
    };
    Ok(NodeDesc { addr, pid: object.int("pid", pid)?, local_id: object.int("local_id", local_id)? })
}

/// Returns the state with these attributes, and whether a torch without a redundancy list has written it.
pub(super) fn state(
    input: &Input<'_>,
    tables: &Tables,
    limits: &Limits,
    attributes: &[Entry],
) -> Result<(State, bool), StateError> {
    let object = Object { input, name: "state" };
    let lists = Lists { object, tables, limits };
    let (mut extra, mut extra_bytes) = (BTreeMap::new(), 0usize);
    let mut redundancy_list = None;
    let [round, complete, deadline, closed, participants, wait_list, last_heartbeats] =
        object.fields(REQUIRED_STATE_FIELDS, attributes, |name, value| {
            if input.bytes_of(name) == REDUNDANCY_LIST.as_bytes() {
                redundancy_list = Some(value);
                return Ok(());
            }
            let text = if let Item::Text(text) = value { text.len as usize } else { 0 };
            extra_bytes = extra_bytes.saturating_add(name.len as usize).saturating_add(text);
            if extra_bytes > limits.state_extra {
                let what = "bytes of unknown attributes";
                return Err(StateError::Excess { what, limit: limits.state_extra, at: input.at });
            }
            let value = match value {
                Item::None => Extra::None,
                Item::Bool(value) => Extra::Bool(value),
                Item::Int(value) => Extra::Int(value),
                Item::Text(value) => Extra::Text(input.str_of(value).into()),
                Item::Time(value) => Extra::Time(value),
                value => return Err(object.unknown(name, value)),
            };
            extra.insert(input.str_of(name).into(), value);
            Ok(())
        })?;
    let round = object.int("round", round)?;
    let state = State {
        round: u64::try_from(round)
            .map_err(|_| object.wrong("round", "an int below 0", "an int from 0 on"))?,
        complete: object.bool("complete", complete)?,
        deadline: match deadline {
            Item::None => None,
            deadline => Some(object.time("deadline", deadline)?),
        },
        closed: object.bool("closed", closed)?,
        participants: lists.map("participants", participants, Object::int)?,
        wait_list: lists.set("wait_list", wait_list)?,
        redundancy_list: match redundancy_list {
            Some(list) => lists.set(REDUNDANCY_LIST, list)?,
            None => BTreeSet::new(),
        },
        last_heartbeats: lists.map("last_heartbeats", last_heartbeats, Object::time)?,
        extra,
    };
    Ok((state, redundancy_list.is_none()))
}

/// An object that is being put together.
#[derive(Clone, Copy)]
struct Object<'r, 'a> {
    input: &'r Input<'a>,
    name: &'static str,
}

impl Object<'_, '_> {
    /// The values of the attributes of these names, all of which must be there. Others go to `unknown`.
    fn fields<const N: usize>(
        self,
        names: [&'static str; N],
        attributes: &[Entry],
        mut unknown: impl FnMut(Span, Item) -> Result<(), StateError>,
    ) -> Result<[Item; N], StateError> {
        let mut values = [None; N];
        for (key, value) in attributes {
            let Item::Text(key) = *key else {
                return Err(StateError::Unexpected {
                    found: key.kind(),
                    wanted: "the name of an attribute",
                    at: self.input.at,
                });
            };
            let name = self.input.bytes_of(key);
            match names.iter().position(|known| known.as_bytes() == name) {
                Some(index) => values[index] = Some(*value),
                None => unknown(key, *value)?,
            }
        }
        if let Some(index) = values.iter().position(Option::is_none) {
            return Err(StateError::MissingField {
                object: self.name,
                field: names[index],
                at: self.input.at,
            });
        }
        Ok(values.map(|value| value.expect("none is missing")))
    }

    fn wrong(self, field: &'static str, found: &'static str, wanted: &'static str) -> StateError {
        StateError::WrongField { object: self.name, field, found, wanted, at: self.input.at }
    }

    fn unknown(self, name: Span, value: Item) -> StateError {
        StateError::UnknownField {
            object: self.name,
            field: printable(self.input.bytes_of(name)),
            found: value.kind(),
            at: self.input.at,
        }
    }

    fn int(self, field: &'static str, value: Item) -> Result<i64, StateError> {
        match value {
            Item::Int(value) => Ok(value),
            found => Err(self.wrong(field, found.kind(), "an int")),
        }
    }

    fn bool(self, field: &'static str, value: Item) -> Result<bool, StateError> {
        match value {
            Item::Bool(value) => Ok(value),
            found => Err(self.wrong(field, found.kind(), "a bool")),
        }
    }

    fn time(self, field: &'static str, value: Item) -> Result<WallTime, StateError> {
        match value {
            Item::Time(value) => Ok(value),
            found => Err(self.wrong(field, found.kind(), "a datetime")),
        }
    }
}

/// The lists of the state that is being put together.
struct Lists<'r, 'a> {
    object: Object<'r, 'a>,
    tables: &'r Tables,
    limits: &'r Limits,
}

impl<'r, 'a> Lists<'r, 'a> {
    fn map<V>(
        &self,
        field: &'static str,
        value: Item,
        read: impl Fn(Object<'r, 'a>, &'static str, Item) -> Result<V, StateError>,
    ) -> Result<BTreeMap<NodeDesc, V>, StateError> {
        let entries = match value {
            Item::Dict(index) => self.tables.dict(index),
            found => return Err(self.object.wrong(field, found.kind(), "a dict")),
        };
        let Some(entries) = entries else {
            return Err(self.object.wrong(field, "the attributes of an object", "a dict of its own"));
        };
        let entry = |(key, value): &Entry| match *key {
            Item::Node(node) => Ok((self.node(node), read(self.object, field, *value)?)),
            found => Err(self.object.wrong(field, found.kind(), "a node")),
        };
        let nodes = entries.iter().map(entry).collect::<Result<BTreeMap<_, _>, _>>()?;
        self.within_limit(field, nodes.len())?;
        Ok(nodes)
    }

    fn set(&self, field: &'static str, value: Item) -> Result<BTreeSet<NodeDesc>, StateError> {
        let members = match value {
            Item::Set(index) => self.tables.set(index),
            found => return Err(self.object.wrong(field, found.kind(), "a set")),
        };
        let nodes: BTreeSet<_> = members.iter().map(|node| self.node(*node)).collect();
        self.within_limit(field, nodes.len())?;
        Ok(nodes)
    }

    fn node(&self, index: u32) -> NodeDesc {
        self.tables.node(index).expect("only whole nodes get into a container").clone()
    }

    fn within_limit(&self, field: &'static str, nodes: usize) -> Result<(), StateError> {
        let limit = self.limits.state_nodes;
        match nodes <= limit {
            true => Ok(()),
            false => Err(StateError::TooManyNodes { field, limit, at: self.object.input.at }),
        }
    }
}
