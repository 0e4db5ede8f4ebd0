//! The state that all nodes of a rendezvous share, and torch's node descriptor. What they come to is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::time::WallTime;

/// What the nodes of a rendezvous know of each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The current round. Counted up from 0 and never down, so one below 0 is refused when it is read.
    pub round: u64,
    /// Whether the round is closed to new participants, so that ranks are valid.
    pub complete: bool,
    /// When the last call of an incomplete round ends.
    pub deadline: Option<WallTime>,
    /// Whether the rendezvous has ended for good.
    pub closed: bool,
    /// Who takes part in the round, with the rank of each (0 until it is complete).
    pub participants: BTreeMap<NodeDesc, i64>,
    /// Who wants to be in the next round.
    pub wait_list: BTreeSet<NodeDesc>,
    /// The spares: who came when the round was full.
    pub redundancy_list: BTreeSet<NodeDesc>,
    /// When each node last showed that it lives, by its own clock.
    pub last_heartbeats: BTreeMap<NodeDesc, WallTime>,
    /// Attributes that we don't know, by name. A later torch may add some; its nodes would miss them if we left them
    /// out when we write.
    pub extra: BTreeMap<Arc<str>, Extra>,
}

/// The value of an attribute we don't know: only what can mean nothing but itself is kept.
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

/// One agent: where it runs, which process it is, which of that process' handlers.
///
/// The order is torch's and decides ranks, so it must not change: by address (code point by code point, so `node10`
/// comes before `node2`), then process id, then local id. A clone shares the address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeDesc {
    /// The name or address under which the others reach it.
    pub addr: Arc<str>,
    /// The id of its process.
    pub pid: i64,
    /// Which of the handlers of that process, counted from 0.
    pub local_id: i64,
}

impl NodeDesc {
    /// The node with these three.
    pub fn new(addr: impl Into<Arc<str>>, pid: i64, local_id: i64) -> NodeDesc {
        NodeDesc { addr: addr.into(), pid, local_id }
    }
}

/// Torch's text form.
impl fmt::Display for NodeDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr, self.pid, self.local_id)
    }
}

/// As it is displayed, but safe for a line of a log: the address comes from a peer.
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
            // In UTF-16 these two would be the other way round.
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
