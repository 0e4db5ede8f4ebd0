//! The state of the agent, as a health check reports it.

use serde::Serialize;

use super::Agent;

/// The state of the agent at one moment. The fields have the names that the JSON uses.
#[derive(Debug, Serialize)]
pub(super) struct Snapshot {
    status: &'static str,
    run_id: String,
    round: Option<u64>,
    group_rank: Option<u64>,
    group_world_size: Option<u64>,
    world_size: Option<u64>,
    workers: usize,
    starts: u32,
    restarts: u32,
    seconds: f64,
}

impl Agent {
    pub(super) fn snapshot(&self) -> Snapshot {
        let formation = self.formation.as_deref();
        let round = formation.map(|formation| &formation.round);
        Snapshot {
            status: if self.supervisor.is_running() { "running" } else { "waiting" },
            run_id: self.config.rendezvous.run_id.clone(),
            round: round.map(|round| round.round),
            group_rank: round.map(|round| round.rank),
            group_world_size: round.map(|round| round.world_size),
            world_size: formation.map(|formation| formation.ranks.world_size),
            workers: self.processes.running().count(),
            starts: self.starts,
            restarts: self.supervisor.restarts(),
            seconds: self.start.elapsed().as_secs_f64(),
        }
    }
}
