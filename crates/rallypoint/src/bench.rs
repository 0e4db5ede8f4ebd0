//! `rallypoint bench`: the command line of `rallypoint_bench`, and the table or JSON that it prints.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use rallypoint_bench::{
    Bench, BenchError, ConnectionError, DEFAULT_WORKLOADS, Options, Outcome, Report, Until, Workload,
    table_header,
};
use rallypoint_core::Quantity;
use rallypoint_store::Endpoint;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::log::LogArgs;
use crate::{exit_code, log, output};

/// The timeout that `--timeout 0` stands for: 31 years, which is no timeout in practice.
const UNLIMITED_TIMEOUT: Duration = Duration::from_secs(1_000_000_000);

const EXAMPLES: &str = "  \
  rallypoint bench --endpoint 127.0.0.1:29400
  rallypoint bench -e node0:29400 --workload get,set --in-flight 1 --seconds 10
  rallypoint bench -e node0:29400 --workload connect-1000,barrier-1000 --json
  # Heavy: not for a server that is in use
  rallypoint bench -e [::1]:29400 --workload all";

/// Measure the throughput and latencies of a TCPStore server, torch's or ours
///
/// Steady workloads keep --connections connections busy. Each connection sends batches of --in-flight requests: add,
/// get, set, check, wait (for keys that are present) or compare_set. get-8MiB and set-8MiB use values of that size.
/// wait-10000, check-10000, multi_get-10000 and multi_set-10000 have that number of keys in one request.
///
/// Collective workloads run many clients once: cancel-2000 (each client waits for 64 absent keys, then all cancel), connect-10000
/// (all connect together), bootstrap-1024 (each client sets its key and gets the keys of all) and barrier-10000 (all clients add
/// to a counter, and the last one releases them). `all` runs all workloads.
///
/// The latency of a batch is the time from sending it to its last reply. Requests without a reply (set, multi_set) are
/// complete when the server has answered a PING that follows them.
///
/// The keys of a run start with /rallypoint-bench/ and are deleted at its end.
#[derive(Debug, Args)]
#[command(after_help = exit_code::help_with_examples("bench", EXAMPLES))]
pub(crate) struct BenchArgs {
    /// Server to measure
    #[arg(short, long, value_name = "HOST:PORT", env = "RALLYPOINT_ENDPOINT", help_heading = "Connection")]
    endpoint: Endpoint,
    /// Timeout of each workload (250ms, 10s, 5min; 0 for none)
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "60s",
        value_parser = Duration::parse,
        help_heading = "Connection"
    )]
    timeout: Duration,
    /// Workloads to run; can be repeated
    #[arg(long, value_name = "NAME,…", default_value = DEFAULT_WORKLOADS, help_heading = "Load")]
    workload: Vec<String>,
    /// Number of connections of steady workloads
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=65_536),
        help_heading = "Load"
    )]
    connections: u32,
    /// Requests that a connection sends together, as a batch; each workload without a size in its name runs once per
    /// number
    #[arg(
        long,
        value_name = "N,…",
        default_value = "1,32",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=10_000),
        help_heading = "Load"
    )]
    in_flight: Vec<u32>,
    /// Duration of each steady workload
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = parse_seconds, help_heading = "Load")]
    seconds: Duration,
    /// Number of requests of each steady workload, instead of --seconds
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "seconds",
        value_parser = parse_request_count,
        help_heading = "Load"
    )]
    requests: Option<u64>,
    /// Size of the values
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=8 << 20),
        help_heading = "Load"
    )]
    value_bytes: u32,
    /// Number of keys that the requests use
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=999_999),
        help_heading = "Load"
    )]
    keys: u32,
    /// Print the results as one line of JSON instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| (Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(time))
        .ok_or_else(|| "must be a number of seconds from 0.001 to 86400".into())
}

fn parse_request_count(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "must be a whole number, 1 or more".into())
}

pub(crate) fn run(args: BenchArgs) -> ExitCode {
    log::start(&args.log);
    let mut outcomes = Vec::new();
    let mut error = None;
    let code = measure_all(&args, &mut outcomes).unwrap_or_else(|failed| {
        report_error(&failed);
        error = Some(failed.to_string());
        exit_code_of(&failed)
    });
    if args.json {
        let report = Report { endpoint: &args.endpoint.to_string(), results: &outcomes, error };
        let report = serde_json::to_string(&report).expect("all map keys of the report are strings");
        if let Err(failed) = output::write_stdout(report + "\n") {
            return failed;
        }
    }
    ExitCode::from(code)
}

/// Runs the workloads one by one, adds their results to `outcomes`, and returns the exit code.
///
/// Fails if a workload name is unknown or if no connection to the server can be made. Each workload that fails is
/// reported, and the exit code of the first one is returned.
fn measure_all(args: &BenchArgs, outcomes: &mut Vec<Outcome>) -> Result<u8, BenchError> {
    let mut workloads = Vec::new();
    for names in &args.workload {
        workloads.extend(Workload::list(names)?);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut bench = Bench::connect(args.options(), Arc::clone(&interrupted))?;
    for signal in [SIGINT, SIGTERM] {
        // If the handler can't be installed, the signal still ends the process, but the keys of the run are not
        // deleted.
        let _ = signal_hook::flag::register(signal, Arc::clone(&interrupted));
    }
    if !args.json && output::write_stdout(format!("{}\n", table_header())).is_err() {
        return Ok(exit_code::FAILURE);
    }
    let mut code = 0;
    for workload in workloads {
        let in_flight_counts = if workload.has_size() { &[1][..] } else { &args.in_flight };
        for &in_flight in in_flight_counts {
            let (outcome, ended) = bench.measure(workload, in_flight as usize);
            if !args.json && output::write_stdout(format!("{}\n", outcome.row())).is_err() {
                return Ok(exit_code::FAILURE);
            }
            outcomes.push(outcome);
            if let Err(error) = ended {
                report_error(&error);
                if code == 0 {
                    code = exit_code_of(&error);
                }
                if error.ends_the_run() {
                    return Ok(code);
                }
            }
        }
    }
    Ok(code)
}

fn report_error(error: &BenchError) {
    output::write_stderr(&format!("rallypoint bench: {error}"));
    output::write_stderr(&format!("hint: {}", error.hint()));
}

fn exit_code_of(error: &BenchError) -> u8 {
    match error {
        BenchError::Usage(_) | BenchError::TooFewFiles { .. } => exit_code::USAGE,
        BenchError::TimedOut { .. } => exit_code::TIMEOUT,
        BenchError::NotAStore { error, .. } | BenchError::Lost { error, .. } => match error {
            ConnectionError::Timeout { .. } => exit_code::TIMEOUT,
            ConnectionError::Closed { .. } | ConnectionError::Failed { .. } => exit_code::UNREACHABLE,
            _ => exit_code::FAILURE,
        },
        BenchError::Unresolvable(_) | BenchError::Unreachable { .. } => exit_code::UNREACHABLE,
        BenchError::Interrupted { .. } => exit_code::INTERRUPTED,
        _ => exit_code::FAILURE,
    }
}

impl BenchArgs {
    fn options(&self) -> Options {
        Options {
            endpoint: self.endpoint.clone(),
            connections: self.connections as usize,
            until: self.requests.map_or(Until::After(self.seconds), Until::Requests),
            value_bytes: self.value_bytes as usize,
            keys: self.keys as usize,
            timeout: if self.timeout.is_zero() { UNLIMITED_TIMEOUT } else { self.timeout },
        }
    }
}
