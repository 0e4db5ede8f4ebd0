//! Scenarios that broke an earlier draft of the native rendezvous. Each runs with any seed.

use std::time::Duration;

use rallypoint_coordinator::message::Command;

use super::config::{NativeConfig, NativeSummary};
use super::faults::partition;
use super::network::Side;
use super::world::World;
use crate::check::Violation;

/// A scenario: its name, the nodes it needs, and its steps.
pub struct Scenario {
    /// The name.
    pub name: &'static str,
    config: fn(u64) -> NativeConfig,
    steps: fn(&mut World) -> Result<(), Violation>,
}

impl Scenario {
    /// Runs the scenario.
    ///
    /// # Errors
    ///
    /// Fails with the first [`Violation`] of a rule, or with the rule `S` if the scenario does not go as expected.
    pub fn run(&self, seed: u64, trace: bool) -> Result<NativeSummary, Violation> {
        let mut world = World::new(&NativeConfig { trace, ..(self.config)(seed) });
        world.is_faulty = false;
        world.start_hosts();
        world.wait_until_stable(Duration::from_secs(15), "the start")?;
        (self.steps)(&mut world)?;
        Ok(world.finish())
    }
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "1 and 17: a leader that is cut off with a minority starts no round, and the other side wins",
        config: five_nodes,
        steps: |world| {
            let (leader, round) = (world.leader_host()?, world.round()?);
            let other = world.other_than(&[leader]);
            world.cut_off(&[leader, other], Duration::from_secs(20));
            world.run_for(Duration::from_secs(19))?;
            world.expect(world.round()? > round, "the majority has started the next round")?;
            let hosts = world.running_hosts();
            world.expect(!hosts.contains(&leader) && hosts.len() == 3, "only the majority runs workers")?;
            world.recover()
        },
    },
    Scenario {
        name: "2: a leader that is cut off does not renew the leases of its side",
        config: five_nodes,
        steps: |world| {
            let leader = world.leader_host()?;
            let other = world.other_than(&[leader]);
            world.cut_off(&[leader, other], Duration::from_secs(30));
            world.run_for(Duration::from_secs(6))?;
            let hosts = world.running_hosts();
            let stopped = !hosts.contains(&leader) && !hosts.contains(&other);
            world.expect(stopped, "the workers on the leader's side have ended within a lease")?;
            world.run_for(Duration::from_secs(20))?;
            world.recover()
        },
    },
    Scenario {
        name: "3: a node that loses only the leader is stopped before it is replaced",
        config: five_nodes,
        steps: |world| {
            let (leader, round) = (world.leader_host()?, world.round()?);
            let node = world.other_than(&[leader]);
            world.cut_for(vec![(leader, node), (node, leader)], Duration::from_secs(30));
            world.run_for(Duration::from_secs(15))?;
            world.expect(world.round()? > round, "a round without the node has started")?;
            world.run_for(Duration::from_secs(15))?;
            world.recover()
        },
    },
    Scenario {
        name: "4: a connection that is reset does not end a lease",
        config: three_nodes,
        steps: |world| {
            let round = world.round()?;
            world.rules.is_undisturbed = true;
            for _ in 0..10 {
                for index in world.open_connections() {
                    world.reset(index, &[Side::Acceptor]);
                }
                world.run_for(Duration::from_millis(700))?;
            }
            world.expect(world.round()? == round, "no round has started")?;
            world.recover()
        },
    },
    Scenario {
        name: "5: no worker starts while others still stop",
        config: |seed| NativeConfig { stop_time: Duration::from_secs(20), ..three_nodes(seed) },
        steps: |world| {
            for _ in 0..3 {
                world.fail_worker(1);
                world.run_for(Duration::from_secs(8))?;
            }
            world.recover()
        },
    },
    Scenario {
        name: "6: a round that only some members have learned of is completed or replaced",
        config: five_nodes,
        steps: |world| {
            for _ in 0..3 {
                let (leader, round) = (world.leader_host()?, world.round()?);
                let node = world.other_than(&[leader]);
                world.fail_worker(node);
                // The members join again, and the leader starts the next round.
                for _ in 0..4_000 {
                    if world.round()? > round {
                        break;
                    }
                    world.run_for(Duration::from_millis(1))?;
                }
                world.kill(leader, true);
                world.run_for(Duration::from_secs(10))?;
            }
            world.heal();
            world.recover()
        },
    },
    Scenario {
        name: "7: a voter that starts again does not vote under its old id",
        config: |seed| NativeConfig { endpoints: 3, ..three_nodes(seed) },
        steps: |world| {
            let leader = world.leader_host()?;
            for host in 0..3 {
                if host != leader {
                    world.kill(host, false);
                    world.restart(host);
                }
            }
            // Two of three voters are gone. Their successors have new ids and may not elect a leader for the old group.
            world.cut_off(&[leader], Duration::from_secs(20));
            world.run_for(Duration::from_secs(20))?;
            world.recover()
        },
    },
    Scenario {
        name: "8 and 14: a separate server that restarts empty founds no second job, and disturbs no worker",
        config: with_server,
        steps: |world| {
            world.run_for(Duration::from_secs(5))?;
            let round = world.round()?;
            world.rules.is_undisturbed = true;
            world.kill(0, false);
            world.run_for(Duration::from_millis(100))?;
            world.restart(0);
            world.run_for(Duration::from_secs(20))?;
            world.expect(world.round()? == round, "the round goes on")?;
            world.recover()
        },
    },
    Scenario {
        name: "8: a newcomer that meets an empty server founds no second job",
        config: |seed| {
            let config = with_server(seed);
            let settings = rallypoint_coordinator::JobSettings { max_nodes: 4, ..config.settings };
            NativeConfig { nodes: 4, endpoints: 1, settings, ..config }
        },
        steps: |world| {
            world.run_for(Duration::from_secs(5))?;
            world.kill(0, false);
            world.kill(4, false);
            world.run_for(Duration::from_millis(200))?;
            world.restart(0);
            world.restart(4);
            world.run_for(Duration::from_secs(20))?;
            world.recover()
        },
    },
    Scenario {
        name: "9: candidates that compete after the loss of a leader elect one of them",
        config: five_nodes,
        steps: |world| {
            for _ in 0..3 {
                let leader = world.leader_host()?;
                world.lose_power(leader, Some(Duration::from_secs(8)));
                world.run_for(Duration::from_secs(20))?;
            }
            world.recover()
        },
    },
    Scenario {
        name: "10 and 11: a node whose renewals arrive, and not their replies, ends its workers in time",
        config: |seed| NativeConfig { latency_us: (50_000, 400_000), ..three_nodes(seed) },
        steps: |world| {
            let (leader, round) = (world.leader_host()?, world.round()?);
            let node = world.other_than(&[leader]);
            world.cut_for(vec![(leader, node)], Duration::from_secs(20));
            world.run_for(Duration::from_secs(12))?;
            world.expect(!world.running_hosts().contains(&node), "the workers of the node have ended")?;
            world.expect(world.round()? >= round, "rounds only go forward")?;
            world.run_for(Duration::from_secs(8))?;
            world.recover()
        },
    },
    Scenario {
        name: "12: a leader that was stopped reads its input before it judges a lease",
        config: |seed| NativeConfig {
            settings: rallypoint_coordinator::JobSettings { max_voters: 1, ..three_nodes(seed).settings },
            ..three_nodes(seed)
        },
        steps: |world| {
            let (leader, round) = (world.leader_host()?, world.round()?);
            // A pause that is shorter than the lease, and a second one that is longer.
            world.pause(leader, Duration::from_secs(3));
            world.run_for(Duration::from_secs(6))?;
            world.expect(world.round()? == round, "the round goes on")?;
            world.pause(leader, Duration::from_secs(12));
            world.run_for(Duration::from_secs(12))?;
            world.recover()
        },
    },
    Scenario {
        name: "15: a node with a pinned rank that starts again gets its rank back",
        config: |seed| {
            let config = three_nodes(seed);
            let settings = rallypoint_coordinator::JobSettings { min_nodes: 3, ..config.settings };
            NativeConfig { has_pins: true, settings, ..config }
        },
        steps: |world| {
            let leader = world.leader_host()?;
            let node = world.other_than(&[leader]);
            // The host loses power, so its connections look alive when the node comes back.
            world.lose_power(node, Some(Duration::from_millis(500)));
            world.run_for(Duration::from_secs(15))?;
            world.recover()
        },
    },
    Scenario {
        name: "16: a leader without a quorum keeps no newcomer waiting",
        config: |seed| {
            let config = five_nodes(seed);
            let settings = rallypoint_coordinator::JobSettings { max_nodes: 6, ..config.settings };
            NativeConfig { nodes: 6, settings, ..config }
        },
        steps: |world| {
            let leader = world.leader_host()?;
            let newcomer = world.other_than(&[leader]);
            world.kill(newcomer, false);
            world.run_for(Duration::from_secs(8))?;
            // The newcomer reaches all hosts. The leader reaches only the newcomer.
            let others = (0..6).filter(|host| *host != leader && *host != newcomer);
            let links = others.flat_map(|host| [(leader, host), (host, leader)]).collect();
            world.cut_for(links, Duration::from_secs(40));
            world.run_for(Duration::from_secs(4))?;
            world.restart(newcomer);
            world.run_for(Duration::from_secs(25))?;
            world.expect(
                world.running_hosts().contains(&newcomer),
                "the newcomer is in a round of the majority",
            )?;
            world.run_for(Duration::from_secs(12))?;
            world.recover()
        },
    },
    Scenario {
        name: "18: exclusions survive a change of leader",
        config: five_nodes,
        steps: |world| {
            let leader = world.leader_host()?;
            let node = world.other_than(&[leader]);
            let host = world.hosts[node].name.clone();
            let time = Duration::from_secs(60);
            world.command(leader, Command::Exclude { host: host.clone(), time, reason: "a test".into() });
            world.run_for(Duration::from_secs(3))?;
            world.lose_power(leader, None);
            world.run_for(Duration::from_secs(15))?;
            let is_excluded = world.kept_out().contains(&host);
            world.expect(is_excluded, "the new leader knows the exclusion")?;
            world.expect(!world.running_hosts().contains(&node), "the excluded host runs no worker")?;
            world.heal();
            world.recover()
        },
    },
    Scenario {
        name: "a change of leader with all members alive touches no worker",
        config: |seed| {
            let config = with_server(seed);
            let settings =
                rallypoint_coordinator::JobSettings { lease: Duration::from_secs(8), ..config.settings };
            NativeConfig { settings, ..config }
        },
        steps: |world| {
            world.run_for(Duration::from_secs(5))?;
            let round = world.round()?;
            world.rules.is_undisturbed = true;
            for _ in 0..3 {
                let leader = world.leader_host()?;
                world.pause(leader, Duration::from_millis(3_300));
                world.run_for(Duration::from_secs(8))?;
            }
            world.expect(world.round()? == round, "the round goes on")?;
            world.recover()
        },
    },
    Scenario {
        name: "an agent that is stopped between its decision and the start of its worker starts nothing",
        config: three_nodes,
        steps: |world| {
            for _ in 0..4 {
                world.fail_worker(2);
                let leader = world.leader_host()?;
                let node = world.other_than(&[leader]);
                world.armed = Some(super::faults::ArmedCrash {
                    point: super::faults::Point::Decided,
                    strike: super::faults::Strike::Pause,
                    strikes_leader: false,
                    skips: node as u64 % 3,
                });
                world.run_for(Duration::from_secs(20))?;
            }
            world.heal();
            world.recover()
        },
    },
    Scenario {
        name: "an operator forces a quorum after the loss of most voters",
        config: five_nodes,
        steps: |world| {
            let leader = world.leader_host()?;
            let survivor = world.other_than(&[leader]);
            for host in 0..5 {
                if host != survivor && host != world.other_than(&[leader, survivor]) {
                    world.lose_power(host, None);
                }
            }
            world.run_for(Duration::from_secs(3))?;
            world.heal();
            world.recover()
        },
    },
];

fn three_nodes(seed: u64) -> NativeConfig {
    NativeConfig::calm(seed)
}

fn five_nodes(seed: u64) -> NativeConfig {
    let config = NativeConfig::calm(seed);
    let settings = rallypoint_coordinator::JobSettings { max_nodes: 5, ..config.settings };
    NativeConfig { nodes: 5, settings, ..config }
}

fn with_server(seed: u64) -> NativeConfig {
    NativeConfig { has_server: true, endpoints: 1, ..NativeConfig::calm(seed) }
}

impl World {
    fn expect(&self, condition: bool, what: &str) -> Result<(), Violation> {
        match condition {
            true => Ok(()),
            false => Err(Violation { rule: "S", what: format!("not as expected: {what}"), at: self.now }),
        }
    }

    fn leader_host(&mut self) -> Result<usize, Violation> {
        let at = self.now;
        self.leader().ok_or_else(|| Violation { rule: "S", what: "no replica leads".into(), at })
    }

    /// Returns the number of the last round that a replica knows.
    fn round(&self) -> Result<u64, Violation> {
        self.latest_round().ok_or_else(|| Violation {
            rule: "S",
            what: "no round has started".into(),
            at: self.now,
        })
    }

    /// Returns the first host that runs a node and is not in the list.
    fn other_than(&self, hosts: &[usize]) -> usize {
        let first = usize::from(self.config.has_server);
        (first..self.hosts.len()).find(|host| !hosts.contains(host)).expect("there are more hosts")
    }

    /// Cuts the links between some hosts and all others.
    fn cut_off(&mut self, hosts: &[usize], time: Duration) {
        let side: Vec<bool> = (0..self.hosts.len()).map(|host| hosts.contains(&host)).collect();
        self.cut_for(partition(&side, false), time);
    }
}
