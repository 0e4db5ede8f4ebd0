//! The messages of Raft, in a form that serde encodes.
//!
//! The Raft library encodes its messages with protobuf. Its decoder recurses without a limit, so a peer could end the
//! process with a small message.

use protobuf::Message as _;
use raft::eraftpb;
use serde::{Deserialize, Serialize};

use crate::job::Job;

/// The largest term and index that is accepted. Larger ones could overflow.
const MAX_NUMBER: u64 = 1 << 62;

/// A message of Raft.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftMessage {
    kind: i32,
    /// The id of the receiver.
    pub to: u64,
    /// The id of the sender.
    pub from: u64,
    term: u64,
    log_term: u64,
    index: u64,
    commit: u64,
    commit_term: u64,
    reject: bool,
    reject_hint: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    context: Vec<u8>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    entries: Vec<RaftEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot: Option<RaftSnapshot>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RaftEntry {
    term: u64,
    index: u64,
    data: EntryData,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum EntryData {
    /// JSON.
    Normal(String),
    /// Changes of replicas. Without any, the group leaves the joint configuration.
    Configuration(Vec<ReplicaChange>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ReplicaChange {
    replica: u64,
    kind: ChangeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum ChangeKind {
    AddVoter,
    AddLearner,
    Remove,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RaftSnapshot {
    index: u64,
    term: u64,
    voters: Vec<u64>,
    learners: Vec<u64>,
    voters_outgoing: Vec<u64>,
    learners_next: Vec<u64>,
    auto_leave: bool,
    /// JSON.
    data: String,
}

impl From<eraftpb::Message> for RaftMessage {
    fn from(mut message: eraftpb::Message) -> RaftMessage {
        let snapshot = message.has_snapshot().then(|| RaftSnapshot::from(message.take_snapshot()));
        RaftMessage {
            kind: message.msg_type as i32,
            to: message.to,
            from: message.from,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            commit: message.commit,
            commit_term: message.commit_term,
            reject: message.reject,
            reject_hint: message.reject_hint,
            context: message.context.to_vec(),
            entries: message.take_entries().into_iter().map(RaftEntry::from).collect(),
            snapshot,
        }
    }
}

impl RaftMessage {
    /// Converts the message, or returns `None` if it is invalid.
    pub(crate) fn into_message(self) -> Option<eraftpb::Message> {
        use raft::eraftpb::MessageType as Type;
        let kind = [
            Type::MsgAppend,
            Type::MsgAppendResponse,
            Type::MsgRequestVote,
            Type::MsgRequestVoteResponse,
            Type::MsgSnapshot,
            Type::MsgHeartbeat,
            Type::MsgHeartbeatResponse,
            Type::MsgTimeoutNow,
            Type::MsgRequestPreVote,
            Type::MsgRequestPreVoteResponse,
        ];
        let msg_type = kind.into_iter().find(|kind| *kind as i32 == self.kind)?;
        let numbers = [self.term, self.log_term, self.index, self.commit, self.commit_term, self.reject_hint];
        if numbers.into_iter().any(|number| number > MAX_NUMBER) {
            return None;
        }
        let mut message = eraftpb::Message { msg_type, ..Default::default() };
        (message.to, message.from, message.term) = (self.to, self.from, self.term);
        (message.log_term, message.index) = (self.log_term, self.index);
        (message.commit, message.commit_term) = (self.commit, self.commit_term);
        (message.reject, message.reject_hint) = (self.reject, self.reject_hint);
        message.context = self.context.into();
        let entries: Option<Vec<_>> = self.entries.into_iter().map(RaftEntry::into_entry).collect();
        message.set_entries(entries?.into());
        if let Some(snapshot) = self.snapshot {
            message.set_snapshot(snapshot.into_snapshot()?);
        }
        Some(message)
    }
}

impl From<eraftpb::Entry> for RaftEntry {
    fn from(entry: eraftpb::Entry) -> RaftEntry {
        let data = match entry.entry_type {
            eraftpb::EntryType::EntryNormal => EntryData::Normal(text(&entry.data)),
            _ => EntryData::Configuration(changes(&entry.data)),
        };
        RaftEntry { term: entry.term, index: entry.index, data }
    }
}

impl RaftEntry {
    fn into_entry(self) -> Option<eraftpb::Entry> {
        let mut entry = eraftpb::Entry::default();
        (entry.term, entry.index) = (self.term, self.index);
        match self.data {
            EntryData::Normal(data) => entry.data = data.into(),
            EntryData::Configuration(changes) => {
                let mut change = eraftpb::ConfChangeV2::default();
                change.set_changes(changes.into_iter().map(ReplicaChange::into_single).collect());
                entry.entry_type = eraftpb::EntryType::EntryConfChangeV2;
                entry.data = change.write_to_bytes().ok()?.into();
            }
        }
        (entry.term <= MAX_NUMBER && entry.index <= MAX_NUMBER).then_some(entry)
    }
}

impl ReplicaChange {
    fn into_single(self) -> eraftpb::ConfChangeSingle {
        let change_type = match self.kind {
            ChangeKind::AddVoter => eraftpb::ConfChangeType::AddNode,
            ChangeKind::AddLearner => eraftpb::ConfChangeType::AddLearnerNode,
            ChangeKind::Remove => eraftpb::ConfChangeType::RemoveNode,
        };
        eraftpb::ConfChangeSingle { node_id: self.replica, change_type, ..Default::default() }
    }
}

/// Returns the changes in data that this process has encoded.
fn changes(data: &[u8]) -> Vec<ReplicaChange> {
    let change = eraftpb::ConfChangeV2::parse_from_bytes(data).unwrap_or_default();
    let replica_change = |single: &eraftpb::ConfChangeSingle| ReplicaChange {
        replica: single.node_id,
        kind: match single.change_type {
            eraftpb::ConfChangeType::AddNode => ChangeKind::AddVoter,
            eraftpb::ConfChangeType::AddLearnerNode => ChangeKind::AddLearner,
            eraftpb::ConfChangeType::RemoveNode => ChangeKind::Remove,
        },
    };
    change.changes.iter().map(replica_change).collect()
}

impl From<eraftpb::Snapshot> for RaftSnapshot {
    fn from(mut snapshot: eraftpb::Snapshot) -> RaftSnapshot {
        let mut metadata = snapshot.take_metadata();
        let state = metadata.take_conf_state();
        RaftSnapshot {
            index: metadata.index,
            term: metadata.term,
            voters: state.voters,
            learners: state.learners,
            voters_outgoing: state.voters_outgoing,
            learners_next: state.learners_next,
            auto_leave: state.auto_leave,
            data: text(&snapshot.data),
        }
    }
}

impl RaftSnapshot {
    /// Converts the snapshot, or returns `None` if it has no valid job.
    fn into_snapshot(self) -> Option<eraftpb::Snapshot> {
        let job: Job = serde_json::from_str(&self.data).ok()?;
        job.settings.check().ok()?;
        let mut snapshot = eraftpb::Snapshot { data: self.data.into(), ..Default::default() };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (self.index, self.term);
        let state = metadata.mut_conf_state();
        (state.voters, state.learners) = (self.voters, self.learners);
        (state.voters_outgoing, state.learners_next) = (self.voters_outgoing, self.learners_next);
        state.auto_leave = self.auto_leave;
        (self.index <= MAX_NUMBER && self.term <= MAX_NUMBER).then_some(snapshot)
    }
}

/// Returns data that this program has encoded as JSON.
fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}
