//! The elastic agent, which does the work of torchrun: it joins the rendezvous, starts the workers of this node with
//! torch's environment, watches them, restarts them together with the other nodes, and reports failures.
//!
//! `rallypoint_core::supervise` makes the decisions. This crate carries them out with processes, signals and files.
//!
//! This program runs two workers on one node, and restarts them up to three times:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use std::sync::Arc;
//!
//! use rallypoint_agent::{CommandMode, LaunchConfig, LaunchObserver, WorkerCommand};
//! use rallypoint_rendezvous::{Observer, RendezvousError, RendezvousParameters, Waiting};
//!
//! struct Printer;
//!
//! impl Observer for Printer {
//!     fn waiting(&self, waiting: &Waiting<'_>) {
//!         println!("waiting: {}", waiting.reason);
//!     }
//! }
//!
//! impl LaunchObserver for Printer {
//!     fn rendezvous(&self) -> Arc<dyn Observer> {
//!         Arc::new(Printer)
//!     }
//!     fn formed(&self, description: &str) {
//!         println!("{description}");
//!     }
//!     fn ended(&self) {}
//! }
//!
//! fn config() -> Result<LaunchConfig, RendezvousError> {
//!     let command = WorkerCommand { target: "./train".into(), args: vec![], mode: CommandMode::Program };
//!     let rendezvous = RendezvousParameters::new("c10d", "localhost:29400", "job1", 1, 1)?;
//!     Ok(LaunchConfig { max_restarts: 3, ..LaunchConfig::new(command, 2, rendezvous) })
//! }
//!
//! fn main() -> ExitCode {
//!     // A process that was started as a worker does not return from this call.
//!     if let Err(code) = rallypoint_agent::enter() {
//!         return code;
//!     }
//!     // The outer process waits for the agent here.
//!     if let Some(code) = rallypoint_agent::start_agent(false, |error| eprintln!("{error}")) {
//!         return code;
//!     }
//!     let config = config().expect("the parameters are valid");
//!     let outcome = rallypoint_agent::run(config, Arc::new(Printer));
//!     ExitCode::from(outcome.exit_code())
//! }
//! ```

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
pub use report::{Exit, Failure, end_report, ended_elsewhere, failure_report, unhealthy_cause};
pub use signal_name::signal_number;
pub use signals::is_ignored;
pub use worker::{check_workers, entry_point_name};
