//! The state that all nodes of a rendezvous share: torch's eight fields. It holds them; what they come to is decided
//! elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::node::NodeDesc;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_begins_as_torchs_does() {
        assert_eq!(
            format!("{:?}", State::default()),
            "State { round: 0, complete: false, deadline: None, closed: false, participants: {}, \
             wait_list: {}, redundancy_list: {}, last_heartbeats: {}, extra: {} }"
        );
    }

    #[test]
    fn a_state_prints_on_one_line_whatever_is_in_it() {
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
}
