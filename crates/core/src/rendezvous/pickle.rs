//! The closed codec: a state ⇄ exactly the pickle that torch's `pickle.dumps(state)` makes of it.
//!
//! This is no unpickler. It knows the thirty opcodes and the five names that a state is made of, looks up nothing and
//! calls nothing; everything else is refused with what was found and where. Reading has no recursion, and sets aside no
//! more than a small multiple of what a state within the limits needs.
//!
//! Writing is what CPython 3.8–3.13 write of the same state, byte for byte, except that entries are in the order of the
//! nodes. Protocol 4 is written, which every Python that torch runs on reads; 4 and 5 are read.

mod build;
mod frame;
mod input;
mod item;
mod opcode;
mod output;
mod reader;
mod seen;
mod tables;
mod writer;

use super::error::StateError;
use super::state::State;
use crate::limits::Limits;

/// The state in these bytes.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<State, StateError> {
    // The reader counts in 32 bits, whatever the limit.
    let limit = limits.state_bytes.min(u32::MAX as usize);
    if bytes.len() > limit {
        return Err(StateError::TooLarge { len: bytes.len(), limit });
    }
    reader::Reader::new(bytes, limits).read()
}

/// The bytes of this state.
///
/// A state that torch could not take (one with an attribute twice, or a round that is no `i64`) is a caller's defect;
/// use [`encode_checked`] for what is to be sent.
pub fn encode(state: &State) -> Vec<u8> {
    let bytes = writer::write(state);
    debug_assert_eq!(decode(&bytes, &unlimited()).as_ref(), Ok(state), "what is written reads the same");
    bytes
}

/// The bytes of this state, read back before they are given out.
///
/// One bad state ends every torch agent of a job with an exception that explains nothing, so nothing else is sent.
pub fn encode_checked(state: &State, limits: &Limits) -> Result<Vec<u8>, StateError> {
    let bytes = writer::write(state);
    match decode(&bytes, limits)? == *state {
        true => Ok(bytes),
        false => Err(StateError::Unfaithful { nodes: state.last_heartbeats.len() }),
    }
}

/// Limits for reading what we wrote ourselves.
fn unlimited() -> Limits {
    Limits {
        state_bytes: usize::MAX,
        state_nodes: usize::MAX,
        state_extra: usize::MAX,
        host_len: usize::MAX,
        ..Limits::default()
    }
}
