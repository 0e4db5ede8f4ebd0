//! Plans the start of a worker: its program, arguments, environment and streams.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::config::{CommandMode, LaunchConfig};
use crate::environment::{device_variables, environment};
use crate::error::Result;
use crate::formation::Formation;
use crate::logs::Logs;
use crate::numa;
use crate::template::substitute_os;

/// Python code that runs a script for `--run-path`, and records an exception in the error file as torch's `record`
/// does.
const RUN_PATH: &str = include_str!("worker/run_path.py");

/// Everything that is needed to start one worker.
#[derive(Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) local_rank: u32,
    /// The program. Searched in `PATH` if it contains no slash.
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Environment variables in addition to the inherited ones. If a name occurs twice, the last value counts.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The standard output. Inherited if it is `None`.
    pub(crate) stdout: Option<OwnedFd>,
    /// The standard error. Inherited if it is `None`.
    pub(crate) stderr: Option<OwnedFd>,
    /// The file to which the worker writes its failure.
    pub(crate) error_file: Option<PathBuf>,
}

/// Plans the workers of this node for one start.
pub(crate) fn plan(
    config: &LaunchConfig,
    formation: &Formation,
    logs: &mut Logs,
    timer_file: Option<&Path>,
) -> Result<Vec<WorkerPlan>> {
    let agent_variable = |name: &str| std::env::var_os(name);
    (0..config.nproc_per_node)
        .map(|local_rank| {
            let (program, args) = command_line(config, local_rank)?;
            let logs = logs.worker(local_rank)?;
            let error_file = logs.error_file.as_deref();
            let environment =
                environment(config, formation, local_rank, error_file, timer_file, &agent_variable)?;
            let (stdout, stderr, error_file) = (logs.stdout, logs.stderr, logs.error_file);
            Ok(WorkerPlan { local_rank, program, args, environment, stdout, stderr, error_file })
        })
        .collect()
}

/// Returns the program and arguments of one worker. `${local_rank}` is substituted in the arguments, but not in the
/// name of the program. If `config.runs_once`, nothing is substituted.
pub(crate) fn command_line(config: &LaunchConfig, local_rank: u32) -> Result<(OsString, Vec<OsString>)> {
    let command = &config.command;
    let python = |interpreter: &OsStr, flags: &[&str]| {
        let mut args: Vec<OsString> = flags.iter().map(OsString::from).collect();
        args.push(command.target.clone());
        (interpreter.to_owned(), args)
    };
    let (program, mut args) = match &command.mode {
        CommandMode::Script { interpreter } => python(interpreter, &["-u"]),
        CommandMode::Module { interpreter } => python(interpreter, &["-u", "-m"]),
        CommandMode::Program => (command.target.clone(), Vec::new()),
        CommandMode::RunPath { interpreter } => python(interpreter, &["-c"]),
    };
    args.extend(command.args.iter().cloned());
    if !config.runs_once {
        let number = local_rank.to_string();
        args.iter_mut().for_each(|arg| *arg = substitute_os(arg, &[("local_rank", &number)]));
    }
    if matches!(command.mode, CommandMode::RunPath { .. }) {
        args.insert(1, RUN_PATH.into());
    }
    match config.numa {
        None => Ok((program, args)),
        Some(binding) => numa::bind(binding, local_rank, program, args),
    }
}

/// Checks whether the devices and processors of all workers are available, without starting a process. Returns the
/// target of each worker, with `${local_rank}` substituted, in the order of local ranks.
///
/// # Errors
///
/// Fails with [`AgentError::Config`](crate::AgentError::Config) if a device or `numactl` is missing, with `File` if the
/// topology of the machine can't be read, and with `System` if the processors that this process may use can't be read.
pub fn check_workers(config: &LaunchConfig) -> Result<Vec<OsString>> {
    let agent_variable = |name: &str| std::env::var_os(name);
    let check = |local_rank: u32| {
        command_line(config, local_rank)?;
        device_variables(config, local_rank, &agent_variable)?;
        Ok(substitute_os(&config.command.target, &[("local_rank", &local_rank.to_string())]))
    };
    (0..config.nproc_per_node).map(check).collect()
}

/// Returns the name of the job in the failure report.
pub fn entry_point_name(config: &LaunchConfig) -> String {
    let command = &config.command;
    if matches!(command.mode, CommandMode::RunPath { .. }) {
        return "run_script_path".into();
    }
    // Torch uses the same name, except that it names the interpreter if the user sets one. The script is more useful.
    command.target.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WorkerCommand;
    use crate::environment::tests::config;

    fn line(mode: CommandMode, target: &str, args: &[&str], local_rank: u32) -> Vec<String> {
        let args = args.iter().map(OsString::from).collect();
        let command = WorkerCommand { target: target.into(), args, mode };
        let config = LaunchConfig { command, ..config(2) };
        let (program, args) = command_line(&config, local_rank).unwrap();
        [program].into_iter().chain(args).map(|text| text.into_string().unwrap()).collect()
    }

    #[test]
    fn command_lines_equal_torchruns() {
        let python = || OsString::from("py");
        let script = CommandMode::Script { interpreter: python() };
        assert_eq!(line(script, "s.py", &["-x", "$$"], 0), ["py", "-u", "s.py", "-x", "$"]);
        let module = CommandMode::Module { interpreter: python() };
        assert_eq!(line(module, "a.b", &[], 0), ["py", "-u", "-m", "a.b"]);
        assert_eq!(line(CommandMode::Program, "/bin/x", &["a"], 0), ["/bin/x", "a"]);
    }

    #[test]
    fn the_local_rank_is_substituted_in_arguments_but_not_in_the_programs_name() {
        let made = line(CommandMode::Program, "x${local_rank}", &["${local_rank}", "--r=$local_rank"], 1);
        assert_eq!(made, ["x${local_rank}", "1", "--r=1"]);
        let script = CommandMode::Script { interpreter: "py".into() };
        assert_eq!(line(script, "s$local_rank.py", &[], 1), ["py", "-u", "s1.py"]);
    }

    #[test]
    fn a_run_path_worker_runs_our_python_code_with_the_script_as_its_first_argument() {
        let made = line(CommandMode::RunPath { interpreter: "py".into() }, "/s.py", &["$local_rank"], 1);
        assert_eq!(made[..2], ["py", "-c"]);
        assert_eq!(made[2], RUN_PATH);
        assert_eq!(made[3..], ["/s.py", "1"]);
    }
}
