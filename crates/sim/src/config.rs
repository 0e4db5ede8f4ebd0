//! What a run is like, drawn from its seed, and what it came to.

use std::time::Duration;

use crate::random::Random;

/// What a run is like. [`Config::of`] draws one from a seed.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where all randomness comes from.
    pub seed: u64,
    /// How many nodes there are at first.
    pub nodes: u64,
    /// A round needs at least so many.
    pub min_nodes: u64,
    /// And has at most so many.
    pub max_nodes: u64,
    /// How long a node tries to join.
    pub join_timeout: Duration,
    /// How long faults happen.
    pub fault_duration: Duration,
    /// How long a message may take, in microseconds, most of the time.
    pub max_latency_us: u64,
    /// One message in so many is much later; 0 for none.
    pub late_one_in: u64,
    /// One message in so many is lost; 0 for none.
    pub lost_one_in: u64,
    /// One fault on a node in so many milliseconds; 0 for none.
    pub fault_interval_ms: u64,
    /// Whether all that happens is that nodes come, and leave again soon after.
    pub churn: bool,
    /// How far wall clocks may be off, in seconds.
    pub max_skew_s: u64,
    /// Whether somebody closes the rendezvous.
    pub may_close: bool,
    /// Whether a store that was away comes back empty.
    pub outages_empty_store: bool,
    /// One node in so many does as torch's do; 0 for none. They bear neither lost messages nor clocks far apart.
    pub torch_one_in: u64,
    /// How many rendezvous there are on the store, each with its own nodes.
    pub jobs: usize,
    /// Whether the register holds bytes, written and read by the codec, rather than the states themselves.
    pub uses_codec: bool,
    /// Whether nodes hear who else has announced itself. Otherwise each has to write for itself, as over a backend that
    /// knows no announcements.
    pub has_announcements: bool,
    /// Whether every write is checked. Too slow for thousands of nodes.
    pub checks_writes: bool,
    /// How long all must stay well once they are, for the run to end.
    pub stable_time: Duration,
    /// How often, once all are well, the workers of one node fail, so that all start over.
    pub restarts: u64,
    /// How many compare-and-sets there may be until all are well.
    pub max_writes: u64,
    /// Whether to print every event.
    pub trace: bool,
}

impl Config {
    /// What this seed is like.
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

    /// A quiet run in which so many nodes come at once, all of whom are needed.
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

    /// The same with nodes that can't help each other, so that each write is in the way of all others.
    pub fn burst_alone(seed: u64, nodes: u64) -> Config {
        Config { has_announcements: false, max_writes: u64::MAX, ..Config::burst(seed, nodes) }
    }
}

/// What a run came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rounds that were completed.
    pub rounds: u64,
    /// Times a node returned from a round.
    pub joins: u64,
    /// Times a node gave up joining.
    pub timeouts: u64,
    /// Compare-and-sets.
    pub writes: u64,
    /// Those that lost.
    pub lost_writes: u64,
    /// When the first round was complete.
    pub first_round_at: Option<Duration>,
    /// Compare-and-sets until (for the last time) everybody who can be was in one round after the faults had ended.
    pub writes_to_recover: u64,
    /// When that was.
    pub recovered_at: Option<Duration>,
    /// How often somebody alive was put out because others had been quicker than each of its heartbeats.
    pub excused: u64,
    /// How often each timed check looked at something that it could have found wrong, R9 to R13 and R17 in this order.
    pub timed_checks: [u64; 6],
}
