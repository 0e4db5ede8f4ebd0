//! What a worker runs, found before anything starts: the interpreter, the script, the program. A module is Python's to find.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Refused;

/// The interpreter of the workers: `PYTHON_EXEC`, else the first Python on the `PATH`. Torchrun takes the one it runs in.
pub(super) fn interpreter(given: Option<OsString>, path: &OsStr) -> Result<OsString, Refused> {
    match given.filter(|given| !given.is_empty()) {
        Some(given) => match program(&given, path) {
            Some(_) => Ok(given),
            None => Err(Refused::value(format!("PYTHON_EXEC={given:?}: there is no such program"))),
        },
        None => {
            let found = std::env::split_paths(path)
                .flat_map(|folder| ["python3", "python"].map(|name| folder.join(name)))
                .find(|file| is_program(file));
            found.map(PathBuf::into_os_string).ok_or_else(|| {
                Refused::value(
                    "there is no python3 or python on the PATH; name one in PYTHON_EXEC, or run a program with --no-python"
                        .into(),
                )
            })
        }
    }
}

/// That there is such a program, as the worker will look for it.
pub(super) fn check_program(name: &OsStr, path: &OsStr) -> Result<(), Refused> {
    match (program(name, path), Path::new(name).exists()) {
        (Some(_), _) => Ok(()),
        (None, true) if name.as_encoded_bytes().contains(&b'/') => {
            Err(Refused::value(format!("{name:?} can't be executed: is it a program, with chmod +x?")))
        }
        (None, here) => {
            let hint = if here { ". There is one in this folder: write ./ before it" } else { "" };
            Err(Refused::value(format!("there is no program {name:?} to run{hint}")))
        }
    }
}

/// That there is such a script.
pub(super) fn check_script(name: &OsStr) -> Result<(), Refused> {
    match std::fs::File::open(name) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = "-m runs a module, --no-python a program";
            Err(Refused::value(format!("there is no script {name:?} ({hint})")))
        }
        Err(error) => Err(Refused::value(format!("the script {name:?} can't be read: {error}"))),
    }
}

/// Where a program is, looked for as `execvp` does.
fn program(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    match name.as_encoded_bytes().contains(&b'/') {
        true => Some(PathBuf::from(name)).filter(|file| is_program(file)),
        false => std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_program(file)),
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

    #[test]
    fn the_interpreter_is_the_first_on_the_path_unless_named() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&two).unwrap();
        let path = std::env::join_paths([&one, &two]).unwrap();
        let refused = interpreter(None, &path).unwrap_err();
        assert!(refused.text.contains("no python3"), "{}", refused.text);
        file(&two.join("python3"), 0o755);
        file(&one.join("python3"), 0o644);
        assert_eq!(interpreter(None, &path).unwrap(), two.join("python3"));
        file(&one.join("python"), 0o755);
        assert_eq!(interpreter(None, &path).unwrap(), one.join("python"));
        assert_eq!(interpreter(Some("python3".into()), &path).unwrap(), "python3");
        assert!(interpreter(Some("pypy".into()), &path).unwrap_err().text.contains("PYTHON_EXEC"));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        file(&dir.path().join("data"), 0o644);
        let path = dir.path().as_os_str();
        let text = |refused: Result<(), Refused>| refused.unwrap_err().text;
        assert!(text(check_program(OsStr::new("nothing"), path)).contains("no program \"nothing\""));
        assert!(text(check_program(dir.path().join("data").as_os_str(), path)).contains("chmod +x"));
        assert!(text(check_script(OsStr::new("nothing.py"))).contains("no script \"nothing.py\""));
        assert!(check_script(dir.path().join("data").as_os_str()).is_ok());
        file(&dir.path().join("tool"), 0o755);
        assert!(check_program(OsStr::new("tool"), path).is_ok());
    }
}
