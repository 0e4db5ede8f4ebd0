//! The configuration of an agent: plain data that has been checked.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use rallypoint_rendezvous::RendezvousParameters;

/// The configuration of an agent.
#[derive(Debug, Clone)]
pub struct LaunchConfig {
    /// The command of each worker.
    pub command: WorkerCommand,
    /// The number of workers of this node.
    pub nproc_per_node: u32,
    /// The role of this node's workers.
    pub role: String,
    /// The parameters of the rendezvous: backend, endpoint, run id, numbers of nodes, and the address of this node.
    pub rendezvous: RendezvousParameters,
    /// Whether the workers run in one round only, like the command of `rallypoint join`. Such workers are never
    /// restarted, and their exit does not end the job of the other nodes. A signal that the agent receives while they
    /// run is only forwarded to them, without a SIGKILL after a grace. `nproc_per_node` may be 0.
    pub runs_once: bool,
    /// The restart budget: how often the workers may be restarted after a failure.
    pub max_restarts: u32,
    /// The longest pause before a restart, while workers keep exiting within 10 s of their start.
    pub max_restart_backoff: Duration,
    /// Interval for polling the membership of the rendezvous and for detecting workers in uninterruptible sleep. Worker
    /// exits are detected immediately.
    pub monitor_interval: Duration,
    /// The numbers of the signals that stop the workers and end the run on this node.
    pub signals: Vec<i32>,
    /// How long each worker may take to exit before it is killed (`--shutdown-timeout`).
    pub shutdown_grace: Duration,
    /// Where the output of the workers goes.
    pub logs: LogsConfig,
    /// Where events go.
    pub events: EventLog,
    /// A file for the end report, as JSON. `-` is standard output.
    pub report: Option<PathBuf>,
    /// The file to which the first failure of the job is written: `TORCHELASTIC_ERROR_FILE` in the agent's own
    /// environment.
    pub error_file: Option<PathBuf>,
    /// Options for watching the workers and the agent.
    pub watch: WatchConfig,
    /// The processors that each worker is bound to.
    pub numa: Option<NumaBinding>,
    /// Whether each worker sees one device only, as number 0.
    pub virtual_local_rank: bool,
    /// Whether all nodes have the same number of workers with one role, so that each node can compute the ranks itself
    /// (`TORCH_ELASTIC_WORKER_IDENTICAL`).
    pub identical_workers: bool,
    /// Variables that are added to the workers' environment, such as `OMP_NUM_THREADS`.
    pub extra_environment: Vec<(OsString, OsString)>,
}

/// The command of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The script, module or program.
    pub target: OsString,
    /// The arguments. `${local_rank}` is substituted, unless the workers run once.
    pub args: Vec<OsString>,
    /// How the target is run.
    pub mode: CommandMode,
}

/// How a target is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandMode {
    /// `INTERPRETER -u TARGET ARGS`.
    Script {
        /// The interpreter.
        interpreter: OsString,
    },
    /// `INTERPRETER -u -m TARGET ARGS`.
    Module {
        /// The interpreter.
        interpreter: OsString,
    },
    /// `TARGET ARGS`.
    Program,
    /// Runs the target with Python's `runpy` and records its exceptions.
    RunPath {
        /// The interpreter.
        interpreter: OsString,
    },
}

impl CommandMode {
    /// Returns the Python interpreter that runs the target, if one does.
    pub fn interpreter(&self) -> Option<&OsStr> {
        match self {
            CommandMode::Script { interpreter }
            | CommandMode::Module { interpreter }
            | CommandMode::RunPath { interpreter } => Some(interpreter),
            CommandMode::Program => None,
        }
    }
}

/// Where the output of the workers goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogsConfig {
    /// The directory in which the run creates its own directory.
    pub dir: LogDir,
    /// The streams that go to files, for each local rank.
    pub redirects: PerRank<Streams>,
    /// The streams that go to files and are shown, for each local rank.
    pub tee: PerRank<Streams>,
    /// The prefix of each shown line of a tee'd stream. `None` stands for torch's prefix, such as `[default0]:`.
    pub prefix_template: Option<String>,
    /// The local ranks whose output is shown. `None` stands for all of them.
    pub shown_ranks: Option<Vec<u32>>,
    /// Lines of tee'd standard output that contain one of these strings also go to another file.
    pub stdout_filters: Vec<String>,
    /// The same for tee'd standard error.
    pub stderr_filters: Vec<String>,
    /// Whether standard error that goes to no file passes through the agent, which keeps its last lines for the report.
    pub keeps_last_lines: bool,
}

/// The directory of the logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDir {
    /// A new directory in the system's directory for temporary files.
    Temporary,
    /// This directory. It is created if it does not exist.
    At(PathBuf),
    /// No directory: nothing is written, and workers have no error file (`--log-dir /dev/null`).
    Nowhere,
}

/// One value for all local ranks, or a value for some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PerRank<T> {
    /// The same value for all local ranks.
    All(T),
    /// Values for these local ranks. The other local ranks have the default.
    Some(std::collections::BTreeMap<u32, T>),
}

impl<T: Copy + Default> PerRank<T> {
    /// Returns the value for a local rank.
    pub fn of(&self, local_rank: u32) -> T {
        match self {
            PerRank::All(value) => *value,
            PerRank::Some(values) => values.get(&local_rank).copied().unwrap_or_default(),
        }
    }
}

/// A selection of a worker's output streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streams {
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

/// Where events go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum EventLog {
    /// Nowhere.
    #[default]
    None,
    /// Standard error, one line of JSON per event.
    Console,
    /// Appended to this file.
    File(PathBuf),
}

/// Options for watching the workers and the agent, which torch reads from environment variables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WatchConfig {
    /// Whether workers may set timers through a pipe (`TORCHELASTIC_ENABLE_FILE_TIMER`).
    pub file_timer: bool,
    /// The path of that pipe (`TORCHELASTIC_TIMER_FILE`).
    pub timer_file: Option<PathBuf>,
    /// How long a worker may be in uninterruptible sleep before the agent gives up
    /// (`TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`).
    pub uninterruptible_timeout: Option<Duration>,
    /// The address at which the agent answers health checks over HTTP (`--health-check`,
    /// `TORCHELASTIC_HEALTH_CHECK_PORT`).
    pub health_check: Option<std::net::SocketAddr>,
}

/// The processors that a worker is bound to, depending on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumaBinding {
    /// The processors of the device's NUMA node.
    Node,
    /// The processors of the device's socket.
    Socket,
    /// Physical cores of the device's NUMA node that no other worker is bound to.
    Exclusive,
    /// Processors of the device's NUMA node that share their largest cache.
    CoreComplex,
}

impl LaunchConfig {
    /// Creates a configuration with default values for all other fields.
    pub fn new(
        command: WorkerCommand,
        nproc_per_node: u32,
        rendezvous: RendezvousParameters,
    ) -> LaunchConfig {
        LaunchConfig {
            command,
            nproc_per_node,
            role: "default".into(),
            rendezvous,
            runs_once: false,
            max_restarts: 0,
            max_restart_backoff: Duration::from_secs(30),
            monitor_interval: Duration::from_millis(100),
            signals: vec![15, 2, 1, 3],
            shutdown_grace: Duration::from_secs(30),
            logs: LogsConfig::default(),
            events: EventLog::None,
            report: None,
            error_file: None,
            watch: WatchConfig::default(),
            numa: None,
            virtual_local_rank: false,
            identical_workers: false,
            extra_environment: Vec::new(),
        }
    }
}

impl Default for LogsConfig {
    fn default() -> LogsConfig {
        LogsConfig {
            dir: LogDir::Temporary,
            redirects: PerRank::All(Streams::default()),
            tee: PerRank::All(Streams::default()),
            prefix_template: None,
            shown_ranks: None,
            stdout_filters: Vec::new(),
            stderr_filters: Vec::new(),
            keeps_last_lines: true,
        }
    }
}
