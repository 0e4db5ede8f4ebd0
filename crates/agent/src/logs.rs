//! The output of the workers. Directories have torch's names (`logs/directory.rs`). One thread for each of the agent's
//! streams forwards output to the console (`logs/tail.rs`).
//!
//! A worker writes a redirected or tee'd stream to its file directly, so no output is lost if the agent dies. If
//! standard error does not go to a file, the agent forwards it through a pipe and keeps its last lines for the failure
//! report. If `LogsConfig::keeps_last_lines` is false, the worker inherits the agent's standard error instead.

mod directory;
mod last_lines;
mod lines;
mod stderr_pipe;
mod tail;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{LaunchConfig, LogDir, LogsConfig};
use crate::disk::{FirstError, is_disk_full, is_full};
use crate::error::{AgentError, Result};
use crate::formation::Formation;
use crate::host;
use crate::template::substitute;

pub(crate) use directory::{Directory, random_suffix, remove_unused};
use last_lines::LastLines;
use lines::Lines;
use tail::{Console, Show, Source, Tail};

/// Interval for checking the disk of the log files. Workers write these files, so the agent gets no error when the disk
/// is full.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The end of a message about output that can't be written to files.
const TO_CONSOLE: &str =
    "the workers keep running, and output meant for the files goes to the console instead";

/// The logs of a run, from its first start to its last.
pub(crate) struct Logs {
    config: LogsConfig,
    role: String,
    workers: u32,
    directory: Directory,
    /// Why output of the workers is missing from the files.
    error: FirstError,
    next_disk_check: Instant,
    stdout: Tail,
    stderr: Tail,
    start: Start,
}

/// The files of one start of the workers.
#[derive(Debug, Default)]
struct Start {
    dir: Option<PathBuf>,
    stdout_filter: Option<Arc<Filter>>,
    stderr_filter: Option<Arc<Filter>>,
    /// The prefix of tee'd lines, for each worker.
    prefixes: Vec<Vec<u8>>,
    /// The last lines of each worker's standard error, and whether the stream is shown on the console.
    stderr_ends: Vec<(LastLines, bool)>,
}

/// A file for lines that contain one of the `wanted` strings.
#[derive(Debug)]
struct Filter {
    file: File,
    path: PathBuf,
    wanted: Vec<String>,
    error: FirstError,
}

/// The streams of one worker.
#[derive(Debug)]
pub(crate) struct WorkerLogs {
    /// The standard output. Inherited if it is `None`.
    pub(crate) stdout: Option<OwnedFd>,
    /// The standard error. Inherited if it is `None`.
    pub(crate) stderr: Option<OwnedFd>,
    /// The file to which the worker writes its failure.
    pub(crate) error_file: Option<PathBuf>,
}

impl Logs {
    /// Creates the directory of this run. If the disk is full, the run starts without a directory, and the error is
    /// reported.
    ///
    /// # Errors
    ///
    /// Fails if the directory can't be created for another reason.
    pub(crate) fn create(config: &LaunchConfig) -> Result<Logs> {
        Logs::with_show(config, tail::show)
    }

    fn with_show(config: &LaunchConfig, show: Show) -> Result<Logs> {
        let error = FirstError::default();
        let directory = match Directory::create(&config.logs.dir, &config.rendezvous.run_id) {
            Err(AgentError::File { doing, path, source }) if is_disk_full(&source) => {
                error.report(format!("{}; {TO_CONSOLE}", AgentError::File { doing, path, source }));
                Directory::default()
            }
            created => created?,
        };
        Ok(Logs {
            config: config.logs.clone(),
            role: config.role.clone(),
            workers: config.nproc_per_node,
            directory,
            error,
            next_disk_check: Instant::now() + DISK_CHECK_INTERVAL,
            stdout: Tail::start(Console::Out, show)?,
            stderr: Tail::start(Console::Err, show)?,
            start: Start::default(),
        })
    }

    /// Returns the directory of this run.
    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns why output of the workers is missing from the files, if there was an error.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.get()
    }

    /// Returns whether workers write to files in the directory.
    fn stores_output(&self) -> bool {
        let goes_to_file = |rank| {
            let (redirects, tee) = (self.config.redirects.of(rank), self.config.tee.of(rank));
            redirects.stdout || redirects.stderr || tee.stdout || tee.stderr
        };
        (0..self.workers).any(goes_to_file)
    }

    /// Returns the time until [`check_disk_if_due`](Logs::check_disk_if_due) checks the disk next, or `None` if it
    /// never will.
    pub(crate) fn time_to_disk_check(&self) -> Option<Duration> {
        let is_needed = self.directory.path().is_some() && self.error().is_none() && self.stores_output();
        is_needed.then(|| self.next_disk_check.saturating_duration_since(Instant::now()))
    }

    /// Checks the disk if the last check was `DISK_CHECK_INTERVAL` ago.
    pub(crate) fn check_disk_if_due(&mut self) {
        if self.time_to_disk_check() == Some(Duration::ZERO) {
            self.next_disk_check = Instant::now() + DISK_CHECK_INTERVAL;
            self.check_disk();
        }
    }

    /// Reports an error if the disk of the log files is full.
    pub(crate) fn check_disk(&self) {
        if let Some(dir) = self.full_dir() {
            let dir = dir.display();
            self.error.report(format!(
                "the disk of the log directory {dir} is full; workers lose output that they write there"
            ));
        }
    }

    /// Returns the directory of this run if workers write to files there and its disk is full.
    fn full_dir(&self) -> Option<&Path> {
        self.directory.path().filter(|dir| self.stores_output() && is_full(dir))
    }

    /// Creates directories and files for a start of all workers. If one of them can't be created, output meant for
    /// files goes to the console in this start.
    pub(crate) fn start(&mut self, formation: &Formation) {
        self.start = self.create_files(formation).unwrap_or_else(|error| {
            self.error.report(format!("{error}; {TO_CONSOLE}"));
            Start::default()
        });
        self.start.prefixes =
            (0..self.workers).map(|local_rank| self.prefix(formation, local_rank)).collect();
    }

    /// Creates the directory of a start, and its files for filtered lines.
    fn create_files(&self, formation: &Formation) -> Result<Start> {
        // On a full disk, files can be created but not written.
        if let Some(dir) = self.full_dir() {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(AgentError::File { doing: "write to", path: dir.to_owned(), source });
        }
        let dir = self.directory.create_attempt(formation.restarts, self.workers)?;
        let filtered = |wanted: &[String], name: &str| -> Result<Option<Arc<Filter>>> {
            let Some(dir) = dir.as_ref().filter(|_| !wanted.is_empty()) else { return Ok(None) };
            let path = dir.join(name);
            let (file, wanted, error) = (create(&path)?, wanted.to_vec(), self.error.clone());
            Ok(Some(Arc::new(Filter { file, path, wanted, error })))
        };
        Ok(Start {
            stdout_filter: filtered(&self.config.stdout_filters, "filtered_stdout.log")?,
            stderr_filter: filtered(&self.config.stderr_filters, "filtered_stderr.log")?,
            dir,
            ..Start::default()
        })
    }

    /// Returns the prefix of a worker's tee'd lines.
    fn prefix(&self, formation: &Formation, local_rank: u32) -> Vec<u8> {
        match &self.config.prefix_template {
            None => format!("[{}{local_rank}]:", self.role).into_bytes(),
            Some(template) => substitute(
                template.as_bytes(),
                &[
                    ("role_name", &self.role),
                    ("rank", &formation.rank(local_rank).to_string()),
                    ("local_rank", &local_rank.to_string()),
                    ("hostname", &host::hostname()),
                ],
            ),
        }
    }

    /// Returns the streams of a worker. Called for each worker of a start once, in the order of local ranks. A stream
    /// whose file can't be created goes to the console.
    pub(crate) fn worker(&mut self, local_rank: u32) -> Result<WorkerLogs> {
        let dir = self.start.dir.as_ref().map(|dir| dir.join(local_rank.to_string()));
        let (redirects, tee) = (self.config.redirects.of(local_rank), self.config.tee.of(local_rank));
        let shown = self.config.shown_ranks.as_ref().is_none_or(|ranks| ranks.contains(&local_rank));
        let shown = shown || self.config.dir == LogDir::Nowhere;
        let (stores_stdout, stores_stderr) = (redirects.stdout || tee.stdout, redirects.stderr || tee.stderr);
        let stdout = match self.create_file(dir.as_deref(), "stdout.log", stores_stdout) {
            Some((file, path)) => {
                if tee.stdout && shown {
                    self.follow(&path, local_rank, Console::Out)?;
                }
                Some(file.into())
            }
            None if shown || stores_stdout => None,
            None => Some(dev_null()?),
        };
        let (stderr, lines, is_shown) = match self.create_file(dir.as_deref(), "stderr.log", stores_stderr) {
            Some((file, path)) => {
                if tee.stderr && shown {
                    self.follow(&path, local_rank, Console::Err)?;
                }
                (Some(file.into()), LastLines::InFile(path), tee.stderr && shown)
            }
            None if !self.config.keeps_last_lines => (None, LastLines::default(), true),
            None => {
                let (worker_end, agent_end) =
                    stderr_pipe::open().map_err(AgentError::system("create a pipe for standard error"))?;
                let last = LastLines::default();
                let is_shown = shown || stores_stderr;
                self.stderr.follow(Source::Pipe { file: agent_end.into(), last: last.clone(), is_shown });
                (Some(worker_end), last, is_shown)
            }
        };
        self.start.stderr_ends.push((lines, is_shown));
        let error_file = dir.map(|dir| dir.join("error.json"));
        Ok(WorkerLogs { stdout, stderr, error_file })
    }

    /// Creates a file for a stream of a worker, if one is wanted and can be created.
    fn create_file(&self, dir: Option<&Path>, name: &str, is_wanted: bool) -> Option<(File, PathBuf)> {
        let path = dir.filter(|_| is_wanted)?.join(name);
        match create(&path) {
            Ok(file) => Some((file, path)),
            Err(error) => {
                self.error.report(format!("{error}; {TO_CONSOLE}"));
                None
            }
        }
    }

    fn follow(&self, path: &Path, local_rank: u32, to: Console) -> Result<()> {
        let file = File::open(path).map_err(AgentError::file("open", path))?;
        let prefix = self.start.prefixes.get(local_rank as usize).cloned().unwrap_or_default();
        let (tail, filter) = match to {
            Console::Out => (&self.stdout, &self.start.stdout_filter),
            Console::Err => (&self.stderr, &self.start.stderr_filter),
        };
        tail.follow(Source::File { file, prefix, lines: Lines::default(), filter: filter.clone() });
        Ok(())
    }

    /// Returns the last lines that a worker has written to standard error, and whether the console shows them.
    pub(crate) fn last_lines(&self, local_rank: u32) -> (Vec<String>, bool) {
        self.stderr.catch_up();
        let end = self.start.stderr_ends.get(local_rank as usize);
        end.map(|(lines, is_shown)| (lines.lines(), *is_shown)).unwrap_or_default()
    }

    /// Forwards all output of this start, after its workers have ended. Returns whether all tee'd lines were shown.
    ///
    /// Waits as long as the reader of the agent's output keeps reading. Stops waiting if the reader has read nothing
    /// for `stall_timeout`, or if `should_stop` returns true. The rest is then forwarded along with the output of the
    /// next start.
    pub(crate) fn finish(&self, stall_timeout: Duration, mut should_stop: impl FnMut() -> bool) -> bool {
        let tails = [&self.stdout, &self.stderr];
        let flushes = tails.map(|tail| tail.flush(true));
        let waits = tails.into_iter().zip(&flushes);
        waits
            .map(|(tail, flushed)| tail.wait(flushed, stall_timeout, &mut should_stop))
            .fold(true, |all_shown, shown| all_shown & shown)
    }
}

fn create(path: &Path) -> Result<File> {
    File::options().create(true).append(true).open(path).map_err(AgentError::file("create", path))
}

fn dev_null() -> Result<OwnedFd> {
    let path = Path::new("/dev/null");
    let file = File::options().write(true).open(path);
    file.map(OwnedFd::from).map_err(AgentError::file("open", path))
}

#[cfg(test)]
mod tests;
