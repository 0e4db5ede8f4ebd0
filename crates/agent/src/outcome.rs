//! The outcome of a run on this node, and its exit code.

use std::time::Duration;

use rallypoint_core::supervise::Verdict;

use crate::error::AgentError;
use crate::report::{Exit, Failure};

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How the run ended.
    pub verdict: Verdict,
    /// Why the agent could not continue. Set if the verdict is `Error`.
    pub error: Option<AgentError>,
    /// The workers of this node that failed in the last start, in the order in which the agent noticed their exits.
    /// Workers that the agent stopped are not included.
    pub failures: Vec<Failure>,
    /// The first failure of the job, on any node.
    pub first_failure: Option<Failure>,
    /// The nodes that may have ended the job, if it failed on another node and no node reported a failure.
    pub suspects: Vec<String>,
    /// Which node closed the job, when and why, if a coordinator has told it.
    pub closing: Option<String>,
    /// The exit code or signal of the last worker that exited.
    pub last_exit: Option<Exit>,
    /// The number of restarts after a failure.
    pub restarts: u32,
    /// The number of starts of the workers, for any reason.
    pub starts: u32,
    /// The group rank of this node and the number of nodes in the last round.
    pub group: Option<(u64, u64)>,
    /// The first rank of this node's workers and the world size in the last round.
    pub world: Option<(u64, u64)>,
    /// Why the log files lack output of the workers, or events. Usually the disk is full.
    pub log_errors: Vec<String>,
    /// The duration of the run.
    pub ran: Duration,
}

impl Outcome {
    /// Returns the outcome of a run that could not start.
    pub(crate) fn of_error(error: AgentError, ran: Duration) -> Outcome {
        Outcome {
            verdict: Verdict::Error,
            error: Some(error),
            failures: Vec::new(),
            first_failure: None,
            suspects: Vec::new(),
            closing: None,
            last_exit: None,
            restarts: 0,
            starts: 0,
            group: None,
            world: None,
            log_errors: Vec::new(),
            ran,
        }
    }

    /// Returns the exit code: 0 after a success, or if the job ended while this node was a spare or had no workers.
    /// Else 1, as with torchrun.
    ///
    /// A signal before the first start of the workers would have killed torchrun. After such a signal, the exit code is
    /// 128 plus the number of the signal, as in a shell.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Succeeded | Verdict::Spare => 0,
            Verdict::Signaled(signal) if self.starts == 0 => 128u8.saturating_add(signal.0 as u8),
            _ => 1,
        }
    }
}
