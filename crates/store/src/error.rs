//! Why a store operation failed, split by who must act.

mod key_states;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rallypoint_core::client::{ConnectionFault, PeerProtocol, Violation};
use rallypoint_core::counted;
use rallypoint_core::wire::Op;

pub use key_states::KeyStates;

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    // ---- the world failed: the caller may wait, or fix the network, the server or the file ----
    /// What the caller waited for did not happen in time.
    #[error("{}", timed_out(.context, *.waited, .awaited))]
    Timeout {
        /// The call.
        context: Box<Context>,
        /// How long the call waited.
        waited: Duration,
        /// What the call waited for.
        awaited: Awaited,
    },
    /// The server did not answer in time, although the operation needs no waiting. The call may be repeated; if it writes, the
    /// server may still carry it out.
    #[error(
        "{} got no answer from {} within {}: the server is reachable but silent (stopped, frozen, or cut off)",
        .context.call(), .context.peer, millis(*.waited)
    )]
    NoAnswer {
        /// The call.
        context: Box<Context>,
        /// How long the call waited.
        waited: Duration,
    },
    /// No connection could be made.
    #[error("{}", unreachable(.context, *.waited, .tried))]
    Unreachable {
        /// The call.
        context: Box<Context>,
        /// How long the client tried.
        waited: Duration,
        /// The last failure of each address tried.
        tried: Vec<(String, ConnectionFault)>,
    },
    /// The connection broke and could not be made again, during an operation that may be repeated.
    #[error("lost the connection to {} during {}: {reason}", .context.peer, .context.call())]
    ConnectionLost {
        /// The call.
        context: Box<Context>,
        /// How the connection broke.
        reason: String,
    },
    /// No answer came to a request that was sent and must not be repeated: it may or may not have been applied.
    #[error(
        "{} got no answer from {}: {reason}; it may or may not have been applied, and was not repeated",
        .context.call(), .context.peer
    )]
    Indeterminate {
        /// The call.
        context: Box<Context>,
        /// How the answer was lost.
        reason: String,
    },
    /// The server was replaced by one that doesn't have what this client had seen.
    #[error(
        "{}the store at {} was restarted and has lost its contents ({evidence}); make a new client to go on with an empty store",
        .context.if_called("", " failed: "), .context.peer
    )]
    StoreReset {
        /// The call.
        context: Box<Context>,
        /// How the client noticed.
        evidence: String,
    },
    /// A server could not listen.
    #[error("{}", listening(.address, .fault))]
    Listen {
        /// The address.
        address: String,
        /// Why not.
        fault: ListenFault,
    },
    /// A file can't be used.
    #[error("{}", file(.path, .fault))]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: FileFault,
    },

    // ---- the peer is malformed ----
    /// The server's bytes were not the protocol. That connection is closed and never used again.
    #[error("{} {}", .context.peer, violated(.violation, &.context.if_called(" during ", "")))]
    Protocol {
        /// The call.
        context: Box<Context>,
        /// What the server sent.
        violation: Violation,
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
    /// The queue has no items.
    #[error("queue {key} is empty")]
    QueueEmpty {
        /// The queue.
        key: String,
    },
    /// A key, value, request or reply is larger than the store or this client takes.
    #[error(transparent)]
    TooLarge(Oversize),
    /// The store is full, or another limit of it was reached.
    #[error("{} was refused by {}: {reason}", .context.call(), .context.place())]
    Refused {
        /// The call.
        context: Box<Context>,
        /// Why.
        reason: String,
    },
    /// The store, or the server, doesn't have the operation. Nothing was changed.
    #[error("{}", unsupported(.context, *.since))]
    Unsupported {
        /// The call.
        context: Box<Context>,
        /// The first release of torch whose server has the operation, if the server is an older one.
        since: Option<&'static str>,
    },
    /// Arguments that are out of range or don't go together.
    #[error("{0}")]
    InvalidArgument(String),
    /// A store that is implemented elsewhere failed, in a way of its own.
    #[error(transparent)]
    Foreign(Box<dyn std::error::Error + Send + Sync>),
}

/// Whether a call that failed may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// The same call would fail again, or has to be decided by the caller.
    Never,
    /// The call may be repeated as it is. It can succeed once the server answers.
    WhenReachable,
    /// The call may have been applied. The caller must find out before it repeats the call.
    Indeterminate,
}

impl StoreError {
    /// Whether the call may be repeated.
    pub fn retry(&self) -> Retry {
        match self {
            StoreError::Unreachable { .. }
            | StoreError::ConnectionLost { .. }
            | StoreError::NoAnswer { .. } => Retry::WhenReachable,
            // A server that answers in time says which keys are there.
            StoreError::Timeout { awaited: Awaited::Keys(keys), .. } if keys.present.is_none() => {
                Retry::WhenReachable
            }
            StoreError::Indeterminate { .. } => Retry::Indeterminate,
            _ => Retry::Never,
        }
    }

    /// Returns the call that failed, if the error is about one.
    pub fn context(&self) -> Option<&Context> {
        match self {
            StoreError::Timeout { context, .. }
            | StoreError::NoAnswer { context, .. }
            | StoreError::Unreachable { context, .. }
            | StoreError::ConnectionLost { context, .. }
            | StoreError::Indeterminate { context, .. }
            | StoreError::StoreReset { context, .. }
            | StoreError::File { fault: FileFault::Timeout { context, .. }, .. }
            | StoreError::Protocol { context, .. }
            | StoreError::TooLarge(Oversize::Reply { context, .. })
            | StoreError::Refused { context, .. }
            | StoreError::Unsupported { context, .. } => Some(context),
            _ => None,
        }
    }

    /// Whether the server could not be reached or did not answer. The same call may work once the server answers.
    pub fn is_outage(&self) -> bool {
        self.retry() != Retry::Never
    }

    /// Returns why there was no connection, if that is what the error says. If several addresses failed, returns the most
    /// telling fault.
    pub fn connection_fault(&self) -> Option<ConnectionFault> {
        match self {
            StoreError::Unreachable { tried, .. } => tried.iter().map(|(_, fault)| fault).max().cloned(),
            StoreError::Protocol { context, violation } if context.op.is_none() => {
                violation.peer_protocol().map(ConnectionFault::NotAStore)
            }
            _ => None,
        }
    }

    pub(crate) fn bad_world_size(what: &str, world_size: i64) -> StoreError {
        StoreError::InvalidArgument(format!("world size {world_size} for {what}; it must be at least 1"))
    }
}

/// The implementations of [`Store`](crate::Store).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreKind {
    /// [`TcpStore`](crate::TcpStore).
    Tcp,
    /// [`FileStore`](crate::FileStore).
    File,
    /// [`HashStore`](crate::HashStore).
    Hash,
    /// [`PrefixStore`](crate::PrefixStore).
    Prefix,
    /// A store that is implemented elsewhere, by the name of its type.
    Other(&'static str),
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreKind::Tcp => "TcpStore",
            StoreKind::File => "FileStore",
            StoreKind::Hash => "HashStore",
            StoreKind::Prefix => "PrefixStore",
            StoreKind::Other(name) => name,
        })
    }
}

/// The call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// The kind of store.
    pub store: StoreKind,
    /// The server's endpoint or the file's path. Empty for stores that have neither.
    pub peer: String,
    /// The operation; `None` if a store was to be made.
    pub op: Option<Op>,
    /// The keys of the operation.
    pub keys: Vec<String>,
}

impl Context {
    /// A store that is being made.
    pub(crate) fn new(store: StoreKind, peer: impl Into<String>) -> Context {
        Context { store, peer: peer.into(), op: None, keys: Vec::new() }
    }

    /// The same store during this call.
    pub(crate) fn during(self, op: Op, keys: Vec<String>) -> Box<Context> {
        Box::new(Context { op: Some(op), keys, ..self })
    }

    /// The store, with its address or path.
    pub fn place(&self) -> String {
        match self.store {
            StoreKind::Tcp => format!("TCP store {}", self.peer),
            store if self.peer.is_empty() => store.to_string(),
            store => format!("{store} {}", self.peer),
        }
    }

    fn op(&self) -> &'static str {
        self.op.map_or("connect", Op::name)
    }

    /// The operation and its keys.
    fn call(&self) -> String {
        let op = self.op();
        if self.keys.is_empty() { op.into() } else { format!("{op} of {}", some(&self.keys)) }
    }

    /// The operation and its keys between these; nothing if a store was to be made.
    fn if_called(&self, before: &str, after: &str) -> String {
        if self.op.is_none() { String::new() } else { format!("{before}{}{after}", self.call()) }
    }
}

/// What a call waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// Keys, and which of them were there.
    Keys(Box<KeyStates>),
    /// The number of arrivals at a barrier.
    Arrivals(u64),
    /// Workers that use the store.
    Workers {
        /// How many joined.
        joined: i64,
        /// How many must join.
        expected: u64,
    },
    /// The ranks of an exchange or of a barrier.
    Ranks {
        /// The key prefix of the exchange.
        prefix: String,
        /// How many ranks there are.
        world_size: u64,
        /// The ranks that did not arrive.
        missing: Vec<u64>,
    },
}

impl Awaited {
    pub(crate) fn keys(keys: Vec<String>, present: Option<Vec<bool>>) -> Awaited {
        Awaited::Keys(KeyStates::new(keys, present).into())
    }
}

/// What is larger than it may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Oversize {
    /// A key.
    #[error("key of {len} bytes, the limit is {limit}: {key}")]
    Key {
        /// The key, cut.
        key: String,
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A value.
    #[error("value of {len} bytes for {key}, the limit is {limit}; nothing was changed")]
    Value {
        /// The key.
        key: String,
        /// The value's length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A value together with what was to be appended to it.
    #[error("cannot append {} to {key}: it holds {held}, and the server's limit is {limit}", counted(*.len, "byte"))]
    Append {
        /// The key.
        key: String,
        /// How many bytes were to be appended.
        len: usize,
        /// How many are there.
        held: usize,
        /// The limit.
        limit: usize,
    },
    /// The number of keys in one call.
    #[error("{count} keys in one call, the limit is {limit}; nothing was sent")]
    Keys {
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A whole request.
    #[error("request of {len} bytes, the limit is {limit}; nothing was sent")]
    Request {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A reply. The client did not read it and closed that connection. What was asked for has been carried out.
    #[error(
        "the reply of {} to {} has at least {len} bytes, this client takes {limit}; {}a client with a larger `reply_len`",
        .context.peer, .context.call(),
        if .context.keys.len() > 1 { "ask for fewer keys at a time, or use " } else { "use " }
    )]
    Reply {
        /// The call.
        context: Box<Context>,
        /// How long the reply is at least, as the server says.
        len: u64,
        /// The limit, [`reply_len`](rallypoint_core::Limits::reply_len).
        limit: usize,
    },
}

/// Why a server could not listen.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListenFault {
    /// The address is taken.
    InUse,
    /// This process serves that port already, but not as it was asked for, so the server can't be shared.
    ServedOtherwise(ServerMismatch),
    /// Another reason, as the system says.
    System(io::Error),
}

impl From<io::Error> for ListenFault {
    fn from(error: io::Error) -> ListenFault {
        match error.kind() {
            io::ErrorKind::AddrInUse => ListenFault::InUse,
            _ => ListenFault::System(error),
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

/// Why a file can't be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileFault {
    /// The file could not be had in time.
    Timeout {
        /// The call.
        context: Box<Context>,
        /// How long the call waited.
        waited: Duration,
        /// Why the file could not be had.
        obstacle: FileObstacle,
    },
    /// A file operation failed.
    System {
        /// The operation.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds something that is not a record and can't be a torn one.
    Corrupt {
        /// The position.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// Other users could have written the file. The text says how.
    Untrusted(String),
    /// The file is of another run.
    Stale {
        /// The run that the file was opened for.
        run_id: String,
        /// The run it belongs to; `None` if it has keys but names no run.
        found: Option<String>,
    },
}

/// Why a file could not be had in time.
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

// ---- texts ----

fn timed_out(context: &Context, waited: Duration, awaited: &Awaited) -> String {
    let (waited, place) = (millis(waited), context.place());
    match awaited {
        Awaited::Keys(keys) => format!("{} timed out after {waited} on {place}: {keys}", context.op()),
        Awaited::Arrivals(world_size) => {
            let key = some(&context.keys);
            format!("barrier {key} timed out after {waited} on {place}: fewer than {world_size} arrived")
        }
        Awaited::Workers { joined, expected } => {
            format!("timed out after {waited} waiting for workers at {place}: {joined} of {expected} joined")
        }
        Awaited::Ranks { prefix, world_size, missing } => {
            let came = world_size - missing.len() as u64;
            let missing = some(&missing.iter().map(u64::to_string).collect::<Vec<_>>());
            format!(
                "timed out after {waited} at {prefix:?}: {came} of {world_size} ranks came, missing: {missing}"
            )
        }
    }
}

fn unreachable(context: &Context, waited: Duration, tried: &[(String, ConnectionFault)]) -> String {
    let faults = match tried {
        [] => "no address was tried".into(),
        [(_, fault @ ConnectionFault::Unresolvable { .. })] => return fault.to_string(),
        _ => {
            tried.iter().map(|(address, fault)| format!("{address}: {fault}")).collect::<Vec<_>>().join("; ")
        }
    };
    let call = context.if_called(" for ", "");
    format!("could not connect to {}{call} within {}: {faults}", context.peer, millis(waited))
}

fn listening(address: &str, fault: &ListenFault) -> String {
    match fault {
        ListenFault::InUse => {
            let holder = match address.rsplit_once(':') {
                Some((_, "0")) => {
                    "all of this machine's free ports are taken; connections that have ended give theirs back after a minute"
                }
                _ => "another store server, or a job that has not ended?",
            };
            format!("cannot listen on {address}: address already in use ({holder})")
        }
        ListenFault::ServedOtherwise(mismatch) => {
            format!("this process serves {address} already, but not as asked: {mismatch}")
        }
        ListenFault::System(error) => format!("cannot listen on {address}: {error}"),
    }
}

fn file(path: &std::path::Path, fault: &FileFault) -> String {
    let path = path.display();
    match fault {
        FileFault::Timeout { context, waited, obstacle } => {
            format!("{} gave up after {} on {path}: {obstacle}", context.call(), millis(*waited))
        }
        FileFault::System { what, source } => format!("{path}: {what}: {source}"),
        FileFault::Corrupt { offset, what } => {
            format!("{path}: not a FileStore file: {what} at byte {offset}")
        }
        FileFault::Untrusted(why) => {
            format!(
                "{path}: refused, {why}; use a file of your own with mode 0600, or allow sharing explicitly"
            )
        }
        FileFault::Stale { run_id, found } => {
            let owner = match found {
                Some(found) => format!("it belongs to run {found:?}"),
                None => "it holds keys already and names no run".into(),
            };
            format!("{path}: refused for run {run_id:?}, {owner}; remove it if that run is over")
        }
    }
}

fn violated(violation: &Violation, during: &str) -> String {
    match violation {
        Violation::Malformed(error) => format!("broke the protocol{during}: {error}"),
        Violation::WrongNonce { sent, found } => match PeerProtocol::of(found.to_le_bytes()) {
            PeerProtocol::Unknown(_) => {
                format!("answered ping {sent} with {found}{during}: not a c10d store server, or out of step")
            }
            protocol => format!("answered like {protocol}{during}: not a c10d store server"),
        },
        violation => format!("broke the protocol{during}: {violation:?}"),
    }
}

fn unsupported(context: &Context, since: Option<&'static str>) -> String {
    let op = context.op();
    let Some(since) = since else { return format!("{} does not support {op}", context.store) };
    let libuv = match context.op {
        Some(Op::QueuePush | Op::QueuePop | Op::QueueLen) => " (with `use_libuv`)",
        _ => "",
    };
    format!(
        "{op} is not supported by the server at {}\nhint: torch's servers support it from {since} on{libuv}, rallypoint's always",
        context.peer
    )
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

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_address_says_who_may_have_it() {
        let said = |address: &str| {
            StoreError::Listen { address: address.into(), fault: ListenFault::InUse }.to_string()
        };
        assert!(said("127.0.0.1:29400").ends_with("(another store server, or a job that has not ended?)"));
        assert!(said("[::]:0").contains("all of this machine's free ports are taken"));
    }

    #[test]
    fn only_what_a_server_may_answer_later_is_an_outage() {
        let context = || Context::new(StoreKind::Tcp, "node0:29400").during(Op::Add, vec!["k".into()]);
        let waited = Duration::from_secs(1);
        let timeout = |present| StoreError::Timeout {
            context: context(),
            waited,
            awaited: Awaited::keys(vec!["k".into()], present),
        };
        for (error, retry) in [
            (StoreError::NoAnswer { context: context(), waited }, Retry::WhenReachable),
            (StoreError::Indeterminate { context: context(), reason: "lost".into() }, Retry::Indeterminate),
            (timeout(None), Retry::WhenReachable),
            (timeout(Some(vec![false])), Retry::Never),
            (StoreError::QueueEmpty { key: "k".into() }, Retry::Never),
        ] {
            assert_eq!(error.retry(), retry, "{error}");
            assert_eq!(error.is_outage(), retry != Retry::Never);
        }
    }
}
