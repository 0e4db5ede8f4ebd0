//! Chance: how long messages take, which are lost, and what happens to the nodes.

use std::collections::VecDeque;
use std::time::Duration;

use rallypoint_core::rendezvous::NodeDesc;

use crate::check::Violation;
use crate::node::{Behavior, Clocks, Life, Node, Stage};
use crate::ours::Ours;
use crate::torch::Torch;
use crate::world::{Event, World};

/// How long after the store is back a node may not have noticed it.
const AFTER: Duration = Duration::from_secs(4);

impl World {
    /// Whether messages are lost or late now.
    pub(crate) fn is_troubled(&self) -> bool {
        self.now < self.config.trouble
    }

    fn is_away(&self) -> bool {
        self.away.last().is_some_and(|away| away.contains(&self.now))
    }

    pub(crate) fn is_lost(&mut self) -> bool {
        self.is_away() || self.config.lost > 0 && self.is_troubled() && self.random.one_in(self.config.lost)
    }

    pub(crate) fn latency(&mut self) -> Duration {
        let late = self.config.late > 0 && self.is_troubled() && self.random.one_in(self.config.late);
        let most = match late {
            false => self.config.latency,
            // Where messages are lost anyway, they may also come when nobody waits for them any more.
            true if self.config.lost > 0 && self.random.one_in(4) => 4_000_000,
            true => 1_400_000,
        };
        Duration::from_micros(self.random.between(most / 4, most))
    }

    pub(crate) fn add_node(&mut self, job: usize, delay: Duration) {
        self.next_pid += 1;
        let skew = self.config.skew as i64 * 1_000_000;
        let offset = if skew == 0 { 0 } else { self.random.between(0, 2 * skew as u64) as i64 - skew };
        let clocks = Clocks { offset, drift: self.random.between(0, 20_001) as i64 - 10_000 };
        let host = format!("host{}", self.random.between(0, 4));
        let is_torch = self.config.torch > 0 && self.random.one_in(self.config.torch);
        let me = NodeDesc::new(host, self.next_pid, 0);
        let node = Node {
            behavior: self.behavior(job, me.clone(), is_torch),
            me,
            job,
            is_torch,
            life: Life { clocks, stage: Stage::Gone, pausing: None, ended: None },
            waiting_for: 0,
            asking: false,
            paused_until: None,
            resumed: None,
            trouble: self.away.last().map_or(self.now, |away| away.end + AFTER).max(self.now) + delay,
            died: None,
            exiting: false,
            working: None,
            joining: self.now + delay,
            was_spare: false,
            left: false,
            overtaken: false,
            lost: 0,
            attempts: VecDeque::new(),
        };
        self.nodes.push(node);
        self.peace = self.peace.max(self.now + delay);
        self.plan(delay, Event::Start { node: self.nodes.len() - 1 });
    }

    fn behavior(&self, job: usize, me: NodeDesc, is_torch: bool) -> Box<dyn Behavior> {
        let settings = self.jobs[job].checks.settings.clone();
        match is_torch {
            true => Box::new(Torch::new(me, settings)),
            false => Box::new(Ours::new(me, settings)),
        }
    }

    pub(crate) fn plan_fault(&mut self) {
        let after = Duration::from_millis(self.random.between(1, 2 * self.config.fault_every));
        if self.now + after < self.config.trouble {
            self.plan(after, Event::Fault);
        }
    }

    pub(crate) fn fault(&mut self) -> Result<(), Violation> {
        self.plan_fault();
        let node = self.random.between(0, self.nodes.len() as u64) as usize;
        let node = if self.config.churn { self.outside().unwrap_or(node) } else { node };
        let what = match self.config.churn {
            true => [4, 6][self.random.between(0, 2) as usize],
            false => self.random.between(0, 9),
        };
        let most = if self.config.churn { 80 } else { 24 };
        if !self.nodes[node].is_up() {
            return Ok(());
        }
        let job = self.nodes[node].job;
        let up = self.nodes.iter().filter(|node| node.job == job && node.is_up()).count() as u64;
        match what {
            0 => {
                self.kill(node);
                if !self.random.one_in(4) {
                    let delay = Duration::from_millis(self.random.between(0, 20_000));
                    self.add_node(job, delay);
                }
            }
            1 => {
                let pause = Duration::from_millis(self.random.between(100, 40_000));
                let known = &mut self.nodes[node];
                known.paused_until = known.paused_until.max(Some(self.now + pause));
                known.trouble = known.trouble.max(self.now + pause);
                self.peace = self.peace.max(self.now + pause);
                self.plan(pause, Event::Resume { node });
            }
            2 if self.config.torch == 0 => {
                let jump = self.random.between(0, 7_200_000_000) as i64 - 3_600_000_000;
                self.nodes[node].life.clocks.offset += jump;
            }
            // Its workers failed: it wants another round.
            3 if matches!(self.nodes[node].life.stage, Stage::Working { .. }) => {
                return self.start_join(node);
            }
            4 if up > self.config.min_nodes || self.config.churn => {
                let known = &mut self.nodes[node];
                // What it was about may still happen after it has left.
                known.overtaken |= known.asking;
                match known.behavior.leave(&mut known.life, self.now) {
                    Some(next) => return self.grant(node, next),
                    None => self.kill(node),
                }
            }
            5 if self.config.closes && self.random.one_in(8) => {
                let known = &mut self.nodes[node];
                let next = known.behavior.close(&mut known.life, self.now);
                return self.grant(node, next);
            }
            6 if self.nodes.len() < most => self.add_node(job, Duration::ZERO),
            7 => self.restart(node),
            8 if self.config.torch == 0 && !self.is_away() && self.random.one_in(4) => self.leave_store(),
            _ => {}
        }
        Ok(())
    }

    /// A node that has asked to be let in, isn't yet, and does nothing at the moment: whoever lets it in may be under way.
    fn outside(&mut self) -> Option<usize> {
        let outside = |node: &Node| {
            node.life.stage == Stage::Joining && !node.asking && !self.state(node.job).has(&node.me)
        };
        let found: Vec<_> = (0..self.nodes.len()).filter(|node| outside(&self.nodes[*node])).collect();
        (!found.is_empty()).then(|| found[self.random.between(0, found.len() as u64) as usize])
    }

    /// The store can't be reached for a while. Nobody can show that it lives, and nobody can see it.
    fn leave_store(&mut self) {
        let end = self.now + Duration::from_millis(self.random.between(2_000, 30_000));
        self.away.push(self.now..end);
        for node in &mut self.nodes {
            node.trouble = node.trouble.max(end + AFTER);
        }
        self.peace = self.peace.max(end + AFTER);
        if self.config.empties {
            self.plan(end - self.now, Event::StoreEmptied);
        }
    }

    fn kill(&mut self, node: usize) {
        let (known, died) = (&mut self.nodes[node], self.now);
        known.life.stage = Stage::Gone;
        known.died = Some(died);
        self.plan_look_for_dead(node, died);
    }

    /// A node's process ends and starts again under the same name, as in a container whose process id is always 1.
    fn restart(&mut self, node: usize) {
        let delay = Duration::from_millis(self.random.between(0, 3_000));
        let Node { job, is_torch, ref me, .. } = self.nodes[node];
        let behavior = self.behavior(job, me.clone(), is_torch);
        let known = &mut self.nodes[node];
        (known.life.stage, known.life.pausing, known.behavior) = (Stage::Gone, None, behavior);
        (known.waiting_for, known.overtaken) = (0, true);
        known.trouble = known.trouble.max(self.now + delay);
        (known.exiting, known.working, known.paused_until) = (false, None, None);
        self.peace = self.peace.max(self.now + delay);
        self.plan(delay, Event::Start { node });
    }
}
