//! What a measurement can end in, with the exit code of each and a hint what to do.

use std::io;
use std::time::Duration;

use rallypoint_core::counted;
use rallypoint_store::StoreError;

/// Why a workload, or the whole run, ended early.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it means")]
#[non_exhaustive]
pub enum BenchError {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Unresolvable(#[from] StoreError),
    #[error("could not connect to {endpoint}: {}", .tried.join("; "))]
    Unreachable { endpoint: String, tried: Vec<String> },
    #[error("{peer} does not answer as a TCPStore server does: {error}")]
    NotAStore { peer: String, error: ConnectionError },
    #[error("{during}: {error} ({lost} of {})", counted(*.connections, "connection"))]
    Lost { during: String, error: ConnectionError, lost: u64, connections: usize },
    #[error("{during}: not done after {} s, {done} of {total} {unit}", .waited.as_secs_f32())]
    TimedOut { during: String, waited: Duration, done: u64, total: u64, unit: &'static str },
    #[error("{needed} connections are asked for, but this process may open only {limit} files")]
    TooFewFiles { needed: usize, limit: usize },
    #[error("cannot wait for sockets: {0}")]
    Poll(#[from] io::Error),
    #[error("interrupted")]
    Interrupted {
        /// Whether keys of the run may be left on the server.
        leaves_keys: bool,
    },
}

/// What went wrong on one connection.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it means")]
#[non_exhaustive]
pub enum ConnectionError {
    #[error("the server closed the connection during {during}")]
    Closed { during: &'static str },
    #[error("the connection failed during {during}: {source}")]
    Failed { during: &'static str, source: io::Error },
    #[error("wrong reply to {during}: byte {at} is {found:#04x}, expected {expected:#04x}")]
    WrongReply { during: &'static str, at: usize, found: u8, expected: u8 },
    #[error("{} came that were not asked for, after {after}", counted(*.bytes, "byte"))]
    UnexpectedBytes { after: &'static str, bytes: usize },
    #[error("no answer to {during} within {} s", .waited.as_secs_f32())]
    Timeout { during: &'static str, waited: Duration },
}

impl BenchError {
    /// Returns what the user can do about the error.
    pub fn hint(&self) -> &'static str {
        match self {
            BenchError::Usage(_) => "see `rallypoint bench --help`",
            BenchError::Unresolvable(_) => "check the spelling, or use an IP address this machine can reach",
            BenchError::Unreachable { .. } => {
                "is the server running there? `rallypoint serve --listen HOST:PORT` starts one, and prints its port"
            }
            BenchError::NotAStore { .. } => {
                "the port of a TCPStore is the job's MASTER_PORT or rendezvous endpoint; another program may have it"
            }
            BenchError::Lost { .. } => "the server's log may say why; fewer --connections may pass",
            BenchError::TimedOut { .. } => {
                "a larger --timeout, or a smaller size such as cancel-200, lets a slow server finish"
            }
            BenchError::TooFewFiles { .. } => {
                "raise the hard limit (`ulimit -Hn`), or ask for fewer, such as connect-1000"
            }
            BenchError::Poll(_) => "this is not the server's doing",
            BenchError::Interrupted { leaves_keys: false } => {
                "the last figures are of what was done by then; the keys that were made have been deleted"
            }
            BenchError::Interrupted { leaves_keys: true } => {
                "the last figures are of what was done by then; the server did not say that it has deleted the keys"
            }
        }
    }

    /// Returns whether no other workload can be tried.
    pub fn ends_the_run(&self) -> bool {
        matches!(
            self,
            BenchError::Unresolvable(_)
                | BenchError::Unreachable { .. }
                | BenchError::Interrupted { .. }
                | BenchError::Poll(_)
        )
    }

    /// Returns whether something went wrong. An interruption is not an error of the server.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(self, BenchError::Interrupted { .. })
    }
}
