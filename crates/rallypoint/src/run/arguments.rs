//! The command line of `rallypoint run`: torchrun's flags under torchrun's names, and flags of ours. `plan.rs` adds
//! the `PET_…` variables and the defaults, and checks the values.

use std::ffi::OsString;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::log::LogArgs;
use crate::{exit_code, python};

const EXAMPLES: &str = "  \
  # One machine, four workers
  rallypoint run --nproc-per-node 4 train.py --epochs 10
  # One worker per GPU, a Python module
  rallypoint run --nproc-per-node gpu -m package.train
  # A program that is not Python
  rallypoint run --nproc-per-node 2 --no-python ./worker --id '${local_rank}'
  # Two to four machines: the same command on each
  rallypoint run --nnodes 2:4 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d \\
      --rdzv-endpoint node0:29400 --rdzv-id job1 train.py
  # The same job, which survives the loss of any machine of three or more
  rallypoint run --nnodes 3:4 --nproc-per-node 8 --max-restarts 3 --rdzv-backend rallypoint \\
      --rdzv-endpoint node0:29400,node1:29400 --rdzv-id job1 train.py
  # The second of two machines with fixed ranks
  rallypoint run --nnodes 2 --node-rank 1 --master-addr node0 --master-port 29500 train.py
  # Output to the console and to files, and a report at the end
  rallypoint run --tee 3 --log-dir logs --max-restarts 3 --end-report - train.py";

/// Run the workers of a node, in place of torchrun
///
/// The flags, the environment of the workers and the log files are those of torchrun, and nodes that run torchrun can be in
/// the same job. The node joins the other nodes, starts the workers with torch's environment (RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR and so on) and monitors them. When a worker fails, or when nodes join or leave, all nodes restart their
/// workers together.
///
/// A flag can be written with dashes or underscores, and can be abbreviated as long as it is unambiguous. Most flags can also
/// be set by a variable: PET_ and the name of the flag, such as PET_NNODES. The command line wins.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    infer_long_args = true,
    allow_negative_numbers = true,
    override_usage = "rallypoint run [OPTIONS] SCRIPT [ARGS]...",
    after_help = exit_code::help_with_examples("run", EXAMPLES)
)]
pub(crate) struct RunArgs {
    /// Script, module or program that each worker runs, with its arguments; ${local_rank} becomes the local rank
    #[arg(value_name = "SCRIPT", trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,

    /// Number of nodes, or the minimum and the maximum [default: 1:1]
    #[arg(long, value_name = "N|MIN:MAX", help_heading = "Nodes")]
    pub(super) nnodes: Option<String>,
    /// Rank of this node, for the static rendezvous [default: 0]; rank that this node asks for, for the backend rallypoint
    #[arg(long, alias = "node_rank", value_name = "N", value_parser = python::int, help_heading = "Nodes")]
    pub(super) node_rank: Option<i64>,
    /// Address under which other nodes reach this node [default: detected]
    #[arg(long, alias = "local_addr", value_name = "ADDRESS", help_heading = "Nodes")]
    pub(super) local_addr: Option<String>,
    /// Run on this machine only, with a rendezvous on a free port
    #[arg(long, help_heading = "Nodes")]
    pub(super) standalone: bool,

    /// Number of workers on this node: a number, gpu, cpu, or auto (gpu if there are any, else cpu) [default: 1]
    #[arg(long, alias = "nproc_per_node", value_name = "N", help_heading = "Workers")]
    pub(super) nproc_per_node: Option<String>,
    /// Run SCRIPT as a Python module, like `python -m`
    #[arg(short, long, help_heading = "Workers")]
    pub(super) module: bool,
    /// Run SCRIPT as a program, without Python
    #[arg(long, alias = "no_python", help_heading = "Workers")]
    pub(super) no_python: bool,
    /// Run SCRIPT with Python's runpy; exceptions go into the failure report
    #[arg(long, alias = "run_path", help_heading = "Workers")]
    pub(super) run_path: bool,
    /// How --run-path starts Python; only spawn is supported [default: spawn]
    #[arg(
        long,
        alias = "start_method",
        value_name = "METHOD",
        value_parser = PossibleValuesParser::new(["spawn", "fork", "forkserver"]),
        help_heading = "Workers"
    )]
    pub(super) start_method: Option<String>,
    /// Name of the role of this node's workers [default: default]
    #[arg(long, value_name = "NAME", help_heading = "Workers")]
    pub(super) role: Option<String>,
    /// Number of restarts after failures [default: 0]
    #[arg(long, alias = "max_restarts", value_name = "N", value_parser = python::int, help_heading = "Workers")]
    pub(super) max_restarts: Option<i64>,
    /// Longest pause before a restart of workers that ran for less than 10 s; 0 for no pause [default: 30]
    #[arg(long, alias = "max_restart_backoff", value_name = "SECONDS", value_parser = python::float, help_heading = "Workers")]
    pub(super) max_restart_backoff: Option<f64>,
    /// Interval for polling the membership; worker exits are detected immediately [default: 0.1]
    #[arg(long, alias = "monitor_interval", value_name = "SECONDS", value_parser = python::float, help_heading = "Workers")]
    pub(super) monitor_interval: Option<f64>,
    /// Time between the signal that ends a worker and SIGKILL [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30]
    #[arg(long, alias = "shutdown_timeout", value_name = "SECONDS", value_parser = python::int, help_heading = "Workers")]
    pub(super) shutdown_timeout: Option<i64>,
    /// Signals that end the workers and then the agent [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, alias = "signals_to_handle", value_name = "NAMES", help_heading = "Workers")]
    pub(super) signals_to_handle: Option<String>,
    /// Bind each worker to the processors near its GPU; needs numactl
    #[arg(
        long,
        alias = "numa_binding",
        value_name = "SCOPE",
        value_parser = PossibleValuesParser::new(["node", "socket", "exclusive", "core-complex"]),
        help_heading = "Workers"
    )]
    pub(super) numa_binding: Option<String>,
    /// Give each worker LOCAL_RANK 0 and only its own GPU
    #[arg(long, alias = "virtual_local_rank", help_heading = "Workers")]
    pub(super) virtual_local_rank: bool,

    /// Backend: rallypoint (elastic, survives the loss of any node), c10d (elastic, with torchrun's nodes) or static (fixed
    /// ranks) [default: static; for one node, c10d on a free port]
    #[arg(long, alias = "rdzv_backend", value_name = "NAME", help_heading = "Rendezvous")]
    pub(super) rdzv_backend: Option<String>,
    /// Endpoint of the store; the node with this address hosts it. For the backend rallypoint, a list of nodes
    /// [default port: 29400]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT,…", help_heading = "Rendezvous")]
    pub(super) rdzv_endpoint: Option<String>,
    /// Run id of the job; the same on all nodes [default: the text "none"; for one node, a random id]
    #[arg(long, alias = "rdzv_id", value_name = "ID", help_heading = "Rendezvous")]
    pub(super) rdzv_id: Option<String>,
    /// Further options, such as join_timeout and last_call_timeout
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,…", help_heading = "Rendezvous")]
    pub(super) rdzv_conf: Option<String>,
    /// Host of the node with group rank 0; for the static rendezvous only [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "HOST", help_heading = "Rendezvous")]
    pub(super) master_addr: Option<String>,
    /// Port of the store on that node; for the static rendezvous only [default: 29500]
    #[arg(long, alias = "master_port", value_name = "PORT", value_parser = python::int, help_heading = "Rendezvous")]
    pub(super) master_port: Option<i64>,

    /// Restarts of the whole job after failed workers and lost nodes, counted once for all nodes [default: no limit]
    #[arg(
        long,
        alias = "job_max_restarts",
        value_name = "N",
        value_parser = python::int,
        help_heading = "Backend rallypoint"
    )]
    pub(super) job_max_restarts: Option<i64>,
    /// Groups of this node, from the widest to the narrowest, such as rack=r7,switch=s2; the ranks of a group are contiguous
    #[arg(long, value_name = "KEY=VALUE,…", help_heading = "Backend rallypoint")]
    pub(super) topology: Option<String>,
    /// Command that must succeed before this node joins a round; it is tried again until it does
    #[arg(long, alias = "pre_join_check", value_name = "COMMAND", help_heading = "Backend rallypoint")]
    pub(super) pre_join_check: Option<String>,
    /// Time in seconds that this command may take [default: 60]
    #[arg(
        long,
        alias = "pre_join_timeout",
        value_name = "SECONDS",
        value_parser = python::float,
        help_heading = "Backend rallypoint"
    )]
    pub(super) pre_join_timeout: Option<f64>,

    /// Directory in which this run creates its log directory; /dev/null for no log files [default: a temporary directory]
    #[arg(long, alias = "log_dir", value_name = "DIR", help_heading = "Logs")]
    pub(super) log_dir: Option<String>,
    /// Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:N,… by local rank [default: 0]
    #[arg(short, long, value_name = "STREAMS", help_heading = "Logs")]
    pub(super) redirects: Option<String>,
    /// Streams that go to files and to the console, with the worker's name before each line [default: 0]
    #[arg(short, long, value_name = "STREAMS", help_heading = "Logs")]
    pub(super) tee: Option<String>,
    /// Prefix of the lines of --tee, with ${role_name}, ${rank}, ${local_rank} and ${hostname} [default:
    /// [${role_name}${local_rank}]:]
    #[arg(long, alias = "log_line_prefix_template", value_name = "TEXT", help_heading = "Logs")]
    pub(super) log_line_prefix_template: Option<String>,
    /// Show only the output of these local ranks
    #[arg(long, alias = "local_ranks_filter", value_name = "N,…", help_heading = "Logs")]
    pub(super) local_ranks_filter: Option<String>,
    /// Copy lines of --tee on stdout that contain one of these texts to filtered_stdout.log; write ,, for a comma
    #[arg(long, alias = "duplicate_stdout_filters", value_name = "TEXT,…", help_heading = "Logs")]
    pub(super) duplicate_stdout_filters: Option<String>,
    /// Copy lines of --tee on stderr that contain one of these texts to filtered_stderr.log; write ,, for a comma
    #[arg(long, alias = "duplicate_stderr_filters", value_name = "TEXT,…", help_heading = "Logs")]
    pub(super) duplicate_stderr_filters: Option<String>,
    /// Plug-in that handles logs; only default is supported
    #[arg(long, alias = "logs_specs", value_name = "NAME", help_heading = "Logs")]
    pub(super) logs_specs: Option<String>,

    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Format of the agent's log and errors
    #[arg(
        long,
        alias = "log_format",
        value_name = "FORMAT",
        value_parser = PossibleValuesParser::new(["text", "json"]),
        default_value = "text",
        help_heading = "Observability"
    )]
    pub(super) log_format: String,
    /// Destination of events, by torch's names: null, console or dynamic_rendezvous (the same as null) [default: null]
    #[arg(long, alias = "event_log_handler", value_name = "NAME", help_heading = "Observability")]
    pub(super) event_log_handler: Option<String>,
    /// Write events as lines of JSON to a file; - for standard error
    #[arg(long, alias = "event_log", value_name = "FILE", help_heading = "Observability")]
    pub(super) event_log: Option<String>,
    /// Write how the run ended on this node as JSON to a file; - for standard output
    #[arg(long, alias = "end_report", value_name = "FILE", help_heading = "Observability")]
    pub(super) end_report: Option<String>,
    /// Answer health checks over HTTP; PORT alone is on 127.0.0.1, :PORT on all addresses [default:
    /// TORCHELASTIC_HEALTH_CHECK_PORT]
    #[arg(long, alias = "health_check", value_name = "[ADDRESS:]PORT", help_heading = "Observability")]
    pub(super) health_check: Option<String>,
    /// Print a completion script for a shell, and exit
    #[arg(
        long,
        alias = "print_completion",
        value_name = "SHELL",
        value_parser = PossibleValuesParser::new(["bash", "zsh", "tcsh"])
    )]
    pub(super) print_completion: Option<String>,
}

impl RunArgs {
    /// Returns the script and its arguments, or `None` if there is no script. `line` is the whole command line.
    ///
    /// Like argparse, this function drops one `--`: the one directly before the script, or else the first one after
    /// it.
    pub(super) fn script(&self, line: &[OsString]) -> Option<(OsString, Vec<OsString>)> {
        let (script, args) = self.command.split_first()?;
        let before = line.len().checked_sub(self.command.len() + 1).and_then(|at| line.get(at));
        let mut args = args.to_vec();
        if before.is_none_or(|word| word != "--")
            && let Some(at) = args.iter().position(|word| word == "--")
        {
            args.remove(at);
        }
        Some((script.clone(), args))
    }
}
