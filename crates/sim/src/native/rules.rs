//! Checks the rules of the native rendezvous after every step, in virtual time. `docs/internals/simulator.md` lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rallypoint_coordinator::coordinator::Coordinator;
use rallypoint_coordinator::job::{Closing, Departure, Job, RestartKind};
use rallypoint_coordinator::message::{Assignment, GroupId};
use rallypoint_coordinator::node::NodeId;

use super::agent::round_id;
use super::worker::{RoundId, Stage};
use super::world::World;

/// Clocks that differ by this factor count an interval differently.
const CLOCK_TOLERANCE: f64 = 1.000_1;
/// Deadlines after this time are no deadlines: the job is closed.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// The number of states of a group that are kept for comparison.
const MAX_STATES: usize = 256;

/// What the rules know about the run.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// The workers that run, by round.
    running: BTreeMap<RoundId, BTreeSet<(usize, u64)>>,
    /// The nodes whose workers have finished, by round.
    finished: BTreeMap<RoundId, BTreeSet<NodeId>>,
    worlds: BTreeMap<RoundId, AssignedWorld>,
    /// The last round of each node.
    last_rounds: BTreeMap<NodeId, RoundId>,
    /// The states of each group, by the index of the last applied entry.
    chains: BTreeMap<GroupId, BTreeMap<u64, Facts>>,
    /// The latest voters of each group that a replica has applied.
    pub(super) voters: BTreeMap<GroupId, Voters>,
    /// The latest term of each group in which a replica leads, and when that replica first led.
    leaders: BTreeMap<GroupId, (u64, Duration)>,
    /// The latest term in which a process at each address has led.
    led: BTreeMap<String, u64>,
    /// When the lease of each node ends, at the latest, according to any leader.
    expiries: BTreeMap<NodeId, Duration>,
    /// The nodes of processes, by the number of the process.
    nodes: BTreeMap<u64, NodeId>,
    /// What was last seen of each process: the group, the index of the last applied entry, and whether it leads.
    seen: BTreeMap<u64, (GroupId, u64, bool)>,
    /// By group: the older groups of which no leader could reach the founder.
    foundings: BTreeMap<GroupId, BTreeSet<GroupId>>,
    /// The hosts whose exclusion or drain an operator has ended.
    pub(super) included: BTreeSet<String>,
    /// Whether nothing may touch a worker any more (N4).
    pub(super) is_undisturbed: bool,
}

/// The index of an entry, and the voters after it: the new ones, and the old ones during a change.
pub(super) type Voters = (u64, BTreeSet<NodeId>, BTreeSet<NodeId>);

/// What the members of a round were told.
#[derive(Debug)]
struct AssignedWorld {
    master: String,
    world_size: u32,
    ranks: BTreeMap<u32, NodeId>,
}

/// The part of a job's state that the rules compare.
#[derive(Debug, Clone, PartialEq)]
struct Facts {
    time: Duration,
    round: Option<RoundFacts>,
    closed: Option<Closing>,
    restarts: BTreeMap<RestartKind, u32>,
    exclusions: BTreeMap<String, Duration>,
    drains: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct RoundFacts {
    number: u64,
    members: BTreeMap<NodeId, (u32, String, Option<u32>)>,
    end: Option<String>,
    is_growth: bool,
    departed: BTreeMap<NodeId, Departure>,
}

impl Facts {
    fn of(job: &Job) -> Facts {
        let round = job.round.as_ref().map(|round| RoundFacts {
            number: round.number,
            members: (round.members.iter())
                .map(|(id, member)| (*id, (member.rank, member.node.host.clone(), member.node.pin)))
                .collect(),
            end: round.end.as_ref().map(ToString::to_string),
            is_growth: round.end.as_ref().is_some_and(|cause| cause.kind() == RestartKind::Growth),
            departed: round.departed.iter().map(|(id, departed)| (*id, departed.how)).collect(),
        });
        Facts {
            time: job.time,
            round,
            closed: job.closed.clone(),
            restarts: job.restarts.clone(),
            exclusions: job
                .exclusions
                .iter()
                .map(|(host, exclusion)| (host.clone(), exclusion.until))
                .collect(),
            drains: job.drains.keys().cloned().collect(),
        }
    }
}

impl World {
    // ---- workers ----

    /// Checks the start of a worker: workers of two rounds never overlap (N1), and a closed job starts nothing (N5).
    pub(super) fn record_start(&mut self, host: usize, worker: u64, round: RoundId) {
        let other =
            self.rules.running.iter().find(|(other, workers)| **other != round && !workers.is_empty());
        if let Some((other, workers)) = other {
            if round.0 != other.0 && (self.is_excused(round, *other) || self.is_excused(*other, round)) {
                self.summary.excused += 1;
                self.rules.running.entry(round).or_default().insert((host, worker));
                return;
            }
            let hosts: Vec<String> = workers.iter().map(|(host, _)| format!("h{host}")).collect();
            let what = format!(
                "h{host} runs round {} while {} run round {}",
                name(round),
                hosts.join(", "),
                name(*other)
            );
            return self.fail("N1", what);
        }
        self.trace(|| format!("h{host} runs round {}", round.1));
        self.rules.running.entry(round).or_default().insert((host, worker));
    }

    /// Returns whether the founder of the group of `new` could not know of the group of `old`. Either that had lost its
    /// quorum, or no leader of it could reach the founder, or the founder started together with enough nodes for the
    /// largest world, like the nodes of a new job.
    fn is_excused(&self, new: RoundId, old: RoundId) -> bool {
        self.rules.foundings.get(&new.0).is_some_and(|unknown| unknown.contains(&old.0))
    }

    /// Records a group when it is first seen: the older groups that it could not know of.
    fn record_founding(&mut self, founder: usize, group: GroupId) {
        if self.rules.foundings.contains_key(&group) {
            return;
        }
        let (mut reachable, mut newcomers) = (BTreeSet::new(), 0);
        for host in 0..self.hosts.len() {
            let is_connected = self.network.connects(host, founder);
            let Some(process) = &mut self.hosts[host].process else { continue };
            let is_awake = process.paused_until.is_none();
            newcomers += u32::from(process.client().is_some_and(|client| client.group().is_none()));
            let leads = process.coordinator().filter(|coordinator| coordinator.is_leader());
            reachable.extend(leads.map(Coordinator::group).filter(|_| is_awake && is_connected));
        }
        let older: BTreeSet<GroupId> = self.rules.foundings.keys().copied().collect();
        // Newcomers for the largest world are not told from the nodes of a new job.
        let is_full = newcomers >= self.config.settings.max_nodes;
        let unknown = older.into_iter().filter(|group| is_full || !reachable.contains(group)).collect();
        self.rules.foundings.insert(group, unknown);
    }

    pub(super) fn record_end(&mut self, host: usize, worker: u64, round: RoundId) {
        self.trace(|| format!("the worker of h{host} in round {} has ended", round.1));
        if let Some(workers) = self.rules.running.get_mut(&round) {
            workers.remove(&(host, worker));
            if workers.is_empty() {
                self.rules.running.remove(&round);
            }
        }
    }

    /// Records that the worker of a process has finished.
    pub(super) fn record_finished(&mut self, process: u64, round: RoundId) {
        if let Some(node) = self.rules.nodes.get(&process) {
            self.rules.finished.entry(round).or_default().insert(*node);
        }
    }

    /// Returns the rounds with workers, and the hosts on which they run.
    pub(super) fn running(&self) -> BTreeMap<RoundId, BTreeSet<usize>> {
        let rounds = self.rules.running.iter();
        rounds.map(|(round, workers)| (*round, workers.iter().map(|(host, _)| *host).collect())).collect()
    }

    /// Checks that no lease ends in an undisturbed run (N4).
    pub(super) fn record_fenced(&mut self, host: usize) {
        if self.rules.is_undisturbed {
            self.fail(
                "N4",
                format!("the lease of h{host} is over although no fault lasted long enough for that"),
            );
        }
    }

    pub(super) fn record_launch(&mut self, process: u64, node: NodeId) {
        self.rules.nodes.insert(process, node);
    }

    // ---- rounds ----

    /// Checks what a member of a round is told (N2).
    pub(super) fn record_assignment(&mut self, host: usize, assignment: &Assignment) {
        let Some(id) = self.hosts[host].process.as_ref().map(|process| process.id) else { return };
        let round = round_id(assignment);
        let (rank, size) = (assignment.rank, assignment.world_size);
        let world = self.rules.worlds.entry(round).or_insert_with(|| {
            self.summary.rounds += 1;
            AssignedWorld { master: assignment.master.clone(), world_size: size, ranks: BTreeMap::new() }
        });
        let agrees = world.master == assignment.master && world.world_size == size;
        let other = world.ranks.insert(rank, id).filter(|other| *other != id);
        let is_twice =
            self.config.checks_all && world.ranks.values().filter(|other| **other == id).count() > 1;
        let last = self.rules.last_rounds.insert(id, round);
        if rank == 0 {
            self.known_masters.insert(round, host);
        } else if !self.known_masters.contains_key(&round) {
            let address = &assignment.master;
            let master = (0..self.hosts.len()).find(|host| self.hosts[*host].address == *address);
            self.known_masters.extend(master.map(|master| (round, master)));
        }
        let pin = self.hosts[host].pin;
        let what = if !agrees {
            Some("the members of the round were told different worlds")
        } else if rank >= size || other.is_some() || is_twice {
            Some("the ranks of the round are not 0 to n - 1, each once")
        } else if last.is_some_and(|last| last.0 == round.0 && last.1 >= round.1) {
            Some("the node was in this round or a later one before")
        } else if pin.is_some_and(|pin| pin < size && pin != rank) {
            Some("the node has pinned another rank")
        } else {
            None
        };
        if let Some(what) = what {
            let of = format!("h{host} is {rank} of {size} in round {}", name(round));
            self.fail("N2", format!("{of}: {what}"));
        }
    }

    // ---- leases ----

    /// Checks the new deadline of a node (N3).
    pub(super) fn check_deadline(&mut self, host: usize, deadline: Duration) {
        let Some(process) = &mut self.hosts[host].process else { return };
        let id = process.id;
        let Some(client) = process.client() else { return };
        let (group, leader) = (client.group(), client.leader().map(str::to_owned));
        let end = self.hosts[host].clock.virtual_time(deadline);
        let lease = self.config.settings.lease;
        let expiry = self.rules.expiries.get(&id).copied();
        let contact = leader.as_deref().and_then(|leader| self.quorum_contact(leader));
        // A leader that makes way in the same pass as it grants a lease has no leases any more. The next one waits.
        if self.config.checks_all && contact.is_some() && expiry.is_none_or(|expiry| end > expiry) {
            let what = format!("the deadline of h{host} is {end:?}, but its lease ends at {expiry:?}");
            return self.fail("N3", what);
        }
        if contact.is_some_and(|contact| end > contact) {
            let what = format!(
                "the deadline of h{host} is {end:?}, but its leader's contact to a quorum allows {contact:?}"
            );
            return self.fail("N3", what);
        }
        let led_by = group.and_then(|group| self.rules.leaders.get(&group)).copied();
        if let Some((term, since)) = led_by
            && end > since + longest(lease, self.config.max_drift_ppm)
            && leader.is_some_and(|leader| self.rules.led.get(&leader).is_none_or(|led| *led < term))
        {
            let what = format!(
                "the deadline of h{host} is {end:?}, but a leader of term {term} leads since {since:?}"
            );
            self.fail("N3", what);
        }
    }

    /// Returns one lease after the last contact to a quorum of the leader at an address, by virtual time.
    fn quorum_contact(&mut self, address: &str) -> Option<Duration> {
        let host = self.hosts.iter_mut().find(|host| host.address == address)?;
        let contact = host.process.as_mut()?.coordinator()?.replica().quorum_contact()?;
        Some(host.clock.virtual_time(contact + self.config.settings.lease))
    }

    /// Checks that no lease outlasts a new leader's wait (N3).
    fn check_new_leader(&mut self, group: GroupId, term: u64) {
        if self.rules.leaders.get(&group).is_some_and(|(known, _)| *known >= term) {
            return;
        }
        self.summary.elections += 1;
        self.rules.leaders.insert(group, (term, self.now));
        let latest = self.now + longest(self.config.settings.lease, self.config.max_drift_ppm);
        for host in 0..self.hosts.len() {
            let Some(deadline) = self.hosts[host].fence.filter(|deadline| *deadline < NEVER) else {
                continue;
            };
            let is_member = self.hosts[host]
                .process
                .as_mut()
                .and_then(|process| process.client())
                .is_some_and(|client| client.group() == Some(group));
            let end = self.hosts[host].clock.virtual_time(deadline);
            if is_member && end > latest {
                let what = format!(
                    "a leader of term {term} waits until {latest:?}, but the deadline of h{host} is {end:?}"
                );
                return self.fail("N3", what);
            }
        }
    }

    // ---- the replicated state ----

    /// Checks the replica of a process after each pass of its event loop.
    pub(super) fn check_process(&mut self, host: usize) {
        let clock = self.hosts[host].clock.clone();
        let Some(process) = &mut self.hosts[host].process else { return };
        let number = process.number;
        let Some(coordinator) = process.coordinator() else { return };
        let (group, replica) = (coordinator.group(), coordinator.replica());
        let (applied, is_leader, term) = (replica.applied(), coordinator.is_leader(), replica.term());
        if self.config.checks_all && is_leader {
            for (id, expiry) in coordinator.leases() {
                let end = clock.virtual_time(expiry);
                let known = self.rules.expiries.entry(id).or_default();
                *known = end.max(*known);
            }
        }
        let seen = (group, applied, is_leader);
        if self.rules.seen.insert(number, seen) == Some(seen) || applied == 0 {
            return;
        }
        let facts = self.config.checks_all.then(|| Facts::of(replica.job()));
        let (voters, outgoing) = (replica.voters(), replica.outgoing_voters());
        let known = self.rules.voters.entry(group).or_insert_with(|| (0, BTreeSet::new(), BTreeSet::new()));
        if applied > known.0 {
            *known = (applied, voters, outgoing);
        }
        self.record_founding(host, group);
        self.strike_replica(host, is_leader);
        if is_leader {
            self.rules.led.insert(self.hosts[host].address.clone(), term);
            self.check_new_leader(group, term);
        }
        if let Some(facts) = facts {
            self.check_facts(group, applied, facts);
        }
    }

    /// Checks a state of a group: replicas agree (N7), and each state follows from the one before (N2, N5, N10).
    fn check_facts(&mut self, group: GroupId, applied: u64, facts: Facts) {
        let chain = self.rules.chains.entry(group).or_default();
        if let Some(known) = chain.get(&applied) {
            if *known != facts {
                let what = format!(
                    "two replicas have different states after entry {applied}: {known:?} and {facts:?}"
                );
                self.fail("N7", what);
            }
            return;
        }
        let before = chain.range(..applied).next_back().map(|(_, facts)| facts.clone());
        let after = chain.range(applied..).next().map(|(_, facts)| facts.clone());
        let is_new = after.is_none();
        chain.insert(applied, facts.clone());
        if chain.len() > MAX_STATES {
            chain.pop_first();
        }
        if let Some(before) = &before {
            self.check_step(group, before, &facts, is_new);
        }
        if let Some(after) = &after {
            self.check_step(group, &facts, after, false);
        }
    }

    fn check_step(&mut self, group: GroupId, before: &Facts, after: &Facts, is_new: bool) {
        if before.closed.is_some() && before.closed != after.closed {
            return self
                .fail("N5", format!("a closed job changed: {:?}, then {:?}", before.closed, after.closed));
        }
        // A worker failure may turn out to be the loss of another node.
        if before.restarts.values().sum::<u32>() > after.restarts.values().sum() {
            let what =
                format!("the number of restarts fell: {:?}, then {:?}", before.restarts, after.restarts);
            return self.fail("N5", what);
        }
        let is_kept = |(host, until): (&String, &Duration)| {
            after.exclusions.contains_key(host) || *until <= after.time || self.rules.included.contains(host)
        };
        if !before.exclusions.iter().all(is_kept) {
            return self.fail("N5", format!("an exclusion was forgotten: {:?}", before.exclusions));
        }
        let used: u32 = [RestartKind::WorkerFailure, RestartKind::NodeLoss]
            .iter()
            .filter_map(|kind| after.restarts.get(kind))
            .sum();
        if self.config.settings.job_max_restarts.is_some_and(|max| used > max) {
            return self.fail("N5", format!("the job has used {used} restarts"));
        }
        let numbers =
            (before.round.as_ref().map(|round| round.number), after.round.as_ref().map(|round| round.number));
        if numbers.0 > numbers.1 {
            return self.fail("N2", format!("round {:?} follows round {:?}", numbers.1, numbers.0));
        }
        if !is_new {
            return;
        }
        self.check_departures(group, before, after);
        if numbers.0 < numbers.1 {
            self.check_members(group, before, after);
        }
        if before.closed.is_none()
            && let Some(closing) = &after.closed
        {
            self.check_closing(group, after, closing);
        }
        let has_ended = after.round.as_ref().is_some_and(|round| round.end.is_some() && !round.is_growth);
        let was_running = before.round.as_ref().is_some_and(|round| round.end.is_none());
        let ended_now = was_running && after.round.as_ref().is_some_and(|round| round.end.is_some());
        if ended_now && before.restarts.values().sum::<u32>() == after.restarts.values().sum::<u32>() {
            return self.fail("N5", "a round ended, and no restart was counted".into());
        }
        if self.rules.is_undisturbed && was_running && has_ended {
            let end = after.round.as_ref().and_then(|round| round.end.clone());
            self.fail(
                "N4",
                format!("the round ended although no fault lasted long enough for that: {end:?}"),
            );
        }
    }

    /// Checks the members of a new round (N2, N5).
    fn check_members(&mut self, group: GroupId, before: &Facts, after: &Facts) {
        let Some(round) = &after.round else { return };
        let ranks: BTreeSet<u32> = round.members.values().map(|(rank, ..)| *rank).collect();
        if ranks != (0..round.members.len() as u32).collect() {
            return self.fail("N2", format!("round {} has the ranks {ranks:?}", round.number));
        }
        let settings = &self.config.settings;
        if !(settings.min_nodes as usize..=settings.max_nodes as usize).contains(&round.members.len()) {
            return self.fail("N2", format!("round {} has {} members", round.number, round.members.len()));
        }
        if before.closed.is_some() {
            return self.fail("N5", format!("round {} started in a closed job", round.number));
        }
        let is_excluded = |host: &String| {
            let until = before.exclusions.get(host).filter(|until| after.exclusions.get(host) == Some(until));
            until.is_some_and(|until| *until > after.time)
                || before.drains.contains(host) && after.drains.contains(host)
        };
        if let Some((_, host, _)) = round.members.values().find(|(_, host, _)| is_excluded(host)) {
            return self
                .fail("N5", format!("round {} has {host}, which is excluded or drained", round.number));
        }
        // Members of the round before that are left out have no workers of that round any more.
        if let Some(previous) = &before.round {
            let id = (group, previous.number);
            if let Some(workers) = self.rules.running.get(&id) {
                let hosts: Vec<String> = workers.iter().map(|(host, _)| format!("h{host}")).collect();
                let what = format!(
                    "round {} starts while {} run round {}",
                    round.number,
                    hosts.join(", "),
                    name(id)
                );
                self.fail("N1", what);
            }
        }
    }

    /// Checks that a stated departure is true (N5).
    fn check_departures(&mut self, group: GroupId, before: &Facts, after: &Facts) {
        let Some(round) = &after.round else { return };
        let known = before.round.as_ref().filter(|before| before.number == round.number);
        for (id, how) in &round.departed {
            if known.is_some_and(|before| before.departed.contains_key(id)) {
                continue;
            }
            self.summary.departures += 1;
            let running = self.rules.running.get(&(group, round.number)).into_iter().flatten();
            let works = running.copied().find(|(host, number)| {
                let worker = self.hosts[*host].workers.iter().find(|worker| worker.number == *number);
                worker.is_some_and(|worker| {
                    worker.stage == Stage::Running && self.rules.nodes.get(&worker.process) == Some(id)
                })
            });
            if let Some((host, _)) = works {
                return self.fail(
                    "N5",
                    format!("h{host} departed ({how}), but its worker runs in round {}", round.number),
                );
            }
            let alive = (0..self.hosts.len())
                .find(|host| self.hosts[*host].process.as_ref().is_some_and(|process| process.id == *id));
            if let (Departure::Killed, Some(host)) = (how, alive) {
                return self.fail("N5", format!("h{host} is said to be killed, but it runs"));
            }
        }
    }

    /// Checks that a job that is closed because all workers have finished has finished (N8).
    fn check_closing(&mut self, group: GroupId, after: &Facts, closing: &Closing) {
        self.summary.closed += 1;
        // A node that runs alone closes the job itself when its worker has finished.
        let may_end = self.config.work.is_some();
        if self.rules.is_undisturbed && !closing.has_finished && !may_end {
            return self.fail("N4", format!("the job was closed: {closing}"));
        }
        let Some(round) = after.round.as_ref().filter(|_| closing.has_finished) else { return };
        let finished = self.rules.finished.get(&(group, round.number));
        let missing = round.members.keys().find(|id| !finished.is_some_and(|finished| finished.contains(id)));
        if let Some(id) = missing {
            self.fail("N8", format!("the job has finished, but the worker of {id:?} has not"));
        }
    }

    // ---- the end of a run ----

    /// Returns whether a group of replicas has closed the job.
    pub(super) fn is_closed(&self) -> bool {
        let latest = self.rules.chains.values().filter_map(|chain| chain.values().next_back());
        latest.into_iter().any(|facts| facts.closed.is_some())
    }

    /// Returns the number of the last round that a replica knows.
    pub(super) fn latest_round(&self) -> Option<u64> {
        let latest = self.rules.chains.values().filter_map(|chain| chain.values().next_back());
        latest.filter_map(|facts| Some(facts.round.as_ref()?.number)).max()
    }

    /// Returns the names of the hosts that may not be in a round, because they are excluded or drained.
    pub(super) fn kept_out(&mut self) -> BTreeSet<String> {
        let Some(leader) = self.leader() else { return BTreeSet::new() };
        let local = self.local(leader);
        let coordinator = self.hosts[leader].process.as_mut().and_then(|process| process.coordinator());
        let Some(coordinator) = coordinator else { return BTreeSet::new() };
        let (job, time) = (coordinator.job(), coordinator.replica().job_time(local));
        let excluded = job.exclusions.keys().filter(|host| job.exclusion(host, time).is_some());
        job.drains.keys().chain(excluded).cloned().collect()
    }

    /// Returns the groups that have closed the job.
    pub(super) fn closed_groups(&self) -> BTreeSet<GroupId> {
        let is_closed = |chain: &BTreeMap<u64, Facts>| {
            chain.values().next_back().is_some_and(|facts| facts.closed.is_some())
        };
        let chains = self.rules.chains.iter();
        chains.filter(|(_, chain)| is_closed(chain)).map(|(group, _)| *group).collect()
    }

    /// Returns the groups of which a majority of the voters lives, by the latest configuration that any replica has
    /// applied, and by the latest one that a live voter has applied. They differ if a leader was lost before it had told
    /// the other voters about a change.
    pub(super) fn groups_with_quorum(&mut self) -> Vec<GroupId> {
        let mut known = Vec::new();
        for host in &mut self.hosts {
            let coordinator: Option<&Coordinator> =
                host.process.as_mut().and_then(|process| process.coordinator());
            known.extend(coordinator.map(|coordinator| {
                let replica = coordinator.replica();
                let voters = (replica.applied(), replica.voters(), replica.outgoing_voters());
                (coordinator.group(), replica.id(), voters)
            }));
        }
        let alive: BTreeSet<(GroupId, NodeId)> = known.iter().map(|(group, id, _)| (*group, *id)).collect();
        let has_majority = |group: GroupId, voters: &BTreeSet<NodeId>| {
            let count = voters.iter().filter(|voter| alive.contains(&(group, **voter))).count();
            voters.is_empty() || 2 * count > voters.len()
        };
        let has_quorum = |(group, latest): (&GroupId, &Voters)| {
            let of_group = known.iter().filter(|(of, id, known)| of == group && known.1.contains(id));
            let own = of_group.map(|(_, _, known)| known).max_by_key(|known| known.0);
            [Some(latest), own].into_iter().all(|voters| {
                voters.is_some_and(|(_, new, old)| has_majority(*group, new) && has_majority(*group, old))
            })
        };
        self.rules.voters.iter().filter(|voters| has_quorum(*voters)).map(|(group, _)| *group).collect()
    }
}

/// Returns the longest time for which a lease that was granted before an election may last after it, by virtual time.
fn longest(lease: Duration, drift_ppm: i64) -> Duration {
    (lease + lease / 100).div_f64((1.0 + drift_ppm as f64 / 1e6) * CLOCK_TOLERANCE)
}

fn name((group, number): RoundId) -> String {
    format!("{number} of group {:x}", group.0)
}
