//! The invariants that need time, or more than one rendezvous: which node must have been removed, seen or let in by when,
//! and that all ends well. Each counts how often it looked at something that it could have found wrong.

use std::ops::Range;
use std::time::Duration;

use rallypoint_core::rendezvous::{POLL_INTERVAL, State, WITHDRAW_GRACE};

use crate::check::{Violation, Writer, hold};
use crate::node::{Node, Stage};
use crate::world::{Event, World};

impl World {
    /// Since when nothing has happened to a node, or to its messages.
    fn well_since(&self, node: &Node) -> Duration {
        let messages = match self.config.lost == 0 && self.config.late == 0 {
            true => Duration::ZERO,
            false => self.config.trouble + Duration::from_secs(5),
        };
        node.trouble.max(messages)
    }

    /// Whether a node of ours has had nothing to bear since then and is on its way into a round or in one.
    fn is_fit(&self, node: &Node, since: Duration) -> bool {
        !node.is_torch && node.is_steady() && self.well_since(node) <= since
    }

    /// A little longer, for messages on their way and clocks that run one per cent slow.
    fn allow(&self, time: Duration, messages: u32) -> Duration {
        time.mul_f64(1.011) + Duration::from_micros(self.config.latency) * messages
    }

    pub(crate) fn check_written(
        &mut self,
        job: usize,
        key: &str,
        before: &State,
        after: &State,
        writer: Writer<'_>,
    ) -> Result<(), Violation> {
        let at = self.now;
        hold!(at, "R16", *key == *self.jobs[job].key, "{} wrote {key}", writer.node);
        if !self.config.thorough {
            return Ok(());
        }
        let restored = self.jobs[job].checks.restored(before, after, writer.node).is_some();
        for node in &mut self.nodes {
            let (is_in, was_in) = (after.has(&node.me), before.has(&node.me));
            hold!(at, "R16", !is_in || node.job == job, "{} is in the rendezvous of others", node.me);
            // A round that is restored may have nodes that left just before it was lost.
            let back = node.left && !node.overtaken && is_in && !was_in && !restored;
            hold!(at, "R13", !back, "{} had left and was let in by {}", node.me, writer.node);
            node.was_spare |= after.redundancy_list.contains(&node.me);
        }
        self.check_admitted(job, before, after, writer)?;
        self.check_evicted(job, before, after, writer)?;
        self.jobs[job].checks.written(before, after, writer, at)
    }

    /// R12: a node that waited for a round is in it, unless the round is full or a torch node whose clock is ahead has ended
    /// the last call too early.
    fn check_admitted(
        &mut self,
        job: usize,
        before: &State,
        after: &State,
        writer: Writer<'_>,
    ) -> Result<(), Violation> {
        let full = after.participants.len() as u64 >= self.config.max_nodes;
        let is_early = writer.is_torch && self.config.skew > 0;
        if before.complete || !after.complete || full || is_early {
            return Ok(());
        }
        let since = self.now.saturating_sub(Duration::from_secs(5));
        for (waiting, from) in &self.jobs[job].checks.waiting {
            let node = self.nodes.iter().find(|node| node.me == *waiting);
            if *from <= since && node.is_some_and(|node| self.is_fit(node, since)) {
                return Err(
                    self.violation("R12", format!("{waiting} waits since {from:?} and was not let in"))
                );
            }
            self.summary.looked[3] += 1;
        }
        Ok(())
    }

    /// R9: nobody alive is put out.
    fn check_evicted(
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
            self.summary.looked[0] += 1;
            if writer.is_torch && node.is_up() {
                // Torch's clocks did that; the others have to find together again.
                self.disturbed = Some(self.now);
            }
            self.check_seen(node, writer)?;
            let well = self.now.saturating_sub(node.trouble) > Duration::from_secs(40)
                && node.paused_until.is_none();
            let stays = matches!(node.life.stage, Stage::Joining | Stage::Working { .. });
            if well && stays && self.config.lost == 0 && !writer.is_torch && !node.is_torch {
                // What R9 takes for granted is that heartbeats are written. Where messages take a second, others may be
                // quicker four times running, and then none was.
                if self.config.late > 0 && node.lost >= 4 {
                    self.summary.excused += 1;
                    continue;
                }
                return Err(
                    self.violation("R9", format!("{} is alive and was put out by {}", node.me, writer.node))
                );
            }
        }
        Ok(())
    }

    /// R9: time in which the store was away, and nobody could look, counts for no more than one interval.
    fn check_seen(&self, node: &Node, writer: Writer<'_>) -> Result<(), Violation> {
        let checks = &self.jobs[node.job].checks;
        let silent_since = checks.changed.get(&node.me).copied().unwrap_or_default();
        let unseen = |away: &Range<Duration>| {
            let time = away.end.min(self.now).saturating_sub(away.start.max(silent_since));
            // What was on its way when it went may have come for a while.
            time.saturating_sub(checks.settings.keep_alive_interval + Duration::from_secs(4))
        };
        let seen = self.now - silent_since - self.away.iter().map(unseen).sum::<Duration>();
        let enough = writer.is_torch || seen >= checks.silence().mul_f64(1.0 / 1.011);
        hold!(self.now, "R9", enough, "{} put out {}, having looked for {seen:?} only", writer.node, node.me);
        Ok(())
    }

    /// R14: no more than 20 attempts to write in a second.
    pub(crate) fn check_attempts(&mut self, node: usize) -> Result<(), Violation> {
        let (now, known) = (self.now, &mut self.nodes[node]);
        while known.attempts.front().is_some_and(|at| now - *at >= Duration::from_secs(1)) {
            known.attempts.pop_front();
        }
        known.attempts.push_back(now);
        let (many, known) = (known.attempts.len(), &self.nodes[node]);
        hold!(
            now,
            "R14",
            many <= 20 || known.is_torch,
            "{} tried to write {many} times in a second",
            known.me
        );
        Ok(())
    }

    /// R13: who gives up does so in time, and is in no list.
    pub(crate) fn check_timed_out(&mut self, node: usize, cleanly: bool) -> Result<(), Violation> {
        let known = &self.nodes[node];
        if known.is_torch {
            return Ok(());
        }
        let clocks = &known.life.clocks;
        let took = clocks.mono(self.now).since(clocks.mono(known.joining));
        let most = self.config.join_timeout + WITHDRAW_GRACE + Duration::from_secs(1);
        if !known.was_spare && self.well_since(known) <= known.joining {
            hold!(self.now, "R13", took <= most, "{} gave up after {took:?}, most is {most:?}", known.me);
            hold!(self.now, "R13", cleanly, "{} gave up without having taken back what it said", known.me);
            self.summary.looked[4] += 1;
        }
        if cleanly && !known.overtaken {
            let here = self.state(known.job).has(&known.me);
            hold!(self.now, "R13", !here, "{} gave up and is still in the state", known.me);
            self.nodes[node].left = true;
        }
        Ok(())
    }

    /// R13: nobody is still on its way into a round long after its time to join is up.
    pub(crate) fn look_for_joined(&mut self, node: usize, since: Duration) -> Result<(), Violation> {
        let known = &self.nodes[node];
        let still = known.joining == since && known.working.is_none() && self.is_fit(known, since);
        hold!(self.now, "R13", !still || known.was_spare, "{} tries to join since {since:?}", known.me);
        self.summary.looked[4] += 1;
        Ok(())
    }

    /// R14: of many who come at once, few have to write.
    pub(crate) fn check_writes(&self) -> Result<(), Violation> {
        let (writes, most) = (self.store.writes, self.config.most_writes);
        hold!(
            self.now,
            "R14",
            writes <= most,
            "{writes} writes for {} nodes, at most {most}",
            self.config.nodes
        );
        Ok(())
    }

    pub(crate) fn plan_look_for_dead(&mut self, node: usize, died: Duration) {
        self.plan(Duration::from_secs(5), Event::LookForDead { node, died });
    }

    /// R10: the dead are put out in time, if somebody is there to see it.
    pub(crate) fn look_for_dead(&mut self, node: usize, died: Duration) -> Result<(), Violation> {
        let known = &self.nodes[node];
        if known.died != Some(died) {
            return Ok(());
        }
        let (me, job, state) = (known.me.clone(), known.job, self.state(known.job));
        if state.has(&me) && !state.closed {
            let checks = &self.jobs[job].checks;
            let silent = checks.changed.get(&me).map_or(died, |changed| died.max(*changed));
            let most = self.allow(checks.silence() + 2 * POLL_INTERVAL, 24);
            let witness = self
                .nodes
                .iter()
                .find(|other| other.job == job && self.is_fit(other, silent) && state.has(&other.me));
            if let Some(witness) = witness {
                let late = self.now - silent > most;
                let text = || format!("{me} is dead since {silent:?} and {} has not put it out", witness.me);
                hold!(self.now, "R10", !late, "{}", text());
                self.summary.looked[1] += 1;
            }
        }
        self.plan(Duration::from_millis(700), Event::LookForDead { node, died });
        Ok(())
    }

    pub(crate) fn plan_look_for_waiting(&mut self, job: usize, since: Duration) {
        let after = self.allow(2 * POLL_INTERVAL, 8);
        self.plan(after, Event::LookForWaiting { job, since });
    }

    /// R12: who works has seen that somebody waits.
    pub(crate) fn look_for_waiting(&mut self, job: usize, since: Duration) -> Result<(), Violation> {
        let waiting = self.jobs[job].checks.waiting_since.is_some_and(|from| from <= since);
        if !waiting || self.state(job).closed {
            return Ok(());
        }
        for node in self.nodes.iter().filter(|node| node.job == job) {
            let deaf = node.working.is_some_and(|from| from <= since) && self.is_fit(node, since);
            hold!(self.now, "R12", !deaf, "{} works on although somebody waits since {since:?}", node.me);
            self.summary.looked[3] += 1;
        }
        Ok(())
    }

    /// A membership is up to one poll old, and a node that left has 1.2 s to come back.
    pub(crate) fn plan_look_for_lost(&mut self, job: usize, since: Duration) {
        let after = self.allow(4 * POLL_INTERVAL, 12);
        self.plan(after, Event::LookForLost { job, since });
    }

    /// R17: a node that works starts over when nodes of its round are lost.
    pub(crate) fn look_for_lost(&mut self, job: usize, since: Duration) -> Result<(), Violation> {
        if self.jobs[job].checks.losing_since != Some(since) || self.state(job).closed {
            return Ok(());
        }
        for node in self.nodes.iter().filter(|node| node.job == job) {
            let works = node.working.is_some_and(|from| from <= since) && self.is_fit(node, since);
            hold!(self.now, "R17", !works, "{} works on although a node is lost since {since:?}", node.me);
            self.summary.looked[5] += 1;
        }
        Ok(())
    }

    fn up(&self, job: usize) -> impl Iterator<Item = &Node> {
        // A torch node that was put out, or takes itself for dead, works on and never notices.
        let (state, checks) = (self.state(job), &self.jobs[job].checks);
        let limit = self.allow(checks.silence(), 0);
        let lost = move |node: &Node| {
            let silent = || checks.changed.get(&node.me).is_none_or(|changed| self.now - *changed > limit);
            node.is_torch && node.working.is_some() && (!state.has(&node.me) || silent())
        };
        self.nodes.iter().filter(move |node| node.job == job && node.is_up() && !lost(node))
    }

    /// Whether rounds must be found: enough nodes are up.
    fn are_enough(&self, job: usize) -> bool {
        self.up(job).count() as u64 >= self.config.min_nodes && !self.state(job).closed
    }

    /// Whether one must last. With torch nodes to spare it can't be said: those on the wait list of a full round stay
    /// there, and make it start over; nor for a minute after one of them was the last to spare, or has put somebody out who
    /// is alive.
    fn can_be_well(&self, job: usize) -> bool {
        let few = self.up(job).count() as u64 <= self.config.max_nodes;
        let calm = self.disturbed.is_none_or(|at| at + Duration::from_secs(60) < self.now);
        self.are_enough(job) && (self.config.torch == 0 || few && calm)
    }

    /// R11: a minute after the faults there is or was a round of nodes that are alive.
    pub(crate) fn look_for_round(&mut self, job: usize) -> Result<(), Violation> {
        let minute = Duration::from_secs(60);
        if self.now < self.peace + minute {
            self.plan(self.peace + minute - self.now, Event::LookForRound { job });
            return Ok(());
        }
        let state = self.state(job);
        let alive = state.participants.keys().all(|member| self.up(job).any(|node| node.me == *member));
        let lately = self.jobs[job].checks.last_round.is_some_and(|at| at + minute >= self.now);
        let found = lately || state.complete && alive;
        hold!(self.now, "R11", found || !self.are_enough(job), "no round within a minute: {state:?}");
        self.summary.looked[2] += 1;
        Ok(())
    }

    pub(crate) fn is_all_well(&self) -> bool {
        (0..self.jobs.len()).all(|job| self.is_well(job) || self.up(job).next().is_none())
    }

    /// Whether everybody who can be is in one round.
    fn is_well(&self, job: usize) -> bool {
        let state = self.state(job);
        let wanted = (self.up(job).count() as u64).min(self.config.max_nodes);
        state.complete
            && state.participants.len() as u64 == wanted
            && state.wait_list.is_empty()
            && state.participants.keys().all(|member| {
                let in_it = |node: &Node| node.life.stage == Stage::Working { round: state.round };
                self.up(job).any(|node| node.me == *member && in_it(node))
            })
    }

    /// R11: all who can be are in one round, and stayed in it.
    pub(crate) fn check_end(&self) -> Result<(), Violation> {
        let mut ill = (0..self.jobs.len()).filter(|job| self.can_be_well(*job) && !self.is_well(*job));
        if let Some(job) = ill.next() {
            let stages: Vec<_> = self.up(job).map(|node| (node.me.to_string(), node.life.stage)).collect();
            let what = format!("not all are in one round: {stages:?}; {:?}", self.state(job));
            return Err(self.violation("R11", what));
        }
        Ok(())
    }

    pub(crate) fn violation(&self, rule: &'static str, what: String) -> Violation {
        Violation { rule, what, at: self.now }
    }
}
