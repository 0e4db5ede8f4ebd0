//! What a store operation can end in, split by who must act.
//!
//! Each variant carries its operands: which peer, which operation, which keys, how long, how many of how many.

mod key_states;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rallypoint_core::wire::Op;
use rallypoint_core::{WireError, counted};

use crate::fault::{ConnectionFault, PeerProtocol};

pub use key_states::KeyStates;

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    // ---- the time ran out ----
    /// Keys that were waited for did not all come in time.
    #[error("{op} timed out after {} on {store}: {keys}", millis(*.waited))]
    Timeout {
        /// What was called.
        op: Op,
        /// Which store, with its address or path.
        store: String,
        /// How long it waited.
        waited: Duration,
        /// What it waited for, and which of it was there.
        keys: Box<KeyStates>,
    },
    /// Too few arrived at a barrier in time.
    #[error("barrier {key} timed out after {} on {store}: fewer than {world_size} arrived", millis(*.waited))]
    BarrierTimeout {
        /// Which store.
        store: String,
        /// The barrier's key.
        key: String,
        /// How many must arrive.
        world_size: u64,
        /// How long it waited.
        waited: Duration,
    },
    /// The server did not answer in time, although the operation needs no waiting. It may be repeated; if it writes, the
    /// server may still carry it out.
    #[error(
        "{op}{} got no answer from {peer} within {}: the server is reachable but silent (stopped, frozen, or cut off)",
        of_keys(.keys), millis(*.waited)
    )]
    NoAnswer {
        /// The server.
        peer: String,
        /// What was called.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// How long it waited.
        waited: Duration,
    },

    /// A file could not be had in time.
    #[error("{op}{} gave up after {} on {}: {obstacle}", of_keys(.keys), millis(*.waited), .path.display())]
    FileTimeout {
        /// The file.
        path: PathBuf,
        /// What was called.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// How long it waited.
        waited: Duration,
        /// What stood in the way.
        obstacle: FileObstacle,
    },

    // ---- the world failed ----
    /// Nobody could be reached.
    #[error(
        "could not connect to {endpoint}{} within {}: {}",
        call(" for ", *.op, .keys, ""), millis(*.waited), addresses(.tried)
    )]
    Unreachable {
        /// The endpoint as given.
        endpoint: String,
        /// What was called; `Validate` where a store was to be made.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// How long it tried.
        waited: Duration,
        /// The last failure of each address tried.
        tried: Vec<(String, ConnectionFault)>,
    },
    /// The host name has no address.
    #[error("could not resolve host {host:?}: {reason}")]
    Unresolvable {
        /// The name.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// The connection broke and could not be made again, during an operation that may be repeated.
    #[error("lost the connection to {peer} during {op}{}: {reason}", of_keys(.keys))]
    ConnectionLost {
        /// The server.
        peer: String,
        /// What was called.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// How it broke.
        reason: String,
    },
    /// No answer came to a request that was sent and must not be repeated: it may or may not have been applied.
    #[error(
        "{op}{} got no answer from {peer}: {reason}; it may or may not have been applied, and was not repeated",
        of_keys(.keys)
    )]
    Indeterminate {
        /// The server.
        peer: String,
        /// What was called.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// How it was lost.
        reason: String,
    },
    /// The server was replaced by one that doesn't have what this client had seen.
    #[error(
        "{}the store at {peer} was restarted and has lost its contents ({evidence}); make a new client to go on with an empty store",
        call("", *.op, .keys, " failed: ")
    )]
    StoreReset {
        /// The server.
        peer: String,
        /// What was called; `Validate` where a store was to be made.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// How it was noticed.
        evidence: String,
    },
    /// Fewer workers joined than must.
    #[error("timed out after {} waiting for workers at {store}: {joined} of {expected} joined", millis(*.waited))]
    WorkersMissing {
        /// Which store.
        store: String,
        /// How many came.
        joined: i64,
        /// How many must come.
        expected: u64,
        /// How long it waited.
        waited: Duration,
    },
    /// Some ranks did not come to a barrier or exchange.
    #[error(
        "timed out after {} at {prefix:?}: {} of {world_size} ranks came, missing: {}",
        millis(*.waited), world_size - missing.len() as u64, ranks(.missing)
    )]
    RanksMissing {
        /// The key prefix they meet at.
        prefix: String,
        /// How many must come.
        world_size: u64,
        /// Who didn't.
        missing: Vec<u64>,
        /// How long it waited.
        waited: Duration,
    },
    /// The address to listen on is taken.
    #[error("cannot listen on {address}: address already in use ({})", holder(.address))]
    AddressInUse {
        /// The address.
        address: String,
    },
    /// The server of this process on that port is not as it was asked for, so it can't be shared.
    #[error("this process serves port {port} already, but not as asked: {mismatch}")]
    ServedOtherwise {
        /// The port.
        port: u16,
        /// What is running, and what was asked for.
        mismatch: ServerMismatch,
    },
    /// Listening failed for another reason.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("{path}: {what}: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },

    // ---- the peer is malformed ----
    /// The server's bytes were not the protocol. That connection is closed and never used again.
    #[error("{peer} broke the protocol{}: {violation}", call(" during ", *.op, .keys, ""))]
    Protocol {
        /// The server.
        peer: String,
        /// What was called; `Validate` where a store was to be made.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// What it sent.
        violation: WireError,
    },
    /// The answer to a PING carried another number: replies are out of step.
    #[error("{peer} {}", wrong_nonce(*.sent, *.found, &call(" during ", *.op, .keys, "")))]
    WrongNonce {
        /// The server.
        peer: String,
        /// What was called; `Validate` where a store was to be made.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// What was sent.
        sent: u32,
        /// What came.
        found: u32,
    },
    /// The file holds something that is not a record and can't be a torn one.
    #[error("{path}: not a FileStore file: {what} at byte {offset}", path = .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// The file could have been written by others.
    #[error("{path}: refused, {why}; use a file of your own with mode 0600, or allow sharing explicitly", path = .path.display())]
    UntrustedFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// The file is not of this run, and what it holds must not be taken for it.
    #[error(
        "{path}: refused for run {run_id:?}, {}; remove it if that run is over",
        owner(.found), path = .path.display()
    )]
    StaleFile {
        /// The file.
        path: PathBuf,
        /// The run it was opened for.
        run_id: String,
        /// The run it belongs to; `None` if it has keys but names no run.
        found: Option<String>,
    },

    // ---- the caller is wrong ----
    /// The value is not a number, or the sum doesn't fit.
    #[error("cannot add {delta} to {key}: it holds {held}, and the sum must be a 64-bit integer")]
    NotANumber {
        /// The key.
        key: String,
        /// What was to be added.
        delta: i64,
        /// The value held, printable.
        held: String,
    },
    /// Nothing in the queue.
    #[error("queue {key} is empty")]
    QueueEmpty {
        /// The queue.
        key: String,
    },
    /// The key is longer than a store takes.
    #[error("key of {len} bytes, the limit is {limit}: {key}")]
    KeyTooLong {
        /// The key, cut.
        key: String,
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The value is longer than a store takes.
    #[error("value of {len} bytes for {key}, the limit is {limit}; nothing was changed")]
    ValueTooLarge {
        /// The key.
        key: String,
        /// The value's length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The value would be longer with this than the server takes.
    #[error("cannot append {} to {key}: it holds {held}, and the server's limit is {limit}", counted(*.len, "byte"))]
    AppendTooLarge {
        /// The key.
        key: String,
        /// How many bytes were to be appended.
        len: usize,
        /// How many are there.
        held: usize,
        /// The limit.
        limit: usize,
    },
    /// More keys in one call than a store takes.
    #[error("{count} keys in one call, the limit is {limit}; nothing was sent")]
    TooManyKeys {
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// The whole request is longer than a store takes.
    #[error("request of {len} bytes, the limit is {limit}; nothing was sent")]
    RequestTooLarge {
        /// How long.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The reply is longer than this client takes; it was not read, and that connection is closed. What was asked for has been
    /// carried out.
    #[error(
        "the reply of {peer} to {op}{} has at least {len} bytes, this client takes {limit}; {}a client with a larger `reply_len`",
        of_keys(.keys), if .keys.len() > 1 { "ask for fewer keys at a time, or use " } else { "use " }
    )]
    ReplyTooLarge {
        /// The server.
        peer: String,
        /// What was called.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// How long it is at least, as the server says.
        len: u64,
        /// The limit, [`reply_len`](rallypoint_core::Limits::reply_len).
        limit: usize,
    },
    /// The store is as full as it may be, or another limit of it was reached.
    #[error("{op}{} was refused by {store}: {reason}", of_keys(.keys))]
    Refused {
        /// Which store, with its address.
        store: String,
        /// What was called.
        op: Op,
        /// Its keys.
        keys: Vec<String>,
        /// Why.
        reason: String,
    },
    /// A world size below one.
    #[error("world size {world_size} for {what}; it must be at least 1")]
    BadWorldSize {
        /// What it was for.
        what: String,
        /// What was given.
        world_size: i64,
    },
    /// This kind of store doesn't have the operation.
    #[error("{store} does not support {op}")]
    Unsupported {
        /// Which store.
        store: &'static str,
        /// What was called.
        op: Op,
    },
    /// The server is one of torch's that doesn't have the operation. Nothing was changed.
    #[error(
        "{op} is not supported by the server at {peer}\nhint: torch's servers support it from {since} on{}, rallypoint's always",
        if matches!(.op, Op::QueuePush | Op::QueuePop | Op::QueueLen) { " (with `use_libuv`)" } else { "" }
    )]
    UnsupportedByServer {
        /// The server.
        peer: String,
        /// What was called.
        op: Op,
        /// The first release of torch whose server has it.
        since: &'static str,
    },
    /// A store that is not one of these failed, in a way of its own.
    #[error(transparent)]
    Foreign(Box<dyn std::error::Error + Send + Sync>),
    /// Arguments that don't go together.
    #[error("{0}")]
    InvalidArgument(String),
}

impl StoreError {
    /// Whether the server could not be reached or did not answer. The same call may work once the server answers.
    pub fn is_outage(&self) -> bool {
        use StoreError::{ConnectionLost, Indeterminate, NoAnswer, Timeout, Unreachable, Unresolvable};
        match self {
            Unreachable { .. } | Unresolvable { .. } | ConnectionLost { .. } => true,
            NoAnswer { .. } | Indeterminate { .. } => true,
            // A server that answers in time says which keys are there.
            Timeout { keys, .. } => keys.present.is_none(),
            _ => false,
        }
    }

    /// Returns why there was no connection, if that is what the error says. If several addresses failed, returns the most
    /// telling fault.
    pub fn connection_fault(&self) -> Option<ConnectionFault> {
        match self {
            StoreError::Unresolvable { host, reason } => {
                Some(ConnectionFault::Unresolvable { host: host.clone(), reason: reason.clone() })
            }
            StoreError::Unreachable { tried, .. } => tried.iter().map(|(_, fault)| fault).max().cloned(),
            StoreError::WrongNonce { op: Op::Validate, found, .. } => {
                Some(ConnectionFault::NotAStore(PeerProtocol::of(found.to_le_bytes())))
            }
            _ => None,
        }
    }
}

/// How a running server is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerMismatch {
    /// It doesn't listen there.
    #[error("it listens on {}, not on {asked}", listed(.running))]
    Address {
        /// Where it listens.
        running: Vec<SocketAddr>,
        /// Where it was to listen, as given; `*` is every address of this machine.
        asked: String,
    },
    /// It has other limits.
    #[error("it has other limits: {}", listed(.0))]
    Limits(Vec<LimitMismatch>),
}

/// A limit that a running server has and another was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {running}, not {asked}")]
pub struct LimitMismatch {
    /// The limit's name.
    pub name: &'static str,
    /// As it is.
    pub running: String,
    /// As it was to be.
    pub asked: String,
}

/// Why a file could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileObstacle {
    /// It isn't there.
    #[error("there is no such file")]
    Missing,
    /// Another process, or another thread of this one, kept it locked.
    #[error("another process holds its lock")]
    Locked,
    /// It is so long that the time was not enough to read it.
    #[error("only {read} of {len} bytes were read by then")]
    Unread {
        /// How far it was read.
        read: u64,
        /// How long it is.
        len: u64,
    },
}

/// The first few names, and how many more.
pub(crate) fn some(names: &[String]) -> String {
    const MOST: usize = 16;
    let mut text = names.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > MOST {
        text.push_str(&format!(" and {} more", names.len() - MOST));
    }
    text
}

fn listed(all: &[impl ToString]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn of_keys(keys: &[String]) -> String {
    if keys.is_empty() { String::new() } else { format!(" of {}", some(keys)) }
}

/// What was called, between these; nothing where a store was only to be made.
fn call(before: &str, op: Op, keys: &[String], after: &str) -> String {
    if op == Op::Validate { String::new() } else { format!("{before}{op}{}{after}", of_keys(keys)) }
}

/// What a peer answered to a ping, in terms of the protocol that it seems to speak.
fn wrong_nonce(sent: u32, found: u32, during: &str) -> String {
    match PeerProtocol::of(found.to_le_bytes()) {
        PeerProtocol::Unknown(_) => {
            format!("answered ping {sent} with {found}{during}: not a c10d store server, or out of step")
        }
        protocol => format!("answered like {protocol}{during}: not a c10d store server"),
    }
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

fn owner(run_id: &Option<String>) -> String {
    match run_id {
        Some(run_id) => format!("it belongs to run {run_id:?}"),
        None => "it holds keys already and names no run".into(),
    }
}

fn ranks(missing: &[u64]) -> String {
    some(&missing.iter().map(u64::to_string).collect::<Vec<_>>())
}

/// Who may have an address that is taken.
fn holder(address: &str) -> &'static str {
    match address.rsplit_once(':') {
        Some((_, "0")) => {
            "all of this machine's free ports are taken; connections that have ended give theirs back after a minute"
        }
        _ => "another store server, or a job that has not ended?",
    }
}

fn addresses(tried: &[(String, ConnectionFault)]) -> String {
    match tried {
        [] => "no address was tried".into(),
        _ => {
            tried.iter().map(|(address, fault)| format!("{address}: {fault}")).collect::<Vec<_>>().join("; ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_address_says_who_may_have_it() {
        let said = |address: &str| StoreError::AddressInUse { address: address.into() }.to_string();
        assert!(said("127.0.0.1:29400").ends_with("(another store server, or a job that has not ended?)"));
        assert!(said("[::]:0").contains("all of this machine's free ports are taken"));
    }
}
