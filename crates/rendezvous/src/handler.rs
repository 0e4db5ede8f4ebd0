//! What a launcher asks of a rendezvous, whatever is behind it. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{Membership, NodeDesc};
use rallypoint_store::PrefixStore;

use crate::error::Result;
use crate::store_info::RendezvousStoreInfo;

/// A rendezvous, as one node sees it. Ranks and world sizes count nodes, not workers.
pub trait RendezvousHandler: Send + Sync {
    /// Returns the name of the backend, under which it is registered.
    fn backend(&self) -> &str;

    /// Returns the id of the job.
    fn run_id(&self) -> &str;

    /// Waits until this node is in a round.
    ///
    /// # Errors
    ///
    /// Fails with `RendezvousError::Closed` or `Timeout`, with `Interrupted` after [`interrupt`](RendezvousHandler::interrupt), and
    /// with `Connection` or `Outage` if the store can't be used.
    fn next_rendezvous(&self) -> Result<RendezvousInfo>;

    /// Returns the other nodes: those in this node's round, those that wait for the next one, and those that are lost. At most one second old.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used. A node in a round tolerates that for a while and gets the last value.
    fn membership(&self) -> Result<Membership>;

    /// Waits until [`membership`](RendezvousHandler::membership) may have changed, at most for `most`.
    fn wait_for_change(&self, timeout: Duration) {
        std::thread::sleep(timeout);
    }

    /// Ends the rendezvous for all nodes.
    fn set_closed(&self) -> Result<()>;

    /// Takes this node out of the rendezvous. The other nodes stay in it.
    fn leave(&self) -> Result<()> {
        Ok(())
    }

    /// Makes a call to [`next_rendezvous`](RendezvousHandler::next_rendezvous) end, from any thread. The node is out of the
    /// rendezvous then.
    fn interrupt(&self) {}

    /// Whether this node hosts the store of the rendezvous, so that the other nodes lose the store with this node.
    fn hosts_store(&self) -> bool {
        false
    }
}

/// What a node gets from a round.
#[derive(Clone)]
pub struct RendezvousInfo {
    /// The store of this round, shared by its nodes: a part of the store of the rendezvous.
    pub store: Arc<PrefixStore>,
    /// This node's rank.
    pub rank: u64,
    /// How many nodes are in the round.
    pub world_size: u64,
    /// Where the workers' store is.
    pub bootstrap_store_info: RendezvousStoreInfo,
    /// Whether an agent serves that store, so that no worker has to.
    pub use_agent_store: bool,
    /// Which round; 0 where there is only one.
    pub round: u64,
    /// The nodes in the order of their ranks, where they are known.
    pub participants: Vec<NodeDesc>,
}

impl std::fmt::Debug for RendezvousInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RendezvousInfo")
            .field("round", &self.round)
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("bootstrap_store_info", &self.bootstrap_store_info)
            .field("participants", &self.participants)
            .finish_non_exhaustive()
    }
}
