//! The interface between a launcher and a rendezvous of any backend.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{Membership, NodeDesc};
use rallypoint_store::PrefixStore;

use crate::error::Result;
use crate::store_info::RendezvousStoreInfo;

/// The interface of one node to its rendezvous. As in torch's rendezvous API, a `rank` is the group rank of a node, and
/// a `world_size` is a number of nodes.
pub trait RendezvousHandler: Send + Sync {
    /// Returns the name under which the backend is registered.
    fn backend(&self) -> &str;

    /// Returns the run id.
    fn run_id(&self) -> &str;

    /// Joins the next round, waits until the round is complete, and returns it.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Closed`](crate::RendezvousError::Closed) or `Timeout`, with `Interrupted` after
    /// [`interrupt`](RendezvousHandler::interrupt), and with `Connection` or `Outage` if the store can't be used. Each
    /// backend has further errors, such as `Conflict` or `Refused`.
    fn next_rendezvous(&self) -> Result<RendezvousInfo>;

    /// Returns what this node knows about its round: the members, the lost nodes, and the nodes that wait for the next
    /// round.
    ///
    /// The value is at most 1 s old, unless the store has an outage.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used. With the `c10d` backend, a node in a round gets the last value during an
    /// outage of the store, until the outage has lasted for `store_outage_timeout`.
    fn membership(&self) -> Result<Membership>;

    /// Waits until [`membership`](RendezvousHandler::membership) may have changed, at most for `timeout`.
    fn wait_for_change(&self, timeout: Duration) {
        std::thread::sleep(timeout);
    }

    /// Closes the rendezvous for all nodes.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used, or if closing takes longer than `close_timeout`.
    fn set_closed(&self) -> Result<()>;

    /// Closes the rendezvous like [`set_closed`](RendezvousHandler::set_closed). A backend with a coordinator tells
    /// `reason` to the other nodes.
    ///
    /// # Errors
    ///
    /// Fails like [`set_closed`](RendezvousHandler::set_closed).
    fn close(&self, reason: &str) -> Result<()> {
        let _ = reason;
        self.set_closed()
    }

    /// Removes this node from the rendezvous. The other nodes stay in it.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used, or if leaving takes longer than 5 s.
    fn leave(&self) -> Result<()> {
        Ok(())
    }

    /// Makes a pending call to [`next_rendezvous`](RendezvousHandler::next_rendezvous) fail with `Interrupted`. With
    /// the `c10d` backend, that call first removes this node from the rendezvous. May be called from any thread.
    fn interrupt(&self) {}

    /// Returns whether this node hosts the store of the rendezvous. If so, the other nodes lose the store when this
    /// node exits.
    fn hosts_store(&self) -> bool {
        false
    }

    /// Reports what the workers of this node did, to a backend that ends rounds itself. Does not block.
    fn report(&self, report: Report) {
        let _ = report;
    }
}

/// What the workers of a node did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A worker has failed, so the round ends.
    WorkerFailed {
        /// The local rank of the worker.
        local_rank: u32,
        /// How the worker exited, for people to read.
        exit: String,
    },
    /// All workers have finished.
    Finished,
    /// An operator drains the node.
    Drain,
}

/// A round that a node has joined.
#[derive(Clone)]
pub struct RendezvousInfo {
    /// The store of this round: the store of the rendezvous under a prefix that only this round uses.
    pub store: Arc<PrefixStore>,
    /// The group rank of this node.
    pub rank: u64,
    /// The number of nodes in the round.
    pub world_size: u64,
    /// The address of the workers' store.
    pub bootstrap_store_info: RendezvousStoreInfo,
    /// Whether the agent of group rank 0 serves the workers' store. Otherwise the worker with rank 0 serves it.
    pub use_agent_store: bool,
    /// The number of the round. Always 0 in a static rendezvous.
    pub round: u64,
    /// The number of nodes of the previous round that were lost, if a coordinator has counted them.
    pub lost: u64,
    /// The nodes of the round in the order of their group ranks. Empty in a static rendezvous with nodes of torch's
    /// launcher, which do not publish their addresses, and in a native rendezvous unless
    /// [`NativeNode::wants_participants`](crate::NativeNode::wants_participants) is set.
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
