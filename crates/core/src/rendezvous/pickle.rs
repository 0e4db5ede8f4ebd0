//! The codec of a state: a pickle of torch's `_RendezvousState`.
//!
//! The reader is not an unpickler. It accepts the 30 opcodes and the 5 class names that a state consists of, and it
//! imports and calls nothing. It refuses everything else and reports what it found and where. It uses no recursion, and
//! allocates at most a small multiple of what the largest state within the limits needs.
//!
//! The reader accepts the pickles of CPython 3.8 to 3.14 (protocols 4 and 5). The writer uses protocol 4, which every
//! Python that torch supports can read. Its bytes differ from those that CPython writes for the same state, but Python
//! loads an equal object from them.

mod objects;
mod opcode;
mod reader;
mod writer;

use super::state::State;
use crate::limits::Limits;

/// Why bytes could not be decoded as a state, or a state could not be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The state has more bytes than the limit allows.
    #[error("state of {len} bytes, limit {limit}")]
    TooLarge {
        /// The number of bytes.
        len: usize,
        /// [`state_bytes`](crate::Limits::state_bytes), or the length of that many bytes in base64.
        limit: usize,
    },
    /// The bytes contain something that no state contains, lack something that every state has, or exceed a limit other
    /// than [`state_bytes`](crate::Limits::state_bytes).
    #[error("{what} at byte {at}")]
    Malformed {
        /// What is wrong, on one line.
        what: String,
        /// The position of the opcode that can't be executed, or the length of the base64 if its padding is missing.
        at: usize,
    },
    /// A well-formed state of torch before 2.6: it has times without a zone, or no redundancy list. Its times can't be
    /// compared with those of other agents.
    #[error("written by an agent of torch older than 2.6")]
    OldAgent,
    /// The encoded state does not decode to the same state. This is a bug of ours. Such a state must not be written.
    #[error("a state of {nodes} nodes that does not decode to what was encoded")]
    RoundTripMismatch {
        /// The number of nodes with a heartbeat in the state.
        nodes: usize,
    },
}

/// Returns the state in `bytes`.
///
/// # Errors
///
/// Fails with a [`StateError`] if `bytes` are not a state within the limits.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<State, StateError> {
    let (len, limit) = (bytes.len(), limits.state_bytes);
    if len > limit {
        return Err(StateError::TooLarge { len, limit });
    }
    reader::Reader::new(bytes, limits).read()
}

/// Returns the bytes of `state`, after decoding them as a check.
///
/// The check is necessary because a single malformed state ends every torch agent of a job, with an exception that does
/// not name the cause.
///
/// # Errors
///
/// Fails with a [`StateError`] if the state exceeds a limit, or does not decode to the same state.
pub fn encode(state: &State, limits: &Limits) -> Result<Vec<u8>, StateError> {
    let bytes = writer::write(state);
    match decode(&bytes, limits)? == *state {
        true => Ok(bytes),
        false => Err(StateError::RoundTripMismatch { nodes: state.last_heartbeats.len() }),
    }
}
