//! How a run ended on this node, and the exit code that tells it.

use std::time::Duration;

use crate::error::AgentError;
use crate::report::{Exit, Failure};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// The workers of this node that failed in the last start, in the order in which that was seen. Workers that the
    /// agent stopped are not among them.
    pub failures: Vec<Failure>,
    /// The first failure of the job, on whichever node it was.
    pub first_failure: Option<Failure>,
    /// The nodes that may have ended the job, if it failed elsewhere and no node reported a failure.
    pub suspects: Vec<String>,
    /// How the worker that ended last did.
    pub last_exit: Option<Exit>,
    /// How often this node restarted its workers after a failure.
    pub restarts: u32,
    /// How often the workers were started, for whatever reason.
    pub starts: u32,
    /// This node's rank in the last round, and how many nodes it had.
    pub group: Option<(u64, u64)>,
    /// This node's first rank in the last round, and how many workers there were in the world.
    pub world: Option<(u64, u64)>,
    /// Why output of the workers or events are missing from the log files, usually because of a full disk.
    pub log_errors: Vec<String>,
    /// How long it took.
    pub ran: Duration,
}

/// How a run ended.
#[derive(Debug)]
pub enum End {
    /// All workers of this node ended with 0.
    Succeeded,
    /// A worker of this node failed, and there was no restart left.
    Failed,
    /// Another node failed for good, or closed the rendezvous before the job was done.
    FailedElsewhere,
    /// A worker could not be interrupted for too long.
    Unhealthy,
    /// The other nodes left the round of workers that run once.
    RoundOver,
    /// This signal ended it.
    Signalled(i32),
    /// The job ended while this node was a spare.
    Spare,
    /// The agent itself could not go on.
    Error(AgentError),
}

impl Outcome {
    /// The exit code, torchrun's where it tells failure from success: 0 and 1. A signal that came before there were any
    /// workers would have killed torchrun, which a shell tells as 128 and the signal's number.
    pub fn exit_code(&self) -> u8 {
        match self.end {
            End::Succeeded | End::Spare => 0,
            End::Signalled(signal) if self.starts == 0 => 128u8.saturating_add(signal as u8),
            _ => 1,
        }
    }
}
