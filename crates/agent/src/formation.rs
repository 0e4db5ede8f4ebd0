//! The round that a node is in, with the ranks of its workers.

use std::time::Duration;

use rallypoint_core::counted;
use rallypoint_rendezvous::{AssignedRanks, RendezvousInfo, describe_node};

use crate::config::LaunchConfig;

/// A round with the ranks of this node's workers.
#[derive(Debug, Clone)]
pub(crate) struct Formation {
    pub(crate) round: RendezvousInfo,
    /// The ranks of this node's workers.
    pub(crate) ranks: AssignedRanks,
    /// The number of restarts after failures. If the nodes of this round publish their counts, it is the highest one.
    pub(crate) restarts: u32,
    /// The group ranks of the nodes that run, or may run, torch's agent.
    pub(crate) torch_nodes: Vec<u64>,
    /// How long the rendezvous took, and how long the assignment of ranks took.
    pub(crate) took: (Duration, Duration),
}

/// The largest number of nodes that the description names.
const MAX_NAMED_NODES: usize = 8;

impl Formation {
    /// Returns the rank of one of this node's workers.
    pub(crate) fn rank(&self, local_rank: u32) -> u64 {
        self.ranks.first + u64::from(local_rank)
    }

    /// Returns the rank of one of this node's workers among the workers of its role.
    pub(crate) fn role_rank(&self, local_rank: u32) -> u64 {
        self.ranks.role_first + u64::from(local_rank)
    }

    /// Describes the round and the ranks in one line.
    pub(crate) fn describe(&self, config: &LaunchConfig) -> String {
        let round = &self.round;
        let (workers, nodes) = (counted(self.ranks.world_size, "worker"), counted(round.world_size, "node"));
        let ranks = match (self.ranks.first, u64::from(config.nproc_per_node)) {
            (first, 0 | 1) => format!("rank {first}"),
            (first, count) => format!("ranks {first} to {}", first + count - 1),
        };
        let run_id = &config.rendezvous.run_id;
        let master = &round.bootstrap_store_info;
        let mut line = format!(
            "{run_id}: {workers} on {nodes}, this is node {} with {ranks}; master {}:{}",
            round.rank, master.master_addr, master.master_port
        );
        if let Some(interpreter) = config.command.mode.interpreter() {
            line.push_str(&format!("; interpreter {}", interpreter.to_string_lossy()));
        }
        if round.participants.len() > 1 {
            let named = round.participants.iter().take(MAX_NAMED_NODES);
            let named: Vec<_> = named.map(describe_node).collect();
            line.push_str(&format!("; nodes {}", named.join(", ")));
        }
        if let Some(more @ 1..) = round.participants.len().checked_sub(MAX_NAMED_NODES) {
            line.push_str(&format!(" and {more} more"));
        }
        if self.restarts > 0 {
            line.push_str(&format!("; restart {}", self.restarts));
        }
        line
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ffi::OsString;
    use std::sync::Arc;

    use rallypoint_rendezvous::{NodeDesc, RendezvousStoreInfo};
    use rallypoint_store::{HashStore, PrefixStore};

    use super::*;
    use crate::config::CommandMode;
    use crate::environment::tests::config;

    /// Returns the formation of the node with group rank 1 in a round of 3 nodes. The ranks of its workers start at 4.
    pub(crate) fn formation() -> Formation {
        let round = RendezvousInfo {
            store: Arc::new(PrefixStore::new("round", Arc::new(HashStore::new()))),
            rank: 1,
            world_size: 3,
            bootstrap_store_info: RendezvousStoreInfo { master_addr: "node0".into(), master_port: 29500 },
            use_agent_store: true,
            round: 0,
            lost: 0,
            participants: (0..3).map(|number| NodeDesc::new(format!("n{number}"), 1, 0)).collect(),
        };
        let ranks = AssignedRanks { first: 4, world_size: 9, role_first: 2, role_world_size: 5 };
        Formation { round, ranks, restarts: 1, torch_nodes: Vec::new(), took: Default::default() }
    }

    #[test]
    fn a_round_is_described_in_one_line() {
        let mut formation = formation();
        let mut config = config(2);
        assert_eq!(
            formation.describe(&config),
            "run: 9 workers on 3 nodes, this is node 1 with ranks 4 to 5; master node0:29500; nodes n0 (pid 1), n1 (pid 1), n2 (pid 1); \
             restart 1"
        );
        formation.round.participants =
            (0..9).map(|number| NodeDesc::new(format!("n{number}"), 1, 0)).collect();
        (formation.round.world_size, formation.restarts) = (9, 0);
        config.nproc_per_node = 1;
        config.command.mode = CommandMode::Script { interpreter: OsString::from("/venv/bin/python3") };
        assert_eq!(
            formation.describe(&config),
            "run: 9 workers on 9 nodes, this is node 1 with rank 4; master node0:29500; interpreter /venv/bin/python3; \
             nodes n0 (pid 1), n1 (pid 1), n2 (pid 1), n3 (pid 1), n4 (pid 1), n5 (pid 1), n6 (pid 1), n7 (pid 1) and 1 more"
        );
        formation.round.participants.truncate(1);
        (formation.round.world_size, formation.ranks.world_size) = (1, 1);
        config.command.mode = CommandMode::Program;
        assert_eq!(
            formation.describe(&config),
            "run: 1 worker on 1 node, this is node 1 with rank 4; master node0:29500"
        );
    }
}
