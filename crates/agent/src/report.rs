//! Reports about the end of a run: the failure report in torch's format with additional fields, and the end report as
//! JSON.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rallypoint_core::supervise::{self, Policy, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::LaunchConfig;
use crate::host;
use crate::outcome::Outcome;
use crate::signal_name::signal_name;

/// How a worker exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// The worker exited with this code.
    Code(i32),
    /// The signal with this number killed the worker.
    Signal(i32),
}

impl From<supervise::Exit> for Exit {
    fn from(exit: supervise::Exit) -> Exit {
        match exit {
            supervise::Exit::Code(code) => Exit::Code(code),
            supervise::Exit::Signal(signal) => Exit::Signal(signal.0),
        }
    }
}

impl Exit {
    /// Returns the exit code in Python's form: the code, or the negative number of the signal.
    pub fn as_python(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => -signal,
        }
    }

    /// Describes the exit as a clause that follows the name of a worker: `exited with code 1`.
    pub(crate) fn describe(self) -> String {
        match self {
            Exit::Code(code) => format!("exited with code {code}"),
            Exit::Signal(signal) => format!("was killed by {}", signal_name(signal).unwrap_or("a signal")),
        }
    }

    /// Returns torch's message for a worker that recorded no error.
    pub fn message(self, pid: u32) -> String {
        match self {
            Exit::Code(_) => {
                "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html".into()
            }
            Exit::Signal(signal) => {
                format!("Signal {signal} ({}) received by PID {pid}", signal_name(signal).unwrap_or("<N/A>"))
            }
        }
    }
}

/// The failure of a worker. The agent publishes it to the other nodes as JSON, so that every node can report the first
/// failure of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The full name of the worker's host.
    pub host: String,
    /// The group rank of the worker's node.
    pub group_rank: u64,
    /// The role of the worker.
    pub role: String,
    /// The rank of the worker.
    pub rank: u64,
    /// The local rank of the worker.
    pub local_rank: u32,
    /// The process id of the worker.
    pub pid: u32,
    /// How the worker exited.
    pub exit: Exit,
    /// When the worker failed, in seconds since the epoch: the time in its error file, or else the time when the agent
    /// noticed the failure.
    pub timestamp: i64,
    /// How long the worker ran, in seconds.
    pub ran: f64,
    /// The number of restarts before this start of the workers.
    pub restart: u32,
    /// The path of the worker's error file, if it wrote one.
    pub error_file: Option<String>,
    /// The traceback or message in the error file, or else a message about the exit.
    pub message: String,
    /// The last lines of the worker's standard error.
    pub last_lines: Vec<String>,
    /// Whether the worker's standard error was shown on the console of this agent, so that the report need not repeat
    /// it. Always false for a failure on another node.
    #[serde(skip)]
    pub shown: bool,
}

impl Failure {
    /// Returns whether both failures describe the exit of the same worker.
    fn is_same(&self, other: &Failure) -> bool {
        (self.rank, self.pid, &self.host) == (other.rank, other.pid, &other.host)
    }

    /// Returns the lines about this failure that torch's report has, too. `index` is the number of the failure in the
    /// report.
    fn torch_fields(&self, index: usize) -> String {
        let signal = match self.exit {
            Exit::Signal(signal) => signal_name(signal).map(|name| format!(" ({name})")).unwrap_or_default(),
            Exit::Code(_) => String::new(),
        };
        format!(
            "[{index}]:\n  time      : {}\n  host      : {}\n  rank      : {} (local_rank: {})\n  \
             exitcode  : {} (pid: {}) {signal}\n  error_file: {}\n  traceback : {}",
            local_time(self.timestamp),
            self.host,
            self.rank,
            self.local_rank,
            self.exit.as_python(),
            self.pid,
            self.error_file.as_deref().unwrap_or("<N/A>"),
            self.traceback().replace('\n', "\n  "),
        )
    }

    /// Returns the message, or only its last line if the console has shown the whole traceback.
    fn traceback(&self) -> String {
        match self.last_line_on_stderr() {
            Some(last) if self.shown && self.message.trim().contains('\n') => {
                format!("{last} (the traceback is in the output above)")
            }
            _ => self.message.clone(),
        }
    }

    /// Returns the last line of the message if the worker also wrote it to standard error. In Python, the traceback on
    /// standard error and the one in the error file end with the same line, although the frames above it may differ.
    fn last_line_on_stderr(&self) -> Option<&str> {
        let last = self.message.trim_end().lines().next_back()?;
        let is_last = |line: &String| match line.strip_suffix('…') {
            Some(start) if !start.is_empty() => last.starts_with(start),
            _ => line.trim_end() == last,
        };
        self.last_lines.iter().any(is_last).then_some(last)
    }

    /// Returns the lines about this failure that torch's report does not have.
    fn extra_fields(&self, max_restarts: u32) -> String {
        let mut text = format!(
            "\n  node      : {} (role: {})\n  ran       : {:.3} s\n  restart   : {} of {max_restarts}",
            self.group_rank, self.role, self.ran, self.restart,
        );
        // Omit the last lines if the console has shown them or if the traceback above contains them.
        if !self.last_lines.is_empty() && !self.shown && self.last_line_on_stderr().is_none() {
            text.push_str("\n  stderr    : (its last lines)");
            self.last_lines
                .iter()
                .for_each(|line| text.push_str(&format!("\n    {}", escape_controls(line))));
        }
        text
    }
}

/// Escapes control characters except tabs, so that a worker's output can't change the terminal or the report.
fn escape_controls(line: &str) -> String {
    let escape = |c: char| match c {
        '\t' => "\t".to_owned(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    line.chars().map(escape).collect()
}

/// Formats a time as `2026-11-15_17:48:42`, in this machine's time zone.
fn local_time(seconds: i64) -> String {
    let time = Timestamp::from_second(seconds).unwrap_or_default().to_zoned(TimeZone::system());
    time.strftime("%Y-%m-%d_%H:%M:%S").to_string()
}

/// Returns the failure report of this node. It contains the failed workers of this node, and the first failure of the
/// job if that was on another node.
pub fn failure_report(
    title: &str,
    failures: &[Failure],
    first: Option<&Failure>,
    max_restarts: u32,
) -> String {
    let elsewhere = first.filter(|first| !failures.iter().any(|failure| failure.is_same(first)));
    let all: Vec<&Failure> = elsewhere.into_iter().chain(failures).collect();
    let earliest = all.iter().min_by_key(|failure| failure.timestamp).copied();
    let Some(root) = first.or(earliest) else { return String::new() };
    let title = format!("{title} FAILED");
    let mut width = title.chars().count();
    let (mut others, mut cause) = (Vec::new(), String::new());
    for (index, failure) in all.into_iter().enumerate() {
        let text = failure.torch_fields(index);
        width = text.lines().map(|line| line.chars().count()).fold(width, usize::max);
        let text = text + &failure.extra_fields(max_restarts);
        if failure.is_same(root) { cause = text } else { others.push(text) }
    }
    if others.is_empty() {
        others.push("  <NO_OTHER_FAILURES>".into());
    }
    let (border, section) = ("=".repeat(width.min(60)), "-".repeat(width.min(60)));
    format!(
        "\n{border}\n{title}\n{section}\nFailures:\n{}\n{section}\nRoot Cause (first observed failure):\n{cause}\n{border}",
        others.join("\n")
    )
}

/// Returns why the verdict of this node is [`Verdict::Unhealthy`].
pub fn unhealthy_cause(config: &LaunchConfig) -> String {
    let unkillable = format!("a process did not exit within {} s of SIGKILL", Policy::KILL_GRACE.as_secs());
    match config.watch.uninterruptible_timeout {
        Some(timeout) => format!(
            "a worker was in uninterruptible sleep for {} s (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT), or {unkillable}",
            timeout.as_secs_f64()
        ),
        None => unkillable,
    }
}

/// Returns the end report of this node as JSON.
pub fn end_report(config: &LaunchConfig, outcome: &Outcome) -> Value {
    let (result, cause) = match outcome.verdict {
        Verdict::Succeeded => ("succeeded", "all workers of this node exited with code 0".to_owned()),
        Verdict::Failed => ("failed", first_cause(outcome)),
        Verdict::FailedElsewhere if outcome.first_failure.is_none() => {
            ("failed_elsewhere", ended_elsewhere(outcome))
        }
        Verdict::FailedElsewhere => ("failed_elsewhere", first_cause(outcome)),
        Verdict::Unhealthy => ("unhealthy", unhealthy_cause(config)),
        Verdict::Signaled(signal) => {
            ("signalled", format!("the agent received {}", signal_name(signal.0).unwrap_or("a signal")))
        }
        Verdict::RoundOver => ("round_over", "the other nodes left the round".into()),
        Verdict::Spare => ("spare", "the job ended while this node was a spare".into()),
        Verdict::Error => ("error", outcome.error.as_ref().map(ToString::to_string).unwrap_or_default()),
    };
    let exit = |failure: &Failure| match failure.exit {
        Exit::Code(code) => json!({"code": code}),
        Exit::Signal(signal) => json!({"signal": signal, "signal_name": signal_name(signal)}),
    };
    let failure = |failure: &Failure| {
        let mut value = json!(failure);
        value["exit"] = exit(failure);
        value
    };
    let signal = match outcome.verdict {
        Verdict::Signaled(signal) => json!({"number": signal.0, "name": signal_name(signal.0)}),
        _ => Value::Null,
    };
    json!({
        "run_id": config.rendezvous.run_id,
        "result": result,
        "exit_code": outcome.exit_code(),
        "cause": cause,
        "signal": signal,
        "host": host::full_name(),
        "role": config.role,
        "local_world_size": config.nproc_per_node,
        "group_rank": outcome.group.map(|(rank, _)| rank),
        "group_world_size": outcome.group.map(|(_, size)| size),
        "first_rank": outcome.world.map(|(rank, _)| rank),
        "world_size": outcome.world.map(|(_, size)| size),
        "restarts": outcome.restarts,
        "max_restarts": config.max_restarts,
        "starts": outcome.starts,
        "seconds": outcome.ran.as_secs_f64(),
        "log_errors": outcome.log_errors,
        "first_failure": outcome.first_failure.as_ref().map(failure),
        "failures": outcome.failures.iter().map(failure).collect::<Vec<_>>(),
    })
}

/// Returns a message that names the node that has ended the job, or the nodes that may have, for a job that ended without
/// a reported failure.
pub fn ended_elsewhere(outcome: &Outcome) -> String {
    if let Some(closing) = &outcome.closing {
        return format!("the job has ended: {closing}");
    }
    let named = match &outcome.suspects[..] {
        [] => String::new(),
        [node] => format!(", {node},"),
        nodes => format!(", one of {},", nodes.join(", ")),
    };
    format!("the job was ended by another node{named} which did not report why")
}

fn first_cause(outcome: &Outcome) -> String {
    match outcome.first_failure.as_ref().or(outcome.failures.first()) {
        None => "a worker failed".into(),
        Some(failure) => format!("rank {} on {} {}", failure.rank, failure.host, failure.exit.describe()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
