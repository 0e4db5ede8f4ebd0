//! The closed codec: a state ⇄ a pickle of torch's `_RendezvousState`.
//!
//! This is no unpickler. It knows the thirty opcodes and the five names that a state is made of, looks up nothing and
//! calls nothing; everything else is refused with what was found and where. Reading has no recursion, and sets aside no
//! more than a small multiple of what a state within the limits needs.
//!
//! The pickles of CPython 3.8–3.14 are read: protocols 4 and 5. Protocol 4 is written, which every Python that torch runs
//! on reads. The bytes are not those that CPython would write of the same state, but what Python loads is equal.

mod objects;
mod opcode;
mod reader;
mod writer;

use super::state::State;
use crate::limits::Limits;

/// Bytes that are not a rendezvous state. Nothing of them was executed, and nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// More bytes than a state may have.
    #[error("state of {len} bytes, limit {limit}")]
    TooLarge {
        /// How many there are.
        len: usize,
        /// [`state_bytes`](crate::Limits::state_bytes), or what that comes to in base64.
        limit: usize,
    },
    /// Something that can't be part of any state, or that is missing in it.
    #[error("{what} at byte {at}")]
    Malformed {
        /// What is wrong, on one line.
        what: String,
        /// Where the opcode begins that can't be carried out.
        at: usize,
    },
    /// A whole state in the form that torch before 2.6 writes: times without a zone, or no redundancy list. Its times can't be
    /// compared with those of other agents.
    #[error("written by an agent of torch older than 2.6")]
    OldAgent,
    /// What we wrote does not read as what it was written from: our defect, and nothing that may be sent.
    #[error("a state of {nodes} nodes that does not read as it was written")]
    RoundTripMismatch {
        /// How many nodes have a heartbeat in it.
        nodes: usize,
    },
}

/// Returns the state in these bytes.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<State, StateError> {
    let (len, limit) = (bytes.len(), limits.state_bytes);
    if len > limit {
        return Err(StateError::TooLarge { len, limit });
    }
    reader::Reader::new(bytes, limits).read()
}

/// Returns the bytes of this state, which were read back.
///
/// One bad state ends every torch agent of a job with an exception that explains nothing. So a state that does not read
/// as it was written, or that is above the limits, is an error here.
pub fn encode(state: &State, limits: &Limits) -> Result<Vec<u8>, StateError> {
    let bytes = writer::write(state);
    match decode(&bytes, limits)? == *state {
        true => Ok(bytes),
        false => Err(StateError::RoundTripMismatch { nodes: state.last_heartbeats.len() }),
    }
}
