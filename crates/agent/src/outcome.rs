//! How a run ended on this node, and the exit code that tells it.

use std::time::Duration;

use rallypoint_core::supervise::Verdict;

use crate::error::AgentError;
use crate::report::{Exit, Failure};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub verdict: Verdict,
    /// Why the agent could not go on; there if the verdict is `Error`.
    pub error: Option<AgentError>,
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

impl Outcome {
    /// Returns the outcome of a run that could not begin.
    pub(crate) fn of_error(error: AgentError, ran: Duration) -> Outcome {
        Outcome {
            verdict: Verdict::Error,
            error: Some(error),
            failures: Vec::new(),
            first_failure: None,
            suspects: Vec::new(),
            last_exit: None,
            restarts: 0,
            starts: 0,
            group: None,
            world: None,
            log_errors: Vec::new(),
            ran,
        }
    }

    /// Returns the exit code, torchrun's where it tells failure from success: 0 and 1. A signal that came before there were
    /// any workers would have killed torchrun, which a shell tells as 128 and the signal's number.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Succeeded | Verdict::Spare => 0,
            Verdict::Signaled(signal) if self.starts == 0 => 128u8.saturating_add(signal.0 as u8),
            _ => 1,
        }
    }
}
