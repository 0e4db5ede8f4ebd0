//! Why a call to a store failed, and why a connection to a store server could not be made or broke.

use std::io::{self, ErrorKind};

use crate::error::WireError;
use crate::value::Value;

/// Why a call to a store failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    // ---- the world failed ----
    /// What the caller waited for did not happen in time.
    Timeout(Awaited),
    /// The server did not answer in time, although the operation needs no waiting. The call may be repeated; if it writes,
    /// the server may still carry it out.
    NoAnswer,
    /// There was no connection. The last fault of each address.
    Unreachable(Vec<(String, ConnectionFault)>),
    /// The connection broke and could not be made again, during an operation that may be repeated. The text says how.
    ConnectionLost(String),
    /// No answer came to a request that was sent and must not be repeated: it may or may not have been applied. The text
    /// says how the answer was lost.
    Indeterminate(String),
    /// The server was replaced by one that doesn't have what this client had seen. The text says how the client noticed.
    Reset(String),

    // ---- the peer is malformed ----
    /// The peer does not speak the protocol. Its address, if it is not the server that was known.
    Protocol(Option<String>, WireError),

    // ---- the caller is wrong ----
    /// A key, value, request or reply is larger than the store or this client takes.
    TooLarge {
        /// What it is.
        what: Oversized,
        /// How large it is.
        len: u64,
        /// The limit.
        limit: usize,
    },
    /// The store is full, or another limit of it was reached. The text says which.
    Refused(String),
    /// The store doesn't have the operation, and nothing was changed. From which release of torch on its servers have it, if the
    /// server is an older one.
    Unsupported(Option<&'static str>),
    /// ADD to a value that is not a number, or whose sum does not fit.
    NotANumber {
        /// What was to be added.
        delta: i64,
        /// What is held.
        value: Value,
    },
}

/// What a call waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// The keys of the call. Of each, whether it was there; `None` if the server did not say.
    Keys(Option<Vec<bool>>),
    /// This many arrivals at a barrier.
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
        /// How many ranks there are.
        world_size: u64,
        /// The ranks that did not arrive.
        missing: Vec<u64>,
    },
}

/// What is larger than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Oversized {
    /// A key.
    Key,
    /// A value.
    Value,
    /// What was to be appended to a value.
    Append {
        /// How many bytes the value has.
        current_len: usize,
    },
    /// The number of keys in one call.
    Keys,
    /// A whole request.
    Request,
    /// A reply, which has at least this length. The client did not read it and closed that connection. What was asked for has
    /// been carried out.
    Reply,
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

impl Failure {
    /// Whether the call may be repeated.
    pub fn retry(&self) -> Retry {
        match self {
            // A server that answers in time says which keys are there.
            Failure::Unreachable(_)
            | Failure::ConnectionLost(_)
            | Failure::NoAnswer
            | Failure::Timeout(Awaited::Keys(None)) => Retry::WhenReachable,
            Failure::Indeterminate(_) => Retry::Indeterminate,
            _ => Retry::Never,
        }
    }

    /// Returns why there was no connection, if that is the failure. If several addresses failed, returns the most telling
    /// fault.
    pub fn connection_fault(&self) -> Option<ConnectionFault> {
        match self {
            Failure::Unreachable(tried) => tried.iter().map(|(_, fault)| fault).max().cloned(),
            Failure::Protocol(Some(_), error) => Some(ConnectionFault::NotAStore(error.to_string())),
            _ => None,
        }
    }
}

/// Why a connection to a store server could not be made, or how it broke.
///
/// The variants are ordered from the least to the most telling. If several addresses fail, the greatest fault is shown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionFault {
    /// The host name has no address.
    #[error("could not resolve host {host:?}: {reason}")]
    Unresolvable {
        /// The name.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// The system failed in another way. The text is the system's.
    #[error("{0}")]
    System(String),
    /// The network has no route to the address.
    #[error("no route to the server's machine")]
    NoRoute,
    /// The connection attempt timed out.
    #[error("no answer to the connection attempt")]
    ConnectTimeout,
    /// The machine is up, but no process listens on the port.
    #[error("connection refused (nothing listens there)")]
    Refused,
    /// The server's machine stopped acknowledging what was sent.
    #[error("no sign of life from the server's machine (cut off, or gone)")]
    Unacknowledged,
    /// The server closed or reset the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The connection is open, but the server sends no reply.
    #[error(
        "accepts connections but does not answer as a store does (it is stopped, or another kind of server)"
    )]
    Silent,
    /// The server's reply is not the protocol of a store. The text is that of a [`WireError`].
    #[error("{0}")]
    NotAStore(String),
}

impl ConnectionFault {
    /// Returns what the user can check, as one sentence without a full stop.
    pub fn hint(&self) -> &'static str {
        match self {
            ConnectionFault::Unresolvable { .. } => {
                "check the spelling of the host name in the endpoint, and whether DNS knows it on this machine"
            }
            ConnectionFault::System(_) => {
                "check the host and the port of the endpoint, and this machine's network"
            }
            ConnectionFault::NoRoute | ConnectionFault::ConnectTimeout => {
                "check that the machine is up, and that no firewall blocks the port"
            }
            ConnectionFault::Refused => {
                "check that the node or server that hosts the store is up, and listens on more than 127.0.0.1"
            }
            ConnectionFault::Unacknowledged => "check that the machine is up, and connected to the network",
            ConnectionFault::Closed => {
                "check that the server is a TCPStore; a TLS server closes the connection like this, and a store server logs why"
            }
            ConnectionFault::Silent => {
                "check that the server is a TCPStore, and that its process is not stopped"
            }
            ConnectionFault::NotAStore(_) => {
                "another program has that port: check the host and the port of the endpoint"
            }
        }
    }
}

impl From<&io::Error> for ConnectionFault {
    fn from(error: &io::Error) -> ConnectionFault {
        match error.kind() {
            ErrorKind::ConnectionRefused => ConnectionFault::Refused,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => ConnectionFault::Closed,
            ErrorKind::TimedOut => ConnectionFault::ConnectTimeout,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => ConnectionFault::NoRoute,
            _ => ConnectionFault::System(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_become_distinct_faults() {
        for (kind, fault) in [
            (ErrorKind::ConnectionRefused, ConnectionFault::Refused),
            (ErrorKind::ConnectionReset, ConnectionFault::Closed),
            (ErrorKind::BrokenPipe, ConnectionFault::Closed),
            (ErrorKind::TimedOut, ConnectionFault::ConnectTimeout),
            (ErrorKind::HostUnreachable, ConnectionFault::NoRoute),
            (ErrorKind::NetworkUnreachable, ConnectionFault::NoRoute),
        ] {
            assert_eq!(ConnectionFault::from(&io::Error::from(kind)), fault);
        }
        let error = io::Error::other("too many open files");
        assert_eq!(ConnectionFault::from(&error), ConnectionFault::System("too many open files".into()));
    }

    #[test]
    fn the_most_specific_fault_is_the_greatest() {
        let http = ConnectionFault::NotAStore("answered like an HTTP server".into());
        let no_ipv6 = ConnectionFault::System("cannot assign the requested address".into());
        assert!(http > ConnectionFault::Refused && ConnectionFault::Refused > no_ipv6);
        assert_eq!(http.to_string(), "answered like an HTTP server");
    }
}
