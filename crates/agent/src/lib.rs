//! The elastic agent: torchrun's work without torchrun. It meets the other nodes, starts this node's workers with torch's
//! environment, watches them, restarts them together with the others', and says what went wrong.
//!
//! What to do when is decided in `rallypoint_core::supervise`; here are processes, signals and files.

mod config;
mod error;
mod outcome;
mod report;

pub use config::{
    CommandMode, EventLog, Grace, LaunchConfig, LogDir, LogsConfig, NumaBinding, PerRank, Streams,
    WatchConfig, WorkerCommand,
};
pub use error::{AgentError, Result};
pub use outcome::{End, Outcome};
pub use report::{Exit, Failure};
