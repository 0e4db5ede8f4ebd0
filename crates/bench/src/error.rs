//! The errors of a run, with hints.

use std::io;
use std::time::Duration;

use rallypoint_core::counted;
use rallypoint_store::StoreError;

/// The reason for which a workload, or the whole run, ended early.
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
    #[error("{during}: {error} ({lost} of {} lost)", counted(*.connections, "connection"))]
    Lost { during: String, error: ConnectionError, lost: u64, connections: usize },
    #[error("{during}: timed out after {} s with {done} of {total} {unit}", .waited.as_secs_f32())]
    TimedOut { during: String, waited: Duration, done: u64, total: u64, unit: &'static str },
    #[error("{needed} files are needed, but this process may open only {limit}")]
    TooFewFiles { needed: usize, limit: usize },
    #[error("cannot wait for sockets: {0}")]
    Poll(#[from] io::Error),
    #[error("interrupted")]
    Interrupted {
        /// Whether keys of the run may be left on the server.
        leaves_keys: bool,
    },
}

/// An error of one connection.
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
    #[error("{} more than expected after {after}", counted(*.bytes, "byte"))]
    UnexpectedBytes { after: &'static str, bytes: usize },
    #[error("no reply to {during} within {} s", .waited.as_secs_f32())]
    Timeout { during: &'static str, waited: Duration },
}

impl BenchError {
    /// Returns a hint on what the user can do about the error.
    pub fn hint(&self) -> &'static str {
        match self {
            BenchError::Usage(_) => "see `rallypoint bench --help`",
            BenchError::Unresolvable(_) => "check the spelling, or use an IP address this machine can reach",
            BenchError::Unreachable { .. } => {
                "check that a server runs there; `rallypoint serve --listen HOST:PORT` starts one"
            }
            BenchError::NotAStore { .. } => {
                "use the MASTER_PORT or the rendezvous endpoint of the job; another program may have this port"
            }
            BenchError::Lost { .. } => "check the log of the server, or use fewer --connections",
            BenchError::TimedOut { .. } => "use a longer --timeout, or a smaller size such as cancel-200",
            BenchError::TooFewFiles { .. } => {
                "raise the hard limit (`ulimit -Hn`), or use fewer connections, such as connect-1000"
            }
            BenchError::Poll(_) => "this is an error of this machine and not of the server",
            BenchError::Interrupted { leaves_keys: false } => {
                "the last result is incomplete; the keys of the run have been deleted"
            }
            BenchError::Interrupted { leaves_keys: true } => {
                "the last result is incomplete; the server did not confirm that the keys of the run were deleted"
            }
        }
    }

    /// Returns whether this error ends the whole run, and not only the workload.
    pub fn ends_the_run(&self) -> bool {
        matches!(
            self,
            BenchError::Unresolvable(_)
                | BenchError::Unreachable { .. }
                | BenchError::Interrupted { .. }
                | BenchError::Poll(_)
        )
    }

    /// Returns whether the workload failed. An interruption is not a failure.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(self, BenchError::Interrupted { .. })
    }
}
