//! Why the hub refuses or closes a connection.

use std::time::Duration;

use crate::error::{Refusal, WireError};

/// The reason for which the hub refused or closed a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The bytes were not the protocol.
    #[error("{0}")]
    Protocol(#[from] WireError),
    /// A request could not be carried out.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The handshake was not finished in time, or too many connections had not finished it.
    #[error("no handshake after {} ms", age.as_millis())]
    NoHandshake {
        /// How long the connection was open.
        age: Duration,
    },
    /// A request arrived too slowly.
    #[error("a request arrives at less than {limit} bytes/s")]
    SlowRequest {
        /// [`partial_rate`](crate::Limits::partial_rate).
        limit: usize,
    },
    /// A large request stalled while others waited for its share of the budget.
    #[error("nothing more of a request for {} s, with {buffered} bytes held and {waiting} others waiting", stall.as_secs_f32())]
    StalledUpload {
        /// [`input_stall`](crate::Limits::input_stall).
        stall: Duration,
        /// Bytes held of this request.
        buffered: usize,
        /// The number of waiting uploads.
        waiting: usize,
    },
    /// All incomplete requests together held too much; this connection held the most.
    #[error("incomplete requests of {total} bytes in all, limit {limit}; this one held {buffered}")]
    TooMuchInput {
        /// Bytes held for all connections.
        total: usize,
        /// [`input_total`](crate::Limits::input_total).
        limit: usize,
        /// Bytes held for this connection.
        buffered: usize,
    },
    /// The peer did not read its replies.
    #[error("took none of {unsent} bytes of replies for {:.1} s", waited.as_secs_f32())]
    SlowReader {
        /// Unsent bytes.
        unsent: usize,
        /// How long the peer has taken none of them.
        waited: Duration,
    },
    /// All unsent replies together held too much; this connection's were the oldest.
    #[error(
        "replies of {total} bytes not taken by all, limit {limit}; {buffered} of them this one's, for {:.1} s",
        age.as_secs_f32()
    )]
    TooMuchOutput {
        /// Bytes held for all connections.
        total: usize,
        /// [`output_total`](crate::Limits::output_total).
        limit: usize,
        /// Bytes held for this connection.
        buffered: usize,
        /// How long the connection has taken none of its replies.
        age: Duration,
    },
    /// Too many connections are open.
    #[error("refused, {open} connections are open")]
    TooManyConnections {
        /// The number of open connections.
        open: usize,
    },
    /// The process may open no more files.
    #[error("refused, no file left: {error}")]
    OutOfFiles {
        /// The error of the system.
        error: String,
    },
}
