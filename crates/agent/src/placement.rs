//! Where the workers of this node are in the world, for one start: ranks and the master's address. Numbers only.

use rallypoint_rendezvous::{AssignedRanks, RendezvousStoreInfo};

/// The place of this node's workers in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    /// This node's rank.
    pub(crate) group_rank: u64,
    /// How many nodes there are.
    pub(crate) group_world_size: u64,
    /// The ranks of this node's workers.
    pub(crate) ranks: AssignedRanks,
    /// Where rank 0 is reached.
    pub(crate) master: RendezvousStoreInfo,
    /// How many of the restarts this node has used.
    pub(crate) restart_count: u32,
    /// Whether the workers use the agent's store.
    pub(crate) use_agent_store: bool,
}

impl Placement {
    /// The rank in the world of one of this node's workers.
    pub(crate) fn rank(&self, local_rank: u32) -> u64 {
        self.ranks.first + u64::from(local_rank)
    }

    /// Its rank among the workers of its role.
    pub(crate) fn role_rank(&self, local_rank: u32) -> u64 {
        self.ranks.role_first + u64::from(local_rank)
    }
}
