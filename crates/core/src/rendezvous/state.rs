//! The state that all nodes of a rendezvous share, and torch's node descriptor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::time::WallTime;

/// The shared state of a rendezvous.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The current round. Rounds are counted from 0, so the codec refuses a negative number.
    pub round: u64,
    /// Whether the members of the round are final, so that their group ranks are valid.
    pub complete: bool,
    /// When the last call of an open round ends, by the wall clock of the node that started the last call.
    pub deadline: Option<WallTime>,
    /// Whether the rendezvous is closed.
    pub closed: bool,
    /// The nodes of the round with their group ranks, which are 0 until the round is complete.
    pub participants: BTreeMap<NodeDesc, i64>,
    /// The nodes that wait for the next round.
    pub wait_list: BTreeSet<NodeDesc>,
    /// The spares.
    pub redundancy_list: BTreeSet<NodeDesc>,
    /// The heartbeat of each node, by the wall clock of the node that wrote it. A node of ours writes a later time if
    /// another heartbeat is ahead of its clock. It also writes a heartbeat for each node that it admits.
    pub last_heartbeats: BTreeMap<NodeDesc, WallTime>,
    /// All other attributes, by name: our own, and those that later versions of torch may add. Nodes of ours preserve
    /// attributes that they do not know.
    pub extra: BTreeMap<Arc<str>, Extra>,
}

/// The value of an attribute in [`State::extra`]. The codec refuses values of other types.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extra {
    /// Python's `None`.
    None,
    /// A `bool`.
    Bool(bool),
    /// An `int`.
    Int(i64),
    /// A `str`.
    Text(Arc<str>),
    /// A `datetime` in UTC.
    Time(WallTime),
}

/// A node: one agent, identified by address, process id and local id.
///
/// The order determines the group ranks, and must be the same as in torch: by address, compared by code points
/// (`node10` sorts before `node2`), then by process id, then by local id. A clone shares the address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeDesc {
    /// The host name or address at which other nodes reach the node.
    pub addr: Arc<str>,
    /// The process id of the agent.
    pub pid: i64,
    /// The number of the rendezvous handler in its process, counted from 0.
    pub local_id: i64,
}

impl NodeDesc {
    /// Creates a node descriptor.
    pub fn new(addr: impl Into<Arc<str>>, pid: i64, local_id: i64) -> NodeDesc {
        NodeDesc { addr: addr.into(), pid, local_id }
    }
}

/// Formats the node as torch does.
impl fmt::Display for NodeDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr, self.pid, self.local_id)
    }
}

/// Formats the node as `Display` does, with the address escaped. The address comes from a peer and may contain line
/// breaks.
impl fmt::Debug for NodeDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr.escape_debug(), self.pid, self.local_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_state_equals_the_one_of_torch() {
        assert_eq!(
            format!("{:?}", State::default()),
            "State { round: 0, complete: false, deadline: None, closed: false, participants: {}, \
             wait_list: {}, redundancy_list: {}, last_heartbeats: {}, extra: {} }"
        );
    }

    #[test]
    fn a_state_prints_on_one_line_even_with_line_breaks_in_its_texts() {
        let node = NodeDesc::new("a\nb", 1, 0);
        let state = State {
            participants: [(node.clone(), 0)].into(),
            last_heartbeats: [(node, WallTime::UNIX_EPOCH)].into(),
            extra: [("x\n".into(), Extra::Text("\r\n".into()))].into(),
            ..State::default()
        };
        let text = format!("{state:?}");
        assert!(!text.contains(['\n', '\r']), "{text}");
        assert!(text.contains("last_heartbeats: {a\\nb_1_0: 1970-01-01T00:00:00.000000Z}"), "{text}");
    }

    #[test]
    fn nodes_are_ordered_by_code_points_of_the_address_then_by_pid_and_local_id() {
        let ordered = [
            NodeDesc::new("", 9, 9),
            NodeDesc::new("10.0.0.10", 1, 0),
            NodeDesc::new("10.0.0.9", -1, 0),
            NodeDesc::new("10.0.0.9", 1, 0),
            NodeDesc::new("10.0.0.9", 1, 2),
            NodeDesc::new("10.0.0.9", 10, 0),
            NodeDesc::new("Node", 0, 0),
            NodeDesc::new("node10", 0, 0),
            NodeDesc::new("node2", 0, 0),
            NodeDesc::new("nöde", 0, 0),
            // UTF-16 would sort these two the other way around.
            NodeDesc::new("\u{ffff}", 0, 0),
            NodeDesc::new("\u{10000}", 0, 0),
        ];
        assert!(ordered.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_node_displays_as_in_torch() {
        let node = NodeDesc::new("host-a.example", 4242, 1);
        assert_eq!(node.to_string(), "host-a.example_4242_1");
        assert_eq!(format!("{node:?}"), "host-a.example_4242_1");
    }

    #[test]
    fn an_address_with_a_line_break_prints_on_one_line() {
        assert_eq!(format!("{:?}", NodeDesc::new("a\nb", 1, 0)), "a\\nb_1_0");
    }
}
