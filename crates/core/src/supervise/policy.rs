//! What a supervisor was told before anything happened.

use std::time::Duration;

/// How many workers, how often, how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How many workers this node runs.
    pub workers: u32,
    /// How often they may be restarted after a failure.
    pub max_restarts: u32,
    /// How long each may take to end when the node was told to.
    pub shutdown_grace: Duration,
    /// How long when they are to be started again, or another has failed.
    pub restart_grace: Duration,
}

impl Policy {
    /// How long a killed process may take to be gone. One that takes longer is held up by the kernel; torch waits for the
    /// grace time once more.
    pub const KILL_PATIENCE: Duration = Duration::from_secs(10);
}
