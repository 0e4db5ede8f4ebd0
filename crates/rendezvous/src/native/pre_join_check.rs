//! The pre-join check: a command that has to succeed before the node joins a round.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rallypoint_core::client::Deadline;
use rustix::process::{Pid, Signal, kill_process_group};

/// The number of lines of the command's output that a failure quotes, and their maximum length.
const QUOTED_LINES: usize = 3;
const MAX_QUOTED_CHARS: usize = 200;

/// Runs the command in `$1`, and then prints `$2` and the exit code of the command. The exit code of the shell itself
/// is not used, because a launcher may reap all children of its process.
const SCRIPT: &str = r#"sh -c "$1"; printf '\n%s%d\n' "$2" "$?""#;

/// A command that has to succeed before the node joins a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PreJoinCheck {
    /// The command, which a shell runs.
    pub(super) command: String,
    /// How long the command may take.
    pub(super) timeout: Duration,
}

/// Why a check failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckFailure {
    /// The exit code of the command, or why there is none.
    cause: String,
    /// The last lines of the command's output.
    lines: Vec<String>,
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        match self.lines.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.lines.join(" | ")),
        }
    }
}

impl PreJoinCheck {
    /// Runs the command. Calls `check` every 50 ms, and ends the command if that fails.
    ///
    /// # Errors
    ///
    /// Fails with the error of `check`.
    pub(super) fn run<E>(
        &self,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<Result<(), CheckFailure>, E> {
        let start = Instant::now();
        let failure = |cause: String| Err(CheckFailure { cause, lines: Vec::new() });
        let (sender, receiver) = channel();
        let process = match self.start(sender) {
            Ok(process) => process,
            Err(error) => return Ok(failure(format!("cannot run sh: {error}"))),
        };
        let kill = || _ = kill_process_group(process, Signal::KILL);
        loop {
            match receiver.recv_timeout(Deadline::CANCELLATION_INTERVAL) {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(failure("its output could not be read".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(error) = check() {
                kill();
                return Err(error);
            }
            if start.elapsed() >= self.timeout {
                kill();
                return Ok(failure(format!(
                    "it did not end within {} s (--pre-join-timeout)",
                    self.timeout.as_secs_f64()
                )));
            }
        }
    }

    /// Starts the command and a thread that reads its output and sends the outcome. Returns the process group.
    fn start(&self, sender: Sender<Result<(), CheckFailure>>) -> std::io::Result<Pid> {
        let (reader, writer) = std::io::pipe()?;
        let mark = format!("rallypoint-exit-code-{}:", std::process::id());
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh", &self.command, &mark]).process_group(0);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn()?;
        // The command has copies of the writing end of the pipe, and this process must not keep one.
        drop(command);
        let process = Pid::from_child(&child);
        std::thread::Builder::new().name("pre-join-check".into()).spawn(move || {
            let _ = sender.send(read_outcome(BufReader::new(reader), &mark));
            // This fails if another thread has reaped the process.
            let _ = child.wait();
        })?;
        Ok(process)
    }
}

/// Reads the output of the command up to its exit code.
fn read_outcome(mut output: impl BufRead, mark: &str) -> Result<(), CheckFailure> {
    let mut lines = VecDeque::new();
    let mut line = Vec::new();
    let mut code = None;
    while output.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&line);
        if let Some(number) = text.trim_end().strip_prefix(mark) {
            code = Some(number.to_owned());
            break;
        }
        if !text.trim().is_empty() {
            lines.push_back(text.trim().chars().take(MAX_QUOTED_CHARS).collect());
        }
        if lines.len() > QUOTED_LINES {
            lines.pop_front();
        }
        line.clear();
    }
    let cause = match code.as_deref() {
        Some("0") => return Ok(()),
        Some(code) => format!("exit code {code}"),
        None => "it was killed".into(),
    };
    Err(CheckFailure { cause, lines: lines.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str, timeout: Duration) -> Result<(), String> {
        let check = PreJoinCheck { command: command.into(), timeout };
        let outcome = check.run(|| Ok::<(), ()>(())).unwrap();
        outcome.map_err(|failure| failure.to_string())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_check_succeeds_or_fails_with_the_exit_code_and_the_last_lines() {
        assert_eq!(run("true", LONG), Ok(()));
        assert_eq!(run("echo fine; exit 0", LONG), Ok(()));
        assert_eq!(run("exit 3", LONG), Err("exit code 3".into()));
        let command = "for line in 1 2 3; do echo out $line; done; echo broken GPU >&2; printf end; exit 4";
        assert_eq!(run(command, LONG), Err("exit code 4: out 3 | broken GPU | end".into()));
        assert!(run("kill -9 $$", LONG).unwrap_err().starts_with("exit code 137"));
        assert!(run("no-such-command", LONG).unwrap_err().starts_with("exit code 127: "));
    }

    #[test]
    fn a_check_that_does_not_end_is_killed_with_the_processes_that_it_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let command = format!("sleep 600 & echo $! > {}; wait", file.display());
        let error = run(&command, Duration::from_millis(500)).unwrap_err();
        assert_eq!(error, "it did not end within 0.5 s (--pre-join-timeout)");
        let pid: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        rallypoint_testkit::eventually("the process ends", is_gone);
    }

    #[test]
    fn a_check_does_not_wait_for_processes_that_it_leaves_behind() {
        let start = Instant::now();
        assert_eq!(run("sleep 5 & exit 0", LONG), Ok(()));
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn an_interrupted_check_is_killed() {
        let check = PreJoinCheck { command: "sleep 600".into(), timeout: LONG };
        let start = Instant::now();
        assert_eq!(check.run(|| Err("interrupted")), Err("interrupted"));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
