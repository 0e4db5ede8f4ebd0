//! The elastic agent, which does the work of torchrun: it joins the rendezvous, starts the workers of this node with
//! torch's environment, watches them, restarts them together with the other nodes, and reports failures.
//!
//! `rallypoint_core::supervise` makes the decisions. This crate carries them out with processes, signals and files.

mod agent;
mod announcements;
mod channel;
mod config;
mod devices;
mod disk;
mod environment;
mod error;
mod error_file;
mod events;
mod exec;
mod exit_barrier;
mod formation;
mod guard;
mod host;
mod joiner;
mod logs;
mod numa;
mod outcome;
mod processes;
mod report;
mod reports;
mod round_watch;
mod signal_name;
mod signals;
mod stuck;
mod template;
mod timers;
mod worker;

pub use agent::{LaunchObserver, run};
pub use config::{
    CommandMode, EventLog, LaunchConfig, LogDir, LogsConfig, NumaBinding, PerRank, Streams, WatchConfig,
    WorkerCommand,
};
pub use devices::count_devices;
pub use disk::is_disk_full;
pub use error::{AgentError, Result};
pub use error_file::{write_error_file, write_failure_file};
pub use exec::enter;
pub use guard::{is_agent, reaches_agent, start_agent};
pub use outcome::Outcome;
pub use rallypoint_core::supervise::Verdict;
pub use report::{Exit, Failure, end_report, ended_elsewhere, failure_report};
pub use signal_name::signal_number;
pub use signals::is_ignored;
pub use worker::{check_workers, entry_point_name};
