//! What a node and a state are made of: attributes in, the object out. It knows no opcodes.

use std::collections::{BTreeMap, BTreeSet};

use super::reader::{Item, Reader, within};
use crate::error::printable;
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

pub(super) fn node(reader: &Reader<'_>, attributes: &[Item<'_>]) -> Result<NodeDesc, StateError> {
    let object = Object { name: "node", attributes, reader };
    // Nodes are compared by all they are made of, so a part we don't know can't be passed over.
    if let Some((name, value)) = object.others(&NODE_FIELDS).next() {
        return Err(object.unknown(name, value));
    }
    let addr = object.field("addr", text)?;
    within(addr.len(), reader.limits.host_len, "bytes of an address", reader.at)?;
    Ok(NodeDesc::new(addr, object.field("pid", int)?, object.field("local_id", int)?))
}

/// Returns the state with these attributes, and whether a torch without a redundancy list has written it.
pub(super) fn state(reader: &Reader<'_>, attributes: &[Item<'_>]) -> Result<(State, bool), StateError> {
    let object = Object { name: "state", attributes, reader };
    let is_old = object.find("redundancy_list").is_none();
    let state = State {
        round: object.field("round", |item| u64::try_from(int(item)?).map_err(|_| "an int from 0 on"))?,
        complete: object.field("complete", bool)?,
        deadline: object.field("deadline", |item| match item {
            Item::None => Ok(None),
            item => time(item).map(Some),
        })?,
        closed: object.field("closed", bool)?,
        participants: object.dict("participants", int)?,
        wait_list: object.set("wait_list")?,
        redundancy_list: if is_old { BTreeSet::new() } else { object.set("redundancy_list")? },
        last_heartbeats: object.dict("last_heartbeats", time)?,
        extra: object.extra()?,
    };
    Ok((state, is_old))
}

// ---- the kinds of values; an error is the kind that was wanted ----

type Wanted = &'static str;

fn int(item: Item<'_>) -> Result<i64, Wanted> {
    if let Item::Int(value) = item { Ok(value) } else { Err("an int") }
}

fn bool(item: Item<'_>) -> Result<bool, Wanted> {
    if let Item::Bool(value) = item { Ok(value) } else { Err("a bool") }
}

fn text(item: Item<'_>) -> Result<&str, Wanted> {
    if let Item::Text(value) = item { Ok(value) } else { Err("a str") }
}

fn time(item: Item<'_>) -> Result<WallTime, Wanted> {
    if let Item::Time(value) = item { Ok(value) } else { Err("a datetime") }
}

/// An object that is being put together.
struct Object<'r, 'a> {
    name: &'static str,
    attributes: &'r [Item<'a>],
    reader: &'r Reader<'a>,
}

impl<'r, 'a> Object<'r, 'a> {
    fn pairs(&self) -> impl DoubleEndedIterator<Item = (Item<'a>, Item<'a>)> + use<'r, 'a> {
        self.attributes.as_chunks().0.iter().map(|[key, value]| (*key, *value))
    }

    /// The attributes that are none of these.
    fn others(&self, known: &'static [&str]) -> impl Iterator<Item = (Item<'a>, Item<'a>)> + use<'r, 'a> {
        self.pairs().filter(|(key, _)| !matches!(key, Item::Text(name) if known.contains(name)))
    }

    /// As in Python, the later of two attributes with the same name counts.
    fn find(&self, field: &str) -> Option<Item<'a>> {
        self.pairs()
            .rfind(|(key, _)| matches!(key, Item::Text(name) if *name == field))
            .map(|(_, value)| value)
    }

    fn field<T>(
        &self,
        field: &'static str,
        read: impl FnOnce(Item<'a>) -> Result<T, Wanted>,
    ) -> Result<T, StateError> {
        let missing = StateError::MissingField { object: self.name, field, at: self.reader.at };
        self.read(field, self.find(field).ok_or(missing)?, read)
    }

    /// Reads an attribute, or an entry of one.
    fn read<T>(
        &self,
        field: &'static str,
        item: Item<'a>,
        read: impl FnOnce(Item<'a>) -> Result<T, Wanted>,
    ) -> Result<T, StateError> {
        let (object, found, at) = (self.name, item.kind(), self.reader.at);
        read(item).map_err(|wanted| StateError::WrongField { object, field, found, wanted, at })
    }

    fn dict<V>(
        &self,
        field: &'static str,
        value: impl Fn(Item<'a>) -> Result<V, Wanted>,
    ) -> Result<BTreeMap<NodeDesc, V>, StateError> {
        let items = self.field(field, |item| match item {
            Item::Dict(index) => self.reader.containers.items[index].as_deref().ok_or("a dict of its own"),
            _ => Err("a dict"),
        })?;
        let entries = items.as_chunks().0.iter();
        let entries =
            entries.map(|[key, held]| Ok((self.node(field, *key)?, self.read(field, *held, &value)?)));
        let nodes: BTreeMap<_, _> = entries.collect::<Result<_, _>>()?;
        self.within_limit(nodes.len())?;
        Ok(nodes)
    }

    fn set(&self, field: &'static str) -> Result<BTreeSet<NodeDesc>, StateError> {
        let items = self.field(field, |item| match item {
            Item::Set(index) => self.reader.containers.items[index].as_deref().ok_or("a set of its own"),
            _ => Err("a set"),
        })?;
        let nodes: BTreeSet<_> =
            items.iter().map(|item| self.node(field, *item)).collect::<Result<_, _>>()?;
        self.within_limit(nodes.len())?;
        Ok(nodes)
    }

    fn node(&self, field: &'static str, item: Item<'a>) -> Result<NodeDesc, StateError> {
        self.read(field, item, |item| match item {
            Item::Node(index) => self.reader.nodes.items[index].clone().ok_or("a whole node"),
            _ => Err("a node"),
        })
    }

    fn within_limit(&self, nodes: usize) -> Result<(), StateError> {
        within(nodes, self.reader.limits.state_nodes, "nodes in a list", self.reader.at)
    }

    fn extra(&self) -> Result<BTreeMap<std::sync::Arc<str>, Extra>, StateError> {
        let (mut extra, mut bytes) = (BTreeMap::new(), 0);
        for (key, value) in self.others(&STATE_FIELDS) {
            let Item::Text(name) = key else { return Err(self.unknown(key, value)) };
            bytes += name.len() + text(value).map_or(0, str::len);
            within(bytes, self.reader.limits.state_extra, "bytes of unknown attributes", self.reader.at)?;
            let value = match value {
                Item::None => Extra::None,
                Item::Bool(value) => Extra::Bool(value),
                Item::Int(value) => Extra::Int(value),
                Item::Text(value) => Extra::Text(value.into()),
                Item::Time(value) => Extra::Time(value),
                value => return Err(self.unknown(key, value)),
            };
            extra.insert(name.into(), value);
        }
        Ok(extra)
    }

    fn unknown(&self, name: Item<'_>, value: Item<'_>) -> StateError {
        let field = text(name).map_or_else(|_| name.kind().to_owned(), |name| printable(name.as_bytes()));
        StateError::UnknownField { object: self.name, field, found: value.kind(), at: self.reader.at }
    }
}
