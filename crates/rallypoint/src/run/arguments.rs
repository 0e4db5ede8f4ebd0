//! What `rallypoint run` is told: torchrun's flags under torchrun's names, and some of our own. Texts as they were typed;
//! what they mean is decided in `plan.rs`, where the `PET_…` variables and the defaults come in.

use std::ffi::OsString;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::python;

/// Runs the workers of a node, in torchrun's place: same flags, same environment, same logs
///
/// It meets the other nodes, starts the workers with torch's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and so
/// on), watches them, and starts them again together with the other nodes' when one fails or nodes come and go. Nodes that run
/// torchrun can be in the same job. Every flag can be written with dashes or underscores and can be shortened as long as it is
/// clear. Those of torchrun have an environment variable each, PET_ and the name (PET_NNODES, PET_NPROC_PER_NODE, …), except
/// where noted.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    infer_long_args = true,
    allow_negative_numbers = true,
    override_usage = "rallypoint run [OPTIONS] SCRIPT [ARGS]...",
    after_help = "Examples:
  rallypoint run --nproc-per-node 4 train.py --epochs 10          one machine, four workers
  rallypoint run --nproc-per-node gpu -m package.train            one worker per GPU, a module
  rallypoint run --nproc-per-node 2 --no-python ./worker --id '${local_rank}'
  rallypoint run --nnodes 2:4 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d \\
      --rdzv-endpoint node0:29400 --rdzv-id job1 train.py         on each of two to four machines
  rallypoint run --nnodes 2 --node-rank 1 --master-addr node0 --master-port 29500 train.py
  rallypoint run --tee 3 --log-dir logs --max-restarts 3 --end-report - train.py

Exit codes:
  0      all workers of this node ended with 0; or the job ended while this node was a spare
  1      a worker failed, on this node or another; a signal ended the job; or nothing could be started
  2      wrong usage
  128+N  ended by signal N, which is none of --signals-to-handle or came before there were workers
Standard error says why, and --end-report tells a program."
)]
pub(crate) struct RunArgs {
    /// The script, module or program that each worker runs, and its arguments; ${local_rank} in them becomes the local rank
    #[arg(value_name = "SCRIPT", trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,

    /// How many nodes: a number, or the least and the most [default: 1:1]
    #[arg(long, value_name = "N or MIN:MAX", help_heading = "Size")]
    pub(super) nnodes: Option<String>,
    /// How many workers on this node: a number, gpu, cpu, or auto (gpu if there are any, else cpu) [default: 1]
    #[arg(long, alias = "nproc_per_node", value_name = "N", help_heading = "Size")]
    pub(super) nproc_per_node: Option<String>,

    /// How nodes find each other: c10d (coming and going) or static (fixed ranks) [default: static; on one node, c10d on a
    /// free port]
    #[arg(long, alias = "rdzv_backend", value_name = "NAME", help_heading = "Rendezvous")]
    pub(super) rdzv_backend: Option<String>,
    /// Where they meet; for c10d the port is 29400 if none is given
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT", help_heading = "Rendezvous")]
    pub(super) rdzv_endpoint: Option<String>,
    /// Which job; the same on all its nodes [default: none; on one node, a random one]
    #[arg(long, alias = "rdzv_id", value_name = "ID", help_heading = "Rendezvous")]
    pub(super) rdzv_id: Option<String>,
    /// Further options of the rendezvous (join_timeout, last_call_timeout, …)
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,…", help_heading = "Rendezvous")]
    pub(super) rdzv_conf: Option<String>,
    /// A job on this machine alone, which meets on a free port
    #[arg(long, help_heading = "Rendezvous")]
    pub(super) standalone: bool,
    /// This node's rank; for the static rendezvous only [default: 0]
    #[arg(long, alias = "node_rank", value_name = "N", value_parser = python::int, help_heading = "Rendezvous")]
    pub(super) node_rank: Option<i64>,
    /// Where rank 0 is; for the static rendezvous only [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "HOST", help_heading = "Rendezvous")]
    pub(super) master_addr: Option<String>,
    /// Its port; for the static rendezvous only [default: 29500]
    #[arg(long, alias = "master_port", value_name = "PORT", value_parser = python::int, help_heading = "Rendezvous")]
    pub(super) master_port: Option<i64>,
    /// The address of this node as the others reach it; found out if it isn't given
    #[arg(long, alias = "local_addr", value_name = "ADDRESS", help_heading = "Rendezvous")]
    pub(super) local_addr: Option<String>,

    /// How often the workers may be started again after a failure [default: 0]
    #[arg(long, alias = "max_restarts", value_name = "N", value_parser = python::int, help_heading = "Workers")]
    pub(super) max_restarts: Option<i64>,
    /// How often to look for what can't be heard of, such as waiting nodes; a worker's end is heard of [default: 0.1]
    #[arg(long, alias = "monitor_interval", value_name = "SECONDS", value_parser = python::float, help_heading = "Workers")]
    pub(super) monitor_interval: Option<f64>,
    /// How --run-path starts Python; each worker is a process of its own, so only spawn can be honoured there [default: spawn]
    #[arg(
        long,
        alias = "start_method",
        value_name = "METHOD",
        value_parser = PossibleValuesParser::new(["spawn", "fork", "forkserver"]),
        help_heading = "Workers"
    )]
    pub(super) start_method: Option<String>,
    /// A name for what this node's workers do [default: default]
    #[arg(long, value_name = "NAME", help_heading = "Workers")]
    pub(super) role: Option<String>,
    /// SCRIPT is a Python module, as with `python -m`
    #[arg(short, long, help_heading = "Workers")]
    pub(super) module: bool,
    /// SCRIPT is a program and is run without Python
    #[arg(long, alias = "no_python", help_heading = "Workers")]
    pub(super) no_python: bool,
    /// SCRIPT is run inside of Python by runpy, and its exceptions go into the failure report
    #[arg(long, alias = "run_path", help_heading = "Workers")]
    pub(super) run_path: bool,
    /// The signals that end the workers and then the agent [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, alias = "signals_to_handle", value_name = "NAMES", help_heading = "Workers")]
    pub(super) signals_to_handle: Option<String>,
    /// How long a worker may take to end before it is killed [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30]
    #[arg(long, alias = "shutdown_timeout", value_name = "SECONDS", value_parser = python::int, help_heading = "Workers")]
    pub(super) shutdown_timeout: Option<i64>,
    /// Longest pause before a restart while workers keep ending within 10 s of their start; 0 restarts at once [default: 30]
    #[arg(long, alias = "max_restart_backoff", value_name = "SECONDS", value_parser = python::float, help_heading = "Workers")]
    pub(super) max_restart_backoff: Option<f64>,
    /// Binds each worker to the processors near its GPU; needs numactl [no environment variable]
    #[arg(
        long,
        alias = "numa_binding",
        value_name = "HOW",
        value_parser = PossibleValuesParser::new(["node", "socket", "exclusive", "core-complex"]),
        help_heading = "Workers"
    )]
    pub(super) numa_binding: Option<String>,
    /// Each worker sees only its own GPU, as number 0, and has LOCAL_RANK 0
    #[arg(long, alias = "virtual_local_rank", help_heading = "Workers")]
    pub(super) virtual_local_rank: bool,

    /// Where this run makes its folder of logs; /dev/null for none [default: the folder for temporary files]
    #[arg(long, alias = "log_dir", value_name = "DIR", help_heading = "Output of the workers")]
    pub(super) log_dir: Option<String>,
    /// Which streams go to files only: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:WHICH,… by local rank [default: 0]
    #[arg(short, long, value_name = "WHICH", help_heading = "Output of the workers")]
    pub(super) redirects: Option<String>,
    /// Which streams go to files and are shown, with the worker's name before each line [default: 0]
    #[arg(short, long, value_name = "WHICH", help_heading = "Output of the workers")]
    pub(super) tee: Option<String>,
    /// What --tee puts before each line; ${role_name}, ${rank}, ${local_rank} and ${hostname} are filled in [default:
    /// [${role_name}${local_rank}]:]
    #[arg(
        long,
        alias = "log_line_prefix_template",
        value_name = "TEXT",
        help_heading = "Output of the workers"
    )]
    pub(super) log_line_prefix_template: Option<String>,
    /// Shows only the output of these local ranks
    #[arg(long, alias = "local_ranks_filter", value_name = "N,…", help_heading = "Output of the workers")]
    pub(super) local_ranks_filter: Option<String>,
    /// Lines of tee'd stdout with one of these texts also go to filtered_stdout.log; ,, is a comma
    #[arg(
        long,
        alias = "duplicate_stdout_filters",
        value_name = "TEXT,…",
        help_heading = "Output of the workers"
    )]
    pub(super) duplicate_stdout_filters: Option<String>,
    /// The same for stderr and filtered_stderr.log
    #[arg(
        long,
        alias = "duplicate_stderr_filters",
        value_name = "TEXT,…",
        help_heading = "Output of the workers"
    )]
    pub(super) duplicate_stderr_filters: Option<String>,
    /// The plug-in that handles logs; there are none but default [no environment variable]
    #[arg(long, alias = "logs_specs", value_name = "NAME", help_heading = "Output of the workers")]
    pub(super) logs_specs: Option<String>,

    /// How much the agent says: error, warn, info, debug or trace [default: RALLYPOINT_LOG, or LOGLEVEL, or info]
    #[arg(long, alias = "log_level", value_name = "LEVEL", help_heading = "What the agent tells")]
    pub(super) log_level: Option<String>,
    /// How it says it
    #[arg(
        long,
        alias = "log_format",
        value_name = "FORMAT",
        value_parser = PossibleValuesParser::new(["text", "json"]),
        default_value = "text",
        help_heading = "What the agent tells"
    )]
    pub(super) log_format: String,
    /// torch's name for where events go: null, console or dynamic_rendezvous (which is null) [default: null]
    #[arg(long, alias = "event_log_handler", value_name = "NAME", help_heading = "What the agent tells")]
    pub(super) event_log_handler: Option<String>,
    /// Where events go, a line of JSON each: a file, or - for standard error
    #[arg(long, alias = "event_log", value_name = "FILE", help_heading = "What the agent tells")]
    pub(super) event_log: Option<String>,
    /// Where a report of how the run ended on this node goes, as JSON: a file, or - for standard output
    #[arg(long, alias = "end_report", value_name = "FILE", help_heading = "What the agent tells")]
    pub(super) end_report: Option<String>,
    /// Answers over HTTP there whether the agent lives [default: TORCHELASTIC_HEALTH_CHECK_PORT; the address is 127.0.0.1; `:PORT` is all]
    #[arg(
        long,
        alias = "health_check",
        value_name = "[ADDRESS:]PORT",
        help_heading = "What the agent tells"
    )]
    pub(super) health_check: Option<String>,
    /// Prints a completion script for a shell and ends [no environment variable]
    #[arg(
        long,
        alias = "print_completion",
        value_name = "SHELL",
        value_parser = PossibleValuesParser::new(["bash", "zsh", "tcsh"]),
        help_heading = "What the agent tells"
    )]
    pub(super) print_completion: Option<String>,
}

impl RunArgs {
    /// The script and its arguments, without the `--` that stands before or behind the script, as argparse drops it: one
    /// before it, or else the first behind it. `line` is the command line they came from.
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
