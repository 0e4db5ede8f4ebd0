//! Turns flags, environment variables and defaults into the configuration of the agent. The rules, and the order in
//! which they are applied, are those of torchrun. Unlike torchrun, this module refuses flags that would have no
//! effect. For a few of them, and for environment variables without an effect, it only adds a warning.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use rallypoint_agent::{
    CommandMode, EventLog, LaunchConfig, LogDir, LogsConfig, NumaBinding, WatchConfig, WorkerCommand,
    count_devices, reaches_agent, signal_number,
};
use rallypoint_http::parse_address;

use super::arguments::RunArgs;
use super::rendezvous::RendezvousFlags;
use super::{script, streams};
use crate::flags::FlagEnvironment;
use crate::python;
use crate::refusal::Refusal;

/// The maximum number of workers on one node. A larger `--nproc-per-node` is taken for a typing error and refused.
const MAX_WORKERS: i64 = 65_536;
/// The maximum of every time, in seconds. A larger `--shutdown-timeout` is reduced to it, a larger value of another
/// flag is refused, and a larger `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT` is ignored.
const MAX_SECONDS: f64 = 1e9;

/// The configuration of the agent, and warnings for the user.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) config: LaunchConfig,
    pub(super) warnings: Vec<String>,
}

/// Returns the configuration for the flags in `args`, or the first error. `line` is the whole command line.
///
/// The outer process and the agent both call this function, so it has no side effects. Their results differ only in a
/// random run id, and the outer process does not use its own.
pub(super) fn plan(
    args: &RunArgs,
    line: &[OsString],
    environment: &FlagEnvironment<'_>,
) -> Result<Plan, Refusal> {
    let mut warnings = Vec::new();
    let (target, worker_args) = args.script(line).ok_or_else(|| {
        Refusal::usage(
            "the following arguments are required: SCRIPT (the script, module or program of the workers)"
                .into(),
        )
    })?;
    let rendezvous = RendezvousFlags::read(args, environment)?;
    let max_restarts = environment.number(args.max_restarts, "--max-restarts", python::int)?.unwrap_or(0);
    let max_restarts = u32::try_from(max_restarts)
        .map_err(|_| Refusal::value(format!("max_restarts must be >= 0 (--max-restarts {max_restarts})")))?;
    let rendezvous = rendezvous.parameters(&mut warnings)?;
    let nproc_per_node = workers(args, environment)?;
    let mut extra_environment = Vec::new();
    if nproc_per_node > 1 && environment.variable("OMP_NUM_THREADS").is_none() {
        warnings.push(
            "OMP_NUM_THREADS is not set; each worker gets OMP_NUM_THREADS=1, so that several workers don't \
             overload the machine. Set it to tune your program."
                .into(),
        );
        extra_environment.push(("OMP_NUM_THREADS".into(), "1".into()));
    }
    let (signals, names) = signals(args, environment)?;
    extra_environment.push(("TORCHELASTIC_SIGNALS_TO_HANDLE".into(), names.into()));
    let invoked_as = line.first().map(OsString::as_os_str).unwrap_or_default();
    let mode = mode(args, invoked_as, environment, &mut warnings)?;
    let command = WorkerCommand { target, args: worker_args, mode };
    let config = LaunchConfig {
        role: environment.text(&args.role, "--role").unwrap_or_else(|| "default".into()),
        max_restarts,
        max_restart_backoff: max_restart_backoff(args, environment)?,
        monitor_interval: monitor_interval(args, environment)?,
        signals,
        shutdown_grace: shutdown_grace(args, environment)?,
        logs: logs(args, environment, nproc_per_node, &mut warnings)?,
        events: events(args, environment)?,
        report: args.end_report.as_ref().map(PathBuf::from),
        error_file: (environment.0)("TORCHELASTIC_ERROR_FILE")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
        watch: watch(args, environment, &mut warnings)?,
        numa: args.numa_binding.as_deref().and_then(numa),
        virtual_local_rank: environment.switch(args.virtual_local_rank, "--virtual-local-rank")?,
        identical_workers: environment.variable("TORCH_ELASTIC_WORKER_IDENTICAL").as_deref() == Some("1"),
        extra_environment,
        ..LaunchConfig::new(command, nproc_per_node, rendezvous)
    };
    Ok(Plan { config, warnings })
}

fn workers(args: &RunArgs, environment: &FlagEnvironment<'_>) -> Result<u32, Refusal> {
    let text = environment.text(&args.nproc_per_node, "--nproc-per-node").unwrap_or_else(|| "1".into());
    match python::int(&text) {
        Ok(number @ 1..=MAX_WORKERS) => Ok(number as u32),
        Ok(number) => {
            Err(Refusal::value(format!("--nproc-per-node {number} must be from 1 to {MAX_WORKERS}")))
        }
        Err(_) => count_devices(&text).map_err(|error| Refusal::value(error.to_string())),
    }
}

fn monitor_interval(args: &RunArgs, environment: &FlagEnvironment<'_>) -> Result<Duration, Refusal> {
    let seconds =
        environment.number(args.monitor_interval, "--monitor-interval", python::float)?.unwrap_or(0.1);
    match seconds > 0.0 && seconds <= MAX_SECONDS {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(Refusal::value(format!(
            "--monitor-interval {seconds} must be greater than 0 and at most {MAX_SECONDS} seconds"
        ))),
    }
}

fn max_restart_backoff(args: &RunArgs, environment: &FlagEnvironment<'_>) -> Result<Duration, Refusal> {
    let seconds = environment.number(args.max_restart_backoff, "--max-restart-backoff", python::float)?;
    let seconds = seconds.unwrap_or(30.0);
    match (0.0..=MAX_SECONDS).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(Refusal::value(format!(
            "--max-restart-backoff {seconds} must be from 0 to {MAX_SECONDS} seconds"
        ))),
    }
}

fn shutdown_grace(args: &RunArgs, environment: &FlagEnvironment<'_>) -> Result<Duration, Refusal> {
    let seconds = environment.number(args.shutdown_timeout, "--shutdown-timeout", python::int)?;
    let seconds = match (seconds, environment.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
        (Some(seconds), _) => seconds,
        (None, None) => 30,
        (None, Some(text)) => python::int(&text)
            .map_err(|why| Refusal::value(format!("TORCH_ELASTIC_SHUTDOWN_TIMEOUT: {why}")))?,
    };
    u64::try_from(seconds).map(|seconds| Duration::from_secs(seconds.min(MAX_SECONDS as u64))).map_err(|_| {
        Refusal::value(format!("shutdown_timeout must be non-negative, got {seconds} (--shutdown-timeout)"))
    })
}

/// Returns the numbers of the signals that the agent handles, and the text of `--signals-to-handle`, which workers
/// get in an environment variable.
fn signals(args: &RunArgs, environment: &FlagEnvironment<'_>) -> Result<(Vec<i32>, String), Refusal> {
    let text = environment.text(&args.signals_to_handle, "--signals-to-handle");
    let text = text.unwrap_or_else(|| "SIGTERM,SIGINT,SIGHUP,SIGQUIT".into());
    let mut numbers = Vec::new();
    for name in text.split(',').map(str::trim) {
        match signal_number(name) {
            Some(9 | 19) => {
                return Err(Refusal::value(format!("--signals-to-handle: no process can handle {name}")));
            }
            Some(number) if !reaches_agent(number) => {
                return Err(Refusal::value(format!(
                    "--signals-to-handle: {name} is not supported, because it is not forwarded to the agent; use SIGTERM, \
                     SIGINT, SIGUSR1 or a similar signal"
                )));
            }
            Some(number) => numbers.push(number),
            None => {
                let hint = "example: SIGTERM,SIGUSR1";
                return Err(Refusal::usage(format!("--signals-to-handle: unknown signal {name:?} ({hint})")));
            }
        }
    }
    Ok((numbers, text))
}

/// Returns what each worker executes: a script, a module or a program. Adds a warning for each environment variable
/// that has no effect.
fn mode(
    args: &RunArgs,
    invoked_as: &OsStr,
    environment: &FlagEnvironment<'_>,
    warnings: &mut Vec<String>,
) -> Result<CommandMode, Refusal> {
    let [module, no_python, run_path] =
        [(args.module, "--module"), (args.no_python, "--no-python"), (args.run_path, "--run-path")]
            .map(|(is_typed, flag)| environment.switch_value(is_typed, flag));
    let (module, no_python, run_path) = (module?, no_python?, run_path?);
    let method =
        environment.flag(&args.start_method, "--start-method").filter(|method| method.value != "spawn");
    let python = || script::interpreter(invoked_as, environment);
    if run_path.is_some() {
        for other in [&module, &no_python].into_iter().flatten() {
            other.refuse("--run-path runs a script with runpy; leave one of them out", warnings)?;
        }
        return match method {
            None => Ok(CommandMode::RunPath { interpreter: python()? }),
            Some(method) => {
                Err(Refusal::usage(format!("{method} is not supported: --run-path can only spawn workers")))
            }
        };
    }
    if let Some(method) = method {
        method.refuse("it is for --run-path only", warnings)?;
    }
    match (module.is_some(), no_python.is_some()) {
        (true, true) => Err(Refusal::value(
            "Don't use both the '--no-python' flag and the '--module' flag at the same time.".into(),
        )),
        (false, true) => Ok(CommandMode::Program),
        (true, false) => Ok(CommandMode::Module { interpreter: python()? }),
        (false, false) => Ok(CommandMode::Script { interpreter: python()? }),
    }
}

fn logs(
    args: &RunArgs,
    environment: &FlagEnvironment<'_>,
    workers: u32,
    warnings: &mut Vec<String>,
) -> Result<LogsConfig, Refusal> {
    match args.logs_specs.as_deref() {
        None | Some("default") => {}
        Some(name) => {
            return Err(Refusal::value(format!(
                "--logs-specs {name}: Python plug-ins are not supported; use default"
            )));
        }
    }
    let dir = match environment.text(&args.log_dir, "--log-dir").as_deref() {
        None | Some("") => LogDir::Temporary,
        Some("/dev/null") => LogDir::Nowhere,
        // The path must be absolute: workers get paths below it, and may change their working directory.
        Some(dir) => LogDir::At(std::path::absolute(dir).unwrap_or_else(|_| dir.into())),
    };
    let streams = |text: &Option<String>, flag| {
        let flag_value = environment.flag(text, flag);
        let streams = streams::parse_streams(flag, flag_value.as_ref().map_or("0", |value| &value.value))?;
        let is_set = |rank: u32| streams.of(rank) != Default::default();
        let flag_value = flag_value.filter(|_| (0..workers).any(is_set));
        Ok::<_, Refusal>((streams, flag_value))
    };
    let (redirects, redirects_flag) = streams(&args.redirects, "--redirects")?;
    let (tee, tee_flag) = streams(&args.tee, "--tee")?;
    let filters = |text: &Option<String>, flag| {
        environment.text(text, flag).map(|text| streams::parse_list(&text)).unwrap_or_default()
    };
    let stdout_filters = filters(&args.duplicate_stdout_filters, "--duplicate-stdout-filters");
    let stderr_filters = filters(&args.duplicate_stderr_filters, "--duplicate-stderr-filters");
    if dir == LogDir::Nowhere {
        if !stdout_filters.is_empty() || !stderr_filters.is_empty() {
            return Err(Refusal::value(
                "--log-dir /dev/null means no log files; --duplicate-stdout-filters and --duplicate-stderr-filters need them"
                    .into(),
            ));
        }
        for flag_value in [redirects_flag, tee_flag].iter().flatten() {
            flag_value.refuse("--log-dir /dev/null means no log files; leave one of them out", warnings)?;
        }
    }
    for (filters, flag, is_teed) in [
        (&stdout_filters, "--duplicate-stdout-filters", (0..workers).any(|rank| tee.of(rank).stdout)),
        (&stderr_filters, "--duplicate-stderr-filters", (0..workers).any(|rank| tee.of(rank).stderr)),
    ] {
        // This is no error, because torchrun accepts filters without `--tee` and creates an empty file.
        if !filters.is_empty() && !is_teed {
            warnings.push(format!("{flag} has no effect: it filters the output of --tee, which is not set"));
        }
    }
    let shown_ranks = environment.text(&args.local_ranks_filter, "--local-ranks-filter").unwrap_or_default();
    let template = environment.text(&args.log_line_prefix_template, "--log-line-prefix-template");
    let template = template.filter(|template| !template.is_empty());
    Ok(LogsConfig {
        dir,
        redirects,
        tee,
        prefix_template: template.or_else(|| environment.variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")),
        shown_ranks: streams::parse_ranks(&shown_ranks)?,
        stdout_filters,
        stderr_filters,
        ..LogsConfig::default()
    })
}

fn events(args: &RunArgs, environment: &FlagEnvironment<'_>) -> Result<EventLog, Refusal> {
    let handler = environment.text(&args.event_log_handler, "--event-log-handler");
    let log = match handler.as_deref() {
        None | Some("null" | "dynamic_rendezvous") => EventLog::None,
        Some("console") => EventLog::Console,
        Some(name) => {
            return Err(Refusal::value(format!(
                "--event-log-handler {name} is unknown; use null, console or dynamic_rendezvous"
            )));
        }
    };
    let conflict = format!(
        "--event-log and --event-log-handler {} conflict; use one of them",
        handler.as_deref().unwrap_or_default()
    );
    match (args.event_log.as_deref(), log) {
        (None, log) => Ok(log),
        (Some(_), EventLog::Console) => Err(Refusal::usage(conflict)),
        (Some(_), _) if args.event_log_handler.is_some() => Err(Refusal::usage(conflict)),
        // In torchrun, `--event-log` is an abbreviation of `--event-log-handler`. So the names of its handlers keep
        // their meaning and are not file names.
        (Some("null" | "dynamic_rendezvous"), _) => Ok(EventLog::None),
        (Some("-" | "console"), _) => Ok(EventLog::Console),
        (Some(file), _) => Ok(EventLog::File(file.into())),
    }
}

fn watch(
    args: &RunArgs,
    environment: &FlagEnvironment<'_>,
    warnings: &mut Vec<String>,
) -> Result<WatchConfig, Refusal> {
    let seconds = environment.variable("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    let seconds = seconds.and_then(|text| python::float(&text).ok());
    let health_check = match (&args.health_check, environment.variable("TORCHELASTIC_HEALTH_CHECK_PORT")) {
        (Some(text), _) => {
            let address = parse_address(text);
            Some(address.map_err(|why| Refusal::usage(format!("--health-check {why}")))?)
        }
        (None, Some(text)) => {
            let address = parse_address(&text);
            if let Err(why) = &address {
                warnings.push(format!("TORCHELASTIC_HEALTH_CHECK_PORT: {why}; health checks are off"));
            }
            address.ok()
        }
        (None, None) => None,
    };
    Ok(WatchConfig {
        file_timer: environment.variable("TORCHELASTIC_ENABLE_FILE_TIMER").as_deref() == Some("1"),
        timer_file: (environment.0)("TORCHELASTIC_TIMER_FILE").map(PathBuf::from),
        uninterruptible_timeout: seconds
            .filter(|s| *s > 0.0 && *s <= MAX_SECONDS)
            .map(Duration::from_secs_f64),
        health_check,
    })
}

fn numa(text: &str) -> Option<NumaBinding> {
    match text {
        "node" => Some(NumaBinding::Node),
        "socket" => Some(NumaBinding::Socket),
        "exclusive" => Some(NumaBinding::Exclusive),
        "core-complex" => Some(NumaBinding::CoreComplex),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
