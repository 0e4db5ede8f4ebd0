//! What happens to a node. Facts only: what comes of them is decided in the supervisor.

use std::fmt;

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

/// Why this node is in no round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// The job is over, and this node was a spare.
    Spare,
    /// It left because it was told to.
    Interrupted,
    /// Anything else; whoever told of it has the details.
    Failed,
}

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// This node is in a round and knows the ranks of its workers.
    Formed {
        /// How often the nodes of the round have restarted their workers after a failure: the most that any of them has.
        restarts: u32,
        /// Whether other nodes are in the round.
        has_peers: bool,
        /// Whether a node of the round before is missing from this one.
        lost_peers: bool,
    },
    /// It is in none.
    NotFormed(Obstacle),
    /// A worker could not be started; whoever told of it has the details. It counts as ended.
    NotStarted(LocalRank),
    /// A worker ended.
    Exited(LocalRank, Exit),
    /// None of the processes that the workers have started is left.
    Alone,
    /// A worker can't be interrupted, and has been so for too long.
    Stuck(LocalRank),
    /// This node was told to end.
    Signalled(Signal),
    /// So many nodes wait for the next round.
    NodesWaiting(u64),
    /// So many nodes are gone from the round without having finished: they have left, or died.
    NodesLeft(u64),
    /// Nodes of the round have left it and wait for the next one.
    RoundOver,
    /// The other nodes have dropped this one from the round.
    Dropped,
    /// No node of the round has been lost: the answer to `CheckPeers`.
    PeersAlive,
    /// Another node restarts its workers after a failure. All nodes count it: workers meet under that number.
    PeerRestarts,
    /// Another node has failed for good.
    PeerFailed,
    /// Somebody has closed the rendezvous.
    Closed {
        /// How many nodes have finished, this one included.
        finished: u64,
    },
    /// The store of the round is lost; whoever told of it has the details.
    StoreLost,
    /// This node waits no longer for the others to finish; whether all have.
    Finished {
        /// Whether all nodes have.
        all: bool,
    },
}
