//! Errors of a rendezvous. They have the kinds of torch's errors and more details.

use std::time::Duration;

use rallypoint_core::rendezvous::{Reason, StateError, keys};
use rallypoint_store::{Retry, StoreError};

use crate::hosts::MissingHosts;
use crate::native::NativeFault;

/// The largest number of missing hosts that an error names.
const MAX_NAMED_HOSTS: usize = 256;

/// The result of a rendezvous operation.
pub type Result<T, E = RendezvousError> = std::result::Result<T, E>;

/// An error of a rendezvous operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The rendezvous is closed. Torch's `RendezvousClosedError`.
    #[error(
        "the rendezvous {run_id:?} is closed: {reason}\nhint: use a new --rdzv-id, or remove the old job from the store: \
         rallypoint store --endpoint HOST:PORT delete {}", keys::state(.run_id)
    )]
    Closed {
        /// The run id.
        run_id: String,
        /// Which node closed the rendezvous and when, if that is known.
        reason: Reason,
    },
    /// A timeout while joining. Torch's `RendezvousTimeoutError`.
    #[error("the rendezvous {run_id:?} timed out: {reason}{}{}", .missing.describe(MAX_NAMED_HOSTS), hint(.reason))]
    Timeout {
        /// The run id.
        run_id: String,
        /// What the node waited for, which nodes joined, and which setting bounds the wait.
        reason: Reason,
        /// The expected hosts that have not joined.
        missing: MissingHosts,
    },
    /// The store could not be created, reached or used. Torch's `RendezvousConnectionError`.
    #[error("the rendezvous {run_id:?} can't use its store: {source}")]
    Connection {
        /// The run id.
        run_id: String,
        /// The error of the store.
        #[source]
        source: StoreError,
    },
    /// The store has not replied for `store_outage_timeout`. Torch's `RendezvousConnectionError`.
    #[error(
        "the store of the rendezvous {run_id:?} has not answered for {} s (store_outage_timeout): {source}",
        .lasted.as_secs()
    )]
    Outage {
        /// The run id.
        run_id: String,
        /// How long the outage has lasted.
        lasted: Duration,
        /// The last error of the store.
        #[source]
        source: Box<StoreError>,
    },
    /// This node and the other nodes of the job were started with different numbers of nodes (`--nnodes`).
    #[error(
        "this node can't join the rendezvous {run_id:?}: {reason}\nhint: start all nodes with the same --nnodes"
    )]
    Refused {
        /// The run id.
        run_id: String,
        /// The terms that differ and the nodes that have them, or the round that has too few nodes for this node.
        reason: Reason,
    },
    /// The value in the store is not a state, an agent from before torch 2.6 wrote it, or a new state can't be stored.
    /// Torch's `RendezvousStateError`.
    #[error("the state of the rendezvous {run_id:?} {}", describe_state_error(.source))]
    State {
        /// The run id.
        run_id: String,
        /// Why the value can't be used.
        #[source]
        source: StateError,
    },
    /// The rendezvous was closed while this node was a spare. Torch's `RendezvousGracefulExitError`. Not a failure.
    #[error("the rendezvous {run_id:?} is closed, and this node was a spare that was not needed")]
    GracefulExit {
        /// The run id.
        run_id: String,
    },
    /// This node was interrupted while it waited.
    #[error("this node was interrupted while it waited in the rendezvous {run_id:?}")]
    Interrupted {
        /// The run id.
        run_id: String,
    },
    /// The node with group rank 0 has not published the address of the workers' store.
    #[error(
        "the node with group rank 0 of the rendezvous {run_id:?}, {rank_0}, has not published MASTER_ADDR and \
         MASTER_PORT within {} s: it failed after it joined, or it is torchrun, which publishes them in its first round \
         only, so its job can't grow\nhint: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all nodes, or use `rallypoint \
         run` on the node with group rank 0",
        .waited.as_secs()
    )]
    NoMaster {
        /// The run id.
        run_id: String,
        /// The node with group rank 0.
        rank_0: String,
        /// How long this node waited for the address.
        waited: Duration,
    },
    /// A timeout while closing or leaving.
    #[error("{operation} the rendezvous {run_id:?} took longer than {} s ({setting})", .limit.as_secs_f64())]
    OperationTimeout {
        /// The run id.
        run_id: String,
        /// The operation: `closing` or `leaving`.
        operation: &'static str,
        /// The timeout.
        limit: Duration,
        /// The setting with this timeout, or `a fixed limit`.
        setting: &'static str,
    },
    /// Not all nodes of a static rendezvous have joined in time.
    #[error(
        "the static rendezvous {run_id:?} timed out: {joined} of {world_size} nodes joined within {} s (timeout){}",
        .waited.as_secs(), missing_ranks(.missing)
    )]
    StaticTimeout {
        /// The run id.
        run_id: String,
        /// The number of nodes that joined.
        joined: i64,
        /// The number of nodes in the job.
        world_size: u64,
        /// Up to 64 ranks that no node has claimed. Nodes that run torch's launcher claim no rank.
        missing: Vec<u64>,
        /// How long this node waited.
        waited: Duration,
    },
    /// Two nodes of a static rendezvous were started with the same rank or with different numbers of nodes.
    #[error("the static rendezvous {run_id:?} failed: {conflict}")]
    Conflict {
        /// The run id.
        run_id: String,
        /// The two nodes and the difference.
        conflict: String,
    },
    /// A node can't join a native rendezvous.
    #[error("the rendezvous {run_id:?} failed: {fault}")]
    Native {
        /// The run id.
        run_id: String,
        /// Why the node can't join.
        fault: NativeFault,
    },
    /// The parameters are invalid. Contains one message for each problem.
    #[error("{}", .0.join("\n"))]
    Parameters(Vec<String>),
    /// The handler belongs to another backend than the requested one.
    #[error("The rendezvous backend '{found}' does not match the requested backend '{wanted}'.")]
    BackendMismatch {
        /// The backend of the handler.
        found: String,
        /// The requested backend.
        wanted: String,
    },
    /// A backend failed for another reason. Third-party backends return this error.
    #[error("the rendezvous backend {backend:?} failed: {source}")]
    Backend {
        /// The name of the backend.
        backend: String,
        /// The error of the backend.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl RendezvousError {
    /// Returns whether the call that failed may be repeated.
    ///
    /// After most errors, a repeated call fails again: the rendezvous is closed, nodes are missing, or a setting has to
    /// be changed first.
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
            | RendezvousError::Native { .. }
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

    /// Turns an error of the store into `RendezvousError::Outage`. Returns any other error unchanged.
    pub(crate) fn after_outage(self, lasted: Duration) -> RendezvousError {
        match self {
            RendezvousError::Connection { run_id, source } => {
                RendezvousError::Outage { run_id, lasted, source: source.into() }
            }
            other => other,
        }
    }

    /// Creates an error for one invalid parameter.
    pub(crate) fn parameter(what: impl Into<String>) -> RendezvousError {
        RendezvousError::Parameters(vec![what.into()])
    }
}

fn missing_ranks(ranks: &[u64]) -> String {
    match ranks {
        [] => String::new(),
        ranks => {
            let ranks: Vec<_> = ranks.iter().map(u64::to_string).collect();
            format!("; no node reported rank {}", ranks.join(", "))
        }
    }
}

fn describe_state_error(source: &StateError) -> String {
    match source {
        StateError::OldAgent => format!(
            "was {source}; this node has not changed it\nhint: agents from before and after torch 2.6 can't share a \
             rendezvous; run torch 2.6 or newer on every node"
        ),
        source => format!("is corrupt: {source}; this node has not changed it"),
    }
}

fn hint(reason: &Reason) -> &'static str {
    match reason {
        Reason::NoNextRound { .. } => {
            "\nhint: the round accepts new nodes when one of its nodes rejoins or leaves; restart one of them, or allow more \
             time with --rdzv-conf join_timeout=SECONDS"
        }
        Reason::OperationTimeout => {
            " to leave the last round\nhint: check whether the store is slow, or allow more time with --rdzv-conf \
             join_timeout=SECONDS"
        }
        Reason::JoinTimeout { .. } => {
            "\nhint: start the missing nodes with the same endpoint and run id, allow more time with --rdzv-conf \
             join_timeout=SECONDS, or allow fewer nodes with --nnodes MIN:MAX"
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
        let reason = || Reason::OperationTimeout;
        let waited = Duration::from_secs(1);
        for (error, retry) in [
            (
                RendezvousError::Connection { run_id: run_id(), source: store(Failure::NoReply) },
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
                    source: store(Failure::NoReply).into(),
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
