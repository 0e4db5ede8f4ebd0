//! Where the shared state lies: torch's view of it, bytes that are read and compared-and-set, and beside it what lets our
//! nodes help and wake each other. A backend decides nothing and doesn't know what the bytes mean.

use std::time::Duration;

use bytes::Bytes;
use rallypoint_core::rendezvous::{NodeDesc, Signal};

use crate::error::Result;

/// What a write must find unchanged; its content is the backend's business. Empty: there was no state.
pub type Token = Bytes;

/// What came of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Whether it was this one's bytes that were stored.
    pub won: bool,
    /// What is there now, if anything, with its token.
    pub now: Option<(Vec<u8>, Token)>,
}

/// A backend of the dynamic rendezvous.
///
/// Only the first three methods are needed; without the others nodes let themselves in one by one and look once a
/// second, as torch's do.
pub trait RendezvousBackend: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// The state's bytes with their token; `None` if there are none yet. Never waits for one to appear.
    fn state(&self) -> Result<Option<(Vec<u8>, Token)>>;

    /// Stores these bytes if what is there still has that token.
    fn set_state(&self, state: &[u8], token: &[u8]) -> Result<Written>;

    /// This same backend, but giving up after so long what it would try for longer; `None` if it can't.
    fn within(&self, timeout: Duration) -> Option<Box<dyn RendezvousBackend>> {
        let _ = timeout;
        None
    }

    /// Tells the others that this node wants to be in that round.
    fn announce(&self, round: u64, node: &NodeDesc) -> Result<()> {
        let _ = (round, node);
        Ok(())
    }

    /// Who has told so and has not been taken back.
    fn announced(&self, round: u64) -> Result<Vec<NodeDesc>> {
        let _ = round;
        Ok(Vec::new())
    }

    /// Takes back that these nodes want to be in that round.
    fn retract(&self, round: u64, nodes: &[NodeDesc]) -> Result<()> {
        let _ = (round, nodes);
        Ok(())
    }

    /// Wakes those who wait for this. Best effort: they also look by themselves.
    fn signal(&self, signal: Signal) {
        let _ = signal;
    }

    /// Waits for this, at most for so long. Whether it came.
    fn wait(&self, signal: Signal, timeout: Duration) -> bool {
        let _ = signal;
        std::thread::sleep(timeout);
        false
    }

    /// Removes the keys of all rounds up to this one, which no node can be in any more, for at most `timeout`. Returns
    /// whether all of them are removed.
    fn remove_rounds(&self, round: u64, timeout: Duration) -> bool {
        let _ = (round, timeout);
        true
    }
}
