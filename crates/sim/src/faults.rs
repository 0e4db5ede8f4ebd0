//! The random part of a run: latencies, lost messages, and the faults of nodes and the store.

use std::collections::VecDeque;
use std::time::Duration;

use rallypoint_core::rendezvous::NodeDesc;

use crate::check::Violation;
use crate::node::{Behavior, Clocks, Context, Node, Stage, TORCH_LOCAL_ID};
use crate::ours::Ours;
use crate::torch::Torch;
use crate::world::{Event, World};

/// How long a node may take to notice that the store answers again after an outage.
const OUTAGE_NOTICE_GRACE: Duration = Duration::from_secs(4);

impl World {
    /// Returns whether faults happen at this time, including lost and late messages.
    pub(crate) fn is_fault_time(&self) -> bool {
        self.now < self.config.fault_duration
    }

    fn is_store_down(&self) -> bool {
        self.outages.last().is_some_and(|outage| outage.contains(&self.now))
    }

    pub(crate) fn loses_message(&mut self) -> bool {
        self.is_store_down()
            || self.config.lost_one_in > 0
                && self.is_fault_time()
                && self.random.one_in(self.config.lost_one_in)
    }

    pub(crate) fn draw_latency(&mut self) -> Duration {
        let is_late = self.config.late_one_in > 0
            && self.is_fault_time()
            && self.random.one_in(self.config.late_one_in);
        let max = match is_late {
            false => self.config.max_latency_us,
            // If messages may be lost, they may also arrive after the request timeout.
            true if self.config.lost_one_in > 0 && self.random.one_in(4) => 4_000_000,
            true => 1_400_000,
        };
        Duration::from_micros(self.random.between(max / 4, max))
    }

    pub(crate) fn add_node(&mut self, job: usize, delay: Duration) {
        self.next_pid += 1;
        let skew = self.config.max_skew_s as i64 * 1_000_000;
        let offset = if skew == 0 { 0 } else { self.random.between(0, 2 * skew as u64) as i64 - skew };
        let clocks = Clocks { offset, drift: self.random.between(0, 20_001) as i64 - 10_000 };
        let host = format!("host{}", self.random.between(0, 4));
        let is_torch = self.config.torch_one_in > 0 && self.random.one_in(self.config.torch_one_in);
        let me = NodeDesc::new(host, self.next_pid, if is_torch { TORCH_LOCAL_ID } else { 0 });
        let node = Node {
            behavior: self.behavior(job, me.clone(), is_torch),
            me,
            job,
            is_torch,
            context: Context { clocks, stage: Stage::Ended, wake_phase: None, ended_phase: None },
            awaited_number: 0,
            awaits_reply: false,
            paused_until: None,
            resumed_at: None,
            last_fault_at: self
                .outages
                .last()
                .map_or(self.now, |outage| outage.end + OUTAGE_NOTICE_GRACE)
                .max(self.now)
                + delay,
            died_at: None,
            was_exiting: false,
            working_since: None,
            joining_since: self.now + delay,
            was_spare: false,
            has_left: false,
            has_stray_request: false,
            failed_writes: 0,
            write_attempts: VecDeque::new(),
        };
        self.nodes.push(node);
        self.faults_end = self.faults_end.max(self.now + delay);
        self.schedule(delay, Event::Start { node: self.nodes.len() - 1 });
    }

    fn behavior(&self, job: usize, me: NodeDesc, is_torch: bool) -> Box<dyn Behavior> {
        let settings = self.jobs[job].checks.settings.clone();
        match is_torch {
            true => Box::new(Torch::new(me, settings)),
            false => Box::new(Ours::new(me, settings)),
        }
    }

    pub(crate) fn schedule_fault(&mut self) {
        let after = Duration::from_millis(self.random.between(1, 2 * self.config.fault_interval_ms));
        if self.now + after < self.config.fault_duration {
            self.schedule(after, Event::Fault);
        }
    }

    pub(crate) fn cause_fault(&mut self) -> Result<(), Violation> {
        self.schedule_fault();
        let node = self.random.between(0, self.nodes.len() as u64) as usize;
        let node = if self.config.churn { self.pick_outsider().unwrap_or(node) } else { node };
        let kind = match self.config.churn {
            true => [4, 6][self.random.between(0, 2) as usize],
            false => self.random.between(0, 9),
        };
        let max_nodes = if self.config.churn { 80 } else { 24 };
        if !self.nodes[node].is_up() {
            return Ok(());
        }
        let job = self.nodes[node].job;
        let up = self.nodes.iter().filter(|node| node.job == job && node.is_up()).count() as u64;
        match kind {
            0 => {
                self.kill(node);
                if !self.random.one_in(4) {
                    let delay = Duration::from_millis(self.random.between(0, 20_000));
                    self.add_node(job, delay);
                }
            }
            1 => {
                let pause = Duration::from_millis(self.random.between(100, 40_000));
                let target = &mut self.nodes[node];
                target.paused_until = target.paused_until.max(Some(self.now + pause));
                target.last_fault_at = target.last_fault_at.max(self.now + pause);
                self.faults_end = self.faults_end.max(self.now + pause);
                self.schedule(pause, Event::Resume { node });
            }
            2 if self.config.torch_one_in == 0 => {
                let jump = self.random.between(0, 7_200_000_000) as i64 - 3_600_000_000;
                self.nodes[node].context.clocks.offset += jump;
            }
            // The workers of the node fail, so the node rejoins.
            3 if matches!(self.nodes[node].context.stage, Stage::Working { .. }) => {
                return self.start_join(node);
            }
            4 if up > self.config.min_nodes || self.config.churn => {
                let target = &mut self.nodes[node];
                // A pending request may reach the store after the node has left.
                target.has_stray_request |= target.awaits_reply;
                match target.behavior.leave(&mut target.context, self.now) {
                    Some(next) => return self.execute(node, next),
                    None => self.kill(node),
                }
            }
            5 if self.config.may_close && self.random.one_in(8) => {
                let target = &mut self.nodes[node];
                let next = target.behavior.close(&mut target.context, self.now);
                return self.execute(node, next);
            }
            6 if self.nodes.len() < max_nodes => self.add_node(job, Duration::ZERO),
            7 => self.restart(node),
            8 if self.config.torch_one_in == 0 && !self.is_store_down() && self.random.one_in(4) => {
                self.start_outage()
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns a random node that joins, is in no list and awaits no reply. Such a node may have announced itself, and
    /// another node may be about to admit it.
    fn pick_outsider(&mut self) -> Option<usize> {
        let is_outside = |node: &Node| {
            node.context.stage == Stage::Joining && !node.awaits_reply && !self.state(node.job).has(&node.me)
        };
        let found: Vec<_> = (0..self.nodes.len()).filter(|node| is_outside(&self.nodes[*node])).collect();
        (!found.is_empty()).then(|| found[self.random.between(0, found.len() as u64) as usize])
    }

    /// Starts an outage of the store, which lasts 2 s to 30 s. During an outage, nodes can neither write nor observe
    /// heartbeats.
    fn start_outage(&mut self) {
        let end = self.now + Duration::from_millis(self.random.between(2_000, 30_000));
        self.outages.push(self.now..end);
        for node in &mut self.nodes {
            node.last_fault_at = node.last_fault_at.max(end + OUTAGE_NOTICE_GRACE);
        }
        self.faults_end = self.faults_end.max(end + OUTAGE_NOTICE_GRACE);
        if self.config.outages_empty_store {
            self.schedule(end - self.now, Event::StoreEmptied);
        }
    }

    fn kill(&mut self, node: usize) {
        let (target, died) = (&mut self.nodes[node], self.now);
        target.context.stage = Stage::Ended;
        target.died_at = Some(died);
        self.schedule_dead_check(node, died);
    }

    /// Restarts the process of a node with the same [`NodeDesc`], as in a container, where the process id is always 1.
    fn restart(&mut self, node: usize) {
        let delay = Duration::from_millis(self.random.between(0, 3_000));
        let Node { job, is_torch, ref me, .. } = self.nodes[node];
        let behavior = self.behavior(job, me.clone(), is_torch);
        let target = &mut self.nodes[node];
        (target.context.stage, target.context.wake_phase, target.behavior) = (Stage::Ended, None, behavior);
        (target.awaited_number, target.has_stray_request) = (0, true);
        target.last_fault_at = target.last_fault_at.max(self.now + delay);
        (target.was_exiting, target.working_since, target.paused_until) = (false, None, None);
        self.faults_end = self.faults_end.max(self.now + delay);
        self.schedule(delay, Event::Start { node });
    }
}
