//! What an agent is to do: the workers it runs, who it meets, and what it does when something goes wrong. Plain data, already
//! checked; where it came from (a command line, a program) is not its business.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use rallypoint_rendezvous::RendezvousParameters;

/// All that an agent is told.
#[derive(Debug, Clone)]
pub struct LaunchConfig {
    /// What each worker runs.
    pub command: WorkerCommand,
    /// How many workers this node runs.
    pub nproc_per_node: u32,
    /// The role of this node's workers.
    pub role: String,
    /// How this node meets the others: backend, endpoint, run id, numbers of nodes, its own address.
    pub rendezvous: RendezvousParameters,
    /// Whether the workers belong to one round, as the command of `rallypoint join` does: they are never restarted, get
    /// signals as they come, and how they end does not end the job of the other nodes. Then there may be no workers.
    pub runs_once: bool,
    /// How often the workers may be started again after a failure.
    pub max_restarts: u32,
    /// The longest pause before a restart, while workers keep ending within 10 s of their start.
    pub max_restart_backoff: Duration,
    /// How long, at most, until what can only be seen by looking (a node that waits, a worker that hangs) is looked for.
    pub monitor_interval: Duration,
    /// The signals that end the job in good order, by number.
    pub signals: Vec<i32>,
    /// How long each worker may take to end before it is killed (`--shutdown-timeout`).
    pub shutdown_grace: Duration,
    /// Where the workers' output goes.
    pub logs: LogsConfig,
    /// Where events go.
    pub events: EventLog,
    /// A file for the end report, as JSON; `-` is standard output.
    pub report: Option<PathBuf>,
    /// Where the job's first failure is copied to: `TORCHELASTIC_ERROR_FILE` of the agent's own environment.
    pub error_file: Option<PathBuf>,
    /// What torch's own watchers ask for.
    pub watch: WatchConfig,
    /// Which processors each worker is bound to.
    pub numa: Option<NumaBinding>,
    /// Each worker sees one device only, as number 0.
    pub virtual_local_rank: bool,
    /// All nodes have equally many workers of one role, so ranks are computed and not asked for
    /// (`TORCH_ELASTIC_WORKER_IDENTICAL`).
    pub identical_workers: bool,
    /// Environment variables that the workers get beside the agent's own (`OMP_NUM_THREADS`).
    pub extra_environment: Vec<(OsString, OsString)>,
}

/// What a worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The script, module or program.
    pub target: OsString,
    /// What comes after it. `${local_rank}` in it becomes the local rank, unless the workers run once.
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
    /// The target is a script that runs inside of Python, as `runpy` runs it, and whose exceptions are recorded.
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

/// Where the workers' output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogsConfig {
    /// The folder under which this run makes its own.
    pub dir: LogDir,
    /// Which streams go to files, for each local rank.
    pub redirects: PerRank<Streams>,
    /// Which streams go to files and to the agent's own.
    pub tee: PerRank<Streams>,
    /// What is put before each line that is shown of a tee'd stream; torch's `[role0]:` if there is none.
    pub prefix_template: Option<String>,
    /// The local ranks whose output is shown; all, if there is no such list.
    pub shown_ranks: Option<Vec<u32>>,
    /// Lines of tee'd standard output that contain one of these also go to a file of their own.
    pub stdout_filters: Vec<String>,
    /// The same for standard error.
    pub stderr_filters: Vec<String>,
    /// Whether standard error that goes to no file passes through the agent, which keeps its last lines for the report.
    pub keeps_last_lines: bool,
}

/// The folder of the logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDir {
    /// A new one in the system's folder for temporary files.
    Temporary,
    /// This one; made if it isn't there.
    At(PathBuf),
    /// None: nothing is written, and workers have no error file (`--log-dir /dev/null`).
    Nowhere,
}

/// One value for all local ranks, or one for each of some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PerRank<T> {
    /// The same for all.
    All(T),
    /// For these; the others have the default.
    Some(std::collections::BTreeMap<u32, T>),
}

impl<T: Copy + Default> PerRank<T> {
    /// The value for a local rank.
    pub fn of(&self, local_rank: u32) -> T {
        match self {
            PerRank::All(value) => *value,
            PerRank::Some(values) => values.get(&local_rank).copied().unwrap_or_default(),
        }
    }
}

/// Some of a worker's output streams.
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
    /// To standard error, a line of JSON each.
    Console,
    /// To the end of this file.
    File(PathBuf),
}

/// What torch's watchers ask for in environment variables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WatchConfig {
    /// Workers may set timers through a pipe (`TORCHELASTIC_ENABLE_FILE_TIMER`).
    pub file_timer: bool,
    /// Where that pipe is (`TORCHELASTIC_TIMER_FILE`).
    pub timer_file: Option<PathBuf>,
    /// A worker that can't be interrupted for so long is given up (`TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`).
    pub uninterruptible_timeout: Option<Duration>,
    /// Where the agent tells whether it lives, over HTTP (`--health-check`, `TORCHELASTIC_HEALTH_CHECK_PORT`).
    pub health_check: Option<std::net::SocketAddr>,
}

/// Which processors a worker is bound to, seen from its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumaBinding {
    /// Those of the device's NUMA node.
    Node,
    /// Those of its socket.
    Socket,
    /// A share of its NUMA node that no other worker has.
    Exclusive,
    /// Those that share the largest cache.
    CoreComplex,
}

impl LaunchConfig {
    /// A job on this machine alone: a command run directly, torch's defaults for everything else.
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
