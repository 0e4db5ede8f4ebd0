//! What can be wrong with the bytes of a state: what was found, and at which byte.

use crate::counted;

/// Bytes that are not a rendezvous state. Nothing of them was executed, and nothing has changed.
///
/// `at` is always where the opcode begins that can't be carried out.
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
    /// Base64 that ends within a group of four digits.
    #[error("{digits} base64 digits without the padding that would end them")]
    BadPadding {
        /// Digits up to there.
        digits: usize,
    },
    /// The bytes end too early.
    #[error("the state ends {} too early for the opcode at byte {at}", counted(*missing, "byte"))]
    Truncated {
        /// Where the opcode is, or should be.
        at: usize,
        /// How many bytes more it takes, at least.
        missing: u64,
    },
    /// Something that does not begin as a pickle.
    #[error("first byte {found:#04x} does not begin a pickle (0x80)")]
    NotAPickle {
        /// The byte that came first.
        found: u8,
    },
    /// A pickle of another protocol.
    #[error("pickle protocol {found}, not 4 or 5")]
    Protocol {
        /// The protocol it names.
        found: u8,
    },
    /// An opcode that no state needs.
    #[error("opcode {code:#04x} at byte {at}, which no state needs")]
    UnknownOpcode {
        /// The opcode.
        code: u8,
        /// Where it is.
        at: usize,
    },
    /// The name of something that no state is made of. It was not looked up.
    #[error("{module}.{name} at byte {at}, which no state is made of")]
    UnknownGlobal {
        /// Its module, printable.
        module: String,
        /// Its name, printable.
        name: String,
        /// Where it is.
        at: usize,
    },
    /// An opcode, or the end of the state, that found the wrong thing on the stack.
    #[error("{found} at byte {at} where {wanted} should be")]
    Unexpected {
        /// What was found.
        found: &'static str,
        /// What should be there.
        wanted: &'static str,
        /// Where the opcode is.
        at: usize,
    },
    /// Something that can't be part of any state.
    #[error("{what} at byte {at}")]
    Malformed {
        /// What was found.
        what: &'static str,
        /// Where the opcode is.
        at: usize,
    },
    /// A state or node without one of its attributes.
    #[error("{object} at byte {at} without {field}")]
    MissingField {
        /// What it would be.
        object: &'static str,
        /// The attribute.
        field: &'static str,
        /// Where it is put together.
        at: usize,
    },
    /// An attribute, or an entry of one, of the wrong kind.
    #[error("{found} in {field} of {object} at byte {at}, where {wanted} should be")]
    WrongField {
        /// What has the attribute.
        object: &'static str,
        /// The attribute.
        field: &'static str,
        /// What was found.
        found: &'static str,
        /// What should be there.
        wanted: &'static str,
        /// Where the object is put together.
        at: usize,
    },
    /// An attribute that is not known and whose value can't be kept as it is.
    #[error("unknown attribute {field} of {object} at byte {at}, {found}, which can't be kept")]
    UnknownField {
        /// What has the attribute.
        object: &'static str,
        /// The attribute, printable.
        field: String,
        /// Its value.
        found: &'static str,
        /// Where the object is put together.
        at: usize,
    },
    /// A whole state in the form that torch before 2.6 writes: times without a zone, or no redundancy list. Its times can't be
    /// compared with those of other agents.
    #[error("written by an agent of torch older than 2.6")]
    OldAgent,
    /// More of something than a state may have, or than any state within the limits needs.
    #[error("more than {limit} {what} at byte {at}")]
    Excess {
        /// What there is too much of.
        what: &'static str,
        /// [`state_nodes`](crate::Limits::state_nodes) or a multiple of it, [`host_len`](crate::Limits::host_len) or
        /// [`state_extra`](crate::Limits::state_extra).
        limit: usize,
        /// Where it became too much.
        at: usize,
    },
    /// What we wrote does not read as what it was written from: our defect, and nothing that may be sent.
    #[error("a state of {nodes} nodes that does not read as it was written")]
    Unfaithful {
        /// How many nodes have a heartbeat in it.
        nodes: usize,
    },
}
