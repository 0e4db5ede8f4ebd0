//! What a node knows about its job: the events of its client, in one value that the threads of the agent share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::DeadlineObserver;
use rallypoint_coordinator::client::Event;
use rallypoint_coordinator::job::{Cause, Closing};
use rallypoint_coordinator::message::{Assignment, NotServed, Refusal};
use rallypoint_coordinator::roster::WaitReason;
use rallypoint_core::client::Cancellation;
use rallypoint_core::rendezvous::{EndCause, Membership, NodeDesc};

/// Why a node can't join a native rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NativeFault {
    /// The job is closed.
    #[error("{0}\nhint: use a new --rdzv-id")]
    Closed(Closing),
    /// The node can't be in the job.
    #[error("{0}")]
    Refused(Refusal),
    /// The node is drained.
    #[error("an operator has drained this node\nhint: rallypoint exclude --remove NODE lets it join again")]
    Drained,
    /// The thread of this node's server has ended.
    #[error(
        "the server of this node has ended, so no coordinator can be reached\nhint: please report this with the lines of \
         the log before this one"
    )]
    ServerEnded,
    /// No round has started in time.
    #[error(
        "no round has started within {} s (join_timeout): {waits_for}\nhint: start the missing nodes with the same \
         endpoint and run id, or allow more time with --rdzv-conf join_timeout=SECONDS",
        .timeout.as_secs()
    )]
    Timeout {
        /// What the node waited for.
        waits_for: String,
        /// The timeout.
        timeout: Duration,
    },
}

/// The maximum number of addresses that a message names.
const MAX_NAMED_ADDRESSES: usize = 4;
/// A deadline that never passes.
const NO_DEADLINE: Duration = Duration::from_secs(1 << 40);

/// What a node knows about its job.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    /// The leader that serves the node.
    leader: Option<String>,
    /// Why the addresses that the node has tried don't serve it.
    not_served: BTreeMap<String, NotServed>,
    waits_for: Option<WaitReason>,
    /// The round that the node is in, until it asks to join the next one.
    pub(super) round: Option<Assignment>,
    /// Why that round ended.
    end: Option<Cause>,
    /// Whether the lease ended while the node was in that round.
    is_fenced: bool,
    /// When the workers must be dead, if the node has workers that must be killed then.
    deadline: Option<Duration>,
    /// Whether the workers of the round have finished.
    has_finished: bool,
    pub(super) closed: Option<Closing>,
    pub(super) refused: Option<Refusal>,
    is_drained: bool,
    pub(super) is_interrupted: bool,
    pub(super) has_left: bool,
    /// Whether a leader has served the node.
    pub(super) was_served: bool,
    /// Whether the server of this node runs.
    pub(super) is_server_running: bool,
    /// Whether the last node has closed its connection to the coordinator on this node's server.
    pub(super) is_idle: bool,
    /// The number of changes, and how many of them the last membership contains.
    changes: u64,
    seen_changes: u64,
}

impl NodeState {
    /// Returns why the node can't join.
    pub(super) fn fault(&self) -> Option<NativeFault> {
        if let Some(closing) = &self.closed {
            Some(NativeFault::Closed(closing.clone()))
        } else if let Some(refusal) = &self.refused {
            Some(NativeFault::Refused(refusal.clone()))
        } else if self.is_drained {
            Some(NativeFault::Drained)
        } else {
            (!self.is_server_running).then_some(NativeFault::ServerEnded)
        }
    }

    /// Describes what the node waits for, for people to read.
    pub(super) fn describe_wait(&self) -> String {
        match (&self.leader, &self.waits_for) {
            (Some(_), Some(reason)) => reason.to_string(),
            (Some(leader), None) => format!("no reply yet from the coordinator at {leader}"),
            (None, _) if self.not_served.is_empty() => "connecting to the coordinator".into(),
            (None, _) => {
                let tried = self.not_served.iter().take(MAX_NAMED_ADDRESSES);
                let tried: Vec<String> = tried.map(|(address, why)| format!("{address} ({why})")).collect();
                format!("no coordinator found at {}", tried.join(", "))
            }
        }
    }

    /// Returns the time after which the wait ends by itself, if it does.
    pub(super) fn wait_left(&self) -> Option<Duration> {
        self.waits_for.as_ref().filter(|_| self.leader.is_some())?.left()
    }

    /// Returns whether the node waits for something that may take any time: for its turn, or for an operator.
    pub(super) fn waits_without_limit(&self) -> bool {
        let reason = self.waits_for.as_ref().filter(|_| self.leader.is_some());
        reason.is_some_and(|reason| {
            matches!(
                reason,
                WaitReason::Spare { .. } | WaitReason::NextRound(_) | WaitReason::Excluded { .. }
            )
        })
    }

    /// Returns the address of the leader that serves the node.
    pub(super) fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    /// Returns whether the round of this node has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some() || self.is_fenced
    }

    /// Returns whether this node has the store of its round.
    pub(super) fn is_master(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.rank == 0)
    }

    /// Returns the reason for closing the job that other nodes read.
    pub(super) fn close_reason(&self) -> String {
        match &self.round {
            Some(round) => format!("the job ended in round {}", round.round),
            None => "the job ended".into(),
        }
    }

    /// Returns the membership of the node `own`. It names only that node: the coordinator tells a node why its round
    /// has ended, and not who its other members are.
    pub(super) fn membership(&mut self, own: NodeDesc, now: Duration) -> Membership {
        self.seen_changes = self.changes;
        // The agent may learn that its guard has killed the workers before the event of the client arrives.
        let is_over = self.round.is_some() && !self.has_finished && self.deadline.is_some_and(|at| at <= now);
        let end = match self.is_fenced || is_over {
            true => Some(EndCause::Fenced),
            false => self.end.as_ref().map(end_cause),
        };
        Membership {
            round: self.round.as_ref().map(|round| round.round),
            members: self.round.iter().map(|_| own.clone()).collect(),
            is_round_over: end.is_some(),
            end,
            has_finished: self.closed.as_ref().is_some_and(|closing| closing.has_finished),
            has_failed: self.closed.as_ref().is_some_and(|closing| !closing.has_finished),
            is_closed: self.closed.is_some(),
            closed_by: self.closed.as_ref().map(Closing::to_string),
            ..Membership::default()
        }
    }
}

fn end_cause(cause: &Cause) -> EndCause {
    match cause {
        Cause::WorkerFailed { .. } | Cause::Rejoined { .. } => EndCause::WorkerFailed,
        Cause::NodeLost { .. } => EndCause::NodeLost,
        // The other node was lost to the job, and has come back.
        Cause::Fenced { .. } => EndCause::NodeLost,
        Cause::Growth { .. } => EndCause::Growth,
        Cause::Drained { .. } => EndCause::Drained,
        Cause::Excluded { .. } => EndCause::Excluded,
    }
}

/// The state of a node, and a signal for its changes.
pub(super) struct Shared {
    run_id: String,
    /// Whether the workers are killed at the end of the lease.
    has_fence: bool,
    on_deadline: Option<DeadlineObserver>,
    state: Mutex<NodeState>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn new(run_id: &str, has_fence: bool, on_deadline: Option<DeadlineObserver>) -> Shared {
        Shared {
            run_id: run_id.into(),
            has_fence,
            on_deadline,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event of the node's client.
    pub(super) fn handle_event(&self, event: Event) {
        let run_id = &self.run_id;
        let mut state = self.lock();
        match event {
            Event::Served { leader } => {
                if state.leader.as_ref() != Some(&leader) {
                    tracing::info!("the coordinator of the rendezvous '{run_id}' is at {leader}");
                }
                (state.leader, state.was_served) = (Some(leader), true);
                state.not_served.clear();
            }
            Event::NotServed { address, why } => {
                state.leader = None;
                state.not_served.insert(address, why);
            }
            Event::Waiting(reason) => state.waits_for = Some(reason),
            Event::Started(assignment) => {
                (state.round, state.end, state.is_fenced) = (Some(assignment), None, false);
                state.has_finished = false;
            }
            Event::Ended { round, cause } => {
                if state.round.as_ref().is_some_and(|current| current.round == round) && state.end.is_none() {
                    tracing::warn!("round {round} of the rendezvous '{run_id}' ended: {cause}");
                    state.end = Some(cause);
                }
            }
            Event::Lease { .. } if !self.has_fence => return,
            Event::Lease { deadline } => {
                state.deadline = Some(deadline);
                if let Some(on_deadline) = &self.on_deadline {
                    on_deadline(deadline);
                }
                return;
            }
            Event::LeaseOver { .. } if !self.has_fence => return,
            Event::LeaseOver { round } => {
                tracing::warn!(
                    "this node could not renew its lease in round {round} of the rendezvous '{run_id}', so its workers \
                     are killed: {}",
                    state.describe_wait()
                );
                state.is_fenced = true;
            }
            Event::Drained => state.is_drained = true,
            Event::Closed(closing) => {
                (state.closed, state.deadline) = (Some(closing), None);
                // No other node replaces this one, so its workers may take their time to stop.
                if let Some(on_deadline) = &self.on_deadline {
                    on_deadline(NO_DEADLINE);
                }
            }
            Event::Refused(refusal) => state.refused = Some(refusal),
            Event::Left => state.has_left = true,
            Event::Idle => state.is_idle = true,
            Event::Warning(text) => return tracing::warn!("{text}"),
        }
        state.changes += 1;
        self.changed.notify_all();
    }

    /// Records whether the server of this node runs.
    pub(super) fn set_server_running(&self, is_running: bool) {
        let mut state = self.lock();
        state.is_server_running = is_running;
        state.changes += 1;
        self.changed.notify_all();
    }

    /// Forgets the last round, because the node asks to join the next one.
    pub(super) fn start_joining(&self) {
        let mut state = self.lock();
        (state.round, state.end, state.is_fenced, state.waits_for) = (None, None, false, None);
    }

    /// Records that the workers of the round have finished, so that none is left to kill.
    pub(super) fn finish(&self) {
        self.lock().has_finished = true;
    }

    /// Makes a pending call to `next_rendezvous` end.
    pub(super) fn interrupt(&self) {
        self.lock().is_interrupted = true;
        self.changed.notify_all();
    }

    /// Waits until `condition` holds. Returns whether it held within `timeout`.
    pub(super) fn wait_until(&self, timeout: Duration, condition: impl Fn(&NodeState) -> bool) -> bool {
        let wait = self.changed.wait_timeout_while(self.lock(), timeout, |state| !condition(state));
        !wait.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits for a change since the last membership, at most for `timeout`.
    pub(super) fn wait_for_change(&self, timeout: Duration) {
        self.wait_until(timeout, |state| state.changes != state.seen_changes);
    }
}

/// Cancels calls to the store of a round when the round has ended or the node was interrupted.
pub(super) struct RoundCancellation {
    pub(super) shared: Arc<Shared>,
    pub(super) round: u64,
    /// Whether the node has entered the round. Until then, the end of the job cancels the calls as well. Afterwards, the
    /// nodes still tell each other through this store why the job has failed.
    pub(super) has_entered: AtomicBool,
    /// The cancellation of the caller.
    pub(super) caller: Option<Arc<dyn Cancellation>>,
}

impl std::fmt::Debug for RoundCancellation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoundCancellation").field("round", &self.round).finish_non_exhaustive()
    }
}

impl Cancellation for RoundCancellation {
    fn is_canceled(&self) -> bool {
        let state = self.shared.lock();
        let is_current = state.round.as_ref().is_some_and(|round| round.round == self.round);
        let is_canceled = self.caller.as_ref().is_some_and(|caller| caller.is_canceled());
        let is_closed = state.closed.is_some() && !self.has_entered.load(Ordering::Relaxed);
        !is_current || state.has_ended() || state.is_interrupted || is_closed || is_canceled
    }

    fn on_wait(&self) {
        if let Some(caller) = &self.caller {
            caller.on_wait();
        }
    }
}

#[cfg(test)]
mod tests;
