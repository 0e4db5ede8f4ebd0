//! The reasons for which the hub refuses or closes a connection.

use std::time::Duration;

use crate::error::{Refusal, WireError};

/// The reason for which the hub refused or closed a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer violated the protocol.
    #[error("{0}")]
    Protocol(#[from] WireError),
    /// The engine refused a request.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// VALIDATE did not arrive within [`handshake`](crate::Limits::handshake), or the connection was one of the oldest
    /// stale ones beyond [`stale_total`](crate::Limits::stale_total) or
    /// [`stale_per_address`](crate::Limits::stale_per_address).
    #[error("no handshake after {} ms", age.as_millis())]
    NoHandshake {
        /// The age of the connection.
        age: Duration,
    },
    /// A request arrived too slowly.
    #[error("request arrived at less than {limit} bytes/s")]
    SlowRequest {
        /// [`partial_rate`](crate::Limits::partial_rate).
        limit: usize,
    },
    /// An upload stalled while other uploads waited for its share of the budget.
    #[error("upload stalled for {} s at {buffered} bytes; {waiting} other uploads wait", stall.as_secs_f64())]
    StalledUpload {
        /// [`input_stall`](crate::Limits::input_stall).
        stall: Duration,
        /// The number of bytes buffered for this connection.
        buffered: usize,
        /// The number of uploads that wait for a share.
        waiting: usize,
    },
    /// The incomplete and deferred requests of all connections exceeded the limit, and this connection had the most
    /// bytes.
    #[error("buffered requests of {total} bytes in total, limit {limit}; this connection has {buffered}")]
    TooMuchInput {
        /// The number of bytes buffered for all connections.
        total: usize,
        /// [`input_total`](crate::Limits::input_total).
        limit: usize,
        /// The number of bytes buffered for this connection.
        buffered: usize,
    },
    /// The peer did not read its replies.
    #[error("read none of {unsent} bytes of replies for {:.1} s", waited.as_secs_f64())]
    SlowReader {
        /// The number of unsent bytes.
        unsent: usize,
        /// The time for which the peer has read none of them.
        waited: Duration,
    },
    /// The unsent replies of all connections exceeded the limit, and this connection had read nothing for the longest
    /// time.
    #[error(
        "unread replies of {total} bytes, limit {limit}; this connection has {buffered}, unread for {:.1} s",
        age.as_secs_f64()
    )]
    TooMuchOutput {
        /// The memory of the unsent replies of all connections, in bytes.
        total: usize,
        /// [`output_total`](crate::Limits::output_total).
        limit: usize,
        /// The memory of the unsent replies of this connection, in bytes.
        buffered: usize,
        /// The time for which the peer has read none of its replies.
        age: Duration,
    },
    /// The number of connections has reached its limit.
    #[error("refused: {open} connections are open")]
    TooManyConnections {
        /// The number of open connections.
        open: usize,
    },
    /// A connection that the service opened was not open in time.
    #[error("no reply from the server after {} ms", age.as_millis())]
    NoLink {
        /// The age of the connection.
        age: Duration,
    },
    /// The service refused a message.
    #[error("invalid message: {reason}")]
    InvalidMessage {
        /// The reason.
        reason: String,
    },
    /// The process cannot open more files.
    #[error("refused: the process may open no more files: {error}")]
    OutOfFiles {
        /// The error of the operating system.
        error: String,
    },
}
