//! The messages of Raft, in a form that serde encodes.
//!
//! The Raft library encodes its messages with protobuf. Its decoder recurses without a limit, so a peer could end the
//! process with a small message. The only protobuf bytes left here are changes of the configuration, which are short.

use raft::eraftpb;
use serde::{Deserialize, Serialize};

/// The maximum length of the data of an entry that changes the configuration. The data lists at most ten replicas.
const MAX_CONFIGURATION_BYTES: usize = 1024;

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
    /// Protobuf.
    Configuration(Vec<u8>),
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
        let mut message = eraftpb::Message { msg_type, ..Default::default() };
        (message.to, message.from, message.term) = (self.to, self.from, self.term);
        (message.log_term, message.index) = (self.log_term, self.index);
        (message.commit, message.commit_term) = (self.commit, self.commit_term);
        (message.reject, message.reject_hint) = (self.reject, self.reject_hint);
        message.context = self.context.into();
        let entries: Option<Vec<_>> = self.entries.into_iter().map(RaftEntry::into_entry).collect();
        message.set_entries(entries?.into());
        if let Some(snapshot) = self.snapshot {
            message.set_snapshot(snapshot.into());
        }
        Some(message)
    }
}

impl From<eraftpb::Entry> for RaftEntry {
    fn from(entry: eraftpb::Entry) -> RaftEntry {
        let data = match entry.entry_type {
            eraftpb::EntryType::EntryNormal => EntryData::Normal(text(&entry.data)),
            _ => EntryData::Configuration(entry.data.to_vec()),
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
            EntryData::Configuration(data) if data.len() <= MAX_CONFIGURATION_BYTES => {
                entry.entry_type = eraftpb::EntryType::EntryConfChangeV2;
                entry.data = data.into();
            }
            EntryData::Configuration(_) => return None,
        }
        Some(entry)
    }
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

impl From<RaftSnapshot> for eraftpb::Snapshot {
    fn from(from: RaftSnapshot) -> eraftpb::Snapshot {
        let mut snapshot = eraftpb::Snapshot { data: from.data.into(), ..Default::default() };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (from.index, from.term);
        let state = metadata.mut_conf_state();
        (state.voters, state.learners) = (from.voters, from.learners);
        (state.voters_outgoing, state.learners_next) = (from.voters_outgoing, from.learners_next);
        state.auto_leave = from.auto_leave;
        snapshot
    }
}

/// Returns data that this program has encoded as JSON.
fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}
