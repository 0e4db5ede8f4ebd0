//! Checks the rules about time (R9 to R14 and R17), and the rule about several rendezvous on one store (R16).
//!
//! The checks of R9 to R13 and R17 count in `Summary::timed_checks` how often they examined a case that could have
//! broken their rule.

use std::ops::Range;
use std::time::Duration;

use rallypoint_core::rendezvous::{POLL_INTERVAL, State, WITHDRAW_GRACE};

use crate::check::{Violation, Writer, require};
use crate::node::{Node, Stage};
use crate::world::{Event, World};

impl World {
    /// Returns the time since which neither the node nor its messages had a fault.
    fn fault_free_since(&self, node: &Node) -> Duration {
        let messages = match self.config.lost_one_in == 0 && self.config.late_one_in == 0 {
            true => Duration::ZERO,
            false => self.config.fault_duration + Duration::from_secs(5),
        };
        node.last_fault_at.max(messages)
    }

    /// Returns whether the node is ours, had no fault since `since`, and joins a round or is in one.
    fn is_fault_free(&self, node: &Node, since: Duration) -> bool {
        !node.is_torch && node.is_active() && self.fault_free_since(node) <= since
    }

    /// Returns `time` plus a tolerance: 1 % for clock drift, and `messages` times the maximum latency.
    fn with_tolerance(&self, time: Duration, messages: u32) -> Duration {
        time.mul_f64(1.011) + Duration::from_micros(self.config.max_latency_us) * messages
    }

    /// Checks a write: R9, R12, R13, R16, and the rules of [`Checks::check_write`](crate::check::Checks::check_write).
    pub(crate) fn check_written(
        &mut self,
        job: usize,
        key: &str,
        before: &State,
        after: &State,
        writer: Writer<'_>,
    ) -> Result<(), Violation> {
        let at = self.now;
        require!(at, "R16", *key == *self.jobs[job].key, "{} wrote {key}", writer.node);
        if !self.config.checks_writes {
            return Ok(());
        }
        let restored = self.jobs[job].checks.restored(before, after, writer.node).is_some();
        for node in &mut self.nodes {
            let (is_in, was_in) = (after.has(&node.me), before.has(&node.me));
            require!(
                at,
                "R16",
                !is_in || node.job == job,
                "{} is in another rendezvous than its own",
                node.me
            );
            // A restored round may contain nodes that left just before the store lost it.
            let is_readmitted = node.has_left && !node.has_stray_request && is_in && !was_in && !restored;
            require!(at, "R13", !is_readmitted, "{} had left and was admitted by {}", node.me, writer.node);
            node.was_spare |= after.redundancy_list.contains(&node.me);
        }
        self.check_admitted(job, before, after, writer)?;
        self.check_removed(job, before, after, writer)?;
        self.jobs[job].checks.check_write(before, after, writer, at)
    }

    /// Checks R12: if `after` completes a round, every node of ours that has been on the wait list for 5 s without a
    /// fault is in that round. The rule does not apply to a full round, nor if a torch node with a fast clock may have
    /// ended the last call too early.
    fn check_admitted(
        &mut self,
        job: usize,
        before: &State,
        after: &State,
        writer: Writer<'_>,
    ) -> Result<(), Violation> {
        let full = after.participants.len() as u64 >= self.config.max_nodes;
        let is_early = writer.is_torch && self.config.max_skew_s > 0;
        if before.complete || !after.complete || full || is_early {
            return Ok(());
        }
        let since = self.now.saturating_sub(Duration::from_secs(5));
        for (waiting, from) in &self.jobs[job].checks.wait_started_at {
            let node = self.nodes.iter().find(|node| node.me == *waiting);
            if *from <= since && node.is_some_and(|node| self.is_fault_free(node, since)) {
                return Err(self
                    .violation("R12", format!("{waiting} has waited since {from:?} and was not admitted")));
            }
            self.summary.timed_checks[3] += 1;
        }
        Ok(())
    }

    /// Checks R9: in a run without lost messages, no node of ours removes a live node of ours that had no fault for
    /// 40 s. Also calls `check_observed` for every removed node.
    fn check_removed(
        &mut self,
        job: usize,
        before: &State,
        after: &State,
        writer: Writer<'_>,
    ) -> Result<(), Violation> {
        for node in self.nodes.iter().filter(|node| node.job == job && node.me != *writer.node) {
            if !before.has(&node.me) || after.has(&node.me) {
                continue;
            }
            self.summary.timed_checks[0] += 1;
            if writer.is_torch && node.is_up() {
                // Torch nodes compare wall clocks, so they may remove live nodes. The nodes get 60 s to recover from
                // that.
                self.disturbed_at = Some(self.now);
            }
            self.check_observed(node, writer)?;
            let was_fault_free = self.now.saturating_sub(node.last_fault_at) > Duration::from_secs(40)
                && node.paused_until.is_none();
            let stays = matches!(node.context.stage, Stage::Joining | Stage::Working { .. });
            if was_fault_free && stays && self.config.lost_one_in == 0 && !writer.is_torch && !node.is_torch {
                // With latencies of 1 s, four compare-and-sets of a node in a row can fail. Then the node wrote no
                // heartbeat in time, and its removal does not break R9.
                if self.config.late_one_in > 0 && node.failed_writes >= 4 {
                    self.summary.excused += 1;
                    continue;
                }
                return Err(
                    self.violation("R9", format!("{} is alive and was removed by {}", node.me, writer.node))
                );
            }
        }
        Ok(())
    }

    /// Checks R9: before `writer` removed `node`, the heartbeat of `node` was unchanged for `dead_after`. No node can
    /// observe heartbeats in an outage, so each outage counts as at most one `keep_alive_interval`.
    fn check_observed(&self, node: &Node, writer: Writer<'_>) -> Result<(), Violation> {
        let checks = &self.jobs[node.job].checks;
        let unchanged_since = checks.heartbeat_changed_at.get(&node.me).copied().unwrap_or_default();
        let unobserved = |outage: &Range<Duration>| {
            let time = outage.end.min(self.now).saturating_sub(outage.start.max(unchanged_since));
            // Messages that were sent before the outage may still arrive in its first 4 s.
            time.saturating_sub(checks.settings.keep_alive_interval + Duration::from_secs(4))
        };
        let observed = self.now - unchanged_since - self.outages.iter().map(unobserved).sum::<Duration>();
        let enough = writer.is_torch || observed >= checks.dead_after().mul_f64(1.0 / 1.011);
        require!(
            self.now,
            "R9",
            enough,
            "{} removed {} after it had observed the heartbeat for only {observed:?}",
            writer.node,
            node.me
        );
        Ok(())
    }

    /// Checks R14: a node of ours sends at most 20 compare-and-sets per second.
    pub(crate) fn check_write_rate(&mut self, node: usize) -> Result<(), Violation> {
        let (now, target) = (self.now, &mut self.nodes[node]);
        while target.write_attempts.front().is_some_and(|at| now - *at >= Duration::from_secs(1)) {
            target.write_attempts.pop_front();
        }
        target.write_attempts.push_back(now);
        let (attempts, target) = (target.write_attempts.len(), &self.nodes[node]);
        require!(
            now,
            "R14",
            attempts <= 20 || target.is_torch,
            "{} wrote {attempts} times within a second",
            target.me
        );
        Ok(())
    }

    /// Checks R13 for a join that has timed out: the node ended it in time, after it had withdrawn, and is in no list.
    pub(crate) fn check_timed_out(&mut self, node: usize, is_clean: bool) -> Result<(), Violation> {
        let target = &self.nodes[node];
        if target.is_torch {
            return Ok(());
        }
        let clocks = &target.context.clocks;
        let took = clocks.mono(self.now).since(clocks.mono(target.joining_since));
        let limit = self.config.join_timeout + WITHDRAW_GRACE + Duration::from_secs(1);
        if !target.was_spare && self.fault_free_since(target) <= target.joining_since {
            require!(
                self.now,
                "R13",
                took <= limit,
                "{} ended its join after {took:?}, later than {limit:?}",
                target.me
            );
            require!(self.now, "R13", is_clean, "{} ended its join without withdrawing", target.me);
            self.summary.timed_checks[4] += 1;
        }
        if is_clean && !target.has_stray_request {
            let is_listed = self.state(target.job).has(&target.me);
            require!(self.now, "R13", !is_listed, "{} ended its join and is still in the state", target.me);
            self.nodes[node].has_left = true;
        }
        Ok(())
    }

    /// Checks R13: the join that `node` started at `since` has ended, unless the node was a spare.
    pub(crate) fn check_join_ended(&mut self, node: usize, since: Duration) -> Result<(), Violation> {
        let target = &self.nodes[node];
        let is_joining = target.joining_since == since
            && target.working_since.is_none()
            && self.is_fault_free(target, since);
        require!(
            self.now,
            "R13",
            !is_joining || target.was_spare,
            "{} has been joining since {since:?}",
            target.me
        );
        self.summary.timed_checks[4] += 1;
        Ok(())
    }

    /// Checks R14: the nodes sent at most `max_writes` compare-and-sets until the first stable round.
    pub(crate) fn check_write_count(&self) -> Result<(), Violation> {
        let (writes, limit) = (self.store.writes, self.config.max_writes);
        require!(
            self.now,
            "R14",
            writes <= limit,
            "{writes} writes for {} nodes, more than {limit}",
            self.config.nodes
        );
        Ok(())
    }

    pub(crate) fn schedule_dead_check(&mut self, node: usize, died: Duration) {
        self.schedule(Duration::from_secs(5), Event::CheckDeadRemoved { node, died });
    }

    /// Checks R10: a node that died at `died` is removed in time, if a node without faults can observe it. Repeats
    /// itself every 700 ms.
    pub(crate) fn check_dead_removed(&mut self, node: usize, died: Duration) -> Result<(), Violation> {
        let target = &self.nodes[node];
        if target.died_at != Some(died) {
            return Ok(());
        }
        let (me, job, state) = (target.me.clone(), target.job, self.state(target.job));
        if state.has(&me) && !state.closed {
            let checks = &self.jobs[job].checks;
            let dead_since = checks.heartbeat_changed_at.get(&me).map_or(died, |changed| died.max(*changed));
            let limit = self.with_tolerance(checks.dead_after() + 2 * POLL_INTERVAL, 24);
            let witness = self.nodes.iter().find(|other| {
                other.job == job && self.is_fault_free(other, dead_since) && state.has(&other.me)
            });
            if let Some(witness) = witness {
                let late = self.now - dead_since > limit;
                let text = || {
                    format!("{me} has been dead since {dead_since:?} and {} has not removed it", witness.me)
                };
                require!(self.now, "R10", !late, "{}", text());
                self.summary.timed_checks[1] += 1;
            }
        }
        self.schedule(Duration::from_millis(700), Event::CheckDeadRemoved { node, died });
        Ok(())
    }

    pub(crate) fn schedule_waiting_check(&mut self, job: usize, since: Duration) {
        let after = self.with_tolerance(2 * POLL_INTERVAL, 8);
        self.schedule(after, Event::CheckWaitingNoticed { job, since });
    }

    /// Checks R12: every node of ours that was in a round at `since` has noticed that another node waits, and has left
    /// the round.
    pub(crate) fn check_waiting_noticed(&mut self, job: usize, since: Duration) -> Result<(), Violation> {
        let waiting = self.jobs[job].checks.waiting_since.is_some_and(|from| from <= since);
        if !waiting || self.state(job).closed {
            return Ok(());
        }
        for node in self.nodes.iter().filter(|node| node.job == job) {
            let is_unaware =
                node.working_since.is_some_and(|from| from <= since) && self.is_fault_free(node, since);
            require!(
                self.now,
                "R12",
                !is_unaware,
                "{} has not noticed that a node has waited since {since:?}",
                node.me
            );
            self.summary.timed_checks[3] += 1;
        }
        Ok(())
    }

    /// Schedules the check of R17. It is due after four poll intervals, because a membership is up to one poll interval
    /// old and a node that left has 1.2 s to rejoin.
    pub(crate) fn schedule_lost_check(&mut self, job: usize, since: Duration) {
        let after = self.with_tolerance(4 * POLL_INTERVAL, 12);
        self.schedule(after, Event::CheckLostNoticed { job, since });
    }

    /// Checks R17: every node of ours that was in a round at `since`, when a node of that round was lost, has left the
    /// round to rejoin.
    pub(crate) fn check_lost_noticed(&mut self, job: usize, since: Duration) -> Result<(), Violation> {
        if self.jobs[job].checks.losing_since != Some(since) || self.state(job).closed {
            return Ok(());
        }
        for node in self.nodes.iter().filter(|node| node.job == job) {
            let is_unaware =
                node.working_since.is_some_and(|from| from <= since) && self.is_fault_free(node, since);
            require!(
                self.now,
                "R17",
                !is_unaware,
                "{} has not noticed that a node of its round was lost at {since:?}",
                node.me
            );
            self.summary.timed_checks[5] += 1;
        }
        Ok(())
    }

    /// Iterates over the nodes of a job that must be in a round at the end of the run.
    fn live_nodes(&self, job: usize) -> impl Iterator<Item = &Node> {
        // A torch node whose workers run never notices that it was removed. If its own heartbeat seems too old, it
        // removes itself from its copy of the state and writes no heartbeat any more.
        let (state, checks) = (self.state(job), &self.jobs[job].checks);
        let limit = self.with_tolerance(checks.dead_after(), 0);
        let is_unaware = move |node: &Node| {
            let is_silent = || {
                checks.heartbeat_changed_at.get(&node.me).is_none_or(|changed| self.now - *changed > limit)
            };
            node.is_torch && node.working_since.is_some() && (!state.has(&node.me) || is_silent())
        };
        self.nodes.iter().filter(move |node| node.job == job && node.is_up() && !is_unaware(node))
    }

    /// Returns whether the nodes of a job must complete a round: at least `min_nodes` are live, and the rendezvous is
    /// not closed.
    fn has_enough_nodes(&self, job: usize) -> bool {
        self.live_nodes(job).count() as u64 >= self.config.min_nodes && !self.state(job).closed
    }

    /// Returns whether the nodes of a job must be in a stable round.
    ///
    /// In a run with torch nodes, the round need not be stable while there are more than `max_nodes` nodes: torch nodes
    /// stay on the wait list of a full round and make it re-form. In such a run, the round also need not be stable
    /// within 60 s after `disturbed_at`.
    fn must_be_stable(&self, job: usize) -> bool {
        let are_few = self.live_nodes(job).count() as u64 <= self.config.max_nodes;
        let is_calm = self.disturbed_at.is_none_or(|at| at + Duration::from_secs(60) < self.now);
        self.has_enough_nodes(job) && (self.config.torch_one_in == 0 || are_few && is_calm)
    }

    /// Checks R11 once 60 s have passed since the last fault: either a round was completed in the last 60 s, or the
    /// current round is complete and all of its nodes are live. The rule does not apply if too few nodes are live, or
    /// if the rendezvous is closed.
    pub(crate) fn check_round_found(&mut self, job: usize) -> Result<(), Violation> {
        let minute = Duration::from_secs(60);
        if self.now < self.faults_end + minute {
            self.schedule(self.faults_end + minute - self.now, Event::CheckRoundFound { job });
            return Ok(());
        }
        let state = self.state(job);
        let alive =
            state.participants.keys().all(|member| self.live_nodes(job).any(|node| node.me == *member));
        let is_recent = self.jobs[job].checks.last_round_at.is_some_and(|at| at + minute >= self.now);
        let found = is_recent || state.complete && alive;
        require!(self.now, "R11", found || !self.has_enough_nodes(job), "no round within 60 s: {state:?}");
        self.summary.timed_checks[2] += 1;
        Ok(())
    }

    pub(crate) fn are_all_stable(&self) -> bool {
        (0..self.jobs.len()).all(|job| self.is_stable(job) || self.live_nodes(job).next().is_none())
    }

    /// Returns whether all live nodes, up to `max_nodes`, work in the current round, and no node waits.
    fn is_stable(&self, job: usize) -> bool {
        let state = self.state(job);
        let wanted = (self.live_nodes(job).count() as u64).min(self.config.max_nodes);
        state.complete
            && state.participants.len() as u64 == wanted
            && state.wait_list.is_empty()
            && state.participants.keys().all(|member| {
                let in_it = |node: &Node| node.context.stage == Stage::Working { round: state.round };
                self.live_nodes(job).any(|node| node.me == *member && in_it(node))
            })
    }

    /// Checks R11: at the end of the run, every job that must be stable is stable.
    pub(crate) fn check_end(&self) -> Result<(), Violation> {
        let mut unstable =
            (0..self.jobs.len()).filter(|job| self.must_be_stable(*job) && !self.is_stable(*job));
        if let Some(job) = unstable.next() {
            let stages: Vec<_> =
                self.live_nodes(job).map(|node| (node.me.to_string(), node.context.stage)).collect();
            let what = format!("not all nodes are in one round: {stages:?}; {:?}", self.state(job));
            return Err(self.violation("R11", what));
        }
        Ok(())
    }

    pub(crate) fn violation(&self, rule: &'static str, what: String) -> Violation {
        Violation { rule, what, at: self.now }
    }
}
