//! Converts the attributes that [`Reader`] has read into nodes and states.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::StateError;
use super::reader::{Item, Reader};
use crate::error::printable;
use crate::rendezvous::state::{Extra, NodeDesc, State};
use crate::rendezvous::time::WallTime;

pub(super) fn node(reader: &Reader<'_>, attributes: &[Item<'_>]) -> Result<NodeDesc, StateError> {
    let mut object = Object::new("node", reader, attributes)?;
    let addr = object.field("addr", text)?;
    reader.check_limit(addr.len(), reader.limits.host_len, "bytes of an address")?;
    let node = NodeDesc::new(addr, object.field("pid", int)?, object.field("local_id", int)?);
    // Nodes are compared by all of their attributes, so an unknown attribute can't be ignored.
    match object.attributes.first() {
        Some((name, _)) => Err(object.unknown_attribute(name)),
        None => Ok(node),
    }
}

/// Returns the state with these attributes, and whether it has no redundancy list because an old version of torch wrote
/// it.
pub(super) fn state(reader: &Reader<'_>, attributes: &[Item<'_>]) -> Result<(State, bool), StateError> {
    let mut object = Object::new("state", reader, attributes)?;
    let is_old = object.attributes.iter().all(|(name, _)| *name != "redundancy_list");
    let state = State {
        round: object.field("round", |item| u64::try_from(int(item)?).map_err(|_| "a non-negative int"))?,
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
        extra: object.unknown_attributes()?,
    };
    Ok((state, is_old))
}

// ---- value types ----

/// The type that an attribute should have, for an error message.
type Expected = &'static str;

fn int(item: Item<'_>) -> Result<i64, Expected> {
    if let Item::Int(value) = item { Ok(value) } else { Err("an int") }
}

fn bool(item: Item<'_>) -> Result<bool, Expected> {
    if let Item::Bool(value) = item { Ok(value) } else { Err("a bool") }
}

fn text(item: Item<'_>) -> Result<&str, Expected> {
    if let Item::Text(value) = item { Ok(value) } else { Err("a str") }
}

fn time(item: Item<'_>) -> Result<WallTime, Expected> {
    if let Item::Time(value) = item { Ok(value) } else { Err("a datetime") }
}

/// An object under construction.
struct Object<'r, 'a> {
    name: &'static str,
    reader: &'r Reader<'a>,
    /// The attributes that have not been read yet.
    attributes: Vec<(&'a str, Item<'a>)>,
}

impl<'r, 'a> Object<'r, 'a> {
    /// Creates an object from `attributes`, in which names and values alternate.
    fn new(name: &'static str, reader: &'r Reader<'a>, attributes: &[Item<'a>]) -> Result<Self, StateError> {
        let named = |[name, value]: &[Item<'a>; 2]| match name {
            Item::Text(name) => Ok((*name, *value)),
            _ => Err(reader.malformed("an attribute without a name")),
        };
        let attributes = attributes.as_chunks().0.iter().map(named).collect::<Result<_, _>>()?;
        Ok(Object { name, reader, attributes })
    }

    /// Removes the attribute with this name and returns its value. If there are several, the last one counts, as in
    /// Python.
    fn take(&mut self, field: &str) -> Option<Item<'a>> {
        self.attributes.extract_if(.., |(name, _)| *name == field).last().map(|(_, value)| value)
    }

    fn field<T>(
        &mut self,
        field: &str,
        read: impl FnOnce(Item<'a>) -> Result<T, Expected>,
    ) -> Result<T, StateError> {
        match self.take(field) {
            Some(item) => read(item).map_err(|expected| self.wrong_kind(field, expected)),
            None => Err(self.reader.malformed(format!("{} without {field}", self.name))),
        }
    }

    fn dict<V>(
        &mut self,
        field: &str,
        read: impl Fn(Item<'a>) -> Result<V, Expected>,
    ) -> Result<BTreeMap<NodeDesc, V>, StateError> {
        let items = self.items(field, true)?;
        let entry = |[key, value]: &[Item<'a>; 2]| Ok((self.node(*key)?, read(*value)?));
        let entries = items.as_chunks().0.iter().map(entry);
        entries.collect::<Result<_, _>>().map_err(|expected| self.wrong_entry(field, expected))
    }

    fn set(&mut self, field: &str) -> Result<BTreeSet<NodeDesc>, StateError> {
        let nodes = self.items(field, false)?.iter().map(|item| self.node(*item));
        nodes.collect::<Result<_, _>>().map_err(|expected| self.wrong_entry(field, expected))
    }

    /// Returns the keys and values of a dict of nodes, or the members of a set of nodes.
    fn items(&mut self, field: &str, is_dict: bool) -> Result<&'r [Item<'a>], StateError> {
        let (index, step) = self.field(field, |item| match item {
            Item::Dict(index) if is_dict => Ok((index, 2)),
            Item::Set(index) if !is_dict => Ok((index, 1)),
            _ => Err(if is_dict { "a dict" } else { "a set" }),
        })?;
        let items = self.reader.containers[index].as_deref();
        let items = items.ok_or_else(|| self.wrong_kind(field, "a dict, but the attributes of an object"))?;
        self.reader.check_limit(items.len() / step, self.reader.limits.state_nodes, "nodes in a list")?;
        Ok(items)
    }

    fn node(&self, item: Item<'a>) -> Result<NodeDesc, Expected> {
        match item {
            Item::Node(index) => self.reader.nodes[index].clone().ok_or("a complete node"),
            _ => Err("a node"),
        }
    }

    /// Returns the attributes that have not been read, as [`State::extra`].
    fn unknown_attributes(self) -> Result<BTreeMap<Arc<str>, Extra>, StateError> {
        let (mut extra, mut bytes) = (BTreeMap::new(), 0);
        for (name, value) in &self.attributes {
            bytes += name.len() + text(*value).map_or(0, str::len);
            self.reader.check_limit(bytes, self.reader.limits.state_extra, "bytes of unknown attributes")?;
            let value = match *value {
                Item::None => Extra::None,
                Item::Bool(value) => Extra::Bool(value),
                Item::Int(value) => Extra::Int(value),
                Item::Text(value) => Extra::Text(value.into()),
                Item::Time(value) => Extra::Time(value),
                _ => return Err(self.unknown_attribute(name)),
            };
            extra.insert((*name).into(), value);
        }
        Ok(extra)
    }

    fn wrong_kind(&self, field: &str, expected: Expected) -> StateError {
        self.reader.malformed(format!("{field} of {} that is not {expected}", self.name))
    }

    fn wrong_entry(&self, field: &str, expected: Expected) -> StateError {
        self.reader.malformed(format!("an entry of {field} that is not {expected}"))
    }

    fn unknown_attribute(&self, name: &str) -> StateError {
        let name = printable(name.as_bytes());
        self.reader.malformed(format!("unknown attribute {name} of {} that can't be preserved", self.name))
    }
}
