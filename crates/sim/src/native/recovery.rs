//! The phases of a run with random faults, and the rule about the time after them (N6).

use std::collections::BTreeSet;
use std::time::Duration;

use rallypoint_coordinator::coordinator::Coordinator;
use rallypoint_coordinator::message::Command;

use super::agent::{Agent, Stage};
use super::config::FaultMix;
use super::host::Ended;
use super::world::World;
use crate::check::Violation;

/// How long after their start the nodes may take to form a round.
const FORMATION_TIMEOUT: Duration = Duration::from_secs(20);
/// How long after the end of all faults the nodes may take to run in one round.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(45);
/// How long a coordinator may take to notice that it has no quorum.
const QUORUM_TIMEOUT: Duration = Duration::from_secs(6);
/// How long the nodes must stay in a round.
const STABLE_TIME: Duration = Duration::from_millis(1_500);
/// The interval at which the state of the nodes is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The time after the first round until the first fault of a run in which no fault may touch a worker. In that time,
/// a separate server hands over to a node.
const SETTLE_TIME: Duration = Duration::from_secs(6);

impl World {
    /// Runs all phases: the start, faults, and the recovery.
    pub(super) fn run_with_faults(&mut self) -> Result<(), Violation> {
        self.start_hosts();
        self.wait_until_stable(FORMATION_TIMEOUT, "the start")?;
        if self.config.faults == FaultMix::Harmless {
            self.run_for(SETTLE_TIME)?;
            self.rules.is_undisturbed = self.is_running_in_full();
        }
        for _ in 0..self.config.fault_count {
            self.cause_fault();
            let least = if self.config.faults == FaultMix::Harmless { 4_000 } else { 0 };
            let interval = self.random.between(least, least + self.config.fault_interval.as_millis() as u64);
            self.run_for(Duration::from_millis(interval))?;
        }
        self.heal();
        self.recover()
    }

    pub(super) fn start_hosts(&mut self) {
        for host in 0..self.hosts.len() {
            let delay =
                Duration::from_micros(self.random.between(0, self.config.start_time.as_micros() as u64));
            let end = super::faults::FaultEnd::Start(host);
            self.queue.schedule(self.now + delay, super::world::Event::EndFault(end));
        }
    }

    /// Checks that the nodes recover after all faults have ended (N6).
    pub(super) fn recover(&mut self) -> Result<(), Violation> {
        let start = self.now;
        // An agent that leaves may take its replica away.
        self.run_for(QUORUM_TIMEOUT)?;
        if !self.has_lost_quorum() {
            match self.wait_until_stable(RECOVERY_TIMEOUT, "all faults have ended") {
                Err(_) if self.has_lost_quorum() => {}
                result => {
                    self.summary.longest_recovery = self.now - start;
                    return result;
                }
            }
        }
        self.summary.without_quorum += 1;
        self.check_wait_reasons()?;
        match self.force_quorum()? {
            true => self.wait_until_stable(RECOVERY_TIMEOUT, "an operator has forced a quorum"),
            false => Ok(()),
        }
    }

    /// Returns whether most voters of every group have ended.
    fn has_lost_quorum(&mut self) -> bool {
        !self.is_closed() && !self.rules.voters.is_empty() && self.groups_with_quorum().is_empty()
    }

    /// Checks that every node without a leader knows why it has none (N6).
    fn check_wait_reasons(&mut self) -> Result<(), Violation> {
        let has_endpoint = self.has_endpoint();
        for host in 0..self.hosts.len() {
            let Some(agent) = self.agent(host).filter(|_| has_endpoint) else { continue };
            let state = &agent.state;
            if agent.stage == Stage::Joining
                && state.leader.is_none()
                && state.not_served.is_none()
                && state.closed.is_none()
            {
                self.fail("N6", format!("h{host} waits without a quorum, and does not know why"));
            }
        }
        self.violation.take().map_or(Ok(()), Err)
    }

    /// Lets an operator found a new group with the replica that has applied the most entries, because all missing voters
    /// have ended. Returns whether there is one.
    fn force_quorum(&mut self) -> Result<bool, Violation> {
        for _ in 0..4 {
            let replica = |host: &mut super::host::Host| {
                let replica = host.process.as_mut()?.coordinator()?.replica();
                (replica.applied() > 0 && replica.voters().contains(&replica.id())).then(|| replica.applied())
            };
            let replicas = self.hosts.iter_mut().enumerate();
            let replica = replicas.filter_map(|(index, host)| Some((replica(host)?, index))).max();
            let Some((_, host)) = replica else { return Ok(false) };
            self.command(host, Command::ForceQuorum);
            self.run_for(Duration::from_secs(4))?;
            if !self.groups_with_quorum().is_empty() {
                self.summary.forced += 1;
                self.restart_servers();
                return Ok(true);
            }
        }
        Err(Violation { rule: "N6", what: "no operator can force a quorum".into(), at: self.now })
    }

    /// Starts a separate server again that may still have a replica of the old group, as the operator has to.
    fn restart_servers(&mut self) {
        if self.config.has_server {
            self.kill(0, false);
            self.restart(0);
        }
    }

    /// Runs until the nodes are stable.
    pub(super) fn wait_until_stable(&mut self, timeout: Duration, after: &str) -> Result<(), Violation> {
        let end = self.now + timeout;
        let mut stable_since = None;
        while self.now < end {
            if self.is_stable() {
                if self.now >= *stable_since.get_or_insert(self.now) + STABLE_TIME {
                    return Ok(());
                }
            } else {
                stable_since = None;
            }
            self.run_for(CHECK_INTERVAL)?;
            // A scheduler starts agents again that have failed.
            if !self.is_closed() {
                for host in 0..self.hosts.len() {
                    if self.hosts[host].ended == Some(Ended::Failed) {
                        self.launch(host);
                    }
                }
            }
        }
        let what = format!("{} s after {after}: {}", timeout.as_secs(), self.describe());
        Err(Violation { rule: "N6", what, at: self.now })
    }

    /// Returns whether the job is over everywhere, or all nodes that can be in a round run in one round, or too few nodes
    /// are left for a round.
    pub(super) fn is_stable(&mut self) -> bool {
        let running = self.running();
        if self.is_closed() {
            // A node that was cut off when the job ended has no leader to learn that from, and a first endpoint that
            // starts after the end founds the next job.
            // A node that has finished ends after a timeout of minutes then.
            let closed = self.closed_groups();
            let is_over = |agent: &Agent| match &agent.stage {
                Stage::Joining => true,
                Stage::Entering(assignment, _) | Stage::InRound(assignment) => {
                    !closed.contains(&assignment.group) || !agent.supervisor.is_running()
                }
                Stage::Ending(..) | Stage::Lingering(_) => false,
            };
            return running.keys().all(|(group, _)| !closed.contains(group))
                && (0..self.hosts.len()).all(|host| self.agent(host).is_none_or(|agent| is_over(agent)));
        }
        let (kept_out, has_endpoint, leader) = (self.kept_out(), self.has_endpoint(), self.leader());
        let group = leader
            .and_then(|leader| self.hosts[leader].process.as_mut()?.coordinator().map(Coordinator::group));
        let mut usable = Vec::new();
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let client = host.process.as_mut().and_then(|process| process.client());
            // A newcomer finds the job only if an endpoint answers.
            let can_join = client.is_some_and(|client| has_endpoint || client.group() == group);
            if can_join && !kept_out.contains(&host.name) {
                usable.push(index);
            }
        }
        let is_settled = (0..self.hosts.len()).all(|host| match self.agent(host).map(|agent| &agent.stage) {
            None | Some(Stage::Joining) => true,
            Some(Stage::InRound(_)) => self.agent(host).is_some_and(|agent| agent.supervisor.is_running()),
            Some(_) => false,
        });
        let max = self.config.settings.max_nodes as usize;
        let is_complete =
            |hosts: &BTreeSet<usize>| hosts.len() == max || usable.iter().all(|host| hosts.contains(host));
        let is_one_round = running.len() == 1 && running.values().all(is_complete);
        let has_too_few = usable.len() < self.config.settings.min_nodes as usize && running.is_empty();
        is_settled && (is_one_round || has_too_few)
    }

    /// Returns whether a process runs at an endpoint.
    fn has_endpoint(&self) -> bool {
        self.hosts.iter().take(self.config.endpoints).any(|host| host.process.is_some())
    }

    /// Returns whether all nodes run in one round that no other node can join.
    pub(super) fn is_running_in_full(&mut self) -> bool {
        !self.is_closed() && self.is_stable() && !self.running().is_empty()
    }

    /// Describes what each node does.
    pub(super) fn describe(&mut self) -> String {
        let mut parts = vec![format!("running: {:?}", self.running())];
        for host in 0..self.hosts.len() {
            let (local, ended) = (self.local(host), self.hosts[host].ended);
            let Some(process) = &mut self.hosts[host].process else {
                parts.push(format!("h{host} has ended: {ended:?}"));
                continue;
            };
            let client =
                process.client().map(|client| format!("{:?}, group {:?}", client.activity(), client.group()));
            let replica = process.coordinator().map(|coordinator| {
                let (replica, job) = (coordinator.replica(), coordinator.job());
                let round = job.round.as_ref();
                let departed = round.map(|round| (round.number, round.members.len(), &round.departed, &round.end));
                format!(
                    "group {:?}, term {}, leads {}, follows {:?}, voters {:?}, learners {:?}, applied {}, settled {}, round {departed:?}",
                    coordinator.group(),
                    replica.term(),
                    coordinator.is_leader(),
                    replica.leader(),
                    replica.voters(),
                    replica.learners(),
                    replica.applied(),
                    replica.is_settled(),
                )
            });
            let agent = process.agent.as_ref().map(|agent| {
                let state = &agent.state;
                format!(
                    "{:?}, leader {:?}, not served {:?}, waits for {:?}",
                    agent.stage, state.leader, state.not_served, state.waits_for
                )
            });
            parts.push(format!(
                "h{host} ({:?}, at {local:?}): client {client:?}; agent {agent:?}; replica {replica:?}",
                process.id
            ));
        }
        parts.join("\n  ")
    }

    /// Returns the hosts with workers of the only round that runs.
    pub(super) fn running_hosts(&self) -> BTreeSet<usize> {
        self.running().into_values().flatten().collect()
    }
}
