//! What came of a run, for people and for schedulers: the failure report in torch's form, and an end report as JSON. It
//! decides nothing.

use serde::{Deserialize, Serialize};

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A worker that has failed. It travels to the other nodes as JSON, so that every node can tell of the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The host it ran on, as that host calls itself in full.
    pub host: String,
    /// The node's rank in the round.
    pub group_rank: u64,
    /// Its role.
    pub role: String,
    /// Its rank in the world.
    pub rank: u64,
    /// Its rank on its node.
    pub local_rank: u32,
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When, in whole seconds since 1970: what its error file says, else when it was seen.
    pub timestamp: i64,
    /// How long it ran, in seconds.
    pub ran: f64,
    /// How often the node had restarted its workers before.
    pub restart: u32,
    /// Where it wrote what went wrong, if it did.
    pub error_file: Option<String>,
    /// What went wrong: the traceback or message of the error file, or what the exit tells.
    pub message: String,
    /// The last lines of its standard error.
    pub last_lines: Vec<String>,
}
