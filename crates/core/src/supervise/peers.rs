//! What the membership of a rendezvous means for a node whose workers run in a round: which events follow from it.

use std::time::Duration;

use super::event::Event;
use crate::rendezvous::{Membership, MonoTime};

/// What the nodes of a round have reported about their work, beside the rendezvous.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reports {
    /// How many nodes have finished. Nodes of torch's report nothing else.
    pub finished: u64,
    /// How many nodes of ours have finished.
    pub ours_finished: u64,
    /// How many of the nodes that are lost have reported under their own name that they have finished.
    pub lost_finished: u64,
    /// How many nodes of the round are ours.
    pub ours: u64,
}

/// What a node has seen of the other nodes of its round.
#[derive(Debug, Clone, Default)]
pub(super) struct Peers {
    /// Since when nodes are lost that had not finished.
    lost_since: Option<MonoTime>,
    /// Whether the lost nodes have been reported.
    is_reported: bool,
}

/// What follows from a membership.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) events: Vec<Event>,
    /// Whether to report the lost nodes, which happens once per round.
    pub(super) reports_lost: bool,
}

impl Peers {
    /// How long a node that left its round may take to come back. A node that starts over leaves before it waits, and a
    /// membership is up to one second old.
    const RETURN_GRACE: Duration = Duration::from_millis(1200);

    /// Returns what follows from the membership at `now`. `reports` is `None` if the round's store did not answer: what it
    /// does not tell now, it tells next time.
    pub(super) fn observe(
        &mut self,
        seen: &Membership,
        reports: Option<&Reports>,
        now: MonoTime,
    ) -> Findings {
        let lost = reports.map_or(0, |reports| unfinished(seen, reports));
        let events = match seen.num_nodes_waiting() {
            _ if seen.is_closed => {
                reports.map(|reports| Event::Closed { finished: reports.finished }).into_iter().collect()
            }
            0 => self.confirm_lost(seen, lost, now).into_iter().collect(),
            _ if seen.is_dropped => vec![Event::Dropped],
            // Nodes of ours would have reported that they restart.
            _ if have_only_returned(seen)
                && reports.is_some_and(|reports| reports.ours < seen.world_size()) =>
            {
                vec![Event::PeerRestarts]
            }
            waiting if seen.is_round_over => vec![Event::NodesWaiting(waiting), Event::RoundOver],
            waiting => vec![Event::NodesWaiting(waiting)],
        };
        let is_relevant = events
            .iter()
            .any(|event| matches!(event, Event::NodesLeft(_) | Event::NodesWaiting(_)) && lost > 0);
        let reports_lost = is_relevant && !std::mem::replace(&mut self.is_reported, is_relevant);
        Findings { events, reports_lost }
    }

    /// Nodes are lost if they were missing before and either can't come back or have not come back in time. A node that was
    /// missing only once may have finished while the reports were read.
    pub(super) fn confirm_lost(&mut self, seen: &Membership, lost: u64, now: MonoTime) -> Option<Event> {
        if lost == 0 {
            self.lost_since = None;
            return None;
        }
        let Some(since) = self.lost_since else {
            self.lost_since = Some(now);
            return None;
        };
        let is_final = seen.lost.as_ref().is_some_and(|lost| lost.is_final);
        (is_final || now.since(since) >= Peers::RETURN_GRACE).then_some(Event::NodesLeft(lost))
    }
}

/// How many nodes are lost that had not finished. Nodes of torch's send no heartbeats while they wait for the others to finish, so
/// that they seem dead; they are only counted. As many of the lost nodes have finished as were counted and are not ours.
pub(super) fn unfinished(seen: &Membership, reports: &Reports) -> u64 {
    let lost = seen.lost.as_ref().map_or(0, |lost| lost.nodes.len() as u64);
    let torchs_finished = reports.finished.saturating_sub(reports.ours_finished);
    lost.saturating_sub(reports.lost_finished).saturating_sub(torchs_finished)
}

/// Whether nodes have left the round only to come back, and no other node waits.
fn have_only_returned(seen: &Membership) -> bool {
    !seen.returned.is_empty() && seen.lost.is_none() && seen.returned.len() == seen.waiting.len()
}

#[cfg(test)]
mod tests;
