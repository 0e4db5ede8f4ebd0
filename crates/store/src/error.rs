//! Errors of store operations, and their messages.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rallypoint_core::client::{Awaited, ConnectionFault, Failure, Oversized, Retry};
use rallypoint_core::wire::Op;
use rallypoint_core::{WireError, counted, first_few, printable};

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A call failed, or a store could not be opened.
    #[error("{}", call_message(.context, .failure))]
    Call {
        /// The call.
        context: Box<Context>,
        /// The reason.
        failure: Failure,
    },
    /// A server cannot listen on an address.
    #[error("cannot listen on {address}: {}", listen_message(.error))]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        error: io::Error,
    },
    /// A file cannot be used.
    #[error("{}: {fault}", .path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        fault: FileFault,
    },
    /// A file could not be opened, locked or read before the timeout.
    #[error("{} timed out after {} on {}: {obstacle}", .context.call(), millis(.context.waited), .context.peer)]
    FileTimeout {
        /// The call.
        context: Box<Context>,
        /// The reason.
        obstacle: &'static str,
    },
    /// The queue has no items.
    #[error("queue {key} is empty")]
    QueueEmpty {
        /// The name of the queue.
        key: String,
    },
    /// The arguments are out of range or contradict each other. Contains the message.
    #[error("{0}")]
    InvalidArgument(String),
    /// An error of a store that is implemented outside of this crate.
    #[error(transparent)]
    Foreign(Box<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    /// Returns whether the call may be repeated.
    pub fn retry(&self) -> Retry {
        self.failure().map_or(Retry::Never, Failure::retry)
    }

    /// Returns whether the error is an outage: the server was unreachable or sent no reply. The same call may succeed
    /// once the server answers.
    pub fn is_outage(&self) -> bool {
        self.retry() != Retry::Never
    }

    /// Returns the call that failed, if the error belongs to a call.
    pub fn context(&self) -> Option<&Context> {
        match self {
            StoreError::Call { context, .. } | StoreError::FileTimeout { context, .. } => Some(context),
            _ => None,
        }
    }

    /// Returns why the call failed, if the error is [`StoreError::Call`].
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            StoreError::Call { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// Returns why no connection could be opened, or `None` if the call failed for another reason. If several addresses
    /// failed, returns the most specific fault.
    pub fn connection_fault(&self) -> Option<ConnectionFault> {
        self.failure()?.connection_fault()
    }

    /// Returns what the call waited for, if the error is a timeout of a wait.
    pub fn awaited(&self) -> Option<&Awaited> {
        match self.failure()? {
            Failure::Timeout(awaited) => Some(awaited),
            _ => None,
        }
    }

    /// Returns the keys that were absent when the call timed out, or all keys of the call if the server did not report
    /// which keys were present. Returns no keys if the error is not a timeout of a wait for keys.
    pub fn missing_keys(&self) -> Vec<&str> {
        match self {
            StoreError::Call { context, failure: Failure::Timeout(Awaited::Keys(present)) } => {
                context.keys_with_presence(false, present.as_deref())
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether a server cannot listen because the address is in use.
    pub fn is_address_in_use(&self) -> bool {
        matches!(self, StoreError::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse)
    }

    pub(crate) fn zero_world_size(what: &str) -> StoreError {
        StoreError::InvalidArgument(format!("world size 0 for {what}; it must be at least 1"))
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
    /// A store that is implemented outside of this crate. Contains the name of its type.
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

/// The call to which an error belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// The kind of store.
    pub store: StoreKind,
    /// The endpoint of the server, the path of the file, or the prefix of an exchange between ranks. Empty for other
    /// stores.
    pub peer: String,
    /// The operation, or `None` if the call opened a store.
    pub op: Option<Op>,
    /// The keys of the operation.
    pub keys: Vec<String>,
    /// How long the call took until it failed. Zero if unknown.
    pub waited: Duration,
}

impl Context {
    /// Creates the context of a call that opens a store.
    pub fn new(store: StoreKind, peer: impl Into<String>) -> Context {
        Context { store, peer: peer.into(), op: None, keys: Vec::new(), waited: Duration::ZERO }
    }

    /// Sets the operation and its keys.
    pub(crate) fn with_call(self, op: impl Into<Option<Op>>, keys: Vec<String>) -> Context {
        Context { op: op.into(), keys, ..self }
    }

    /// Sets how long the call has taken.
    pub fn after(self, waited: Duration) -> Context {
        Context { waited, ..self }
    }

    /// Creates the error for this call.
    pub fn failed(self, failure: Failure) -> StoreError {
        StoreError::Call { context: Box::new(self), failure }
    }

    /// Returns the kind of the store with its endpoint or path.
    pub fn store_name(&self) -> String {
        match self.store {
            StoreKind::Tcp => format!("TCP store {}", self.peer),
            store if self.peer.is_empty() => store.to_string(),
            store => format!("{store} {}", self.peer),
        }
    }

    fn op(&self) -> &'static str {
        self.op.map_or("connect", Op::name)
    }

    /// Returns the operation and its keys as text.
    fn call(&self) -> String {
        let op = self.op();
        if self.keys.is_empty() { op.into() } else { format!("{op} of {}", first_few(&self.keys)) }
    }

    /// Returns the operation and its keys between `prefix` and `suffix`, or nothing if the call opened a store.
    fn call_if_any(&self, prefix: &str, suffix: &str) -> String {
        if self.op.is_none() { String::new() } else { format!("{prefix}{}{suffix}", self.call()) }
    }

    /// Returns the keys that were present if `is_present`, else the keys that were absent. Returns all keys if
    /// `present` is `None`.
    fn keys_with_presence(&self, is_present: bool, present: Option<&[bool]>) -> Vec<&str> {
        let matches = |n: usize| present.is_none_or(|present| present.get(n) == Some(&is_present));
        let keys = self.keys.iter().enumerate().filter(|(n, _)| matches(*n));
        keys.map(|(_, key)| key.as_str()).collect()
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// A file operation failed.
    #[error("{what}: {source}")]
    System {
        /// The file operation.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The file contains bytes that are neither a record nor the beginning of one.
    #[error("not a FileStore file: {what} at byte {offset}")]
    Corrupt {
        /// The offset of the bytes in the file.
        offset: u64,
        /// What is wrong with them.
        what: String,
    },
    /// The file exists but must not be used, for example because other users can write it, because it is not a regular
    /// file, or because it belongs to another run. Contains the reason.
    #[error("refused: {0}")]
    Refused(String),
}

// ---- messages ----

fn call_message(context: &Context, failure: &Failure) -> String {
    let (peer, call, waited) = (&context.peer, context.call(), millis(context.waited));
    match failure {
        Failure::Timeout(awaited) => timeout_message(context, awaited),
        Failure::NoReply => format!(
            "{call} got no reply from {peer} within {waited}: the server is reachable but silent (stopped, frozen, or cut off)"
        ),
        Failure::Unreachable(tried) => match &tried[..] {
            [(_, fault @ ConnectionFault::Unresolvable { .. })] => fault.to_string(),
            tried => {
                let during = context.call_if_any(" for ", "");
                let faults = join(tried.iter().map(|(address, fault)| format!("{address}: {fault}")), "; ");
                format!("could not connect to {peer}{during} within {waited}: {faults}")
            }
        },
        Failure::ConnectionLost(reason) => format!("lost the connection to {peer} during {call}: {reason}"),
        Failure::Indeterminate(reason) => format!(
            "{call} got no reply from {peer}: {reason}; it may or may not have been applied, and was not repeated"
        ),
        Failure::Reset(evidence) => format!(
            "{}the store at {peer} was restarted and has lost its contents ({evidence}); create a new client to continue with an empty store",
            context.call_if_any("", " failed: ")
        ),
        Failure::Protocol(address, error) => {
            let (peer, during) = (address.as_ref().unwrap_or(peer), context.call_if_any(" during ", ""));
            match error {
                WireError::WrongNonce { .. } => format!("{peer} {error}{during}: not a c10d store server"),
                error => format!("{peer} broke the protocol{during}: {error}"),
            }
        }
        Failure::TooLarge { what, len, limit } => too_large_message(context, *what, *len, *limit),
        Failure::Refused(reason) => format!("{call} was refused by {}: {reason}", context.store_name()),
        Failure::Unsupported(None) => format!("{} does not support {}", context.store, context.op()),
        Failure::Unsupported(Some(since)) => format!(
            "{} is not supported by the server at {peer}\nhint: torch's servers support it from {since}, rallypoint's always",
            context.op()
        ),
        Failure::NotANumber { delta, value } => format!(
            "cannot add {delta} to {}: its value is {}, and the sum must be a 64-bit integer",
            first_few(&context.keys),
            printable(value)
        ),
        failure => format!("{call} failed on {}: {failure:?}", context.store_name()),
    }
}

fn timeout_message(context: &Context, awaited: &Awaited) -> String {
    let (waited, store) = (millis(context.waited), context.store_name());
    match awaited {
        Awaited::Keys(present) => {
            let states = key_states(context, present.as_deref());
            format!("{} timed out after {waited} on {store}: {states}", context.op())
        }
        Awaited::Arrivals(world_size) => {
            let key = first_few(&context.keys);
            format!("barrier {key} timed out after {waited} on {store}: fewer than {world_size} arrived")
        }
        Awaited::Workers { joined, expected } => {
            format!("timed out after {waited} waiting for workers at {store}: {joined} of {expected} joined")
        }
        Awaited::Ranks { world_size, missing } => {
            let arrived = world_size - missing.len() as u64;
            let missing = first_few(missing);
            format!(
                "timed out after {waited} at {:?}: {arrived} of {world_size} ranks arrived, missing: {missing}",
                context.peer
            )
        }
        awaited => format!("{} timed out after {waited} on {store}: {awaited:?}", context.call()),
    }
}

fn key_states(context: &Context, present: Option<&[bool]>) -> String {
    let missing = context.keys_with_presence(false, present);
    let found = context.keys_with_presence(true, present);
    match (missing.is_empty(), found.is_empty()) {
        _ if present.is_none() => {
            format!("waited for {} (the server did not report which are present)", first_few(&missing))
        }
        (false, true) => format!("missing {}", first_few(&missing)),
        (false, false) => {
            let (count, total) = (found.len(), context.keys.len());
            format!(
                "missing {} ({count} of {total} keys present: {})",
                first_few(&missing),
                first_few(&found)
            )
        }
        (true, _) => format!("all of {} were set just after the timeout", first_few(&found)),
    }
}

fn too_large_message(context: &Context, what: Oversized, len: u64, limit: usize) -> String {
    let key = first_few(&context.keys);
    match what {
        Oversized::Key => format!("key of {len} bytes, the limit is {limit}: {key}"),
        Oversized::Value => {
            format!("value of {len} bytes for {key}, the limit is {limit}; nothing was changed")
        }
        Oversized::Append { current_len } => format!(
            "cannot append {} to {key}: its value has {current_len}, and the server's limit is {limit}",
            counted(len as usize, "byte")
        ),
        Oversized::Keys => format!("{len} keys in one call, the limit is {limit}; nothing was sent"),
        Oversized::Request => format!("request of {len} bytes, the limit is {limit}; nothing was sent"),
        _ => {
            let has_several_keys = context.keys.len() > 1;
            let advice = if has_several_keys { "request fewer keys at a time, or " } else { "" };
            format!(
                "the reply of {} to {} has at least {len} bytes, this client accepts {limit}; {advice}use a client with a larger `reply_len`",
                context.peer,
                context.call()
            )
        }
    }
}

fn listen_message(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "address already in use by another server or an unfinished job, or no free port is left".into()
        }
        _ => error.to_string(),
    }
}

/// Joins items with `separator`.
pub(crate) fn join(items: impl Iterator<Item = impl ToString>, separator: &str) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_context(keys: &[&str]) -> Context {
        let keys = keys.iter().map(|key| key.to_string()).collect();
        Context::new(StoreKind::Tcp, "node0:29400").with_call(Op::Wait, keys).after(Duration::from_secs(1))
    }

    #[test]
    fn an_address_in_use_is_reported_with_possible_causes() {
        let (address, error) = ("127.0.0.1:29400".into(), io::ErrorKind::AddrInUse.into());
        let message = StoreError::Listen { address, error }.to_string();
        assert!(
            message.starts_with("cannot listen on 127.0.0.1:29400: address already in use by another server"),
            "{message}"
        );
    }

    #[test]
    fn only_failures_that_may_be_retried_are_outages() {
        for (failure, retry) in [
            (Failure::NoReply, Retry::WhenReachable),
            (Failure::Indeterminate("lost".into()), Retry::Indeterminate),
            (Failure::Timeout(Awaited::Keys(None)), Retry::WhenReachable),
            (Failure::Timeout(Awaited::Keys(Some(vec![false]))), Retry::Never),
        ] {
            let error = wait_context(&["k"]).failed(failure);
            assert_eq!(error.retry(), retry, "{error}");
            assert_eq!(error.is_outage(), retry != Retry::Never);
        }
        assert_eq!(StoreError::QueueEmpty { key: "k".into() }.retry(), Retry::Never);
    }

    #[test]
    fn a_timeout_reports_how_many_keys_were_present() {
        for (present, keys) in [
            (Some(vec![false, false, false]), "missing a, b, c"),
            (Some(vec![false, true, true]), "missing a (2 of 3 keys present: b, c)"),
            (Some(vec![true, true, true]), "all of a, b, c were set just after the timeout"),
            (None, "waited for a, b, c (the server did not report which are present)"),
        ] {
            let error = wait_context(&["a", "b", "c"]).failed(Failure::Timeout(Awaited::Keys(present)));
            let expected = format!("wait timed out after 1000 ms on TCP store node0:29400: {keys}");
            assert_eq!(error.to_string(), expected);
        }
    }
}
