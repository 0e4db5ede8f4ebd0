//! Who takes part in a rendezvous: torch's node descriptor. It says nothing of ranks, which only a round gives.

use std::fmt;
use std::sync::Arc;

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
    fn nodes_are_ordered_by_code_points_of_the_address_then_by_numbers() {
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
    fn a_node_reads_as_torch_writes_it() {
        let node = NodeDesc::new("host-a.example", 4242, 1);
        assert_eq!(node.to_string(), "host-a.example_4242_1");
        assert_eq!(format!("{node:?}"), "host-a.example_4242_1");
    }

    #[test]
    fn an_address_cannot_break_a_line_of_a_log() {
        assert_eq!(format!("{:?}", NodeDesc::new("a\nb", 1, 0)), "a\\nb_1_0");
    }
}
