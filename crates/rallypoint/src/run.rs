//! `rallypoint run` runs the workers of a node, in place of torchrun. This module reads the command line and reports
//! the outcome. `rallypoint_agent` starts and monitors the workers.

mod arguments;
mod observer;
mod plan;
mod rendezvous;
mod script;
mod streams;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, CommandFactory, FromArgMatches};
use rallypoint_agent::{
    AgentError, LaunchConfig, Outcome, Verdict, end_report, ended_elsewhere, entry_point_name,
    failure_report, unhealthy_cause, write_error_file, write_failure_file,
};

pub(crate) use arguments::RunArgs;
use observer::RunObserver;
use plan::{Plan, plan};

use tracing::level_filters::LevelFilter;

use rallypoint_rendezvous::NATIVE_BACKEND;

use crate::flags::FlagEnvironment;
use crate::join::store_hint;
use crate::port_owner::port_owner_hint;
use crate::refusal::Refusal;
use crate::{FLUSH_TIMEOUT, HELP_WIDTH, exit_code, log, output};

/// The name of this command in usage and error messages.
pub(crate) const RUN: &str = "rallypoint run";
/// The name of this command if it was started through a link named `torchrun`. Tools such as torchx start it by that
/// name.
const TORCHRUN: &str = "torchrun";

/// Returns whether the user started this program under the name `torchrun`.
pub(crate) fn is_torchrun(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == TORCHRUN)
}

/// Parses a command line that has the flags of `run` without the word `run`, and runs it under the name `torchrun`.
pub(crate) fn run_as_torchrun(line: &[OsString]) -> ExitCode {
    let matches = torchrun_command().get_matches_from(line);
    match RunArgs::from_arg_matches(&matches) {
        Ok(args) => run(args, TORCHRUN, line),
        Err(error) => error.exit(),
    }
}

/// Returns the command line parser for the name `torchrun`.
fn torchrun_command() -> clap::Command {
    let command = RunArgs::augment_args(clap::Command::new(TORCHRUN));
    let examples = command.get_after_help().map(|text| text.to_string().replace(RUN, TORCHRUN));
    command
        .bin_name(TORCHRUN)
        .version(concat!("(rallypoint ", env!("CARGO_PKG_VERSION"), ")"))
        .max_term_width(HELP_WIDTH)
        .override_usage(format!("{TORCHRUN} [OPTIONS] SCRIPT [ARGS]..."))
        .after_help(examples.unwrap_or_default())
}

/// Runs the command and returns its exit code. `name` is the name of the command in messages, and `line` is the whole
/// command line.
pub(crate) fn run(args: RunArgs, name: &'static str, line: &[OsString]) -> ExitCode {
    if let Some(shell) = &args.print_completion {
        return print_completion(shell, name);
    }
    let format = if args.log_format == "json" { ErrorFormat::Json } else { ErrorFormat::Text };
    let errors = ErrorWriter { format, name };
    let variable = |name: &str| std::env::var_os(name);
    let environment = FlagEnvironment(&variable);
    let result = log_level(&args, &environment).and_then(|level| {
        let plan = plan(&args, line, &environment)?;
        // The agent skips this check, because the outer process made the check before it started the agent.
        if !rallypoint_agent::is_agent() {
            script::check(&plan.config, &environment)?;
        }
        Ok((level, plan))
    });
    let (level, Plan { config, warnings }) = match result {
        Ok(result) => result,
        Err(refusal) => return report_refusal(&refusal, errors),
    };
    let has_fence = config.rendezvous.backend == NATIVE_BACKEND;
    if let Some(code) = rallypoint_agent::start_agent(has_fence, |text| errors.error(text)) {
        return code;
    }
    let log_writer = log::start_agent_log(level, args.log_format == "json");
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let observer = Arc::new(RunObserver::new(&config.rendezvous.run_id));
    let outcome = rallypoint_agent::run(config.clone(), observer);
    // The log is written first, so that the report follows all log lines.
    log_writer.finish(FLUSH_TIMEOUT);
    let code = report_outcome(&config, &outcome, errors);
    log_writer.finish(FLUSH_TIMEOUT);
    code
}

/// Returns the log level of `--log-level`, or else of `RALLYPOINT_LOG`, or else of `LOGLEVEL`. Fails if
/// `RALLYPOINT_LOG` is not a level.
fn log_level(args: &RunArgs, environment: &FlagEnvironment<'_>) -> Result<Option<LevelFilter>, Refusal> {
    if let Some(level) = args.log.level() {
        return Ok(Some(level));
    }
    match environment.variable("RALLYPOINT_LOG").filter(|text| !text.is_empty()) {
        Some(text) => {
            log::parse_level(&text).map(Some).ok_or_else(|| Refusal::usage(log::wrong_level(&text)))
        }
        None => Ok(environment.variable("LOGLEVEL").map(|level| python_level(&level))),
    }
}

/// Returns the level for a value of `LOGLEVEL`, which contains one of Python's level names.
fn python_level(level: &str) -> LevelFilter {
    match level.trim().to_ascii_uppercase().as_str() {
        "CRITICAL" | "FATAL" | "ERROR" => LevelFilter::ERROR,
        "WARNING" | "WARN" => LevelFilter::WARN,
        "DEBUG" | "NOTSET" => LevelFilter::DEBUG,
        _ => LevelFilter::INFO,
    }
}

/// Prints the errors of this command as text or as JSON.
#[derive(Clone, Copy)]
struct ErrorWriter {
    format: ErrorFormat,
    name: &'static str,
}

#[derive(Clone, Copy)]
enum ErrorFormat {
    /// Text on standard error.
    Text,
    /// A line of JSON on standard error, so that standard error contains nothing but JSON.
    Json,
}

impl ErrorWriter {
    /// Writes text to standard error. The write may block: the text is the last output of the command and must not be
    /// lost.
    fn write(self, text: &str) {
        match self.format {
            ErrorFormat::Json => log::write_json_error(text.trim()),
            ErrorFormat::Text => output::write_stderr_lines(text),
        }
    }

    /// Writes an error after the name of the command.
    fn error(self, text: &str) {
        self.write(&format!("{}: {text}", self.name));
    }
}

/// Prints how the run ended, writes the error file and the end report, and returns the exit code.
fn report_outcome(config: &LaunchConfig, outcome: &Outcome, errors: ErrorWriter) -> ExitCode {
    if let Some(error) = &outcome.error {
        errors.error(&error.to_string());
        if let Some(hint) = hint(config, error) {
            errors.write(&format!("hint: {hint}"));
        }
    }
    match outcome.verdict {
        Verdict::Unhealthy if outcome.failures.is_empty() => {
            errors.error(&format!("{}; the agent gave up", unhealthy_cause(config)));
        }
        Verdict::FailedElsewhere if outcome.first_failure.is_none() => {
            errors.error(&ended_elsewhere(outcome));
            errors.write("hint: check the output of that node");
        }
        Verdict::Failed | Verdict::FailedElsewhere | Verdict::Unhealthy => {
            let title = entry_point_name(config);
            let first = outcome.first_failure.as_ref();
            let report = failure_report(&title, &outcome.failures, first, config.max_restarts);
            errors.write(&report);
            if let Some(closing) = &outcome.closing {
                errors.error(&format!("the job has ended: {closing}"));
            }
        }
        _ => {}
    }
    if let Some(path) = &config.error_file {
        let failure = outcome.first_failure.as_ref().or(outcome.failures.first());
        match (outcome.verdict, &outcome.error, failure) {
            (_, Some(error), _) => write_error_file(&error.to_string(), path),
            (Verdict::FailedElsewhere, ..) if outcome.first_failure.is_none() => {
                write_error_file(&ended_elsewhere(outcome), path);
            }
            (Verdict::Succeeded | Verdict::Spare, ..) | (.., None) => {}
            (.., Some(failure)) => write_failure_file(failure, path),
        }
    }
    let written = config.report.as_ref().map_or(Ok(()), |to| write_end_report(to, config, outcome, errors));
    written.err().unwrap_or_else(|| ExitCode::from(outcome.exit_code()))
}

fn write_end_report(
    to: &Path,
    config: &LaunchConfig,
    outcome: &Outcome,
    errors: ErrorWriter,
) -> Result<(), ExitCode> {
    let report = format!("{}\n", end_report(config, outcome));
    if to == Path::new("-") {
        return output::write_stdout(report);
    }
    std::fs::write(to, report).map_err(|error| {
        errors.error(&format!("cannot write --end-report {}: {error}", to.display()));
        ExitCode::FAILURE
    })
}

/// Returns a hint about the cause of an error: which process holds the port, or what the user can check about the
/// store.
fn hint(config: &LaunchConfig, error: &AgentError) -> Option<String> {
    match error {
        AgentError::Rendezvous(error) => {
            let source = error.store_error()?;
            let endpoint = &config.rendezvous.endpoint;
            let (host, port) = endpoint.rsplit_once(':').unwrap_or((endpoint, "29400"));
            let is_ours = rallypoint_rendezvous::is_this_machine(host.trim_matches(['[', ']']));
            let owner = port.parse().ok().filter(|_| is_ours).and_then(port_owner_hint);
            Some(match (owner, source.connection_fault()) {
                (Some(owner), Some(fault)) => format!("{}\nhint: {owner}", fault.hint()),
                (Some(owner), None) => owner,
                (None, _) => store_hint(source).into(),
            })
        }
        AgentError::System { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            port_owner_hint(config.watch.health_check?.port())
        }
        _ => None,
    }
}

fn report_refusal(refusal: &Refusal, errors: ErrorWriter) -> ExitCode {
    errors.error(&refusal.text);
    if let Some(hint) = &refusal.hint {
        errors.write(&format!("hint: {hint}"));
    }
    if refusal.code == exit_code::USAGE {
        errors.write(&format!("hint: `{} --help` shows the options with examples", errors.name));
    }
    ExitCode::from(refusal.code)
}

fn print_completion(shell: &str, name: &'static str) -> ExitCode {
    let shell = match shell {
        "bash" => clap_complete::Shell::Bash,
        "zsh" => clap_complete::Shell::Zsh,
        other => {
            let text = format!(
                "--print-completion {other} is not supported; `rallypoint completions` has bash, elvish, fish, \
                 powershell and zsh"
            );
            return report_refusal(&Refusal::usage(text), ErrorWriter { format: ErrorFormat::Text, name });
        }
    };
    let (mut command, name) = match name {
        TORCHRUN => (torchrun_command(), TORCHRUN),
        _ => (crate::Cli::command(), "rallypoint"),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    output::write_stdout(script).err().unwrap_or(ExitCode::SUCCESS)
}
