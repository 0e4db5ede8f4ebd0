//! The elastic agent: torchrun's work without torchrun. It meets the other nodes, starts this node's workers with torch's
//! environment, watches them, restarts them together with the others', and says what went wrong.
//!
//! What to do when is decided in `rallypoint_core::supervise`; here are processes, signals and files.

mod agent;
mod config;
mod devices;
mod disk;
mod entrance;
mod environment;
mod error;
mod error_file;
mod events;
mod finishing;
mod guard;
mod host;
mod joining;
mod logs;
mod news;
mod numa;
mod outcome;
mod placement;
mod post;
mod processes;
mod report;
mod reports;
mod signal_name;
mod signals;
mod stuck;
mod template;
mod timers;
mod watching;
mod worker;

pub use agent::{LaunchObserver, World, run};
pub use config::{
    CommandMode, EventLog, Grace, LaunchConfig, LogDir, LogsConfig, NumaBinding, PerRank, Streams,
    WatchConfig, WorkerCommand,
};
pub use devices::count_devices;
pub use disk::is_disk_full;
pub use entrance::enter;
pub use error::{AgentError, Result};
pub use error_file::{Cause, tell_error, tell_failure};
pub use guard::{Guard, is_agent, reaches_agent, start_agent};
pub use host::{full_name, short_name};
pub use logs::{Attempt, Folder, Logs, WorkerLogs, remove_unused};
pub use outcome::{End, Outcome};
pub use placement::Placement;
pub use report::{Exit, Failure, end_report, ended_elsewhere, failure_report};
pub use signal_name::{signal_name, signal_number};
pub use signals::is_ignored;
pub use worker::{WorkerPlan, check_workers, command_line, entry_point_name, plan};
