//! Why a rendezvous failed, by what the caller can do about it. Torch's six errors, each with what torch leaves out.

use std::time::Duration;

use rallypoint_core::rendezvous::{Reason, StateError, keys};
use rallypoint_store::{Retry, StoreError};

use crate::hosts::MissingHosts;

/// So many hosts that are missing are named in an error.
const MAX_NAMED_HOSTS: usize = 256;

/// The result of a rendezvous operation.
pub type Result<T, E = RendezvousError> = std::result::Result<T, E>;

/// Why a rendezvous operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The rendezvous has ended for good; torch's `RendezvousClosedError`.
    #[error(
        "the rendezvous {run_id:?} is closed: {reason}\nhint: use a new --rdzv-id, or remove the old job from the store: \
         rallypoint store --endpoint HOST:PORT delete {}", keys::state(.run_id)
    )]
    Closed {
        /// Which one.
        run_id: String,
        /// By whom and when, where that is known.
        reason: Reason,
    },
    /// The time was up; torch's `RendezvousTimeoutError`.
    #[error("the rendezvous {run_id:?} timed out: {reason}{}{}", .missing.describe(MAX_NAMED_HOSTS), advice(.reason))]
    Timeout {
        /// Which one.
        run_id: String,
        /// What was waited for, who has come, which setting bounds it.
        reason: Reason,
        /// Those who were expected by name and are not here; empty if nobody was named.
        missing: MissingHosts,
    },
    /// The store could not be made, reached or used; torch's `RendezvousConnectionError`.
    #[error("the rendezvous {run_id:?} can't use its store: {source}")]
    Connection {
        /// Which one.
        run_id: String,
        /// What the store said.
        #[source]
        source: StoreError,
    },
    /// The store has not answered for too long; torch's `RendezvousConnectionError`.
    #[error(
        "the store of the rendezvous {run_id:?} has not answered for {} s (store_outage_timeout): {source}",
        .lasted.as_secs()
    )]
    Outage {
        /// Which one.
        run_id: String,
        /// How long the outage has lasted.
        lasted: Duration,
        /// The last error of the store.
        #[source]
        source: Box<StoreError>,
    },
    /// This node was started with other settings than the nodes of the job.
    #[error(
        "this node can't join the rendezvous {run_id:?}: {reason}\nhint: start all nodes with the same --nnodes"
    )]
    Refused {
        /// Which one.
        run_id: String,
        /// Which settings differ, and the nodes that have them.
        reason: Reason,
    },
    /// The value in the store is not a state, or not one that this node can share; torch's `RendezvousStateError`.
    #[error("the state of the rendezvous {run_id:?} {}", describe_state_error(.source))]
    State {
        /// Which one.
        run_id: String,
        /// What was found.
        #[source]
        source: StateError,
    },
    /// The rendezvous was closed while this node was a spare that nobody needed; torch's `RendezvousGracefulExitError`. Not
    /// a failure.
    #[error("the rendezvous {run_id:?} is closed, and this node was a spare that was not needed")]
    GracefulExit {
        /// Which one.
        run_id: String,
    },
    /// This node was told to leave while it waited.
    #[error("this node left the rendezvous {run_id:?} because it was told to")]
    Interrupted {
        /// Which one.
        run_id: String,
    },
    /// Rank 0 of the round has not said where the workers' store is.
    #[error(
        "rank 0 of the rendezvous {run_id:?}, {rank_0}, has not published MASTER_ADDR and MASTER_PORT within {} s: it \
         failed after it joined, or it is torchrun, which publishes them in its first round only, so that its job can't \
         grow\nhint: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all nodes, or let `rallypoint run` be rank 0",
        .waited.as_secs()
    )]
    NoMaster {
        /// Which one.
        run_id: String,
        /// Who is rank 0.
        rank_0: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Something other than joining took too long.
    #[error("{operation} of the rendezvous {run_id:?} took longer than {} s ({setting})", .limit.as_secs_f64())]
    OperationTimeout {
        /// Which one.
        run_id: String,
        /// What it was.
        operation: &'static str,
        /// How long it may take.
        limit: Duration,
        /// The setting that says so.
        setting: &'static str,
    },
    /// Not all nodes of a static rendezvous came.
    #[error(
        "the static rendezvous {run_id:?} timed out: {joined} of {world_size} nodes joined within {} s (timeout){}",
        .waited.as_secs(), missing_ranks(.missing)
    )]
    StaticTimeout {
        /// Which one.
        run_id: String,
        /// How many came.
        joined: i64,
        /// How many must.
        world_size: u64,
        /// The ranks nobody has claimed, as far as is known: nodes that run torch's launcher claim none.
        missing: Vec<u64>,
        /// How long it was waited for them.
        waited: Duration,
    },
    /// Two nodes don't fit together: the same rank, or another number of nodes.
    #[error("the static rendezvous {run_id:?} can't be: {conflict}")]
    Conflict {
        /// Which one.
        run_id: String,
        /// Who contradicts whom.
        conflict: String,
    },
    /// What was asked for can't be: everything that is wrong with it.
    #[error("{}", .0.join("\n"))]
    Parameters(Vec<String>),
    /// A backend gave another handler than was asked for.
    #[error("The rendezvous backend '{found}' does not match the requested backend '{wanted}'.")]
    BackendMismatch {
        /// What the handler says it is.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// A backend of somebody else failed in its own way.
    #[error("the rendezvous backend {backend:?} failed: {source}")]
    Backend {
        /// Its name.
        backend: String,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl RendezvousError {
    /// Returns whether the call may be repeated. After most failures it must not be: the job is closed, nodes are missing, or a
    /// setting has to be changed first.
    pub fn retry(&self) -> Retry {
        match self {
            RendezvousError::Connection { source, .. } => source.retry(),
            RendezvousError::Outage { source, .. } => source.retry(),
            // Closing and leaving are idempotent.
            RendezvousError::OperationTimeout { .. } => Retry::WhenReachable,
            RendezvousError::Closed { .. }
            | RendezvousError::Timeout { .. }
            | RendezvousError::Refused { .. }
            | RendezvousError::State { .. }
            | RendezvousError::GracefulExit { .. }
            | RendezvousError::Interrupted { .. }
            | RendezvousError::NoMaster { .. }
            | RendezvousError::StaticTimeout { .. }
            | RendezvousError::Conflict { .. }
            | RendezvousError::Parameters(_)
            | RendezvousError::BackendMismatch { .. }
            | RendezvousError::Backend { .. } => Retry::Never,
        }
    }

    /// Returns the error of the store, if the store could not be created, reached or used.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            RendezvousError::Connection { source, .. } => Some(source),
            RendezvousError::Outage { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The error of an outage that has lasted too long, if this is an error of the store.
    pub(crate) fn after_outage(self, lasted: Duration) -> RendezvousError {
        match self {
            RendezvousError::Connection { run_id, source } => {
                RendezvousError::Outage { run_id, lasted, source: source.into() }
            }
            other => other,
        }
    }

    /// One thing that is wrong with what was asked for.
    pub(crate) fn parameter(what: impl Into<String>) -> RendezvousError {
        RendezvousError::Parameters(vec![what.into()])
    }
}

fn missing_ranks(ranks: &[u64]) -> String {
    match ranks {
        [] => String::new(),
        ranks => {
            let ranks: Vec<_> = ranks.iter().map(u64::to_string).collect();
            format!("; no node said that it has rank {}", ranks.join(", "))
        }
    }
}

fn describe_state_error(source: &StateError) -> String {
    match source {
        StateError::OldAgent => format!(
            "was {source}; it was left as it is\nhint: agents from before and after torch 2.6 can't share a rendezvous; run \
             torch 2.6 or newer on every node"
        ),
        source => format!("is corrupt: {source}; it was left as it is"),
    }
}

fn advice(reason: &Reason) -> &'static str {
    match reason {
        Reason::NoNextRound { .. } => {
            "; it takes in others when one of its nodes starts over or ends: start one of them again, or allow more time \
             with --rdzv-conf join_timeout=SECONDS"
        }
        Reason::TooLong => {
            " to leave the last round; is the store slow? more time is allowed with --rdzv-conf join_timeout=SECONDS"
        }
        Reason::JoinTimeout { .. } => {
            "; start the missing nodes with the same endpoint and run id, or allow more time with --rdzv-conf \
             join_timeout=SECONDS, or fewer nodes with --nnodes MIN:MAX"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use rallypoint_store::{Context, Failure, StoreKind};

    use super::*;

    #[test]
    fn only_store_failures_and_idempotent_calls_may_be_retried() {
        let run_id = || String::from("job");
        let store = |failure| Context::new(StoreKind::Tcp, "node0:29400").failed(failure);
        let reason = || Reason::TooLong;
        let waited = Duration::from_secs(1);
        for (error, retry) in [
            (
                RendezvousError::Connection { run_id: run_id(), source: store(Failure::NoAnswer) },
                Retry::WhenReachable,
            ),
            (
                RendezvousError::Connection {
                    run_id: run_id(),
                    source: store(Failure::Indeterminate("lost".into())),
                },
                Retry::Indeterminate,
            ),
            (
                RendezvousError::Connection {
                    run_id: run_id(),
                    source: StoreError::InvalidArgument("key".into()),
                },
                Retry::Never,
            ),
            (
                RendezvousError::Outage {
                    run_id: run_id(),
                    lasted: waited,
                    source: store(Failure::NoAnswer).into(),
                },
                Retry::WhenReachable,
            ),
            (
                RendezvousError::OperationTimeout {
                    run_id: run_id(),
                    operation: "closing",
                    limit: waited,
                    setting: "close_timeout",
                },
                Retry::WhenReachable,
            ),
            (RendezvousError::Closed { run_id: run_id(), reason: reason() }, Retry::Never),
            (
                RendezvousError::Timeout {
                    run_id: run_id(),
                    reason: reason(),
                    missing: MissingHosts::default(),
                },
                Retry::Never,
            ),
            (RendezvousError::Refused { run_id: run_id(), reason: reason() }, Retry::Never),
            (RendezvousError::State { run_id: run_id(), source: StateError::OldAgent }, Retry::Never),
            (RendezvousError::GracefulExit { run_id: run_id() }, Retry::Never),
            (RendezvousError::Interrupted { run_id: run_id() }, Retry::Never),
            (RendezvousError::NoMaster { run_id: run_id(), rank_0: "node0".into(), waited }, Retry::Never),
            (
                RendezvousError::StaticTimeout {
                    run_id: run_id(),
                    joined: 1,
                    world_size: 2,
                    missing: vec![1],
                    waited,
                },
                Retry::Never,
            ),
            (
                RendezvousError::Conflict { run_id: run_id(), conflict: "two nodes have rank 1".into() },
                Retry::Never,
            ),
            (RendezvousError::parameter("wrong"), Retry::Never),
            (RendezvousError::BackendMismatch { found: "a".into(), wanted: "b".into() }, Retry::Never),
            (RendezvousError::Backend { backend: "a".into(), source: "failed".into() }, Retry::Never),
        ] {
            assert_eq!(error.retry(), retry, "{error}");
        }
    }
}
