//! The events that the agent passes to the supervisor.

use std::fmt;

use crate::rendezvous::NodeDesc;

/// The number of a worker on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalRank(pub u32);

/// A Unix signal, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(pub i32);

impl Signal {
    /// SIGTERM.
    pub const TERM: Signal = Signal(15);
    /// SIGKILL.
    pub const KILL: Signal = Signal(9);
}

/// How a worker exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// The worker exited with this code.
    Code(i32),
    /// This signal killed the worker.
    Signal(Signal),
}

impl Exit {
    /// Returns whether the worker exited with code 0.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(Signal(number)) => write!(f, "signal {number}"),
        }
    }
}

/// An event that the supervisor reacts to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// This node is in a round and knows the ranks of its workers.
    Joined {
        /// The largest number of restarts after failures that any node of the round has counted.
        restarts: u32,
        /// The nodes of the round, if they are known.
        nodes: Vec<NodeDesc>,
        /// The number of nodes of the round.
        world_size: u64,
        /// The number of nodes of the previous round that were lost, if a coordinator has counted them.
        lost: u64,
        /// Whether all nodes of the round are known to be nodes of ours. If not, some may be torch nodes.
        are_all_ours: bool,
    },
    /// This node could not join a round. The agent has the error.
    JoinFailed {
        /// Whether the join failed because the job ended while this node was a spare.
        is_spare: bool,
    },
    /// A worker was not started, and counts as exited. The agent has the error.
    NotStarted(LocalRank),
    /// A worker was not started because the lease of this node was over, and counts as exited.
    Fenced(LocalRank),
    /// A worker exited.
    Exited(LocalRank, Exit),
    /// All workers and all processes that they started have exited.
    AllProcessesExited,
    /// A worker has been in uninterruptible sleep for longer than the agent tolerates.
    Stuck,
    /// The agent received a signal, which stops this node or is passed to workers that run in one round only.
    Signaled(Signal),
    /// All nodes of the round have reported the number of their workers. The listed nodes have at least one worker.
    WorkingNodes(Vec<NodeDesc>),
    /// No node of the round is known to be lost. This is the reply to `CheckPeers`.
    PeersAlive,
    /// Another node restarts its workers after a failure. This node counts the restart, too, because workers only find
    /// each other if they have the same restart count.
    PeerRestarts,
    /// Another node has failed for good.
    PeerFailed,
    /// The store of the round is lost. The agent has the error.
    StoreLost,
    /// This node has stopped waiting for the other nodes to finish. This is the reply to `Finish`.
    Finished {
        /// Whether the workers of all nodes have ended and none has failed.
        all: bool,
    },
}
