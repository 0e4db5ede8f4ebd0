//! What keeps an agent from its work. A worker that fails is not among it: that is an outcome.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rallypoint_rendezvous::RendezvousError;
use rallypoint_store::{Retry, StoreError};

/// Why an agent could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The nodes did not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The store of the round failed.
    #[error("the store of the round failed while {doing}: {source}")]
    Store {
        /// What it was asked for.
        doing: String,
        /// What went wrong.
        source: StoreError,
    },
    /// The nodes of the round have not agreed on the ranks of their workers.
    #[error(
        "the nodes of the round have not said how many workers they run within {} s (read_timeout): one of them failed \
         after it joined",
        .waited.as_secs()
    )]
    NoRanks {
        /// How long this node waited.
        waited: std::time::Duration,
    },
    /// The store was lost while this node, whose workers had finished, waited for the others.
    #[error(
        "the store of the rendezvous was lost before it was known that all nodes had finished; this node's workers had\n\
         hint: the output of the other nodes says whether their workers have finished, too"
    )]
    Unfinished,
    /// A worker could not be started.
    #[error("cannot start worker {local_rank}: {program:?}: {source}")]
    Start {
        /// Its local rank.
        local_rank: u32,
        /// What was to be run.
        program: OsString,
        /// What went wrong.
        source: io::Error,
    },
    /// A log file or folder could not be made or written.
    #[error("cannot {doing} {path:?}: {source}")]
    File {
        /// What was tried, as in "cannot create".
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// What was asked for does not go together, or not with this machine.
    #[error("{0}")]
    Config(String),
    /// Something of the operating system failed.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: String,
        /// What went wrong.
        source: io::Error,
    },
}

impl AgentError {
    /// Returns whether running the agent again can succeed without a change. The error of a rendezvous or store decides it.
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

    /// Returns what turns the error of a system call into this one.
    pub(crate) fn system<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> AgentError {
        let doing = doing.into();
        |error| AgentError::System { doing, source: error.into() }
    }

    /// The same for a call about a file.
    pub(crate) fn file<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> AgentError {
        let path = path.to_owned();
        move |error| AgentError::File { doing, path, source: error.into() }
    }
}

/// What an agent's steps return.
pub type Result<T> = std::result::Result<T, AgentError>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rallypoint_store::{Context, Failure, StoreKind};

    use super::*;

    #[test]
    fn only_store_and_rendezvous_errors_may_be_retried() {
        let store = || Context::new(StoreKind::Tcp, "node0:29400").failed(Failure::NoAnswer);
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
