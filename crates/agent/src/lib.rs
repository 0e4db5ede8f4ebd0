//! The elastic agent: torchrun's work without torchrun. It meets the other nodes, starts this node's workers with torch's
//! environment, watches them, restarts them together with the others', and says what went wrong.
//!
//! What to do when is decided in `rallypoint_core::supervise`; here are processes, signals and files.

mod config;
mod devices;
mod environment;
mod error;
mod error_file;
mod host;
mod logs;
mod numa;
mod outcome;
mod placement;
mod report;
mod signal_name;
mod template;
mod worker;

pub use config::{
    CommandMode, EventLog, Grace, LaunchConfig, LogDir, LogsConfig, NumaBinding, PerRank, Streams,
    WatchConfig, WorkerCommand,
};
pub use devices::count_devices;
pub use error::{AgentError, Result};
pub use error_file::{Cause, tell_error, tell_failure};
pub use host::{full_name, short_name};
pub use logs::{Attempt, Folder, Logs, WorkerLogs, remove_unused};
pub use outcome::{End, Outcome};
pub use placement::Placement;
pub use report::{Exit, Failure, end_report, failure_report};
pub use signal_name::{signal_name, signal_number};
pub use worker::{WorkerPlan, check_workers, command_line, entry_point_name, plan};
