//! What a run says and is told: steps for a driver, the cell it read, and how it ended. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::node::NodeDesc;
use super::reason::Reason;
use super::state::State;

/// The shared state as it was read, and what a write must find unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// What was there; `None` before anybody has written.
    pub state: Option<Arc<State>>,
    /// What to compare with.
    pub token: Bytes,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the state: [`super::run::Run::handle_cell`].
    Read,
    /// Let the others know that this node wants to be in that round, then read the state and who else wants to:
    /// [`super::run::Run::handle_announced`].
    Announce {
        /// The round.
        round: u64,
    },
    /// Write the state if no other node has written it since: [`super::run::Run::handle_written`].
    Write {
        /// What must be there.
        token: Bytes,
        /// What is to be there.
        state: State,
        /// Announcements of that round to be taken back *before* the write: whoever read them before has also read a
        /// state that this write replaces, and can't act on them any more.
        retract: Option<(u64, Vec<NodeDesc>)>,
    },
    /// Pause for at most this time, or until the phase is over; then [`super::run::Run::handle_pause`].
    Pause {
        /// How long.
        most: Duration,
        /// What is being waited for to end.
        phase: Phase,
    },
    /// It is over.
    End(End),
}

/// A stretch of the rendezvous' life: a round that is open, or one that is complete. Whoever ends it tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phase {
    /// The round.
    pub round: u64,
    /// Whether it is complete.
    pub complete: bool,
}

impl Phase {
    /// The phase of a state; `None` once it is closed.
    pub fn of(state: &State) -> Option<Phase> {
        (!state.closed).then_some(Phase { round: state.round, complete: state.complete })
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The goal is reached: the state as it was read or written then.
    Reached {
        /// The state.
        state: Arc<State>,
        /// Why it is reached.
        reason: Reason,
    },
    /// The rendezvous is closed.
    Closed(Reason),
    /// The rendezvous is closed and this node was a spare.
    Graceful(Reason),
    /// The settings of this node don't fit the job's.
    Refused(Reason),
    /// The time is up.
    Timeout(Reason),
    /// The store has not answered for this long, which is longer than `store_outage_timeout`.
    Outage(Duration),
    /// The error of the last operation is final.
    Error,
}
