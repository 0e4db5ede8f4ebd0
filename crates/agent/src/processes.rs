//! The processes of the workers: starts them, sends them signals and reaps them. The supervisor decides when.

use std::collections::HashSet;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Instant;

use rallypoint_core::supervise::{Exit, LocalRank, Signal, Target};
use rustix::process::{
    Pid, Signal as RawSignal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, wait,
    waitpid,
};

use crate::exec::{EXEC_FAILED_CODE, ExecErrors};
use crate::guard;
use crate::signal_name::signal_name;
use crate::worker::WorkerPlan;

/// The workers of this node.
pub(crate) struct Processes {
    /// The socket for errors of processes that could not execute their program.
    errors: ExecErrors,
    /// Whether this process has an outer process. If so, this process is a child subreaper, and each worker has its own
    /// session.
    is_guarded: bool,
    running: Vec<Running>,
}

struct Running {
    local_rank: LocalRank,
    child: Child,
    since: Instant,
    /// Whether the agent has sent the worker a signal.
    stopped: bool,
}

/// A worker that has exited.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) local_rank: LocalRank,
    pub(crate) pid: u32,
    pub(crate) ran: std::time::Duration,
    /// Whether the agent had sent the worker a signal. Then its exit code does not count as a failure.
    pub(crate) stopped: bool,
    /// How the worker exited, or why its program could not be executed.
    pub(crate) exit: Result<Exit, io::Error>,
}

impl Processes {
    pub(crate) fn new() -> io::Result<Processes> {
        Ok(Processes { errors: ExecErrors::open()?, is_guarded: guard::is_agent(), running: Vec::new() })
    }

    /// Starts a worker and returns its process id. The kernel kills the worker when the calling thread ends.
    ///
    /// Without an outer process, the worker has its own process group, so that a signal reaches everything that it has
    /// started. If standard input is a terminal, the worker stays in this process's group, because only the foreground
    /// process group can read the terminal.
    pub(crate) fn start(&mut self, plan: WorkerPlan) -> io::Result<u32> {
        let mut command = self.errors.command(&plan.program, self.is_guarded);
        if !self.is_guarded && !shares_terminal() {
            command.process_group(0);
        }
        command.args(&plan.args).envs(plan.environment.iter().map(|(name, value)| (name, value)));
        if let Some(file) = plan.stdout {
            command.stdout(Stdio::from(file));
        }
        if let Some(file) = plan.stderr {
            command.stderr(Stdio::from(file));
        }
        let child = command.spawn()?;
        let pid = child.id();
        self.running.push(Running {
            local_rank: LocalRank(plan.local_rank),
            child,
            since: Instant::now(),
            stopped: false,
        });
        Ok(pid)
    }

    /// Returns the workers that have exited since the last call, and whether no process is left. Without an outer
    /// process, only workers count, because this process does not adopt the processes that workers leave behind.
    pub(crate) fn reap(&mut self) -> (Vec<Ended>, bool) {
        let mut ended = Vec::new();
        if !self.is_guarded {
            for index in (0..self.running.len()).rev() {
                let pid = Pid::from_child(&self.running[index].child);
                if let Ok(Some((pid, status))) = waitpid(Some(pid), WaitOptions::NOHANG) {
                    ended.extend(self.take_ended(pid, status));
                }
            }
            ended.sort_by_key(|worker| worker.local_rank);
            return (ended, self.running.is_empty());
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => ended.extend(self.take_ended(pid, status)),
                Ok(None) => return (ended, false),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return (ended, true),
            }
        }
    }

    /// Removes the worker with this process id, which has exited, and returns it. Returns `None` if the process was not
    /// a worker.
    fn take_ended(&mut self, pid: Pid, status: WaitStatus) -> Option<Ended> {
        let pid = pid.as_raw_nonzero().get() as u32;
        let index = self.running.iter().position(|worker| worker.child.id() == pid)?;
        let worker = self.running.remove(index);
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(Signal(signal)),
            (None, None) => Exit::Code(1),
        };
        let exec_error = match exit {
            Exit::Code(EXEC_FAILED_CODE) => self.errors.take(pid),
            _ => None,
        };
        Some(Ended {
            local_rank: worker.local_rank,
            pid,
            ran: worker.since.elapsed(),
            stopped: worker.stopped,
            exit: exec_error.map_or(Ok(exit), Err),
        })
    }

    /// Sends a signal to a worker and its process group, or to the processes that workers have left behind.
    pub(crate) fn send(&mut self, target: Target, Signal(number): Signal) {
        let Some(signal) = RawSignal::from_named_raw(number) else { return };
        // The terminal sends these signals to all processes of the foreground process group, so the workers get them
        // without the agent.
        if [RawSignal::INT, RawSignal::QUIT].contains(&signal) && !self.is_guarded && shares_terminal() {
            return;
        }
        match target {
            Target::Worker(local_rank) => {
                let worker = self.running.iter_mut().find(|worker| worker.local_rank == local_rank);
                if let Some(worker) = worker {
                    let pid = Pid::from_child(&worker.child);
                    worker.stopped = true;
                    log_signal(pid, number);
                    // The worker may have no process group of its own, or not yet.
                    if kill_process_group(pid, signal).is_err() {
                        let _ = kill_process(pid, signal);
                    }
                }
            }
            Target::Orphans => {
                let workers: HashSet<Pid> =
                    self.running.iter().map(|worker| Pid::from_child(&worker.child)).collect();
                for process in guard::descendants(getpid()) {
                    if !workers.contains(&process.pid) {
                        guard::send(&process, signal);
                    }
                }
            }
        }
    }

    /// Returns the running workers with their process ids.
    pub(crate) fn running(&self) -> impl Iterator<Item = (LocalRank, u32)> {
        self.running.iter().map(|worker| (worker.local_rank, worker.child.id()))
    }
}

/// Returns whether workers without their own session share a terminal with this process.
fn shares_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Logs a signal with torch's wording, which users search for.
fn log_signal(pid: Pid, number: i32) {
    let (pid, name) = (pid.as_raw_nonzero(), signal_name(number).unwrap_or("<N/A>"));
    match number {
        9 => tracing::warn!("Unable to shutdown process {pid} in time, forcefully exiting via {name}"),
        _ => tracing::warn!("Sending process {pid} closing signal {name}"),
    }
}

/// Kills the remaining workers, because no process watches them any more.
impl Drop for Processes {
    fn drop(&mut self) {
        for worker in &self.running {
            let _ = kill_process_group(Pid::from_child(&worker.child), RawSignal::KILL);
        }
    }
}
