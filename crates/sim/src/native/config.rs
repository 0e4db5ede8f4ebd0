//! The configuration of a run, which follows from its seed, and the summary of a run.

use std::time::Duration;

use rallypoint_coordinator::JobSettings;
use rallypoint_coordinator::settings::ScaleUp;

use crate::random::Random;

/// The configuration of a run. [`NativeConfig::of`] derives it from a seed.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// The seed of all random numbers.
    pub seed: u64,
    /// The number of nodes, each on its own host.
    pub nodes: usize,
    /// Whether the first endpoint is a separate server.
    pub has_server: bool,
    /// The number of endpoints that the nodes know.
    pub endpoints: usize,
    /// The settings of the job.
    pub settings: JobSettings,
    /// Whether the nodes pin their ranks.
    pub has_pins: bool,
    /// The number of restarts that each agent allows.
    pub max_restarts: u32,
    /// The shortest and the longest latency of a packet, in microseconds.
    pub latency_us: (u64, u64),
    /// One packet in this number is lost while faults happen. 0 means none.
    pub lost_one_in: u64,
    /// The longest time after which TCP repeats a packet once a link is restored, in microseconds.
    pub max_retransmission_us: u64,
    /// One pass of an event loop in this number stalls after it has read the clock. 0 means none.
    pub stall_one_in: u64,
    /// The longest stall, in microseconds.
    pub max_stall_us: u64,
    /// The largest difference between the speed of a clock and that of time, in parts per million.
    pub max_drift_ppm: i64,
    /// How long workers take to end after SIGTERM, at most.
    pub stop_time: Duration,
    /// How long a process takes to end after SIGKILL, at most.
    pub kill_delay: Duration,
    /// How long the process that becomes a worker may pause between its check of the deadline and its start.
    pub start_pause: Duration,
    /// Whether workers fail when the workers of another node are killed.
    pub workers_notice_loss: bool,
    /// How long the workers run in a round until they finish. `None` means that they run until they are stopped.
    pub work: Option<Duration>,
    /// The kinds of faults.
    pub faults: FaultMix,
    /// The number of faults.
    pub fault_count: u64,
    /// The longest time between two faults.
    pub fault_interval: Duration,
    /// The time within which all processes start.
    pub start_time: Duration,
    /// Whether to check the rules whose cost grows with the number of nodes.
    pub checks_all: bool,
    /// Whether to print every event.
    pub trace: bool,
}

/// The kinds of faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultMix {
    /// All kinds.
    All,
    /// Faults that must not touch any worker: of the separate server, resets of connections, and short pauses and cuts.
    Harmless,
    /// Commands of operators, failures of workers, and closing.
    Commands,
    /// No faults except those that a scenario causes.
    None,
}

impl NativeConfig {
    /// Derives the configuration from a seed.
    pub fn of(seed: u64) -> NativeConfig {
        let mut random = Random::new(seed);
        let nodes = [1, 2, 2, 3, 3, 3, 4, 4, 5, 6][random.between(0, 10) as usize];
        let min_nodes = random.between(1, nodes as u64 + 1) as u32;
        let max_nodes = random.between(u64::from(min_nodes), nodes as u64 + 2) as u32;
        let max_nodes = if random.one_in(2) { nodes as u32 } else { max_nodes.max(2.min(nodes as u32)) };
        let (latency_us, lost_one_in, max_stall_us) = [
            ((1_000, 5_000), 0, 2_000),
            ((200, 1_000), 0, 20_000),
            ((1_000, 15_000), 0, 100_000),
            ((20_000, 60_000), 0, 20_000),
            ((1_000, 15_000), 100, 20_000),
            ((20_000, 60_000), 20, 100_000),
            ((1_000, 5_000), 0, 400_000),
        ][random.between(0, 7) as usize];
        // A short lease does not survive slow packets and event loops.
        let is_fast = latency_us.1 <= 15_000 && lost_one_in == 0 && max_stall_us <= 20_000;
        let lease = match is_fast {
            true => Duration::from_secs([1, 2, 2, 3, 5][random.between(0, 5) as usize]),
            false => Duration::from_secs([3, 5][random.between(0, 2) as usize]),
        };
        let faults = match random.between(0, 10) {
            0 | 1 => FaultMix::Harmless,
            2 | 3 => FaultMix::Commands,
            _ => FaultMix::All,
        };
        let is_harmless = faults == FaultMix::Harmless;
        let has_server = random.one_in(4);
        let settings = JobSettings {
            lease,
            last_call_timeout: Duration::from_millis(random.between(100, 1_500)),
            scale_up: ScaleUp::After(Duration::from_millis(random.between(0, 1_500))),
            exclude_after: [0, 3][random.between(0, 2) as usize],
            exclude_time: Duration::from_secs(5),
            max_voters: [5, 5, 5, 3, 1][random.between(0, 5) as usize],
            job_max_restarts: [None, None, None, Some(2)][random.between(0, 4) as usize],
            ..JobSettings::new(min_nodes, max_nodes.max(min_nodes))
        };
        NativeConfig {
            nodes,
            has_server,
            endpoints: random.between(1, 4) as usize,
            // Two candidates may fail before a third election succeeds, which takes up to 8 s.
            settings: JobSettings {
                lease: if is_harmless { Duration::from_secs(12) } else { lease },
                job_max_restarts: settings.job_max_restarts.filter(|_| !is_harmless),
                ..settings
            },
            has_pins: random.one_in(6),
            max_restarts: [u32::MAX, u32::MAX, u32::MAX, 2][random.between(0, 4) as usize],
            latency_us,
            lost_one_in,
            max_retransmission_us: [50_000, 500_000, 3_000_000][random.between(0, 3) as usize],
            stall_one_in: [0, 200, 20][random.between(0, 3) as usize],
            max_stall_us,
            max_drift_ppm: 2_500,
            stop_time: Duration::from_millis([20, 500, 3_000][random.between(0, 3) as usize]),
            start_pause: Duration::from_millis([0, 0, 20, 3_000][random.between(0, 4) as usize]),
            workers_notice_loss: random.one_in(2),
            work: random.one_in(4).then(|| Duration::from_secs(random.between(3, 20))),
            faults,
            fault_count: random.between(0, 7),
            fault_interval: Duration::from_millis([1_000, 4_000, 8_000][random.between(0, 3) as usize]),
            ..NativeConfig::calm(seed)
        }
    }

    /// Returns the configuration of a run without faults with three nodes.
    pub fn calm(seed: u64) -> NativeConfig {
        NativeConfig {
            seed,
            nodes: 3,
            has_server: false,
            endpoints: 3,
            settings: JobSettings {
                last_call_timeout: Duration::from_secs(1),
                scale_up: ScaleUp::After(Duration::from_secs(1)),
                exclude_after: 0,
                ..JobSettings::new(2, 3)
            },
            has_pins: false,
            max_restarts: u32::MAX,
            latency_us: (1_000, 5_000),
            lost_one_in: 0,
            max_retransmission_us: 200_000,
            stall_one_in: 0,
            max_stall_us: 2_000,
            max_drift_ppm: 2_500,
            stop_time: Duration::from_millis(500),
            kill_delay: Duration::from_millis(20),
            start_pause: Duration::ZERO,
            workers_notice_loss: false,
            work: None,
            faults: FaultMix::None,
            fault_count: 0,
            fault_interval: Duration::from_secs(4),
            start_time: Duration::from_millis(300),
            checks_all: true,
            trace: false,
        }
    }
}

/// The summary of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NativeSummary {
    /// The number of runs.
    pub runs: u64,
    /// The number of rounds that started.
    pub rounds: u64,
    /// The number of starts of workers.
    pub starts: u64,
    /// The number of times that the lease of a working node ended.
    pub fenced: u64,
    /// The number of workers that a guard has killed.
    pub killed_by_guard: u64,
    /// The number of processes that were not started as workers, because the deadline had passed.
    pub refused_starts: u64,
    /// The number of elections.
    pub elections: u64,
    /// The number of members that a leader declared lost.
    pub departures: u64,
    /// The number of jobs that were closed.
    pub closed: u64,
    /// The number of runs that ended without a quorum.
    pub without_quorum: u64,
    /// The number of workers that started in a second group beside workers of the first one, whose founder could not know
    /// of the first group.
    pub excused: u64,
    /// The number of groups that an operator has founded with a surviving replica.
    pub forced: u64,
    /// The number of messages between hosts.
    pub messages: u64,
    /// The number of bytes between hosts.
    pub bytes: u64,
    /// The longest time from the end of the faults until all workers ran again.
    pub longest_recovery: Duration,
    /// The virtual time of the run.
    pub time: Duration,
}

impl NativeSummary {
    /// Adds the summary of another run.
    pub fn add(&mut self, run: &NativeSummary) {
        self.runs += run.runs;
        self.rounds += run.rounds;
        self.starts += run.starts;
        self.fenced += run.fenced;
        self.killed_by_guard += run.killed_by_guard;
        self.refused_starts += run.refused_starts;
        self.elections += run.elections;
        self.departures += run.departures;
        self.closed += run.closed;
        self.without_quorum += run.without_quorum;
        self.forced += run.forced;
        self.excused += run.excused;
        self.messages += run.messages;
        self.bytes += run.bytes;
        self.longest_recovery = self.longest_recovery.max(run.longest_recovery);
        self.time += run.time;
    }
}
