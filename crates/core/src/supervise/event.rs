//! What happens to a node. The supervisor decides what follows.

use std::fmt;

use crate::rendezvous::NodeDesc;

/// The rank of a worker on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalRank(pub u32);

/// A signal, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(pub i32);

impl Signal {
    /// SIGTERM.
    pub const TERM: Signal = Signal(15);
    /// SIGKILL.
    pub const KILL: Signal = Signal(9);
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(Signal),
}

impl Exit {
    /// Whether it did what it was to do.
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

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// This node is in a round and knows the ranks of its workers.
    Joined {
        /// How often the nodes of the round have restarted their workers after a failure: the most that any of them has.
        restarts: u32,
        /// The nodes of the round, where they are known.
        nodes: Vec<NodeDesc>,
        /// Whether all of them are ours, and not torch's.
        are_all_ours: bool,
    },
    /// This node is in no round. The driver has the details.
    JoinFailed {
        /// Whether the job has ended while this node was a spare.
        is_spare: bool,
    },
    /// A worker could not be started, and counts as ended. The driver has the details.
    NotStarted(LocalRank),
    /// A worker ended.
    Exited(LocalRank, Exit),
    /// None of the processes that the workers have started is left.
    AllProcessesExited,
    /// A worker could not be interrupted for too long.
    Stuck,
    /// This node was told to end.
    Signaled(Signal),
    /// The nodes of the round have reported how many workers they have; these nodes have some.
    WorkingNodes(Vec<NodeDesc>),
    /// No node of the round has been lost: the answer to `CheckPeers`.
    PeersAlive,
    /// Another node restarts its workers after a failure. All nodes count it: workers meet under that number.
    PeerRestarts,
    /// Another node has failed for good.
    PeerFailed,
    /// The store of the round is lost. The driver has the details.
    StoreLost,
    /// This node waits no longer for the other nodes to finish.
    Finished {
        /// Whether all nodes have finished.
        all: bool,
    },
}
