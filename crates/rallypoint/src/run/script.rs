//! Finds the interpreter of the workers. Before the agent starts, checks that their script, module or program exists
//! and that the output files can be written.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rallypoint_agent::{CommandMode, EventLog, LaunchConfig, check_workers, is_disk_full};

use crate::flags::FlagEnvironment;
use crate::refusal::Refusal;

/// Returns the Python interpreter of the workers: `PYTHON_EXEC` if it is set, or else the first one that is found. The
/// search order is: the activated environments, the directory of this program, the `PATH`. Fails if `PYTHON_EXEC` is
/// neither an executable file nor the name of one on the `PATH`, or if no interpreter is found.
///
/// `invoked_as` is the name of this program as the user typed it. If that is a link into an environment, the
/// interpreter of that environment is not used, because links are not followed.
pub(super) fn interpreter(
    invoked_as: &OsStr,
    environment: &FlagEnvironment<'_>,
) -> Result<OsString, Refusal> {
    let variable = |name| (environment.0)(name).filter(|value| !value.is_empty());
    let path = variable("PATH").unwrap_or_default();
    if let Some(named) = variable("PYTHON_EXEC") {
        return match program(&named, &path) {
            Some(_) => Ok(named),
            None => Err(Refusal::value(format!("PYTHON_EXEC={named:?} was not found"))),
        };
    }
    // Conda activates its base environment in every shell by default, so an active base environment does not mean
    // that the user chose it for this job. Its interpreter is still found on the `PATH`.
    let is_base = variable("CONDA_DEFAULT_ENV").is_some_and(|name| name == "base" || name == "root");
    let conda = variable("CONDA_PREFIX").filter(|_| !is_base);
    let activated =
        [variable("VIRTUAL_ENV"), conda].into_iter().flatten().map(|dir| Path::new(&dir).join("bin"));
    let own_directory = program(invoked_as, &path).and_then(|program| Some(program.parent()?.to_owned()));
    let interpreter = activated
        .chain(own_directory)
        .chain(std::env::split_paths(&path))
        .flat_map(|directory| ["python3", "python"].map(|name| directory.join(name)))
        .find(|file| is_program(file));
    // The path is made absolute, so that it is valid in any working directory.
    interpreter.map(|file| std::path::absolute(&file).unwrap_or(file).into_os_string()).ok_or_else(|| {
        let hint = Some("set PYTHON_EXEC to an interpreter, or run a program with --no-python".into());
        Refusal { hint, ..Refusal::value("there is no python3 or python on the PATH".into()) }
    })
}

/// Checks that the workers' command exists and that the output files can be written. Creates missing output files,
/// but leaves none behind if the check fails.
pub(super) fn check(config: &LaunchConfig, environment: &FlagEnvironment<'_>) -> Result<(), Refusal> {
    let path = (environment.0)("PATH").unwrap_or_default();
    let targets = check_workers(config).map_err(|error| Refusal::value(error.to_string()))?;
    match &config.command.mode {
        CommandMode::Program => check_program(&config.command.target, &path)?,
        CommandMode::Module { interpreter } => check_modules(&targets, interpreter, environment)?,
        // Each worker may have its own script, because the name may contain the local rank.
        CommandMode::Script { .. } | CommandMode::RunPath { .. } => {
            targets.iter().try_for_each(|target| check_script(target))?
        }
    }
    check_files(config)
}

fn check_files(config: &LaunchConfig) -> Result<(), Refusal> {
    let events = match &config.events {
        EventLog::File(file) => Some(("--event-log", file)),
        EventLog::None | EventLog::Console => None,
    };
    let report = config.report.as_ref().filter(|file| file.as_os_str() != "-");
    let mut created_files = Vec::new();
    for (flag, file) in events.into_iter().chain(report.map(|file| ("--end-report", file))) {
        let existed = file.exists();
        if let Err(error) = std::fs::File::options().create(true).append(true).open(file) {
            // On a full disk, the agent runs without an event log and logs a warning.
            if flag == "--event-log" && is_disk_full(&error) {
                continue;
            }
            created_files.iter().for_each(|file| drop(std::fs::remove_file(file)));
            return Err(Refusal::value(format!("{flag} {file:?} can't be written: {error}")));
        }
        created_files.extend((!existed).then_some(file));
    }
    Ok(())
}

/// Fails if the program does not exist or is not executable.
fn check_program(name: &OsStr, path: &OsStr) -> Result<(), Refusal> {
    match (program(name, path), Path::new(name).exists()) {
        (Some(_), _) => Ok(()),
        (None, true) if name.as_encoded_bytes().contains(&b'/') => {
            let hint = Some("make it executable with chmod +x".into());
            Err(Refusal { hint, ..Refusal::value(format!("{name:?} can't be executed")) })
        }
        (None, is_in_current_dir) => {
            let hint = "to run the one in this directory, write ./ before its name";
            let hint = is_in_current_dir.then(|| hint.into());
            Err(Refusal { hint, ..Refusal::value(format!("there is no program {name:?}")) })
        }
    }
}

/// Fails if the script can't be read.
fn check_script(name: &OsStr) -> Result<(), Refusal> {
    match std::fs::File::open(name) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = Some("-m runs a module, and --no-python a program".into());
            Err(Refusal { hint, ..Refusal::value(format!("there is no script {name:?}")) })
        }
        Err(error) => Err(Refusal::value(format!("the script {name:?} can't be read: {error}"))),
    }
}

/// A Python program whose arguments are the names of top-level modules. It prints the names of those that do not
/// exist. `find_spec` imports nothing for a name without dots.
const FIND_MODULES: &str = "\
import sys
print('absent:', *[name for name in sys.argv[1:] if not any(finder.find_spec(name, None) for finder in sys.meta_path)])
";

/// Fails if the interpreter does not find one of the modules. Of a dotted name, only the first part is checked: to
/// find the rest, the interpreter would have to import that part.
///
/// To find a module in the working directory, this function does not start the interpreter, because a start takes at
/// least 12 ms. The check passes if the name of the interpreter does not start with `python`, or if the interpreter
/// does not print a result.
fn check_modules(
    modules: &[OsString],
    interpreter: &OsStr,
    environment: &FlagEnvironment<'_>,
) -> Result<(), Refusal> {
    let searches_current_dir = (environment.0)("PYTHONSAFEPATH").is_none_or(|value| value.is_empty());
    let is_in_current_dir =
        |name: &str| Path::new(name).is_dir() || Path::new(&format!("{name}.py")).is_file();
    let top_levels = modules.iter().filter_map(|module| module.to_str()?.split('.').next());
    let names: BTreeSet<&str> =
        top_levels.filter(|name| !(searches_current_dir && is_in_current_dir(name))).collect();
    let name = Path::new(interpreter).file_name().unwrap_or_default().to_string_lossy();
    if names.is_empty() || !name.starts_with("python") {
        return Ok(());
    }
    let output = Command::new(interpreter)
        .args(["-c", FIND_MODULES])
        .args(&names)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let answer =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let absent = answer.lines().next_back().and_then(|line| line.strip_prefix("absent:")).unwrap_or_default();
    match absent.split_whitespace().next() {
        None => Ok(()),
        Some(module) => {
            let interpreter = interpreter.display();
            let text = format!("there is no module {module:?} for {interpreter}");
            let hint = "`python -m` searches this directory, PYTHONPATH and the installed packages; PYTHON_EXEC selects \
                        another interpreter";
            Err(Refusal { hint: Some(hint.into()), ..Refusal::value(text) })
        }
    }
}

/// Returns the path of a program, or `None` if there is no such program. Searches `path` like `execvp`, unless the
/// name contains a slash.
fn program(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    match name.as_encoded_bytes().contains(&b'/') {
        true => Some(PathBuf::from(name)).filter(|file| is_program(file)),
        false => {
            std::env::split_paths(path).map(|directory| directory.join(name)).find(|file| is_program(file))
        }
    }
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path, mode: u32) {
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Creates a directory with an interpreter of this name.
    fn with_python(directory: PathBuf, name: &str) -> PathBuf {
        std::fs::create_dir_all(&directory).unwrap();
        file(&directory.join(name), 0o755);
        directory
    }

    #[test]
    fn python_exec_wins_then_the_activated_environment_then_the_own_directory_then_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let (first_dir, second_dir) = (dir.path().join("first"), dir.path().join("second"));
        std::fs::create_dir(&first_dir).unwrap();
        std::fs::create_dir(&second_dir).unwrap();
        let mut variables = vec![("PATH", std::env::join_paths([&first_dir, &second_dir]).unwrap())];
        let found = |variables: &[(&str, OsString)], invoked_as: &str| {
            let lookup =
                |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
            interpreter(OsStr::new(invoked_as), &FlagEnvironment(&lookup)).map(PathBuf::from)
        };
        let refused = found(&variables, "rallypoint").unwrap_err();
        assert!(refused.text.contains("no python3"), "{}", refused.text);
        file(&second_dir.join("python3"), 0o755);
        file(&first_dir.join("python3"), 0o644);
        assert_eq!(found(&variables, "rallypoint").unwrap(), second_dir.join("python3"));
        file(&first_dir.join("python"), 0o755);
        assert_eq!(found(&variables, "rallypoint").unwrap(), first_dir.join("python"));

        // The Python in the directory of this program is used, but not the one in the directory of a link's target.
        let venv = with_python(dir.path().join("venv/bin"), "python");
        let typed = venv.join("rallypoint");
        file(&typed, 0o755);
        assert_eq!(found(&variables, typed.to_str().unwrap()).unwrap(), venv.join("python"));
        std::os::unix::fs::symlink(&typed, second_dir.join("rallypoint")).unwrap();
        assert_eq!(found(&variables, "rallypoint").unwrap(), second_dir.join("python3"));

        // Conda's base environment does not select the interpreter, but its other environments do.
        let conda = with_python(dir.path().join("conda/bin"), "python3");
        variables.push(("CONDA_PREFIX", dir.path().join("conda").into()));
        variables.push(("CONDA_DEFAULT_ENV", "base".into()));
        assert_eq!(found(&variables, typed.to_str().unwrap()).unwrap(), venv.join("python"));
        variables.last_mut().unwrap().1 = "mine".into();
        assert_eq!(found(&variables, typed.to_str().unwrap()).unwrap(), conda.join("python3"));
        let activated = with_python(dir.path().join("activated/bin"), "python3");
        variables.push(("VIRTUAL_ENV", dir.path().join("gone").into()));
        assert_eq!(found(&variables, typed.to_str().unwrap()).unwrap(), conda.join("python3"));
        variables.last_mut().unwrap().1 = dir.path().join("activated").into();
        assert_eq!(found(&variables, typed.to_str().unwrap()).unwrap(), activated.join("python3"));

        variables.push(("PYTHON_EXEC", "python3".into()));
        assert_eq!(found(&variables, typed.to_str().unwrap()).unwrap(), Path::new("python3"));
        variables.last_mut().unwrap().1 = "pypy".into();
        assert!(found(&variables, "rallypoint").unwrap_err().text.contains("PYTHON_EXEC"));
    }

    #[test]
    fn the_error_for_a_missing_program_or_script_names_it() {
        let dir = tempfile::tempdir().unwrap();
        file(&dir.path().join("data"), 0o644);
        let path = dir.path().as_os_str();
        let text = |refused: Result<(), Refusal>| refused.unwrap_err().text;
        assert!(text(check_program(OsStr::new("nothing"), path)).contains("no program \"nothing\""));
        let refusal = check_program(dir.path().join("data").as_os_str(), path).unwrap_err();
        assert!(refusal.text.ends_with("data\" can't be executed"), "{refusal:?}");
        assert_eq!(refusal.hint.as_deref(), Some("make it executable with chmod +x"));
        assert!(text(check_script(OsStr::new("nothing.py"))).contains("no script \"nothing.py\""));
        assert!(check_script(dir.path().join("data").as_os_str()).is_ok());
        file(&dir.path().join("tool"), 0o755);
        assert!(check_program(OsStr::new("tool"), path).is_ok());
    }
}
