//! The configuration of a run, which follows from its seed, and the summary of a run.

use std::time::Duration;

use crate::random::Random;

/// The configuration of a run. [`Config::of`] derives it from a seed.
#[derive(Debug, Clone)]
pub struct Config {
    /// The seed of all random numbers.
    pub seed: u64,
    /// The number of nodes of each job at the start.
    pub nodes: u64,
    /// The minimum number of nodes of a round.
    pub min_nodes: u64,
    /// The maximum number of nodes of a round.
    pub max_nodes: u64,
    /// The join timeout of every node.
    pub join_timeout: Duration,
    /// How long faults happen, from the start of the run.
    pub fault_duration: Duration,
    /// The maximum latency of a message that is not late, in microseconds.
    pub max_latency_us: u64,
    /// One message in this number is late while faults happen. It takes up to 1.4 s. If messages may be lost, one late
    /// message of four takes up to 4 s. 0 means none.
    pub late_one_in: u64,
    /// One message in this number is lost while faults happen. 0 means none.
    pub lost_one_in: u64,
    /// The average time between two faults, in milliseconds. 0 means no faults.
    pub fault_interval_ms: u64,
    /// Whether the only faults of nodes are that new nodes start and that nodes leave. If possible, a node leaves while
    /// it joins and is in no list.
    pub churn: bool,
    /// The maximum error of a wall clock when its node starts, in seconds. A fault may change the error.
    pub max_skew_s: u64,
    /// Whether nodes may close the rendezvous.
    pub may_close: bool,
    /// Whether the store is empty after an outage.
    pub outages_empty_store: bool,
    /// One node in this number behaves like torch's. 0 means none. Torch nodes tolerate neither lost messages nor a
    /// large skew.
    pub torch_one_in: u64,
    /// The number of rendezvous on the store, each with its own nodes.
    pub jobs: usize,
    /// Whether the tokens of the store are encoded states. If not, they are numbers.
    pub uses_codec: bool,
    /// Whether nodes can read announcements. If not, each node has to add itself to the round with a write of its own,
    /// as with a backend that does not support announcements.
    pub has_announcements: bool,
    /// Whether every write is checked, which is too slow for thousands of nodes.
    pub checks_writes: bool,
    /// How long the run continues after the nodes have formed a stable round.
    pub stable_time: Duration,
    /// The number of times that the workers of one node fail after a stable round, so that all nodes rejoin.
    pub restarts: u64,
    /// The maximum number of compare-and-sets until the first stable round.
    pub max_writes: u64,
    /// Whether to print every event.
    pub trace: bool,
}

impl Config {
    /// Derives the configuration from a seed.
    pub fn of(seed: u64) -> Config {
        let mut random = Random::new(seed);
        let nodes = random.between(1, 9);
        let min_nodes = random.between(1, nodes + 1);
        let config = Config {
            seed,
            nodes,
            min_nodes,
            max_nodes: random.between(min_nodes, nodes + 2),
            join_timeout: Duration::from_secs([600, 600, 600, 60, 25][random.between(0, 5) as usize]),
            fault_duration: Duration::from_secs(random.between(0, 200)),
            max_latency_us: [200, 2_000, 50_000][random.between(0, 3) as usize],
            late_one_in: [0, 0, 50, 10][random.between(0, 4) as usize],
            lost_one_in: [0, 0, 100, 20][random.between(0, 4) as usize],
            fault_interval_ms: [0, 30_000, 10_000, 3_000][random.between(0, 4) as usize],
            churn: false,
            max_skew_s: [0, 20, 3_600][random.between(0, 3) as usize],
            may_close: random.one_in(10),
            outages_empty_store: false,
            torch_one_in: 0,
            jobs: if random.one_in(10) { 2 } else { 1 },
            uses_codec: random.one_in(4),
            has_announcements: true,
            checks_writes: true,
            stable_time: Duration::from_secs(20),
            restarts: 0,
            max_writes: u64::MAX,
            trace: false,
        };
        let config = match random.one_in(4) {
            true => Config { torch_one_in: random.between(2, 5), lost_one_in: 0, max_skew_s: 4, ..config },
            false => config,
        };
        let config = match random.one_in(16) {
            true => {
                let fault_duration = Duration::from_secs(random.between(2, 20));
                let (min_nodes, max_nodes) =
                    if random.one_in(2) { (min_nodes, config.max_nodes) } else { (16, 16) };
                let (fault_interval_ms, late_one_in) = (random.between(10, 200), 5);
                Config {
                    churn: true,
                    min_nodes,
                    max_nodes,
                    fault_duration,
                    fault_interval_ms,
                    late_one_in,
                    lost_one_in: 0,
                    ..config
                }
            }
            false => config,
        };
        Config { outages_empty_store: random.one_in(2), ..config }
    }

    /// Returns the configuration of a run without faults, in which `nodes` nodes start within 300 ms. The round needs
    /// all of them.
    pub fn burst(seed: u64, nodes: u64) -> Config {
        Config {
            seed,
            nodes,
            min_nodes: nodes,
            max_nodes: nodes,
            join_timeout: Duration::from_secs(600),
            fault_duration: Duration::ZERO,
            max_latency_us: 2_000,
            late_one_in: 0,
            lost_one_in: 0,
            fault_interval_ms: 0,
            churn: false,
            max_skew_s: 3_600,
            may_close: false,
            outages_empty_store: false,
            torch_one_in: 0,
            jobs: 1,
            uses_codec: false,
            has_announcements: true,
            checks_writes: nodes <= 1_000,
            stable_time: Duration::ZERO,
            restarts: 0,
            max_writes: 3 * nodes,
            trace: false,
        }
    }

    /// Returns the configuration of [`Config::burst`] without announcements, so that each node has to add itself to
    /// the round with a write of its own.
    pub fn burst_alone(seed: u64, nodes: u64) -> Config {
        Config { has_announcements: false, max_writes: u64::MAX, ..Config::burst(seed, nodes) }
    }
}

/// The summary of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of completed rounds.
    pub rounds: u64,
    /// The number of times that a node joined a round.
    pub joins: u64,
    /// The number of joins that ended with a timeout or an outage.
    pub timeouts: u64,
    /// The number of compare-and-sets, including those that failed.
    pub writes: u64,
    /// The number of compare-and-sets that failed.
    pub failed_writes: u64,
    /// When the first round was completed.
    pub first_round_at: Option<Duration>,
    /// The number of compare-and-sets until `recovered_at`.
    pub writes_to_recover: u64,
    /// When the nodes first were in a stable round after the last fault, or after the last of [`Config::restarts`].
    pub recovered_at: Option<Duration>,
    /// The number of removals of live nodes that do not break R9, because the last four compare-and-sets of the removed
    /// node had failed.
    pub excused: u64,
    /// How often each timed check examined a case that could have broken its rule, in the order R9, R10, R11, R12, R13,
    /// R17.
    pub timed_checks: [u64; 6],
}

impl Summary {
    /// Adds the counts of another run.
    pub fn add(&mut self, run: &Summary) {
        self.rounds += run.rounds;
        self.joins += run.joins;
        self.timeouts += run.timeouts;
        self.writes += run.writes;
        self.failed_writes += run.failed_writes;
        self.excused += run.excused;
        self.timed_checks.iter_mut().zip(run.timed_checks).for_each(|(sum, run)| *sum += run);
    }
}
