//! Failures of calls, and faults of the connections that carry them.

use std::io::{self, ErrorKind};

use crate::error::WireError;
use crate::value::Value;

/// Why a call to a store failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The call timed out. Contains what it waited for.
    Timeout(Awaited),
    /// The server did not reply by the deadline to an operation that should be answered immediately. The call may be
    /// repeated. If it is a write, the server may still carry it out.
    NoReply,
    /// No connection could be opened. Contains each address with its last fault.
    Unreachable(Vec<(String, ConnectionFault)>),
    /// The connection broke and could not be replaced. The request was not sent, or may be repeated. Contains the
    /// reason.
    ConnectionLost(String),
    /// The reply to a request that must not be repeated was lost, so the request may or may not have been carried out.
    /// Contains the reason why the reply was lost.
    Indeterminate(String),
    /// The server was restarted and lost its data. Contains the evidence.
    Reset(String),
    /// The peer violated the protocol. Contains its address if that happened while the client connected.
    Protocol(Option<String>, WireError),
    /// A key, value, request or reply exceeds a limit of the store or of this client.
    TooLarge {
        /// The object that exceeds the limit.
        what: Oversized,
        /// Its length in bytes, or the number of keys.
        len: u64,
        /// The limit.
        limit: usize,
    },
    /// The store refused the request, for example because it is full. Contains the reason.
    Refused(String),
    /// The store does not support the operation and changed nothing. If the server is one of torch's and too old,
    /// contains the releases of torch that support the operation, such as `2.10 on`.
    Unsupported(Option<&'static str>),
    /// The value is not a number, or the sum of an ADD overflows an `i64`.
    NotANumber {
        /// The addend.
        delta: i64,
        /// The stored value.
        value: Value,
    },
}

/// What a call waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// The keys of the call. Contains for each key whether it was present, or `None` if the server did not report it.
    Keys(Option<Vec<bool>>),
    /// This number of arrivals at a barrier.
    Arrivals(u64),
    /// The workers that use the store.
    Workers {
        /// The number of workers that joined.
        joined: i64,
        /// The number of workers that must join.
        expected: u64,
    },
    /// The ranks of an exchange or of a barrier.
    Ranks {
        /// The number of ranks.
        world_size: u64,
        /// The ranks that did not arrive.
        missing: Vec<u64>,
    },
}

/// An object that exceeds its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Oversized {
    /// A key.
    Key,
    /// A value.
    Value,
    /// The bytes to append to a value.
    Append {
        /// The length of the stored value in bytes.
        current_len: usize,
    },
    /// The number of keys in one call.
    Keys,
    /// A whole request.
    Request,
    /// A reply, whose length is at least `len`. The client closed the connection without reading the reply. The server
    /// has carried out the request.
    Reply,
}

/// Whether a call that failed may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// The call must not be repeated automatically, because the same call would probably fail again.
    Never,
    /// The call may be repeated unchanged. It can succeed once the server is reachable.
    WhenReachable,
    /// The server may have carried out the call. The caller must find out before it repeats the call.
    Indeterminate,
}

impl Failure {
    /// Returns whether the call may be repeated.
    pub fn retry(&self) -> Retry {
        match self {
            // `Awaited::Keys(None)` means that the server did not answer: a reply would say which keys are present.
            Failure::Unreachable(_)
            | Failure::ConnectionLost(_)
            | Failure::NoReply
            | Failure::Timeout(Awaited::Keys(None)) => Retry::WhenReachable,
            Failure::Indeterminate(_) => Retry::Indeterminate,
            _ => Retry::Never,
        }
    }

    /// Returns why no connection could be opened, if that is the failure. If several addresses failed, returns the most
    /// specific fault.
    pub fn connection_fault(&self) -> Option<ConnectionFault> {
        match self {
            Failure::Unreachable(tried) => tried.iter().map(|(_, fault)| fault).max().cloned(),
            Failure::Protocol(Some(_), error) => Some(ConnectionFault::NotAStore(error.to_string())),
            _ => None,
        }
    }
}

/// Why a connection to a store server could not be opened, or why it broke.
///
/// The variants are ordered from the least to the most specific. If several addresses fail, errors show the greatest
/// fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionFault {
    /// The host name has no address.
    #[error("could not resolve host {host:?}: {reason}")]
    Unresolvable {
        /// The host name.
        host: String,
        /// The error of the resolver.
        reason: String,
    },
    /// Another system error. Contains its text.
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
    /// The server's machine no longer acknowledges sent data.
    #[error("the server's machine acknowledges no data (it is down, or the network is cut)")]
    Unacknowledged,
    /// The server closed or reset the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The connection is open, but the server sent no reply before the deadline.
    #[error("accepts connections but does not answer as a store does (stopped, or another kind of server)")]
    Silent,
    /// The server does not reply as a store does. Contains the text of a [`WireError`].
    #[error("{0}")]
    NotAStore(String),
}

impl ConnectionFault {
    /// Returns what the user can check: one sentence without a period.
    pub fn hint(&self) -> &'static str {
        match self {
            ConnectionFault::Unresolvable { .. } => {
                "check the spelling of the host name in the endpoint, and whether DNS knows it on this machine"
            }
            ConnectionFault::System(_) => "check the endpoint's host and port, and this machine's network",
            ConnectionFault::NoRoute | ConnectionFault::ConnectTimeout => {
                "check that the machine is up, and that no firewall blocks the port"
            }
            ConnectionFault::Refused => {
                "check that the node or server that hosts the store is up, at this port, and not only on 127.0.0.1"
            }
            ConnectionFault::Unacknowledged => "check that the machine is up, and connected to the network",
            ConnectionFault::Closed => {
                "check that the server is a TCPStore; a TLS server closes the connection like this, and a store server logs why"
            }
            ConnectionFault::Silent => "check that the server is a TCPStore, and that it is not stopped",
            ConnectionFault::NotAStore(_) => "another program has that port; check the endpoint",
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
    fn each_kind_of_io_error_maps_to_a_fault() {
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
