//! The workers' output: where each stream goes, and that all of it gets there. Folders are torch's (`logs/folder.rs`);
//! what is shown on the way is passed on by a thread for each stream (`logs/tail.rs`).
//!
//! A redirected stream is a file that the worker writes itself, so that nothing is lost with the agent. Standard error that
//! is not redirected goes through the agent, which keeps the last lines for the failure report.

mod folder;
mod last_lines;
mod lines;
mod passage;
mod tail;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{LaunchConfig, LogsConfig};
use crate::error::{AgentError, Result};
use crate::host;
use crate::placement::Placement;
use crate::template::substitute;

pub(crate) use folder::random_letters;
pub use folder::{Folder, remove_unused};
use last_lines::LastLines;
use tail::{Console, Followed, Tail};

/// The logs of a run, from its first start to its last.
#[derive(Debug)]
pub struct Logs {
    config: LogsConfig,
    role: String,
    workers: u32,
    folder: Folder,
    /// How something is shown.
    show: fn(Console, &[u8]) -> bool,
}

impl Logs {
    /// Makes the folder of this run. What can't be written is found out here, before anything is started.
    pub fn create(config: &LaunchConfig) -> Result<Logs> {
        Ok(Logs {
            config: config.logs.clone(),
            role: config.role.clone(),
            workers: config.nproc_per_node,
            folder: Folder::create(&config.logs.dir, &config.rendezvous.run_id)?,
            show: tail::show,
        })
    }

    /// The folder of this run.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Prepares a start: folders for all workers, and whoever passes on what they write.
    pub fn start(&mut self, placement: &Placement) -> Result<Attempt> {
        let dir = self.folder.attempt(placement.restart_count, self.workers)?;
        let filtered = |wanted: &[String], name: &str| -> Result<Option<Filter>> {
            match (wanted, &dir) {
                ([], _) | (_, None) => Ok(None),
                (wanted, Some(dir)) => {
                    let file = create(&dir.join(name))?;
                    Ok(Some(Filter { file, wanted: wanted.to_vec() }))
                }
            }
        };
        let stdout = filtered(&self.config.stdout_filters, "filtered_stdout.log")?;
        let stderr = filtered(&self.config.stderr_filters, "filtered_stderr.log")?;
        let prefixes = (0..self.workers).map(|local_rank| self.prefix(placement, local_rank)).collect();
        let stdout = Tail::start(Console::Out, stdout, self.show)?;
        let stderr = Tail::start(Console::Err, stderr, self.show)?;
        Ok(Attempt { config: self.config.clone(), dir, prefixes, stdout, stderr, errors: Vec::new() })
    }

    /// What is put before a tee'd line.
    fn prefix(&self, placement: &Placement, local_rank: u32) -> Vec<u8> {
        match &self.config.prefix_template {
            None => format!("[{}{local_rank}]:", self.role).into_bytes(),
            Some(template) => substitute(
                template.as_bytes(),
                &[
                    ("role_name", &self.role),
                    ("rank", &placement.rank(local_rank).to_string()),
                    ("local_rank", &local_rank.to_string()),
                    ("hostname", &host::short_name()),
                ],
            ),
        }
    }
}

/// Lines with one of some texts in them also go to a file.
#[derive(Debug)]
struct Filter {
    file: File,
    wanted: Vec<String>,
}

/// The logs of one start.
#[derive(Debug)]
pub struct Attempt {
    config: LogsConfig,
    dir: Option<PathBuf>,
    prefixes: Vec<Vec<u8>>,
    stdout: Tail,
    stderr: Tail,
    /// Where each worker's standard error can be read again, and whether it is shown on the console.
    errors: Vec<(u32, LastLines, bool)>,
}

/// Where one worker's streams go.
#[derive(Debug)]
pub struct WorkerLogs {
    /// Its standard output; inherited if there is none.
    pub stdout: Option<OwnedFd>,
    /// Its standard error.
    pub stderr: Option<OwnedFd>,
    /// Where it is to write what went wrong.
    pub error_file: Option<PathBuf>,
}

impl Attempt {
    /// The streams of one worker, once.
    pub fn worker(&mut self, local_rank: u32) -> Result<WorkerLogs> {
        let dir = self.dir.as_ref().map(|dir| dir.join(local_rank.to_string()));
        let (redirects, tee) = (self.config.redirects.of(local_rank), self.config.tee.of(local_rank));
        let shown = self.config.shown_ranks.as_ref().is_none_or(|ranks| ranks.contains(&local_rank));
        let stdout = match &dir {
            Some(dir) if redirects.stdout || tee.stdout => {
                let path = dir.join("stdout.log");
                let file = create(&path)?;
                if tee.stdout && shown {
                    self.follow(&path, local_rank, Console::Out)?;
                }
                Some(file.into())
            }
            _ if dir.is_some() && !shown => Some(nowhere()?),
            _ => None,
        };
        let (stderr, last, is_shown) = match &dir {
            Some(dir) if redirects.stderr || tee.stderr => {
                let path = dir.join("stderr.log");
                let file = create(&path)?;
                if tee.stderr && shown {
                    self.follow(&path, local_rank, Console::Err)?;
                }
                (file.into(), LastLines::in_file(path), tee.stderr && shown)
            }
            _ => {
                let (theirs, ours) = passage::open().map_err(|source| {
                    let doing = "make a pipe for standard error".into();
                    AgentError::System { doing, source }
                })?;
                let kept = LastLines::default();
                let is_shown = dir.is_none() || shown;
                self.stderr.add(Followed::passage(ours, kept.clone(), is_shown));
                (theirs, kept, is_shown)
            }
        };
        self.errors.push((local_rank, last, is_shown));
        let error_file = dir.map(|dir| dir.join("error.json"));
        Ok(WorkerLogs { stdout, stderr: Some(stderr), error_file })
    }

    fn follow(&mut self, path: &Path, local_rank: u32, to: Console) -> Result<()> {
        let file = File::open(path).map_err(|source| AgentError::File {
            doing: "open",
            path: path.to_owned(),
            source,
        })?;
        let prefix = self.prefixes.get(local_rank as usize).cloned().unwrap_or_default();
        let tail = if to == Console::Out { &self.stdout } else { &self.stderr };
        tail.add(Followed::file(file, prefix));
        Ok(())
    }

    /// Returns the last lines that a worker wrote to standard error up to now, and whether the console shows them.
    pub fn last_lines(&self, local_rank: u32) -> (Vec<String>, bool) {
        // What has come but was not read yet is read first.
        self.stderr.catch_up();
        let of = self.errors.iter().find(|(rank, ..)| *rank == local_rank);
        of.map(|(_, last, is_shown)| (last.lines(), *is_shown)).unwrap_or_default()
    }

    /// Whether all was passed on, after it was finished.
    pub fn is_done(&self) -> bool {
        self.stdout.is_done() && self.stderr.is_done()
    }

    /// The workers have ended: passes on all that they wrote, for as long as it takes; but if nobody takes anything, no longer
    /// than `patience`, or until `is_enough`. How many tee'd lines were not shown.
    pub fn finish(&self, patience: Duration, mut is_enough: impl FnMut() -> bool) -> u64 {
        let tails = [&self.stdout, &self.stderr];
        tails.iter().for_each(|tail| tail.stop());
        tails.iter().map(|tail| tail.wait(patience, &mut is_enough)).sum()
    }
}

fn create(path: &Path) -> Result<File> {
    File::options().create(true).append(true).open(path).map_err(|source| AgentError::File {
        doing: "create",
        path: path.to_owned(),
        source,
    })
}

fn nowhere() -> Result<OwnedFd> {
    let path = PathBuf::from("/dev/null");
    let file = File::options().write(true).open(&path);
    file.map(OwnedFd::from).map_err(|source| AgentError::File { doing: "open", path, source })
}

#[cfg(test)]
mod tests;
