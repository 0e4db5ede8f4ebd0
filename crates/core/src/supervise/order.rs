//! What is to be done, and why. Each order prints on one line.

use std::time::Duration;

use super::event::{Exit, LocalRank, Signal};
use crate::counted;

/// Something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Get into the next round and learn the workers' ranks; to be answered with `Joined` or `JoinFailed`.
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
    PublishFailure {
        /// The worker.
        worker: LocalRank,
        /// Whether the job has failed. Otherwise all nodes restart their workers.
        is_final: bool,
    },
    /// Report that the next start is delayed by this long, because the workers ran for a short time again.
    ReportRestartDelay(Duration),
    /// Report which nodes of the round are lost, and why.
    ReportLost,
    /// Report how many nodes wait for the next round, and that this node goes on.
    ReportWaiting(u64),
    /// Tell the other nodes that they need not wait for this node's work, which has failed.
    PublishNodeFailed,
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
        on_end: OnEnd,
    },
}

/// Who gets a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// A worker and what it has started.
    Worker(LocalRank),
    /// What workers have started and left behind.
    Orphans,
}

/// Why the workers are (re)started or stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// Nothing has happened yet.
    #[error("the job begins")]
    FirstStart,
    /// A worker of this node failed.
    #[error("worker {} of this node failed ({exit}); restarts left: {left}", worker.0)]
    WorkerFailed {
        /// Which one.
        worker: LocalRank,
        /// How.
        exit: Exit,
        /// How many restarts are left after this one.
        left: u32,
    },
    /// One of another node failed.
    #[error("a worker of another node failed")]
    PeerRestarts,
    /// Nodes want to come in.
    #[error("{} to be let in", if *.0 == 1 { "1 node waits".into() } else { format!("{} nodes wait", .0) })]
    NodesWaiting(u64),
    /// Nodes have gone.
    #[error("{} left or died", counted(*.0, "node"))]
    NodesLeft(u64),
    /// The others begin a new round.
    #[error("the other nodes start over")]
    RoundOver,
    /// The others have dropped this node.
    #[error("the other nodes have dropped this one because they saw no heartbeat from it")]
    Dropped,
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
    Signaled(Signal),
    /// The job ended without this node.
    Spare,
    /// Something that whoever told of it has the details of.
    Error,
}

/// What becomes of the rendezvous when this node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnEnd {
    /// It ends for all.
    Close,
    /// This node is taken out; the others may go on.
    Leave,
    /// Nothing is to be done, or there is no time for it.
    Nothing,
}
