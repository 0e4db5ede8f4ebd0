//! Supervises a node of `rallypoint join`, whose workers run in one round only, or which has no workers.

use super::{AfterStop, Phase, Policy, Supervisor};
use crate::rendezvous::{Membership, MonoTime};
use crate::supervise::event::{Event, LocalRank};
use crate::supervise::order::{OnEnd, Order, Reason, Target, Verdict};
use crate::supervise::peers::Reports;

impl Supervisor {
    pub(super) fn handle_while_running_once(&mut self, event: Event) {
        let is_idle = self.workers.is_empty();
        match event {
            Event::Exited(_, exit) if !exit.is_success() => self.end_failed_once(Verdict::Failed),
            Event::Exited(..) => self.finish_if_done(),
            Event::NotStarted(_) => self.end_failed_once(Verdict::Error),
            Event::Fenced(_) => self.end_failed_once(Verdict::RoundOver),
            Event::Signaled(signal) if is_idle => self.end(Verdict::Signaled(signal), OnEnd::Leave),
            Event::Signaled(signal) => {
                let workers = (0..self.policy.workers).map(|rank| Target::Worker(LocalRank(rank)));
                self.orders.extend(workers.map(|worker| Order::Send(worker, signal)));
            }
            Event::StoreLost if is_idle => self.end(Verdict::Error, OnEnd::Nothing),
            Event::WorkingNodes(nodes) => self.round.working_nodes = Some(nodes),
            _ => {}
        }
    }

    pub(super) fn handle_while_finishing_once(&mut self, event: Event) {
        let on_end = match event {
            Event::Finished { all: true } => OnEnd::Close,
            Event::Finished { all: false } | Event::Signaled(_) => OnEnd::Leave,
            Event::StoreLost => OnEnd::Nothing,
            _ => return,
        };
        self.stop(AfterStop::End(Verdict::Succeeded, on_end));
    }

    pub(super) fn handle_membership_once(
        &mut self,
        seen: &Membership,
        reports: Option<&Reports>,
        now: MonoTime,
    ) {
        let lost = reports.map_or(0, |reports| reports.unfinished(seen));
        let is_lost = self.round.peers.confirm_lost(seen, lost, now).is_some();
        self.report_lost(seen);
        match self.phase {
            Phase::Running if self.workers.is_empty() => self.follow_round(seen, now),
            Phase::Running if seen.is_round_over => {
                // Other nodes of this round wait for the next round, which opens only after this node has left. So this
                // node leaves before its workers have exited.
                self.orders.extend([Order::PublishNodeFailed, Order::Leave]);
                self.stop(AfterStop::End(Verdict::RoundOver, OnEnd::Nothing));
            }
            Phase::Running => self.report_waiting(seen),
            // The coordinator knows that no other node needs this one.
            Phase::Finishing { .. } if seen.has_finished || seen.has_failed => {
                self.stop(AfterStop::End(Verdict::Succeeded, OnEnd::Nothing));
            }
            Phase::Finishing { .. } => {
                // This node may host the store that other nodes need, so it waits until every other node has finished
                // or is lost.
                let have_ended = reports.map_or(0, |reports| reports.finished) + lost >= seen.world_size();
                if seen.is_round_over || is_lost && have_ended {
                    self.stop(AfterStop::End(Verdict::Succeeded, OnEnd::Leave));
                }
            }
            _ => {}
        }
    }

    /// Decides whether a node without workers stays in its round. If the rendezvous is closed, the node ends. If the
    /// node was dropped or the round is over, the node rejoins. If nodes wait for the next round, it rejoins unless a
    /// node of this round has workers or may still report workers, because the next round would stop those workers.
    fn follow_round(&mut self, seen: &Membership, now: MonoTime) {
        if seen.is_closed {
            return self.end(Verdict::Spare, OnEnd::Nothing);
        }
        let has_workers = match &self.round.working_nodes {
            Some(nodes) => nodes.iter().any(|node| !seen.has_left_round(node)),
            None => now.since(self.started_at) < Policy::WORKERS_REPORT_GRACE,
        };
        match seen.num_nodes_waiting() {
            0 => self.report_waiting(seen),
            _ if seen.is_dropped => self.join(Reason::Dropped),
            _ if seen.is_round_over => self.join(Reason::RoundOver),
            waiting if !has_workers => self.join(Reason::NodesWaiting(waiting)),
            _ if self.round.working_nodes.is_some() => self.report_waiting(seen),
            _ => {}
        }
    }

    /// Pushes the order to log how many nodes wait, unless the previous membership also had waiting nodes.
    fn report_waiting(&mut self, seen: &Membership) {
        let waiting = if seen.is_dropped { 0 } else { seen.num_nodes_waiting() };
        let was_reported = std::mem::replace(&mut self.waiting_is_reported, waiting > 0);
        if waiting > 0 && !was_reported {
            self.orders.push_back(Order::ReportWaiting(waiting));
        }
    }

    fn end_failed_once(&mut self, verdict: Verdict) {
        self.orders.push_back(Order::PublishNodeFailed);
        self.stop(AfterStop::End(verdict, OnEnd::Leave));
    }
}

#[cfg(test)]
mod tests;
