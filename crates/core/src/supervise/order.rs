//! The orders of the supervisor to the agent.

use std::time::Duration;

use super::event::{Exit, LocalRank, Signal};
use crate::counted;
use crate::rendezvous::EndCause;

/// One instruction of the supervisor to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Joins the next round and determines the ranks of the workers. The agent replies with the event `Joined` or
    /// `JoinFailed`.
    Join(Reason),
    /// Cancels the join. The agent still replies to the order `Join`.
    StopJoining,
    /// Starts the workers, in the order of their local ranks, up to the first one that can't be started. The agent
    /// reports each worker that was not started with `NotStarted`.
    Start {
        /// The number of restarts after failures so far.
        restarts: u32,
    },
    /// Sends a signal.
    Send(Target, Signal),
    /// Publishes to the other nodes that a worker of this node has failed.
    PublishFailure {
        /// The worker.
        worker: LocalRank,
        /// Whether the job has failed for good. If not, all nodes restart their workers.
        is_final: bool,
    },
    /// Logs that the next start is delayed by this duration, because the last runs of the workers were short.
    ReportRestartDelay(Duration),
    /// Logs which nodes of the round are lost, and why.
    ReportLost,
    /// Logs how many nodes wait for the next round, and that this node continues.
    ReportWaiting(u64),
    /// Publishes to the other nodes that the workers of this node will not finish, so that no node waits for them.
    PublishNodeFailed,
    /// Leaves the rendezvous while the workers are being stopped.
    Leave,
    /// Checks whether a lost node explains the failure of this worker. No restart is left. The agent replies with
    /// `PeersAlive` when all nodes have reported that they are alive, or after a timeout. A membership that arrives
    /// before this reply may show a lost node.
    CheckPeers(LocalRank),
    /// Waits until all nodes have finished. The agent replies with `Finished` or `StoreLost`.
    Finish,
    /// Ends the run on this node.
    End {
        /// The result of the run.
        verdict: Verdict,
        /// What to do with the rendezvous.
        on_end: OnEnd,
    },
}

/// The processes that get a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// A worker and the processes that it started.
    Worker(LocalRank),
    /// The processes that a worker started and that still run after it has exited.
    Orphans,
}

/// Why a node joins a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// The node has just started.
    #[error("the job starts")]
    FirstStart,
    /// A worker of this node failed.
    #[error("worker {} of this node failed ({exit}); restarts left: {left}", worker.0)]
    WorkerFailed {
        /// The worker.
        worker: LocalRank,
        /// How the worker exited.
        exit: Exit,
        /// The number of restarts left after this one.
        left: u32,
    },
    /// A worker of another node failed.
    #[error("a worker of another node failed")]
    PeerRestarts,
    /// This number of nodes wait for the next round.
    #[error("{} to join", if *.0 == 1 { "1 node waits".into() } else { format!("{} nodes wait", .0) })]
    NodesWaiting(u64),
    /// This number of nodes were lost.
    #[error("{} left or died; a lost node does not count toward --max-restarts", counted(*.0, "node"))]
    NodesLeft(u64),
    /// Nodes of the round have left it to join the next one.
    #[error("the other nodes rejoin")]
    RoundOver,
    /// The coordinator has ended the round.
    #[error("the coordinator ended the round: {0}")]
    RoundEnded(EndCause),
    /// The other nodes have dropped this one, or the store has lost the round that this node was in. The rendezvous
    /// logs which of the two.
    #[error("the other nodes continue without this one")]
    Dropped,
}

/// The result of a run on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// All workers of this node exited with code 0.
    Succeeded,
    /// A worker of this node failed, and no restart was left.
    Failed,
    /// The job failed on another node.
    FailedElsewhere,
    /// A worker was stuck, or a process could not be killed.
    Unhealthy,
    /// The other nodes left the round while the workers ran, and the policy does not allow the workers to run in
    /// another round.
    RoundOver,
    /// A signal stops this node.
    Signaled(Signal),
    /// The job ended while this node was a spare, or was in a round but had no workers.
    Spare,
    /// The run failed with an error, which the agent has.
    Error,
}

/// What a node does with the rendezvous when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnEnd {
    /// Closes the rendezvous.
    Close,
    /// Leaves the rendezvous. The other nodes may continue.
    Leave,
    /// Does nothing, because the node has left already, the rendezvous is closed, the node can't reach the store, or it
    /// must end immediately.
    Nothing,
}
