//! What the membership of a rendezvous means for a node whose workers run in a round: whether it has to start over.

use std::time::Duration;

use super::order::Reason;
use crate::rendezvous::{LossCause, Membership, MonoTime};

/// What the nodes of a round have reported about their work, beside the rendezvous.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reports {
    /// How many nodes have finished. Nodes of torch's report nothing else.
    pub finished: u64,
    /// How many nodes of ours have finished.
    pub ours_finished: u64,
    /// How many of the nodes that are lost have reported under their own name that they have finished.
    pub lost_finished: u64,
}

impl Reports {
    /// Returns how many nodes are lost that had not finished. Nodes of torch's send no heartbeats while they wait for the others to
    /// finish, so that they seem dead; they are only counted. As many of the lost nodes have finished as were counted and are
    /// not ours.
    pub(super) fn unfinished(&self, seen: &Membership) -> u64 {
        let lost = seen.lost.as_ref().map_or(0, |lost| lost.nodes.len() as u64);
        let torchs_finished = self.finished.saturating_sub(self.ours_finished);
        lost.saturating_sub(self.lost_finished).saturating_sub(torchs_finished)
    }
}

/// What a node has seen of the other nodes of its round.
#[derive(Debug, Clone, Default)]
pub(super) struct Peers {
    /// Since when nodes are lost that had not finished.
    lost_since: Option<MonoTime>,
    /// How many lost nodes have been reported.
    pub(super) reported_lost: usize,
}

impl Peers {
    /// How long a node that left its round may take to come back. A node that starts over leaves before it waits, and a
    /// membership is up to one second old.
    const RETURN_GRACE: Duration = Duration::from_millis(1200);

    /// Returns why this node has to start over, if it has to. `reports` is `None` if the round's store did not answer: what
    /// it does not tell now, it tells next time.
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
            // Nodes of ours would have announced that they restart.
            _ if have_only_returned(seen) && !are_all_ours => Some(Reason::PeerRestarts),
            _ if seen.is_round_over => Some(Reason::RoundOver),
            waiting => Some(Reason::NodesWaiting(waiting)),
        }
    }

    /// Nodes are lost if they were missing before and either can't come back or have not come back in time. A node that was
    /// missing only once may have finished while the reports were read.
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

/// Whether nodes have left the round only to come back, and no other node waits.
fn have_only_returned(seen: &Membership) -> bool {
    !seen.rejoining.is_empty() && seen.lost.is_none() && seen.rejoining.len() == seen.waiting.len()
}

#[cfg(test)]
mod tests;
