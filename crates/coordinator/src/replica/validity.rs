//! Checks messages of other replicas. The Raft library ends the process if it gets a message that no replica sends.

use std::collections::BTreeSet;

use raft::RawNode;
use raft::eraftpb::{ConfState, Message, MessageType};

use super::{Log, MAX_REPLICAS};

/// Returns whether the Raft library can handle a message.
pub(super) fn is_valid(message: &Message, raft: &RawNode<Log>) -> bool {
    let log = &raft.raft.raft_log;
    let is_known = |index: u64| index <= log.last_index();
    let is_member = raft.raft.prs().get(message.from).is_some();
    message.term > 0
        && message.from > 0
        && match message.msg_type {
            MessageType::MsgAppend => is_valid_append(message, raft),
            MessageType::MsgHeartbeat => is_known(message.commit),
            MessageType::MsgSnapshot => is_valid_snapshot(message, raft),
            MessageType::MsgAppendResponse => {
                is_member && (message.reject || is_known(message.index)) && is_known(message.reject_hint)
            }
            _ => true,
        }
}

/// Returns whether the entries of a message follow each other and the entry before them. The first message to a new
/// replica is a snapshot, so there always is an entry before.
fn is_valid_append(message: &Message, raft: &RawNode<Log>) -> bool {
    let log = &raft.raft.raft_log;
    let committed_term = log.term(log.committed).unwrap_or(0);
    let mut last = (message.index, message.log_term);
    let mut follows = |(index, term): (u64, u64)| {
        let (last_index, last_term) = std::mem::replace(&mut last, (index, term));
        index == last_index + 1 && term >= last_term && term <= message.term
    };
    message.index > 0
        && message.log_term > 0
        && (message.index < log.committed || message.log_term >= committed_term)
        && message.entries.iter().all(|entry| follows((entry.index, entry.term)))
}

fn is_valid_snapshot(message: &Message, raft: &RawNode<Log>) -> bool {
    let log = &raft.raft.raft_log;
    let metadata = message.get_snapshot().get_metadata();
    let is_current = metadata.index != log.committed || log.term(log.committed).ok() == Some(metadata.term);
    metadata.index > 0
        && (1..=message.term).contains(&metadata.term)
        && is_current
        && is_valid_configuration(metadata.get_conf_state())
}

/// Returns whether Raft can restore a configuration.
fn is_valid_configuration(state: &ConfState) -> bool {
    let lists = [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next];
    let sets = lists.map(|list| list.iter().copied().collect::<BTreeSet<u64>>());
    let is_distinct = lists.iter().zip(&sets).all(|(list, set)| list.len() == set.len());
    let [voters, learners, outgoing, next] = sets;
    is_distinct
        && !voters.is_empty()
        && voters.len() + learners.len() + outgoing.len() <= MAX_REPLICAS
        && ![&voters, &learners, &outgoing].iter().any(|set| set.contains(&0))
        && voters.is_disjoint(&learners)
        && outgoing.is_disjoint(&learners)
        && next.is_subset(&outgoing)
        && next.is_disjoint(&voters)
        && (!state.auto_leave || !outgoing.is_empty())
}
