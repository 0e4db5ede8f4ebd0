//! The reference page of environment variables: those that commands read, and those that workers get.

use clap::CommandFactory;

use super::{code, table};
use crate::Cli;
use crate::flags::variable_of;

/// Variables that commands read, apart from the `PET_…` variables: name, commands and meaning.
const READ: &[(&str, &str, &str)] = &[
    ("RALLYPOINT_ENDPOINT", "store, exclude, drain, force-quorum, bench", "Default of `--endpoint`."),
    (
        "RALLYPOINT_LOG",
        "all",
        "Log level: `off`, `error`, `warn`, `info`, `debug` or `trace`. `--log-level` wins.",
    ),
    ("LOGLEVEL", "run", "Log level by Python's names, if `RALLYPOINT_LOG` is not set."),
    ("PYTHON_EXEC", "run", "Python interpreter of the workers."),
    (
        "VIRTUAL_ENV",
        "run",
        "Activated environment whose Python runs the workers, if `PYTHON_EXEC` is not set.",
    ),
    ("CONDA_PREFIX", "run", "The same for conda, unless `CONDA_DEFAULT_ENV` is `base` or `root`."),
    ("CONDA_DEFAULT_ENV", "run", "Name of the activated conda environment."),
    ("PATH", "run", "Directories that are searched for interpreters and programs."),
    ("PYTHONSAFEPATH", "run", "If set, the current directory is not searched for modules."),
    (
        "OMP_NUM_THREADS",
        "run",
        "Passed to the workers. If it is not set and there are several workers, each gets 1.",
    ),
    (
        "CUDA_VISIBLE_DEVICES",
        "run",
        "GPUs that `--nproc-per-node gpu` counts and `--virtual-local-rank` assigns.",
    ),
    ("HIP_VISIBLE_DEVICES", "run", "The same for AMD GPUs."),
    ("ROCR_VISIBLE_DEVICES", "run", "AMD GPUs that `--nproc-per-node gpu` counts."),
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "run", "Default of `--shutdown-timeout`, in seconds."),
    (
        "TORCH_ELASTIC_WORKER_IDENTICAL",
        "run",
        "1: all nodes have the same number of workers with one role, so each node computes the ranks itself.",
    ),
    ("TORCHELASTIC_HEALTH_CHECK_PORT", "run", "Default of `--health-check`."),
    ("TORCHELASTIC_ERROR_FILE", "run", "File for the first failure of the job, in torch's form."),
    ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "run", "Default of `--log-line-prefix-template`."),
    ("TORCHELASTIC_ENABLE_FILE_TIMER", "run", "1: workers can use torch's timers."),
    ("TORCHELASTIC_TIMER_FILE", "run", "Pipe for torch's timers."),
    (
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
        "run",
        "Seconds that a worker may be in uninterruptible sleep before the agent gives up.",
    ),
    ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "run, join", "1: workers get a store of their own, as in torch."),
    (
        "SLURM_JOB_NODELIST",
        "run, join",
        "Default of the option `expected_hosts`. `SLURM_NODELIST` is read, too.",
    ),
    (
        "SLURM_NODEID",
        "run, join",
        "Group rank that the node prefers in a native rendezvous, if `srun` has set `SLURM_STEP_NODELIST`, too.",
    ),
    ("TMPDIR", "run, join", "Directory for temporary files and default log directories."),
    ("GLIBC_TUNABLES", "serve", "Settings of glibc's allocator, to which the server adds its own."),
];

/// Variables that the agent sets for workers: name and meaning.
const SET: &[(&str, &str)] = &[
    ("RANK", "Rank of the worker in the job."),
    ("WORLD_SIZE", "Number of workers in the job."),
    ("LOCAL_RANK", "Rank of the worker on its node; 0 with `--virtual-local-rank`."),
    ("LOCAL_WORLD_SIZE", "Number of workers on the node."),
    ("GROUP_RANK", "Group rank of the node."),
    ("GROUP_WORLD_SIZE", "Number of nodes."),
    ("ROLE_NAME", "Role of the worker (`--role`)."),
    ("ROLE_RANK", "Rank of the worker among the workers of its role."),
    ("ROLE_WORLD_SIZE", "Number of workers of the role."),
    ("MASTER_ADDR", "Address of the workers' store."),
    ("MASTER_PORT", "Port of the workers' store."),
    ("RALLYPOINT_ROUND", "Number of the round, in a native rendezvous only. It grows with each restart."),
    ("TORCHELASTIC_RUN_ID", "Run id of the job."),
    ("TORCHELASTIC_RESTART_COUNT", "Number of restarts."),
    ("TORCHELASTIC_MAX_RESTARTS", "Value of `--max-restarts`."),
    ("TORCHELASTIC_USE_AGENT_STORE", "`True` if the agent's store is at `MASTER_ADDR:MASTER_PORT`."),
    ("TORCHELASTIC_ERROR_FILE", "File for the cause of a failure. Empty without a log directory."),
    ("TORCHELASTIC_SIGNALS_TO_HANDLE", "Value of `--signals-to-handle`; set by `run` only."),
    ("TORCHELASTIC_TIMER_FILE", "Pipe for torch's timers, if `TORCHELASTIC_ENABLE_FILE_TIMER` is 1."),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1, unless the agent has another value."),
    ("OMP_NUM_THREADS", "1, if there are several workers and the agent has no value."),
    (
        "CUDA_VISIBLE_DEVICES",
        "GPU of the worker, with `--virtual-local-rank`; also in `HIP_VISIBLE_DEVICES`, if the agent has that.",
    ),
];

pub(super) fn markdown() -> String {
    let read =
        READ.iter().map(|(name, commands, meaning)| [code(name), (*commands).into(), (*meaning).into()]);
    let set = SET.iter().map(|(name, meaning)| [code(name), (*meaning).into()]);
    format!(
        "## Defaults of flags\n\n`run` and `join` read the variables of torchrun. A flag on the command line wins. For a flag that takes no\n\
         value, the variable is 1 or 0.\n\n{}\n## Variables that commands read\n\n{}\n## Variables of workers\n\n\
         Workers inherit the environment of the agent. In addition, the agent sets:\n\n{}",
        table(["variable", "flag", "command"], flags()),
        table(["variable", "command", "meaning"], read),
        table(["variable", "meaning"], set)
    )
}

/// Returns a row for each `PET_…` variable: its name, its flag, and the commands that read it.
fn flags() -> Vec<[String; 3]> {
    let cli = Cli::command();
    let of_join = variables(&cli, "join");
    let row = |(variable, flag): (String, String)| {
        let commands = if of_join.contains(&(variable.clone(), flag.clone())) { "run, join" } else { "run" };
        [code(&variable), code(&flag), commands.into()]
    };
    variables(&cli, "run").into_iter().map(row).collect()
}

/// Returns the environment variables of a command's flags, each with its flag.
fn variables(cli: &clap::Command, command: &str) -> Vec<(String, String)> {
    let command = cli.find_subcommand(command).expect("a command");
    let flags = command
        .get_arguments()
        .filter_map(|arg| Some((variable_of(command.get_name(), arg)?, arg.get_long()?)));
    flags.map(|(variable, long)| (variable, format!("--{long}"))).collect()
}

/// Checks that the variables that a command reads are documented. The `PET_…` variables in `read` must be those of the
/// command's flags. Every other variable in `read` must have a row in [`READ`] that names the command.
#[cfg(test)]
pub(crate) fn assert_documented(command: &str, read: &std::collections::BTreeSet<String>) {
    let flags = variables(&Cli::command(), command).into_iter().map(|(variable, _)| variable).collect();
    let (of_flags, others): (std::collections::BTreeSet<_>, std::collections::BTreeSet<_>) =
        read.iter().cloned().partition(|name| name.starts_with("PET_"));
    assert_eq!(of_flags, flags);
    for name in others {
        let row = READ.iter().find(|(documented, ..)| *documented == name);
        assert!(
            row.is_some_and(|(_, commands, _)| *commands == "all" || commands.contains(command)),
            "{name}"
        );
    }
}
