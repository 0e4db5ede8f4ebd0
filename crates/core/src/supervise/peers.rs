//! Decides from the membership of a rendezvous whether a node has to rejoin.

use std::time::Duration;

use super::order::Reason;
use crate::rendezvous::{LossCause, Membership, MonoTime};

/// What the nodes of a round have reported in the store of the round.
///
/// A node counts as finished when none of its workers runs any more. That includes nodes without workers, and nodes of
/// `rallypoint join` whose command has failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reports {
    /// The number of nodes that have finished, including torch nodes.
    pub finished: u64,
    /// The number of nodes of ours that have finished.
    pub ours_finished: u64,
    /// The number of lost nodes that have reported under their own name that they have finished.
    pub lost_finished: u64,
}

impl Reports {
    /// Returns the number of lost nodes that had not finished.
    ///
    /// A torch node that has finished writes no heartbeats while it waits for the other nodes, so it seems lost. It
    /// increments a counter but does not report its name. So for each finished torch node, one lost node counts as
    /// finished.
    pub(super) fn unfinished(&self, seen: &Membership) -> u64 {
        let lost = seen.lost.as_ref().map_or(0, |lost| lost.nodes.len() as u64);
        let torch_finished = self.finished.saturating_sub(self.ours_finished);
        lost.saturating_sub(self.lost_finished).saturating_sub(torch_finished)
    }
}

/// What a node has observed about the other nodes of its round.
#[derive(Debug, Clone, Default)]
pub(super) struct Peers {
    /// When lost nodes that had not finished were first observed. `None` if the last observation showed none.
    lost_since: Option<MonoTime>,
    /// The number of lost nodes at the last call of `Supervisor::report_lost`.
    pub(super) reported_lost: usize,
}

impl Peers {
    /// How long a node that left its round may take to appear on the wait list. A torch node leaves the round with one
    /// write and adds itself to the wait list with another, and a membership is up to 1 s old.
    const RETURN_GRACE: Duration = Duration::from_millis(1200);

    /// Returns why this node has to rejoin, or `None` if it does not have to.
    ///
    /// If `reports` is `None`, this call ignores lost nodes, because it can't know whether they had finished. Later
    /// calls with reports return them as a reason.
    pub(super) fn reason_to_reform(
        &mut self,
        seen: &Membership,
        reports: Option<&Reports>,
        are_all_ours: bool,
        now: MonoTime,
    ) -> Option<Reason> {
        let lost = reports.map_or(0, |reports| reports.unfinished(seen));
        match seen.num_nodes_waiting() {
            0 => self.confirm_lost(seen, lost, now),
            _ if seen.is_dropped => Some(Reason::Dropped),
            // All waiting nodes are nodes of this round that rejoin, so their workers have failed. Torch nodes do not
            // publish that they restart. If all nodes were ours, the failed node would have published its failure.
            _ if only_rejoining_nodes_wait(seen) && !are_all_ours => Some(Reason::PeerRestarts),
            _ if seen.is_round_over => Some(Reason::RoundOver),
            waiting => Some(Reason::NodesWaiting(waiting)),
        }
    }

    /// Returns a reason to rejoin if nodes are lost for good. `lost` is the number of lost nodes that had not finished.
    ///
    /// Two observations in a row must show lost nodes, because the membership and the reports are read one after the
    /// other, and a node may have finished in between. In addition, either a node has recorded that it left, or
    /// `RETURN_GRACE` has passed since lost nodes were first observed.
    pub(super) fn confirm_lost(&mut self, seen: &Membership, lost: u64, now: MonoTime) -> Option<Reason> {
        if lost == 0 {
            self.lost_since = None;
            return None;
        }
        let Some(since) = self.lost_since else {
            self.lost_since = Some(now);
            return None;
        };
        let is_final = seen.lost.as_ref().is_some_and(|lost| lost.cause == LossCause::Left);
        (is_final || now.since(since) >= Peers::RETURN_GRACE).then_some(Reason::NodesLeft(lost))
    }
}

/// Returns whether all waiting nodes are rejoining nodes of the round, and no node is lost.
fn only_rejoining_nodes_wait(seen: &Membership) -> bool {
    !seen.rejoining.is_empty() && seen.lost.is_none() && seen.rejoining.len() == seen.waiting.len()
}

#[cfg(test)]
mod tests;
