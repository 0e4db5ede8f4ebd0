//! What a supervisor was told before anything happened.

use std::time::Duration;

/// How many workers, how often, how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How many workers this node runs.
    pub workers: u32,
    /// How often they may be restarted after a failure.
    pub max_restarts: u32,
    /// How long each may take to end before it is killed.
    pub shutdown_grace: Duration,
    /// The longest pause before a restart.
    pub max_restart_backoff: Duration,
    /// Whether the job continues without nodes that are lost.
    pub is_elastic: bool,
    /// Whether the workers belong to one round, as those of `rallypoint join` do: they are never restarted, and how they end
    /// does not end the job of the other nodes.
    pub runs_once: bool,
}

impl Policy {
    /// How long a killed process may take to be gone. One that takes longer is held up by the kernel; torch waits for the
    /// grace time once more.
    pub const KILL_PATIENCE: Duration = Duration::from_secs(10);

    /// How long a node that has finished waits for the others after the rendezvous was closed. Nodes that failed have said so
    /// by then.
    pub const CLOSED_GRACE: Duration = Duration::from_secs(5);

    /// How long after a round has formed its nodes may take to report whether they have workers. Some never do.
    pub const WORKERS_REPORT_GRACE: Duration = Duration::from_secs(3);

    /// How long nodes of torch's may take to notice that their workers have failed: Python may need a while to end.
    pub const TORCH_NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

    /// A run of the workers that is shorter than this counts as a short run. Short runs in a row delay the next restart.
    pub const SHORT_RUN_INTERVAL: Duration = Duration::from_secs(10);

    /// The longest pause before a restart if nodes came or went and no worker failed. Short, because the other nodes wait for
    /// this one, and not zero, because a node that can't be let in must not restart the job many times a second.
    pub const MAX_REFORM_BACKOFF: Duration = Duration::from_secs(1);

    /// Returns the pause before a restart after this many short runs in a row: none after the first, 0.1 s after the second,
    /// then doubling up to `longest`.
    pub fn restart_backoff(short_runs: u32, longest: Duration) -> Duration {
        match short_runs.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => Duration::from_millis(100 << doublings.min(16)).min(longest),
        }
    }
}
