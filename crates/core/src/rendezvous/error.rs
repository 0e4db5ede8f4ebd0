//! What can be wrong with the bytes of a state.

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
    Unfaithful {
        /// How many nodes have a heartbeat in it.
        nodes: usize,
    },
}
