//! What is to be done, and why. Each order prints on one line.

use std::fmt;
use std::time::Duration;

use super::event::{Exit, LocalRank, Signal};

/// Something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Get into the next round and learn the workers' ranks; to be answered with `Formed` or `NotFormed`.
    Join(Reason),
    /// Give that up; it is still to be answered.
    StopJoining,
    /// Start all workers, in the order of their ranks. Those that can't be are to be told of.
    Start {
        /// How often this node has restarted them after a failure.
        restarts: u32,
    },
    /// Send a signal.
    Send(Target, Signal),
    /// Tell the other nodes now that a worker of this node has failed.
    Announce {
        /// The worker.
        worker: LocalRank,
        /// Whether the job has failed. Otherwise all nodes restart their workers.
        is_final: bool,
    },
    /// Report that the next start is delayed by this long, because the workers ran for a short time again.
    ReportPause(Duration),
    /// Report which nodes of the round are lost, and why.
    ReportLost,
    /// Report how many nodes wait for the next round, and that this node goes on.
    ReportWaiting(u64),
    /// Tell the other nodes that they need not wait for this node's work, which has failed.
    ReportFailed,
    /// Take this node out of the rendezvous now, while its workers end.
    Leave,
    /// A worker failed and no restart is left: find out whether a node was lost. To be answered with `PeersAlive`, unless the
    /// membership shows the loss.
    CheckPeers(LocalRank),
    /// Wait until all nodes have finished; to be answered with `Finished`.
    Finish,
    /// It is over.
    End {
        /// How it ended.
        verdict: Verdict,
        /// What becomes of the rendezvous.
        parting: Parting,
    },
}

/// Who gets a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// A worker and what it has started.
    Worker(LocalRank),
    /// What workers have started and left behind.
    Strays,
}

/// Why the workers are (re)started or stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nothing has happened yet.
    FirstStart,
    /// A worker of this node failed.
    WorkerFailed {
        /// Which one.
        worker: LocalRank,
        /// How.
        exit: Exit,
        /// How many restarts are left after this one.
        left: u32,
    },
    /// One of another node failed.
    PeerRestarts,
    /// Nodes want to come in.
    NodesWaiting(u64),
    /// Nodes have gone.
    NodesLeft(u64),
    /// The others begin a new round.
    RoundOver,
    /// The others have dropped this node.
    Dropped,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::FirstStart => f.write_str("the job begins"),
            Reason::WorkerFailed { worker: LocalRank(worker), exit, left } => {
                write!(f, "worker {worker} of this node failed ({exit}); restarts left: {left}")
            }
            Reason::PeerRestarts => f.write_str("a worker of another node failed"),
            Reason::NodesWaiting(1) => f.write_str("1 node waits to be let in"),
            Reason::NodesWaiting(n) => write!(f, "{n} nodes wait to be let in"),
            Reason::RoundOver => f.write_str("the other nodes start over"),
            Reason::Dropped => {
                f.write_str("the other nodes have dropped this one because they saw no heartbeat from it")
            }
            Reason::NodesLeft(1) => f.write_str("1 node left or died"),
            Reason::NodesLeft(n) => write!(f, "{n} nodes left or died"),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// All workers did what they were to do.
    Succeeded,
    /// One failed, and there was no restart left.
    Failed,
    /// One of another node did.
    FailedElsewhere,
    /// A worker could not be interrupted, or not even killed.
    Unhealthy,
    /// The other nodes left the round of workers that run in one round only.
    RoundOver,
    /// This node was told to end.
    Signalled(Signal),
    /// The job ended without this node.
    Spare,
    /// Something that whoever told of it has the details of.
    Error,
}

/// What becomes of the rendezvous when this node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Parting {
    /// It ends for all.
    Close,
    /// This node is taken out; the others may go on.
    Leave,
    /// Nothing is to be done, or there is no time for it.
    Nothing,
}
