//! Errors of the agent itself. A worker that fails is an outcome, not an error.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rallypoint_rendezvous::RendezvousError;
use rallypoint_store::{Retry, StoreError};

/// The reason why an agent could not continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The rendezvous failed.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The store of the round failed.
    #[error("the store of the round failed while {doing}: {source}")]
    Store {
        /// What happened when the store failed, as a clause that follows "while": `workers got their ranks`.
        doing: String,
        /// The error of the store.
        source: StoreError,
    },
    /// The workers of this node did not get their ranks in time. A node of the round probably failed after it joined.
    #[error(
        "the workers of this node did not get their ranks within {} s (read_timeout): a node of the round probably \
         failed after it joined",
        .waited.as_secs()
    )]
    NoRanks {
        /// How long this node waited.
        waited: std::time::Duration,
    },
    /// The store was lost after the workers of this node had finished, while the node waited for the other nodes.
    #[error(
        "the workers of this node have finished, but the store of the rendezvous was lost before all other nodes \
         reported that their workers have finished\n\
         hint: the output of the other nodes shows whether their workers have finished"
    )]
    Unfinished,
    /// A worker could not be started.
    #[error("cannot start worker {local_rank}: {program:?}: {source}")]
    Start {
        /// The local rank of the worker.
        local_rank: u32,
        /// The program that the agent tried to execute.
        program: OsString,
        /// The error of the system.
        source: io::Error,
    },
    /// A file or directory could not be created, read or written.
    #[error("cannot {doing} {path:?}: {source}")]
    File {
        /// What the agent tried to do, as a verb: `create`.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The configuration is contradictory, or does not fit this machine.
    #[error("{0}")]
    Config(String),
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    System {
        /// What the agent tried to do, as a verb: `open a pipe`.
        doing: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl AgentError {
    /// Returns whether the agent may be run again with the same configuration. Returns [`Retry::Never`] for all errors
    /// that did not occur in the rendezvous or in the store.
    pub fn retry(&self) -> Retry {
        match self {
            AgentError::Rendezvous(error) => error.retry(),
            AgentError::Store { source, .. } => source.retry(),
            AgentError::NoRanks { .. }
            | AgentError::Unfinished
            | AgentError::Start { .. }
            | AgentError::File { .. }
            | AgentError::Config(_)
            | AgentError::System { .. } => Retry::Never,
        }
    }

    /// Returns a function that converts the error of a system call.
    pub(crate) fn system<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> AgentError {
        let doing = doing.into();
        |error| AgentError::System { doing, source: error.into() }
    }

    /// Returns a function that converts the error of a system call about a file.
    pub(crate) fn file<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> AgentError {
        let path = path.to_owned();
        move |error| AgentError::File { doing, path, source: error.into() }
    }
}

/// The result of a step of the agent.
pub type Result<T> = std::result::Result<T, AgentError>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rallypoint_store::{Context, Failure, StoreKind};

    use super::*;

    #[test]
    fn only_store_and_rendezvous_errors_may_be_retried() {
        let store = || Context::new(StoreKind::Tcp, "node0:29400").failed(Failure::NoReply);
        let connection = RendezvousError::Connection { run_id: "job".into(), source: store() };
        let interrupted = RendezvousError::Interrupted { run_id: "job".into() };
        let source = || io::Error::from(io::ErrorKind::NotFound);
        for (error, retry) in [
            (AgentError::Rendezvous(connection), Retry::WhenReachable),
            (AgentError::Rendezvous(interrupted), Retry::Never),
            (AgentError::Store { doing: "reading".into(), source: store() }, Retry::WhenReachable),
            (AgentError::NoRanks { waited: Duration::from_secs(1) }, Retry::Never),
            (AgentError::Unfinished, Retry::Never),
            (AgentError::Start { local_rank: 0, program: "tool".into(), source: source() }, Retry::Never),
            (AgentError::File { doing: "open", path: "log".into(), source: source() }, Retry::Never),
            (AgentError::Config("wrong".into()), Retry::Never),
            (AgentError::System { doing: "fork".into(), source: source() }, Retry::Never),
        ] {
            assert_eq!(error.retry(), retry, "{error}");
        }
    }
}
