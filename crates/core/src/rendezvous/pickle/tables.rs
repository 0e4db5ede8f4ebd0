//! What a stream has made that has a size of its own: dicts, sets, nodes. Each table has an end, so a stream that makes
//! more than any state needs is refused before it costs memory.

use super::item::{Entry, Item};
use crate::limits::Limits;
use crate::rendezvous::error::StateError;
use crate::rendezvous::node::NodeDesc;

/// Dicts and sets that are still being filled: a state's five, a node's one, and some more.
const OPEN_CONTAINERS: usize = 16;

pub(super) struct Tables {
    /// A dict is there until it becomes the attributes of an object.
    dicts: Vec<Option<Vec<Entry>>>,
    sets: Vec<Vec<u32>>,
    /// A node is there once it has its attributes.
    nodes: Vec<Option<NodeDesc>>,
    /// Room of the last dict that was used up, for the next one: each node needs one for a moment.
    spare: Vec<Entry>,
    open_containers: usize,
    /// Each node may be written anew in each of the four lists.
    most_objects: usize,
    most_entries: usize,
}

impl Tables {
    pub(super) fn new(limits: &Limits) -> Tables {
        Tables {
            dicts: Vec::new(),
            sets: Vec::new(),
            nodes: Vec::new(),
            spare: Vec::new(),
            open_containers: 0,
            most_objects: limits.state_nodes.saturating_mul(4).saturating_add(64),
            most_entries: limits.state_nodes.max(64),
        }
    }

    fn open_container(&mut self, held: usize, at: usize) -> Result<(), StateError> {
        bounded(held, self.most_objects, "containers", at)?;
        bounded(self.open_containers, OPEN_CONTAINERS, "containers being filled", at)?;
        self.open_containers += 1;
        Ok(())
    }

    pub(super) fn new_dict(&mut self, at: usize) -> Result<Item, StateError> {
        self.open_container(self.dicts.len(), at)?;
        self.dicts.push(Some(std::mem::take(&mut self.spare)));
        Ok(Item::Dict(self.dicts.len() as u32 - 1))
    }

    pub(super) fn new_set(&mut self, at: usize) -> Result<Item, StateError> {
        self.open_container(self.sets.len(), at)?;
        self.sets.push(Vec::new());
        Ok(Item::Set(self.sets.len() as u32 - 1))
    }

    pub(super) fn new_node(&mut self, at: usize) -> Result<Item, StateError> {
        bounded(self.nodes.len(), self.most_objects, "nodes", at)?;
        self.nodes.push(None);
        Ok(Item::Node(self.nodes.len() as u32 - 1))
    }

    /// Adds keys and values, in turn, to a dict.
    pub(super) fn fill_dict(&mut self, index: u32, items: &[Item], at: usize) -> Result<(), StateError> {
        let Some(dict) = &mut self.dicts[index as usize] else { return Err(used_up(at)) };
        bounded(
            (dict.len() + items.len() / 2).saturating_sub(1),
            self.most_entries,
            "entries of a dict",
            at,
        )?;
        let (pairs, rest) = items.as_chunks();
        if !rest.is_empty() {
            return Err(StateError::Nothing { wanted: "a value for the last key", at });
        }
        for &[key, value] in pairs {
            match key {
                Item::Text(_) => {}
                Item::Node(node) => whole(&self.nodes, node, at)?,
                found => {
                    let wanted = "a str or a node as key of a dict";
                    return Err(StateError::Unexpected { found: found.kind(), wanted, at });
                }
            }
            dict.push((key, value));
        }
        Ok(())
    }

    /// Adds members to a set.
    pub(super) fn fill_set(&mut self, index: u32, items: &[Item], at: usize) -> Result<(), StateError> {
        let set = &mut self.sets[index as usize];
        bounded((set.len() + items.len()).saturating_sub(1), self.most_entries, "members of a set", at)?;
        for item in items {
            match *item {
                Item::Node(node) => {
                    whole(&self.nodes, node, at)?;
                    set.push(node);
                }
                found => {
                    let wanted = "a node as member of a set";
                    return Err(StateError::Unexpected { found: found.kind(), wanted, at });
                }
            }
        }
        Ok(())
    }

    /// Takes a dict away, as the attributes of an object.
    pub(super) fn use_up_dict(&mut self, index: u32, at: usize) -> Result<Vec<Entry>, StateError> {
        let dict = self.dicts[index as usize].take().ok_or_else(|| used_up(at))?;
        self.open_containers -= 1;
        Ok(dict)
    }

    /// Takes back the room of a dict that was used up.
    pub(super) fn recycle(&mut self, mut entries: Vec<Entry>) {
        entries.clear();
        self.spare = entries;
    }

    /// Gives a node what it is.
    pub(super) fn finish_node(&mut self, index: u32, node: NodeDesc) {
        self.nodes[index as usize] = Some(node);
    }

    pub(super) fn dict(&self, index: u32) -> Option<&[Entry]> {
        self.dicts[index as usize].as_deref()
    }

    pub(super) fn set(&self, index: u32) -> &[u32] {
        &self.sets[index as usize]
    }

    pub(super) fn node(&self, index: u32) -> Option<&NodeDesc> {
        self.nodes[index as usize].as_ref()
    }
}

/// A node without attributes has no hash in Python, so it can't be a key or a member.
fn whole(nodes: &[Option<NodeDesc>], index: u32, at: usize) -> Result<(), StateError> {
    match nodes[index as usize] {
        Some(_) => Ok(()),
        None => Err(StateError::MissingField { object: "node", field: "addr", at }),
    }
}

/// No writer has two objects share their attributes, or changes them behind an object's back.
fn used_up(at: usize) -> StateError {
    StateError::BuiltTwice { object: "a dict of attributes", at }
}

/// Whether one more is within the limit.
pub(super) fn bounded(held: usize, limit: usize, what: &'static str, at: usize) -> Result<(), StateError> {
    if held < limit { Ok(()) } else { Err(StateError::Excess { what, limit, at }) }
}
