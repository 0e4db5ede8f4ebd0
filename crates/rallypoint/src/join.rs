//! `rallypoint join` is one node of a rendezvous: an agent without an outer process. It has at most one worker, which
//! it never restarts. It prints one line of JSON for every round that it joins.

mod arguments;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rallypoint_agent::{
    AgentError, CommandMode, Exit, LaunchConfig, LaunchObserver, LogDir, LogsConfig, Outcome, Verdict,
    WorkerCommand,
};
use rallypoint_rendezvous::{NativeFault, Observer, RendezvousError, RendezvousInfo, RendezvousParameters};
use rallypoint_store::StoreError;
use serde_json::json;

pub(crate) use arguments::JoinArgs;

use crate::flags::FlagEnvironment;
use crate::progress::Progress;
use crate::{exit_code, live_line, output};

/// Interval for polling the membership of the rendezvous.
const MONITOR_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: JoinArgs) -> ExitCode {
    let variable = |name: &str| std::env::var_os(name);
    let mut warnings = Vec::new();
    let parameters = match args.parameters(&FlagEnvironment(&variable), &mut warnings) {
        Ok(parameters) => parameters,
        Err(error) => return ExitCode::from(report_error(&error.into())),
    };
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let run_id = parameters.run_id.clone();
    let has_command = !args.command.is_empty();
    let progress = Arc::new(Progress::new(&run_id));
    let observer = Arc::new(JoinObserver { progress, run_id, has_joined: AtomicBool::new(false) });
    let outcome = rallypoint_agent::run(config(args, parameters), Arc::clone(&observer) as _);
    let stays = !has_command && observer.has_joined.load(Ordering::SeqCst);
    ExitCode::from(code_of(&outcome, stays))
}

fn config(args: JoinArgs, rendezvous: RendezvousParameters) -> LaunchConfig {
    let workers = u32::from(!args.command.is_empty());
    let mut words = args.command.into_iter();
    let target = words.next().unwrap_or_default();
    let command = WorkerCommand { target, args: words.collect(), mode: CommandMode::Program };
    LaunchConfig {
        runs_once: true,
        monitor_interval: MONITOR_INTERVAL,
        logs: LogsConfig { dir: LogDir::Nowhere, keeps_last_lines: false, ..LogsConfig::default() },
        ..LaunchConfig::new(command, workers, rendezvous)
    }
}

/// Returns the exit code, and prints the error if there is one. `stays` is whether the node has joined a round and
/// has no command. Such a node stays until a signal ends it, so the signal is then no failure.
fn code_of(outcome: &Outcome, stays: bool) -> u8 {
    let command_code = match outcome.last_exit {
        Some(Exit::Code(code)) => code as u8,
        Some(Exit::Signal(signal)) => exit_code::of_signal(signal),
        None => 0,
    };
    if let Some(error) = &outcome.error {
        return report_error(error);
    }
    match outcome.verdict {
        Verdict::RoundOver if command_code != 0 => exit_code::ROUND_OVER,
        Verdict::Signaled(signal) if outcome.starts == 0 && !stays => exit_code::of_signal(signal.0),
        Verdict::Spare if outcome.starts > 0 => {
            tracing::info!("the rendezvous was closed");
            0
        }
        _ => command_code,
    }
}

/// Prints one line of JSON for every round that the node joins, and reports what the node waits for.
struct JoinObserver {
    progress: Arc<Progress>,
    run_id: String,
    /// Whether the node has joined a round.
    has_joined: AtomicBool,
}

impl LaunchObserver for JoinObserver {
    fn rendezvous(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.progress) as _
    }

    fn joined(&self, round: &RendezvousInfo) -> std::io::Result<()> {
        self.progress.end();
        let store_info = &round.bootstrap_store_info;
        let nodes = round.participants.iter();
        let participants: Vec<_> = nodes
            .map(|node| json!({"addr": &*node.addr, "pid": node.pid, "local_id": node.local_id}))
            .collect();
        let line = json!({
            "run_id": self.run_id,
            "round": round.round,
            "rank": round.rank,
            "world_size": round.world_size,
            "master_addr": store_info.master_addr,
            "master_port": store_info.master_port,
            "participants": participants,
        });
        self.has_joined.store(true, Ordering::SeqCst);
        let mut out = std::io::stdout().lock();
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            // A closed pipe is no failure: its reader needs no further lines.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    fn formed(&self, _: &str) {}

    fn ended(&self) {
        live_line::end();
    }
}

/// Prints an error to standard error and returns its exit code.
fn report_error(error: &AgentError) -> u8 {
    if let AgentError::Start { program, source, .. } = error {
        output::write_stderr(&format!("rallypoint join: cannot run {program:?}: {source}"));
        return if source.kind() == std::io::ErrorKind::NotFound {
            exit_code::NOT_FOUND
        } else {
            exit_code::NOT_EXECUTABLE
        };
    }
    for line in error.to_string().lines() {
        output::write_stderr(&format!("rallypoint join: {line}"));
    }
    let store_error = match error {
        AgentError::Rendezvous(RendezvousError::Parameters(_)) => {
            output::write_stderr("hint: `rallypoint join --help` shows the options with examples");
            return exit_code::USAGE;
        }
        AgentError::Rendezvous(
            RendezvousError::Closed { .. } | RendezvousError::Native { fault: NativeFault::Closed(_), .. },
        ) => return exit_code::CLOSED,
        AgentError::Rendezvous(
            RendezvousError::Timeout { .. }
            | RendezvousError::StaticTimeout { .. }
            | RendezvousError::Native { fault: NativeFault::Timeout { .. }, .. },
        ) => return exit_code::TIMEOUT,
        AgentError::NoRanks { .. } => return exit_code::UNREACHABLE,
        AgentError::Rendezvous(error) => error.store_error(),
        AgentError::Store { source, .. } => Some(source),
        _ => None,
    };
    match store_error {
        Some(source) => {
            output::write_stderr(&format!("hint: {}", store_hint(source)));
            exit_code::UNREACHABLE
        }
        None => exit_code::FAILURE,
    }
}

/// Returns a hint for the user about an error of the store of a rendezvous.
pub(crate) fn store_hint(error: &StoreError) -> &'static str {
    match (error, error.connection_fault()) {
        (StoreError::File { .. } | StoreError::FileTimeout { .. }, _) => {
            "check that all nodes use the same file, and can read, write and lock it"
        }
        (_, Some(fault)) => fault.hint(),
        _ => "check that the node of the endpoint is up, and that all nodes use the same endpoint",
    }
}
