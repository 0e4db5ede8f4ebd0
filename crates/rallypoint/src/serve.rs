//! `rallypoint serve` runs the store server as a process of its own.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clap::Args;
use rallypoint_core::{Quantity, counted};
use rallypoint_http::{HealthServer, parse_address};
use rallypoint_rendezvous::{is_loopback, start_coordinator_server};
use rallypoint_store::{Endpoint, Failure, Limits, Listen, ServerOptions, StoreError, TcpStoreServer};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log::LogArgs;
use crate::port_owner::port_owner_hint;
use crate::{FLUSH_TIMEOUT, exit_code, log, output};

/// The server logs a warning if the limit of open files allows fewer connections than this.
const MIN_EXPECTED_CONNECTIONS: u64 = 256;

const EXAMPLES: &str = "  \
  # This machine only, port 29400
  rallypoint serve
  # Open to the cluster: all IPv4 addresses, or all IPv6 and IPv4 addresses
  rallypoint serve --listen 0.0.0.0:29400
  rallypoint serve --listen :29400
  # A free port; the first line of output has its number
  rallypoint serve --listen 127.0.0.1:0
  # Other limits
  rallypoint serve --limit value_len=64MiB --limit handshake=30s
  # Delete the keys of jobs that have ended
  rallypoint serve --expire-idle-jobs 60min
  # Health checks: `curl HOST:8080/healthz`
  rallypoint serve --health-check 0.0.0.0:8080";

/// Run a store server for torch's TCPStore clients and ours
///
/// When the server is ready, it prints one line `listening on HOST:PORT` per address to standard output, and then one line
/// with the address of --health-check. SIGTERM and SIGINT stop it.
#[derive(Debug, Args)]
#[command(after_help = exit_code::help_with_examples("serve", EXAMPLES))]
pub(crate) struct ServeArgs {
    /// Address to listen on; can be repeated
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:29400", help_heading = "Server")]
    listen: Vec<Endpoint>,
    /// Delete the keys of jobs that have no connection and were not used for this time (30min, 3600s)
    ///
    /// A job has one run id. Its keys are the key of its state, the keys of its rounds, and its keys under
    /// rallypoint.rendezvous/. A connection belongs to the job whose key it named last. Live agents name a key every 5 s.
    /// Keys outside of a rendezvous never expire.
    #[arg(long, value_name = "TIME", value_parser = parse_idle_time, help_heading = "Server")]
    expire_idle_jobs: Option<Duration>,
    /// Change a limit; can be repeated
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Limits")]
    limit: Vec<String>,
    /// Print every limit with its default and meaning, and exit
    #[arg(long, help_heading = "Limits")]
    list_limits: bool,
    /// Print --list-limits as one line of JSON
    #[arg(long, requires = "list_limits", help_heading = "Limits")]
    json: bool,
    /// Answer health checks over HTTP; PORT alone is on 127.0.0.1, :PORT on all addresses
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = parse_address, help_heading = "Observability")]
    health_check: Option<SocketAddr>,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(args: ServeArgs) -> ExitCode {
    // `tune_allocator` comes first, because it may execute this program again, and because the default limits depend
    // on the allocator settings.
    let tuning_error = tune_allocator();
    let defaults = TcpStoreServer::default_limits();
    if args.list_limits {
        return print_limits(&defaults, args.json);
    }
    let mut limits = None;
    for change in &args.limit {
        let set = match change.split_once('=') {
            Some((name, value)) => {
                limits.get_or_insert_with(|| defaults.clone()).set(name.trim(), value.trim())
            }
            None => Err(format!("{change:?} is not NAME=VALUE")),
        };
        if let Err(why) = set {
            output::write_stderr(&format!("rallypoint serve: {why}"));
            output::write_stderr("hint: `rallypoint serve --list-limits` prints all limits");
            return ExitCode::from(exit_code::USAGE);
        }
    }
    if let Some(Err(why)) = limits.as_ref().map(Limits::check) {
        output::write_stderr(&format!("rallypoint serve: {why}"));
        return ExitCode::from(exit_code::USAGE);
    }
    let log = log::start_background(&args.log);
    if let Some(why) = tuning_error {
        tracing::debug!("{why}");
    }
    // The signal handlers are installed before the server starts, so that no later signal kills the process before
    // the server has stopped.
    let signals = match Signals::new([SIGTERM, SIGINT]) {
        Ok(signals) => signals,
        Err(error) => {
            output::write_stderr(&format!("rallypoint serve: cannot handle signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    // The port for health checks is bound before the server starts. If that fails, the server has not accepted any
    // client.
    let health = match args.health_check.map(|at| (at, TcpListener::bind(at))) {
        Some((at, Err(error))) => {
            output::write_stderr(&format!(
                "rallypoint serve: cannot listen for health checks on {at}: {error}"
            ));
            output::write_stderr("hint: choose another address with --health-check [ADDRESS:]PORT");
            return ExitCode::FAILURE;
        }
        Some((_, Ok(listener))) => Some(listener),
        None => None,
    };
    let is_local_only = args.listen.iter().all(|endpoint| is_loopback(&endpoint.host));
    let ports: Vec<u16> = args.listen.iter().map(|endpoint| endpoint.port).collect();
    let listen = args.listen.iter().cloned().map(Listen::Endpoint).collect();
    let options = ServerOptions::new(listen)
        .limits(limits.clone())
        .is_standalone(true)
        .expire_idle_jobs(args.expire_idle_jobs);
    let mut server = match start_coordinator_server(&args.listen, options) {
        Ok(server) => server,
        Err(error) => {
            output::write_stderr(&format!("rallypoint serve: {error}"));
            if error.is_address_in_use() {
                let owners = ports.into_iter().filter_map(port_owner_hint);
                owners.for_each(|owner| output::write_stderr(&format!("hint: {owner}")));
            }
            output::write_stderr(match error {
                StoreError::Call { failure: Failure::Unreachable(_), .. } => {
                    "hint: check the spelling, or use an IP address of this machine"
                }
                _ => "hint: choose another address with --listen HOST:PORT; port 0 picks a free one",
            });
            return ExitCode::FAILURE;
        }
    };
    let health = match health.map(|listener| start_health_server(listener, &server)).transpose() {
        Ok(health) => health,
        Err(error) => {
            output::write_stderr(&format!("rallypoint serve: cannot answer health checks: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout().lock();
    for address in server.addresses() {
        // Write errors are ignored, because a closed standard output must not stop the server.
        let _ = writeln!(out, "listening on {address}");
    }
    if let Some(health) = &health {
        let _ = writeln!(out, "health checks on http://{}/", health.address());
    }
    let _ = out.flush();
    let limits = limits.unwrap_or(defaults);
    let connections = server.stats().max_connections;
    tracing::info!(
        "limits: {connections} connections, {} of keys and values, {} per value",
        format_size(limits.store_bytes),
        format_size(limits.value_len)
    );
    if connections < MIN_EXPECTED_CONNECTIONS.min(limits.connections as u64) {
        tracing::warn!(
            "the file limit allows only {connections} connections\n\
             hint: raise `ulimit -n` (LimitNOFILE= in a systemd unit); each connection needs a file descriptor"
        );
    }
    if is_local_only {
        tracing::info!(
            "the server is reachable from this machine only; --listen 0.0.0.0:{} makes it reachable from other machines",
            server.port()
        );
    }
    let end = wait_for_end(signals, || server.is_running());
    server.stop();
    match end {
        End::Signal(SIGINT) => tracing::info!("stopping on SIGINT"),
        End::Signal(_) => tracing::info!("stopping on SIGTERM"),
        End::Stopped => tracing::error!("the server stopped by itself; the reason is logged above"),
    }
    log.finish(FLUSH_TIMEOUT);
    end.exit_code()
}

/// Returns a size with a space between the number and the unit.
fn format_size(bytes: usize) -> String {
    let text = bytes.format();
    match text.find(|c: char| !c.is_ascii_digit()) {
        Some(unit) => format!("{} {}", &text[..unit], &text[unit..]),
        None => counted(bytes, "byte"),
    }
}

/// Prints the limits as a table or as one line of JSON, and returns the exit code.
fn print_limits(limits: &Limits, as_json: bool) -> ExitCode {
    let limits = limits.describe();
    let text: String = match as_json {
        true => {
            let object =
                |(name, default, meaning)| json!({"name": name, "default": default, "meaning": meaning});
            format!("{}\n", Value::Array(limits.into_iter().map(object).collect()))
        }
        false => {
            let line = |(name, default, meaning)| format!("{name:<22} {default:>8}  {meaning}\n");
            limits.into_iter().map(line).collect()
        }
    };
    output::write_stdout(text).err().unwrap_or(ExitCode::SUCCESS)
}

/// Parses the argument of `--expire-idle-jobs`, which must be more than 0.
fn parse_idle_time(text: &str) -> Result<Duration, String> {
    match Duration::parse(text)? {
        Duration::ZERO => Err("must be more than 0, for example 30min".into()),
        time => Ok(time),
    }
}

/// Starts a thread that answers health checks with the statistics of the server. The statistics come from the
/// server's event loop, so health checks fail if it hangs.
fn start_health_server(listener: TcpListener, server: &TcpStoreServer) -> std::io::Result<HealthServer> {
    let (query_stats, instance, start) = (server.stats_query(), server.instance().to_owned(), Instant::now());
    HealthServer::start(listener, move |timeout| {
        let stats = query_stats(timeout)?;
        let is_full = stats.connections >= stats.max_connections || stats.out_of_files > 0;
        Some(json!({
            "status": if is_full { "full" } else { "serving" },
            "instance": instance,
            "seconds": start.elapsed().as_secs_f64(),
            "connections": stats.connections,
            "most_connections": stats.max_connections,
            "out_of_files": stats.out_of_files > 0,
            "accepted": stats.accepted,
            "refused": stats.refused,
            "bad_magic": stats.bad_magic,
            "protocol_errors": stats.protocol_errors,
            "refusals": stats.refusals,
            "no_handshake": stats.no_handshake,
            "slow_input": stats.slow_input,
            "slow_output": stats.slow_output,
            "keys": stats.keys,
            "bytes": stats.bytes,
        }))
    })
}

/// How the server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Signal(i32),
    Stopped,
}

impl End {
    fn exit_code(self) -> ExitCode {
        match self {
            End::Signal(_) => ExitCode::SUCCESS,
            End::Stopped => ExitCode::FAILURE,
        }
    }
}

/// Waits until a signal arrives or the server has stopped by itself. The process must not outlive its server.
fn wait_for_end(mut signals: Signals, is_running: impl Fn() -> bool) -> End {
    let (sender, receiver) = channel();
    std::thread::spawn(move || signals.forever().next().map(|signal| sender.send(signal)));
    loop {
        match receiver.recv_timeout(Duration::from_millis(500)) {
            Ok(signal) => return End::Signal(signal),
            Err(_) if is_running() => {}
            Err(_) => return End::Stopped,
        }
    }
}

/// Tunes glibc's allocator and executes this program again. Returns the reason if that fails, and `None` if the
/// allocator is already tuned or is not glibc's.
///
/// - Allocations of 1 MiB and more are returned to the system when they are freed.
/// - Up to 4 MiB of free memory at the end of the heap are kept, because returning these pages and clearing new ones
///   would take 5 % of the time of a SET.
/// - Memory is allocated in huge pages where the system allows it.
/// - Under `RLIMIT_AS`, all threads share one arena, because each further arena reserves 64 MiB of address space.
///
/// By default, glibc raises its mmap threshold when a large allocation is freed, and then keeps hundreds of
/// megabytes. A fixed threshold prevents that. Glibc reads these settings from the environment when a process starts,
/// so this function executes the program again with them. If that fails, the process continues without them.
fn tune_allocator() -> Option<String> {
    use std::os::unix::process::CommandExt;
    const TUNABLES: &str = "GLIBC_TUNABLES";
    const THRESHOLD: &str = "glibc.malloc.mmap_threshold";
    let tuned = std::env::var(TUNABLES).unwrap_or_default();
    if !cfg!(target_env = "gnu")
        || tuned.contains(THRESHOLD)
        || std::env::var_os("MALLOC_MMAP_THRESHOLD_").is_some()
    {
        return None;
    }
    let arenas = if getrlimit(Resource::As).current.is_some() { ":glibc.malloc.arena_max=1" } else { "" };
    let settings = "glibc.malloc.trim_threshold=4194304:glibc.malloc.hugetlb=1";
    let tuned = format!("{tuned}:{THRESHOLD}=1048576:{settings}{arenas}");
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "rallypoint".into());
    let tuned = tuned.trim_start_matches(':');
    let error = match std::env::current_exe() {
        Ok(program) => std::process::Command::new(program).arg0(name).args(args).env(TUNABLES, tuned).exec(),
        Err(error) => error,
    };
    Some(format!("could not execute the program again with {TUNABLES}={tuned}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stops_by_itself_is_a_failure() {
        // The test waits for SIGUSR2, which no process sends.
        let signals = Signals::new([signal_hook::consts::SIGUSR2]).unwrap();
        let end = wait_for_end(signals, || false);
        assert_eq!(end, End::Stopped);
        assert_eq!(format!("{:?}", end.exit_code()), format!("{:?}", ExitCode::from(1)));
        assert_eq!(format!("{:?}", End::Signal(SIGTERM).exit_code()), format!("{:?}", ExitCode::SUCCESS));
    }
}
