//! One replica of a job: a Raft node with the log in memory, and the state that follows from the log.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use protobuf::Message as _;
use raft::prelude::{ConfChangeType, ConfChangeSingle, ConfChangeV2, ConfState, EntryType, Message, Snapshot};
use raft::storage::MemStorage;
use raft::{Config, GetEntriesContext, RaftState, RawNode, StateRole, Storage};

use crate::job::{Entry, Job};
use crate::node::NodeId;

/// The interval of Raft's logical clock.
pub const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// A follower that has not heard of the leader for this number of ticks starts an election. Each replica adds up to
/// [`ELECTION_SPREAD`] ticks, so that two replicas rarely start elections at the same time.
const ELECTION_TICKS: usize = 8;
const ELECTION_SPREAD: u64 = 8;
/// The number of applied entries after which the log is replaced by an image.
const IMAGE_INTERVAL: u64 = 64;

/// A message for another replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftMessage {
    /// The receiver.
    pub to: NodeId,
    /// The address of the receiver.
    pub address: String,
    /// The encoded message.
    pub bytes: Vec<u8>,
}

/// Raft's log, with an image of the job at the start of the log.
struct Log {
    log: MemStorage,
    /// The job after the entry at which the log starts.
    image: Snapshot,
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        self.log.initial_state()
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<raft::prelude::Entry>> {
        self.log.entries(low, high, max_size, context)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.log.term(index)
    }

    fn first_index(&self) -> raft::Result<u64> {
        self.log.first_index()
    }

    fn last_index(&self) -> raft::Result<u64> {
        self.log.last_index()
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        Ok(self.image.clone())
    }
}

/// One replica of a job.
pub struct Replica {
    id: NodeId,
    raft: RawNode<Log>,
    job: Job,
    applied: u64,
    last_tick: Duration,
    /// The pending checks for a quorum: the number and the time of each.
    contacts: VecDeque<(u64, Duration)>,
    next_contact: u64,
    /// When a quorum was last known to follow this leader.
    quorum_contact: Option<Duration>,
    /// The number of entries that were proposed and are not applied yet.
    pending: u32,
    outgoing: VecDeque<RaftMessage>,
    /// Addresses of replicas that are not in the configuration yet.
    addresses: BTreeMap<NodeId, String>,
}

fn config(id: NodeId, seed: u64) -> Config {
    let election_tick = ELECTION_TICKS + (seed % ELECTION_SPREAD) as usize;
    Config {
        id: id.0,
        election_tick: ELECTION_TICKS,
        heartbeat_tick: 1,
        // The range has one element, so that the timeout follows from the seed.
        min_election_tick: election_tick,
        max_election_tick: election_tick + 1,
        check_quorum: true,
        pre_vote: true,
        max_size_per_msg: 1 << 20,
        ..Config::default()
    }
}

impl Replica {
    /// Founds a group with one voter.
    pub fn found(id: NodeId, address: &str, job: Job, seed: u64, now: Duration) -> Replica {
        let mut image = Snapshot::default();
        image.mut_metadata().index = 1;
        image.mut_metadata().term = 1;
        image.mut_metadata().mut_conf_state().voters = vec![id.0];
        let mut job = job;
        job.voters.insert(id, address.to_owned());
        image.set_data(encode(&job, now).into());
        let mut replica = Replica::new(id, Some(image), job, seed, now);
        // A group with one voter needs no election timeout.
        replica.raft.campaign().expect("the only voter can always start an election");
        replica.handle_ready(now);
        replica
    }

    /// Creates a replica that a leader will add to its group.
    pub fn join(id: NodeId, job: Job, seed: u64, now: Duration) -> Replica {
        Replica::new(id, None, job, seed, now)
    }

    fn new(id: NodeId, image: Option<Snapshot>, job: Job, seed: u64, now: Duration) -> Replica {
        let log = MemStorage::new();
        let applied = image.as_ref().map_or(0, |image| image.get_metadata().index);
        if let Some(image) = &image {
            log.wl().apply_snapshot(image.clone()).expect("the log is empty");
        }
        let storage = Log { log, image: image.unwrap_or_default() };
        let config = Config { applied, ..config(id, seed) };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&config, storage, &logger).expect("the configuration is valid");
        Replica {
            id,
            raft,
            job,
            applied,
            last_tick: now,
            contacts: VecDeque::new(),
            next_contact: 0,
            quorum_contact: None,
            pending: 0,
            outgoing: VecDeque::new(),
            addresses: BTreeMap::new(),
        }
    }

    /// Returns the state that follows from the applied entries.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the term.
    pub fn term(&self) -> u64 {
        self.raft.raft.term
    }

    /// Returns whether this replica is the leader and has applied all entries of earlier leaders.
    pub fn is_leader(&self) -> bool {
        self.raft.raft.state == StateRole::Leader && self.raft.raft.apply_to_current_term()
    }

    /// Returns the leader that this replica follows.
    pub fn leader(&self) -> Option<NodeId> {
        Some(self.raft.raft.leader_id).filter(|id| *id != 0).map(NodeId)
    }

    /// Returns when a quorum was last known to follow this leader.
    pub fn quorum_contact(&self) -> Option<Duration> {
        self.quorum_contact.filter(|_| self.is_leader())
    }

    /// Returns whether all proposed entries have been applied.
    pub fn is_settled(&self) -> bool {
        self.pending == 0 && !self.raft.raft.has_pending_conf()
    }

    /// Proposes an entry. Does nothing if this replica is not the leader.
    pub fn propose(&mut self, entry: &Entry, now: Duration) {
        let bytes = serde_json::to_vec(entry).expect("an entry can be encoded");
        if self.raft.propose(Vec::new(), bytes).is_ok() {
            self.pending += 1;
        }
        self.handle_ready(now);
    }

    /// Proposes that exactly these replicas are voters.
    pub fn propose_voters(&mut self, voters: &BTreeMap<NodeId, String>, now: Duration) {
        let change = |id: NodeId, kind| {
            let mut change = ConfChangeSingle::default();
            (change.node_id, change.change_type) = (id.0, kind);
            change
        };
        let added = voters.keys().filter(|id| !self.job.voters.contains_key(id));
        let removed = self.job.voters.keys().filter(|id| !voters.contains_key(id));
        let changes: Vec<_> = added
            .map(|id| change(*id, ConfChangeType::AddNode))
            .chain(removed.map(|id| change(*id, ConfChangeType::RemoveNode)))
            .collect();
        if changes.is_empty() {
            return;
        }
        let mut change = ConfChangeV2::default();
        change.set_changes(changes.into());
        change.set_context(serde_json::to_vec(voters).expect("addresses can be encoded").into());
        self.addresses.extend(voters.clone());
        if self.raft.propose_conf_change(Vec::new(), change).is_ok() {
            self.pending += 1;
        }
        self.handle_ready(now);
    }

    /// Handles a message of another replica. Ignores messages that are not for this replica.
    pub fn handle_message(&mut self, from: &str, bytes: &[u8], now: Duration) {
        let Ok(message) = Message::parse_from_bytes(bytes) else { return };
        if message.to != self.id.0 || message.from == self.id.0 {
            return;
        }
        self.addresses.insert(NodeId(message.from), from.to_owned());
        // An error means that the message is outdated, which is normal.
        let _ = self.raft.step(message);
        self.handle_ready(now);
    }

    /// Advances Raft's clock.
    pub fn handle_timeout(&mut self, now: Duration) {
        // A process that was suspended catches up with one tick, so that it does not start an election before it has
        // read the messages of its leader.
        if now.saturating_sub(self.last_tick) >= TICK_INTERVAL {
            self.last_tick = now;
            self.raft.tick();
            if self.raft.raft.state == StateRole::Leader {
                self.contacts.push_back((self.next_contact, now));
                self.raft.read_index(self.next_contact.to_be_bytes().to_vec());
                self.next_contact += 1;
            } else {
                self.contacts.clear();
                self.quorum_contact = None;
                self.pending = 0;
            }
            self.handle_ready(now);
        }
    }

    /// Returns when [`handle_timeout`](Replica::handle_timeout) is due.
    pub fn next_timeout(&self) -> Duration {
        self.last_tick + TICK_INTERVAL
    }

    /// Returns the next message for another replica.
    pub fn poll_message(&mut self) -> Option<RaftMessage> {
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
            for state in ready.take_read_states() {
                self.confirm_quorum(&state.request_ctx);
            }
            {
                let mut log = self.raft.store().log.wl();
                log.append(ready.entries()).expect("the entries follow the log");
                if let Some(hard_state) = ready.hs() {
                    log.set_hardstate(hard_state.clone());
                }
            }
            self.send(ready.take_persisted_messages());
            let mut light = self.raft.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.raft.store().log.wl().mut_hard_state().set_commit(commit);
            }
            self.send(light.take_messages());
            self.apply(light.take_committed_entries(), now);
            self.raft.advance_apply();
        }
    }

    fn confirm_quorum(&mut self, context: &[u8]) {
        let Ok(context) = context.try_into().map(u64::from_be_bytes) else { return };
        while let Some((number, sent)) = self.contacts.front().copied().filter(|(number, _)| *number <= context) {
            self.contacts.pop_front();
            if number == context {
                self.quorum_contact = Some(sent);
            }
        }
    }

    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let to = NodeId(message.to);
            let address = self.job.voters.get(&to).or_else(|| self.addresses.get(&to));
            let Some(address) = address.cloned() else { continue };
            let bytes = message.write_to_bytes().expect("a message can be encoded");
            self.outgoing.push_back(RaftMessage { to, address, bytes });
        }
    }

    fn restore(&mut self, image: Snapshot, now: Duration) {
        if let Some(job) = decode(image.get_data(), now) {
            self.job = job;
        }
        self.applied = image.get_metadata().index;
        self.raft.store().log.wl().apply_snapshot(image.clone()).expect("the image is newer than the log");
        self.raft.mut_store().image = image;
    }

    fn apply(&mut self, entries: Vec<raft::prelude::Entry>, now: Duration) {
        for entry in entries {
            self.applied = entry.index;
            match entry.get_entry_type() {
                EntryType::EntryNormal => {
                    if let Ok(entry) = serde_json::from_slice(&entry.data) {
                        self.job.apply(entry, now);
                        self.pending = self.pending.saturating_sub(1);
                    }
                }
                EntryType::EntryConfChange => {}
                EntryType::EntryConfChangeV2 => {
                    let Ok(change) = ConfChangeV2::parse_from_bytes(&entry.data) else { continue };
                    let state = self.raft.apply_conf_change(&change).expect("a committed change is valid");
                    self.raft.store().log.wl().set_conf_state(state.clone());
                    if let Ok(voters) = serde_json::from_slice(&change.context) {
                        self.job.voters = voters;
                        self.pending = self.pending.saturating_sub(1);
                    }
                    self.take_image(state, now);
                }
            }
        }
        if self.applied >= self.raft.store().image.get_metadata().index + IMAGE_INTERVAL {
            let state = self.raft.store().initial_state().expect("the log is in memory").conf_state;
            self.take_image(state, now);
        }
    }

    /// Replaces the applied part of the log by an image of the job.
    fn take_image(&mut self, state: ConfState, now: Duration) {
        let mut image = Snapshot::default();
        let metadata = image.mut_metadata();
        metadata.index = self.applied;
        metadata.term = self.raft.store().term(self.applied).unwrap_or_default();
        metadata.set_conf_state(state);
        image.set_data(encode(&self.job, now).into());
        self.raft.mut_store().image = image;
        // The entry of the image stays in the log, because Raft needs its term.
        let _ = self.raft.store().log.wl().compact(self.applied);
    }
}

/// Encodes a job with remaining times instead of times by the clock of this replica.
fn encode(job: &Job, now: Duration) -> Vec<u8> {
    let _ = now;
    serde_json::to_vec(job).expect("a job can be encoded")
}

fn decode(bytes: &[u8], now: Duration) -> Option<Job> {
    let _ = now;
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests;
