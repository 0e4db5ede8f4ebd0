//! One replica of a job: a Raft node with the log in memory, and the job that follows from the log.

mod validity;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use protobuf::Message as _;
use raft::prelude::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, EntryType, Message, MessageType, Snapshot,
};
use raft::storage::MemStorage;
use raft::{Config, GetEntriesContext, RaftState, RawNode, SnapshotStatus, StateRole, Storage};

use crate::job::{Decision, Entry, Job};
use crate::node::NodeId;
use crate::raft_message::RaftMessage;

/// The interval of Raft's logical clock, and of the checks for contact to a quorum.
pub const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// A replica that has not heard from a leader for this number of ticks starts an election.
const ELECTION_TICKS: usize = 20;
/// Each replica waits up to this number of ticks longer, so that two replicas rarely start an election together.
const ELECTION_SPREAD_TICKS: u64 = 8;
/// A replica that has had no leader for [`LEADERLESS_TICKS`] asks the others after each of this number of ticks whether they
/// would vote for it. Such a question disturbs no leader, so a group that gets its quorum back soon has a leader, too.
const PRE_VOTE_TICKS: usize = 5;
/// A leader that was just elected announces itself within this number of ticks.
const LEADERLESS_TICKS: usize = 10;
/// The number of applied entries after which a snapshot replaces the log.
const SNAPSHOT_INTERVAL: u64 = 64;
/// The maximum number of replicas of a group. A group with five voters has up to ten during a change.
const MAX_REPLICAS: usize = 32;

/// Raft's log, and a snapshot of the job at its start.
struct Log {
    entries: MemStorage,
    snapshot: Snapshot,
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        self.entries.initial_state()
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<raft::prelude::Entry>> {
        self.entries.entries(low, high, max_size, context)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.entries.term(index)
    }

    fn first_index(&self) -> raft::Result<u64> {
        self.entries.first_index()
    }

    fn last_index(&self) -> raft::Result<u64> {
        self.entries.last_index()
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        Ok(self.snapshot.clone())
    }
}

/// One replica of a job.
pub struct Replica {
    id: NodeId,
    raft: RawNode<Log>,
    job: Job,
    /// When the last entry was applied, by the clock of this process.
    applied_at: Duration,
    applied: u64,
    last_tick: Duration,
    /// The number of ticks, and of those since this replica has had no leader.
    ticks: usize,
    leaderless_ticks: usize,
    /// The pending checks for contact to a quorum: the number and the time of each.
    checks: VecDeque<(u64, Duration)>,
    next_check: u64,
    quorum_contact: Option<Duration>,
    outgoing: VecDeque<(String, RaftMessage)>,
    /// The leader that this replica has followed last, unless this replica has tried to replace it already.
    followed: Option<NodeId>,
    /// The sender of the last message. This replica may not know its address from the job yet.
    sender: Option<(NodeId, String)>,
}

impl Replica {
    /// Founds a group with this process as the only voter.
    pub fn found(id: NodeId, address: &str, mut job: Job, seed: u64, now: Duration) -> Replica {
        job.replicas = BTreeMap::from([(id, address.to_owned())]);
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (1, 1);
        metadata.mut_conf_state().voters = vec![id.0];
        snapshot.set_data(encode(&job).into());
        let mut replica = Replica::new(id, Some(snapshot), job, seed, now);
        replica.raft.campaign().expect("the only voter can always start an election");
        replica.handle_ready(now);
        replica.check_quorum(now);
        replica
    }

    /// Creates a replica that a leader is about to add to its group. `job` is used until the leader's snapshot arrives.
    pub fn join(id: NodeId, job: Job, seed: u64, now: Duration) -> Replica {
        Replica::new(id, None, job, seed, now)
    }

    fn new(id: NodeId, snapshot: Option<Snapshot>, job: Job, seed: u64, now: Duration) -> Replica {
        let entries = MemStorage::new();
        let applied = snapshot.as_ref().map_or(0, |snapshot| snapshot.get_metadata().index);
        if let Some(snapshot) = &snapshot {
            entries.wl().apply_snapshot(snapshot.clone()).expect("the log is empty");
        }
        // The library draws the election timeout from this range. With one element in it, the timeout follows from the
        // seed.
        let min_election_tick = ELECTION_TICKS + (seed % ELECTION_SPREAD_TICKS) as usize;
        let config = Config {
            id: id.0,
            election_tick: ELECTION_TICKS,
            min_election_tick,
            max_election_tick: min_election_tick + 1,
            heartbeat_tick: 1,
            check_quorum: true,
            pre_vote: true,
            max_size_per_msg: 1 << 20,
            applied,
            ..Config::default()
        };
        let log = Log { entries, snapshot: snapshot.unwrap_or_default() };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        Replica {
            id,
            raft: RawNode::new(&config, log, &logger).expect("the configuration is valid"),
            job,
            applied_at: now,
            applied,
            last_tick: now,
            ticks: 0,
            leaderless_ticks: 0,
            checks: VecDeque::new(),
            next_check: 0,
            quorum_contact: None,
            outgoing: VecDeque::new(),
            followed: None,
            sender: None,
        }
    }

    /// Returns the id of this replica.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the job after the applied entries.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns the job's time.
    pub fn job_time(&self, now: Duration) -> Duration {
        self.job.time.saturating_add(now.saturating_sub(self.applied_at))
    }

    /// Returns Raft's term.
    pub fn term(&self) -> u64 {
        self.raft.raft.term
    }

    /// Returns whether this replica leads and has applied all entries of earlier leaders. One of them may have removed
    /// this replica, which then only hands over.
    pub fn is_leader(&self) -> bool {
        self.leads() && self.raft.raft.promotable() && self.raft.raft.apply_to_current_term()
    }

    fn leads(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    /// Returns the leader that this replica follows.
    pub fn leader(&self) -> Option<NodeId> {
        Some(self.raft.raft.leader_id).filter(|id| *id != 0).map(NodeId)
    }

    /// Returns a time at which a quorum still followed this leader.
    pub fn quorum_contact(&self) -> Option<Duration> {
        self.quorum_contact.filter(|_| self.is_leader())
    }

    /// Returns whether all proposals have been applied, and a new one would be accepted.
    pub fn is_settled(&self) -> bool {
        let raft = &self.raft.raft;
        raft.raft_log.last_index() == self.applied
            && !raft.has_pending_conf()
            && raft.lead_transferee.is_none()
    }

    /// Returns the voters.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.raft.raft.prs().conf().to_conf_state().voters.into_iter().map(NodeId).collect()
    }

    /// Returns the voters before the change of the configuration that is under way. Without a change there are none.
    pub fn outgoing_voters(&self) -> BTreeSet<NodeId> {
        self.raft.raft.prs().conf().to_conf_state().voters_outgoing.into_iter().map(NodeId).collect()
    }

    /// Returns the replicas that get the log but do not vote.
    pub fn learners(&self) -> BTreeSet<NodeId> {
        self.raft.raft.prs().conf().to_conf_state().learners.into_iter().map(NodeId).collect()
    }

    /// Returns whether a replica has all committed entries, as far as this leader knows.
    pub fn is_up_to_date(&self, id: NodeId) -> bool {
        let committed = self.raft.raft.raft_log.committed;
        self.raft.raft.prs().get(id.0).is_some_and(|progress| progress.matched >= committed)
    }

    /// Proposes a decision. Does nothing if this replica does not lead.
    pub fn propose(&mut self, decision: Decision, now: Duration) {
        let entry = Entry { time: self.job_time(now), decision };
        let data = serde_json::to_vec(&entry).expect("an entry can be encoded");
        // An error means that leadership is being transferred. The next leader decides again.
        let _ = self.raft.propose(Vec::new(), data);
        self.handle_ready(now);
    }

    /// Proposes a change of Raft's configuration.
    pub fn propose_configuration(&mut self, changes: &[(NodeId, ConfChangeType)], now: Duration) {
        let single = |(id, kind): &(NodeId, ConfChangeType)| {
            let mut change = ConfChangeSingle::default();
            (change.node_id, change.change_type) = (id.0, *kind);
            change
        };
        let mut change = ConfChangeV2::default();
        change.set_changes(changes.iter().map(single).collect::<Vec<_>>().into());
        // An error means that another change is pending. The leader proposes again then.
        let _ = self.raft.propose_conf_change(Vec::new(), change);
        self.handle_ready(now);
    }

    /// Lets one of these voters lead from now on. Returns whether one of them can.
    pub fn hand_over(&mut self, is_suitable: impl Fn(NodeId) -> bool, now: Duration) -> bool {
        let (raft, own) = (&self.raft.raft, self.id.0);
        let voters = raft.prs().iter().filter(|(id, progress)| {
            **id != own
                && progress.recent_active
                && raft.prs().conf().to_conf_state().voters.contains(id)
                && is_suitable(NodeId(**id))
        });
        let successor = voters.max_by_key(|(id, progress)| (progress.matched, **id)).map(|(id, _)| *id);
        if let Some(successor) = successor {
            self.raft.transfer_leader(successor);
            self.handle_ready(now);
        }
        successor.is_some()
    }

    /// Returns whether this replica may replace a leader whose process has ended: it has followed that leader last, and has
    /// not tried to replace it yet. Otherwise a replica that the group has removed would disturb each new leader.
    pub fn may_replace(&self, leader: NodeId) -> bool {
        self.followed == Some(leader) && leader != self.id
    }

    /// Starts an election because the process of the leader has ended. Other voters would ignore an ordinary election,
    /// because they have heard from the leader recently.
    pub fn replace_ended_leader(&mut self, leader: NodeId, now: Duration) {
        if self.may_replace(leader) {
            self.followed = None;
            let mut message = Message::default();
            message.set_msg_type(MessageType::MsgTimeoutNow);
            (message.from, message.to, message.term) = (leader.0, self.id.0, self.term());
            // An error means that this replica can't be elected.
            let _ = self.raft.step(message);
            self.handle_ready(now);
        }
    }

    /// Handles a message of the replica at address `from`. Ignores messages for other replicas.
    pub fn handle_message(&mut self, from: &str, message: RaftMessage, now: Duration) {
        if message.to != self.id.0 || message.from == self.id.0 {
            return;
        }
        let sender = NodeId(message.from);
        let Some(message) = message.into_message().filter(|message| validity::is_valid(message, &self.raft))
        else {
            return;
        };
        self.sender = Some((sender, from.to_owned()));
        // An error means that the message is outdated, which is normal.
        let _ = self.raft.step(message);
        self.handle_ready(now);
    }

    /// Advances Raft's clock if a tick is due. Returns whether it was.
    pub fn handle_timeout(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.last_tick) < TICK_INTERVAL {
            return false;
        }
        // After a pause of the process there is only one tick. So the replica reads the messages of its leader before it
        // starts an election.
        self.last_tick = now;
        self.ticks += 1;
        self.raft.tick();
        let is_leaderless = self.leader().is_none() && self.raft.raft.promotable();
        self.leaderless_ticks = if is_leaderless { self.leaderless_ticks + 1 } else { 0 };
        // A candidate waits for votes.
        let asks = self.leaderless_ticks >= LEADERLESS_TICKS && self.raft.raft.state != StateRole::Candidate;
        if asks && self.ticks % PRE_VOTE_TICKS == self.pre_vote_tick() {
            // An error means that this replica can't be elected.
            let _ = self.raft.campaign();
        }
        self.check_quorum(now);
        if self.leads() && !self.raft.raft.promotable() {
            // An entry of an earlier leader has removed this replica. The others follow it, so they elect no successor.
            self.hand_over(|_| true, now);
        }
        true
    }

    /// Returns the tick, of [`PRE_VOTE_TICKS`], at which this replica repeats a pre-vote. The voters have different ones, so
    /// that they don't compete.
    fn pre_vote_tick(&self) -> usize {
        self.voters().iter().take_while(|voter| **voter != self.id).count() * 2 % PRE_VOTE_TICKS
    }

    /// Starts a check for contact to a quorum, if this replica leads.
    fn check_quorum(&mut self, now: Duration) {
        if self.leads() {
            self.checks.push_back((self.next_check, now));
            self.raft.read_index(self.next_check.to_be_bytes().to_vec());
            self.next_check += 1;
        } else {
            self.checks.clear();
            self.quorum_contact = None;
        }
        self.handle_ready(now);
    }

    /// Returns when [`handle_timeout`](Replica::handle_timeout) is due.
    pub fn next_timeout(&self) -> Duration {
        self.last_tick + TICK_INTERVAL
    }

    /// Returns the next message for another replica, with the address of that replica.
    pub fn poll_message(&mut self) -> Option<(String, RaftMessage)> {
        self.outgoing.pop_front()
    }

    fn handle_ready(&mut self, now: Duration) {
        while self.raft.has_ready() {
            let mut ready = self.raft.ready();
            self.send(ready.take_messages());
            if !ready.snapshot().is_empty() {
                self.restore(ready.snapshot().clone(), now);
            }
            self.apply(ready.take_committed_entries(), now);
            ready.take_read_states().iter().for_each(|state| self.confirm_quorum(&state.request_ctx));
            {
                let mut entries = self.raft.store().entries.wl();
                entries.append(ready.entries()).expect("the entries follow the log");
                if let Some(state) = ready.hs() {
                    entries.set_hardstate(state.clone());
                }
            }
            self.send(ready.take_persisted_messages());
            let mut light = self.raft.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.raft.store().entries.wl().mut_hard_state().set_commit(commit);
            }
            self.send(light.take_messages());
            self.apply(light.take_committed_entries(), now);
            self.raft.advance_apply();
        }
        self.followed = self.leader().or(self.followed);
    }

    fn confirm_quorum(&mut self, context: &[u8]) {
        let Ok(number) = context.try_into().map(u64::from_be_bytes) else { return };
        while let Some((check, sent)) = self.checks.front().copied().filter(|(check, _)| *check <= number) {
            self.checks.pop_front();
            if check == number {
                self.quorum_contact = Some(sent);
            }
        }
    }

    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let to = NodeId(message.to);
            if message.msg_type == MessageType::MsgSnapshot {
                // Raft sends nothing else until it knows what became of the snapshot. If the message is lost, the next
                // one is rejected, and Raft sends the snapshot again.
                self.raft.report_snapshot(message.to, SnapshotStatus::Finish);
            }
            let sender = self.sender.as_ref().filter(|(sender, _)| *sender == to);
            let address = self.job.replicas.get(&to).or_else(|| sender.map(|(_, address)| address));
            if let Some(address) = address {
                self.outgoing.push_back((address.clone(), message.into()));
            }
        }
    }

    fn restore(&mut self, snapshot: Snapshot, now: Duration) {
        if let Ok(job) = serde_json::from_slice(snapshot.get_data()) {
            self.job = job;
        }
        (self.applied, self.applied_at) = (snapshot.get_metadata().index, now);
        self.raft
            .store()
            .entries
            .wl()
            .apply_snapshot(snapshot.clone())
            .expect("the snapshot is newer than the log");
        self.raft.mut_store().snapshot = snapshot;
    }

    fn apply(&mut self, entries: Vec<raft::prelude::Entry>, now: Duration) {
        for entry in entries {
            self.applied = entry.index;
            match entry.get_entry_type() {
                // A new leader starts its term with an empty entry, which can't be decoded.
                EntryType::EntryNormal => {
                    if let Ok(entry) = serde_json::from_slice(&entry.data) {
                        self.job.apply(entry);
                        self.applied_at = now;
                    }
                }
                EntryType::EntryConfChange => {}
                EntryType::EntryConfChangeV2 => {
                    let Ok(change) = ConfChangeV2::parse_from_bytes(&entry.data) else { continue };
                    if self.raft.raft.prs().iter().count() + change.changes.len() > MAX_REPLICAS {
                        continue;
                    }
                    let Ok(state) = self.raft.apply_conf_change(&change) else { continue };
                    self.raft.store().entries.wl().set_conf_state(state.clone());
                    // A new replica refuses a snapshot whose configuration does not contain it.
                    self.take_snapshot(state);
                }
            }
        }
        if self.applied >= self.raft.store().snapshot.get_metadata().index + SNAPSHOT_INTERVAL {
            let state = self.raft.store().initial_state().expect("the log is in memory").conf_state;
            self.take_snapshot(state);
        }
    }

    /// Replaces the applied part of the log by a snapshot of the job.
    fn take_snapshot(&mut self, state: ConfState) {
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.applied;
        metadata.term = self.raft.store().term(self.applied).unwrap_or_default();
        metadata.set_conf_state(state);
        snapshot.set_data(encode(&self.job).into());
        self.raft.mut_store().snapshot = snapshot;
        // The entry of the snapshot stays in the log, because Raft needs its term.
        let _ = self.raft.store().entries.wl().compact(self.applied);
    }
}

fn encode(job: &Job) -> Vec<u8> {
    serde_json::to_vec(job).expect("a job can be encoded")
}

#[cfg(test)]
mod tests;
