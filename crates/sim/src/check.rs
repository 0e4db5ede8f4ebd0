//! The invariants, each by its number. They look at the register and at what nodes report, never into a node's head.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{NodeDesc, State};

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its number: `R1` …
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
    /// When, in virtual time.
    pub at: Duration,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {}", self.rule, self.at.as_secs_f64(), self.what)
    }
}

/// What has been seen so far.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// The participants that nodes returned with, by round.
    returned: BTreeMap<u64, (NodeDesc, BTreeMap<NodeDesc, i64>)>,
    closed: bool,
}

/// Fails with what did not hold.
macro_rules! hold {
    ($at:expr, $rule:literal, $holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(Violation { rule: $rule, what: format!($($what)*), at: $at });
        }
    };
}

impl Checks {
    /// After a write by `writer`.
    pub(crate) fn written(
        &mut self,
        before: Option<&State>,
        after: &State,
        settings: (u64, u64),
        at: Duration,
    ) -> Result<(), Violation> {
        let (min, max) = settings;
        let have = after.participants.len() as u64;
        hold!(at, "R3", !after.complete || have <= max, "a complete round of {have} nodes, at most {max}");
        for node in after.members() {
            let lists = usize::from(after.participants.contains_key(node))
                + usize::from(after.wait_list.contains(node))
                + usize::from(after.redundancy_list.contains(node));
            hold!(at, "R5", lists == 1, "{node} is in {lists} lists");
            hold!(at, "R5", after.last_heartbeats.contains_key(node), "{node} has no heartbeat");
        }
        let called = after.deadline.is_some();
        hold!(
            at,
            "R6",
            called == (!after.complete && have >= min) || after.closed,
            "a last call: {called}, complete: {}, {have} nodes of at least {min}",
            after.complete
        );
        hold!(at, "R7", !self.closed || after.closed, "closed was unset");
        self.closed |= after.closed;
        let Some(before) = before else { return Ok(()) };
        hold!(at, "R4", after.round >= before.round, "round {} after {}", after.round, before.round);
        if before.complete && after.round == before.round {
            hold!(at, "R4", after.complete, "round {} was opened again", after.round);
            for (node, rank) in &after.participants {
                hold!(
                    at,
                    "R4",
                    before.participants.get(node) == Some(rank),
                    "{node} has rank {rank} in complete round {}, it had {:?}",
                    after.round,
                    before.participants.get(node)
                );
            }
        }
        if !before.complete && after.complete {
            hold!(at, "R3", have >= min, "round {} completed with {have} nodes, at least {min}", after.round);
            let ranks: Vec<_> = after.participants.values().copied().collect();
            let wanted: Vec<_> = (0..have as i64).collect();
            hold!(at, "R2", ranks == wanted, "ranks {ranks:?}");
        }
        Ok(())
    }

    /// A node returned from a round.
    pub(crate) fn joined(
        &mut self,
        node: &NodeDesc,
        state: &Arc<State>,
        max: u64,
        at: Duration,
    ) -> Result<(), Violation> {
        let world = state.participants.len() as u64;
        let rank = state.participants.get(node).copied();
        hold!(
            at,
            "R2",
            rank.is_some_and(|rank| (0..world as i64).contains(&rank)),
            "{node} has rank {rank:?} of {world}"
        );
        hold!(at, "R3", world <= max, "{node} is in a world of {world}, at most {max}");
        hold!(at, "R7", !state.closed, "{node} joined a closed rendezvous");
        match self.returned.get(&state.round) {
            None => {
                self.returned.insert(state.round, (node.clone(), state.participants.clone()));
            }
            Some((first, participants)) => hold!(
                at,
                "R1",
                *participants == state.participants,
                "round {}: {first} returned with {participants:?}, {node} with {:?}",
                state.round,
                state.participants
            ),
        }
        Ok(())
    }
}
