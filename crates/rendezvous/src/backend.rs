//! The interface to the storage of the shared state.
//!
//! As in torch, a backend reads bytes and replaces them with a compare-and-set. Our backends also have announcements,
//! so that one write can add many nodes to the state, and signals, which wake waiting nodes.

use std::time::Duration;

use bytes::Bytes;
use rallypoint_core::rendezvous::{NodeDesc, Signal};

use crate::error::Result;

/// Identifies a version of the state. A write succeeds only if the token is still current. The token is empty if there
/// is no state.
pub type Token = Bytes;

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Whether the bytes of this write were stored.
    pub won: bool,
    /// The bytes that are stored after the write and their token, or `None` if there is no state.
    pub now: Option<(Vec<u8>, Token)>,
}

/// A backend of the dynamic rendezvous.
///
/// Only the first three methods are required. With the default implementations of the other methods, nodes join one by
/// one and poll the state once per second, as torch's nodes do.
pub trait RendezvousBackend: Send + Sync {
    /// Returns the name of the backend.
    fn name(&self) -> &str;

    /// Returns the bytes of the state and their token, or `None` if no node has written a state yet.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used, or if the value is not a state.
    fn state(&self) -> Result<Option<(Vec<u8>, Token)>>;

    /// Stores `state` if `token` is still current. Returns whether `state` was stored, and the bytes that are stored
    /// afterwards.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used, or if the server refuses the state.
    fn set_state(&self, state: &[u8], token: &[u8]) -> Result<Written>;

    /// Returns a copy of this backend whose calls take at most `timeout`, or `None` if the backend does not support
    /// that.
    fn within(&self, timeout: Duration) -> Option<Box<dyn RendezvousBackend>> {
        let _ = timeout;
        None
    }

    /// Announces that `node` wants to be in this round.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used.
    fn announce(&self, round: u64, node: &NodeDesc) -> Result<()> {
        let _ = (round, node);
        Ok(())
    }

    /// Returns the nodes that were announced for this round and not retracted.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used.
    fn announced(&self, round: u64) -> Result<Vec<NodeDesc>> {
        let _ = round;
        Ok(Vec::new())
    }

    /// Retracts the announcements of these nodes for this round.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used.
    fn retract(&self, round: u64, nodes: &[NodeDesc]) -> Result<()> {
        let _ = (round, nodes);
        Ok(())
    }

    /// Wakes the nodes that wait for this signal. Errors are ignored, because waiting nodes also poll the state.
    fn signal(&self, signal: Signal) {
        let _ = signal;
    }

    /// Waits for this signal, at most for `timeout`. Returns whether the signal was received.
    fn wait(&self, signal: Signal, timeout: Duration) -> bool {
        let _ = signal;
        std::thread::sleep(timeout);
        false
    }

    /// Removes the keys of all rounds up to and including `round`, and stops after `timeout`. Returns whether all of
    /// them are removed.
    ///
    /// The caller must ensure that no node is in these rounds any more.
    fn remove_rounds(&self, round: u64, timeout: Duration) -> bool {
        let _ = (round, timeout);
        true
    }
}
