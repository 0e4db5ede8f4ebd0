//! A run with many nodes and few faults: the nodes form a round, lose some nodes, and form the next round.

use std::time::Duration;

use rallypoint_coordinator::JobSettings;

use super::config::NativeConfig;
use super::world::World;
use crate::check::Violation;

/// The number of nodes that are lost.
const LOST_NODES: usize = 4;
/// How long the nodes may take to form a round.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The interval at which the state of the nodes is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The result of a run with many nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// The number of nodes.
    pub nodes: usize,
    /// The time from the last start of a node until the workers of all nodes ran.
    pub formation: Duration,
    /// The number of bytes per node between hosts, from the start until then.
    pub formation_bytes: u64,
    /// The time from the loss of nodes until the workers of all other nodes ran again.
    pub recovery: Duration,
    /// The number of bytes per node between hosts, from the loss until then.
    pub recovery_bytes: u64,
}

/// Runs `nodes` nodes, and calls `report` when each phase has ended.
///
/// # Errors
///
/// Fails with the first [`Violation`] of a rule.
pub fn run_scale(nodes: usize, mut report: impl FnMut(&str)) -> Result<Scale, Violation> {
    let settings = JobSettings {
        lease: Duration::from_secs(5),
        ..JobSettings::new(nodes.saturating_sub(2 * LOST_NODES).max(1) as u32, nodes as u32)
    };
    let start_time = Duration::from_millis(300 + nodes as u64 / 50);
    let calm = NativeConfig::calm(1);
    let mut world = World::new(&NativeConfig { nodes, settings, start_time, checks_all: false, ..calm });
    world.is_faulty = false;
    world.start_hosts();
    world.run_for(start_time)?;
    report("all nodes have started");
    let start = world.now;
    world.run_until_all_work(nodes)?;
    let (formation, bytes) = (world.now - start, world.network.bytes);
    report("all workers run");
    world.run_for(Duration::from_secs(1))?;
    report("the round has run for 1 s");
    let (start, before) = (world.now, world.network.bytes);
    for host in 1..=LOST_NODES {
        world.kill(nodes - host, false);
    }
    world.run_until_all_work(nodes - LOST_NODES)?;
    report("the workers of all other nodes run again");
    Ok(Scale {
        nodes,
        formation,
        formation_bytes: bytes / nodes as u64,
        recovery: world.now - start,
        recovery_bytes: (world.network.bytes - before) / nodes as u64,
    })
}

impl World {
    /// Runs until the workers of `nodes` nodes run in one round.
    fn run_until_all_work(&mut self, nodes: usize) -> Result<(), Violation> {
        let end = self.now + TIMEOUT;
        while self.now < end {
            self.run_for(CHECK_INTERVAL)?;
            let running = self.running();
            if running.len() == 1 && running.values().all(|hosts| hosts.len() == nodes) {
                return Ok(());
            }
        }
        Err(Violation {
            rule: "N6",
            what: format!("the {nodes} nodes do not run in one round"),
            at: self.now,
        })
    }
}
