//! What a launcher asks of a rendezvous, whatever is behind it. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::NodeDesc;
use rallypoint_store::Store;

use crate::error::Result;
use crate::store_info::RendezvousStoreInfo;

/// A rendezvous, as one node sees it. Ranks and world sizes count nodes, not workers.
pub trait RendezvousHandler: Send + Sync {
    /// The name of its backend; the one it is registered under.
    fn backend(&self) -> &str;

    /// Which job.
    fn run_id(&self) -> &str;

    /// Waits until this node is in a round.
    fn next_rendezvous(&self) -> Result<RendezvousInfo>;

    /// Whether the rendezvous has ended for good, as far as this node knows.
    fn is_closed(&self) -> Result<bool>;

    /// Ends the rendezvous for everybody.
    fn set_closed(&self) -> Result<()>;

    /// How many nodes wait for the next round. More than none means: start over, so that they can be let in.
    fn num_nodes_waiting(&self) -> Result<u64>;

    /// How many nodes of this node's round are no longer in it: they have left, or died. More than none means: start over
    /// without them.
    fn num_nodes_gone(&self) -> Result<u64> {
        Ok(0)
    }

    /// How many nodes of this node's round wait for the next one, if nobody else waits or is gone: then it is one of them
    /// that began to start over, because its workers failed.
    fn num_nodes_returned(&self) -> Result<u64> {
        Ok(0)
    }

    /// How many nodes are here that are in no round: they wait, or stand by as spares.
    fn num_nodes_standing_by(&self) -> Result<u64> {
        Ok(0)
    }

    /// Whether workers may use the agent's store, at the master's address and port.
    fn use_agent_store(&self) -> bool {
        false
    }

    /// Ends this node's part, and the rendezvous with it. `true` if that worked.
    fn shutdown(&self) -> bool;

    /// Takes this node, and it alone, out of the rendezvous.
    fn leave(&self) -> Result<()> {
        Ok(())
    }

    /// Whether this node hosts the store of the rendezvous: if it goes, the others lose it.
    fn hosts_store(&self) -> bool {
        false
    }

    /// Whether nodes of the round this one is in have left it and wait for the next, or are in that already. Who has
    /// workers in the round has lost theirs; and they wait for this node to leave it too.
    fn is_round_over(&self) -> Result<bool> {
        Ok(false)
    }

    /// Who of the round this node is in is in it no longer: left, or was taken for dead.
    fn gone_from_round(&self) -> Result<Vec<NodeDesc>> {
        Ok(Vec::new())
    }

    /// Whether those who are gone from the round had been silent for long, so that none of them is about to come back.
    fn gone_for_good(&self) -> Result<bool> {
        Ok(false)
    }

    /// Who of the round this node is in is not even here any more, and why: for people to read. `None` if all are.
    fn describe_gone(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns which node closed the rendezvous and when, for people to read, if that node recorded it. Torch's nodes
    /// don't. Reads the newest state that this node has seen, without asking the store.
    fn closed_by(&self) -> Option<String> {
        None
    }

    /// Makes a call that waits in [`next_rendezvous`](RendezvousHandler::next_rendezvous) end soon, from any thread. The
    /// node is out of the rendezvous then.
    fn interrupt(&self) {}

    /// Waits until something may have changed that [`num_nodes_waiting`](RendezvousHandler::num_nodes_waiting) or
    /// [`is_closed`](RendezvousHandler::is_closed) would tell of, at most for so long.
    fn wait_for_change(&self, most: Duration) {
        std::thread::sleep(most);
    }
}

/// What a node gets from a round.
#[derive(Clone)]
pub struct RendezvousInfo {
    /// The store of this round, shared by its nodes.
    pub store: Arc<dyn Store>,
    /// This node's rank.
    pub rank: u64,
    /// How many nodes are in the round.
    pub world_size: u64,
    /// Where the workers' store is.
    pub bootstrap_store_info: RendezvousStoreInfo,
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
