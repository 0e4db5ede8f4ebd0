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

use super::error::StateError;
use super::state::State;
use crate::limits::Limits;

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
        false => Err(StateError::Unfaithful { nodes: state.last_heartbeats.len() }),
    }
}
