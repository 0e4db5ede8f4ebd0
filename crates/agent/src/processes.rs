//! The workers as processes: started, sent signals, seen when they end. When to do what is decided elsewhere.

use std::collections::HashSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rallypoint_core::supervise::{Exit, LocalRank, Signal, Target};
use rustix::process::{
    Pid, Signal as RawSignal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, wait,
    waitpid,
};

use crate::entrance::{Door, NOT_A_WORKER};
use crate::guard::{self, Guard};
use crate::signal_name::signal_name;
use crate::worker::WorkerPlan;

/// The workers of this node.
pub(crate) struct Processes {
    /// Where those are heard of that did not become workers. Without a guard there is none: then workers are started
    /// directly, and what they leave behind is not seen.
    door: Option<Door>,
    running: Vec<Running>,
}

struct Running {
    local_rank: LocalRank,
    child: Child,
    since: Instant,
    /// Whether the agent has sent it a signal.
    stopped: bool,
}

/// A worker that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) local_rank: LocalRank,
    pub(crate) pid: u32,
    pub(crate) ran: std::time::Duration,
    /// Whether the agent had sent it a signal. Its exit code then is no failure of the worker.
    pub(crate) stopped: bool,
    /// Or that never was one.
    pub(crate) exit: Result<Exit, io::Error>,
}

impl Processes {
    pub(crate) fn new(guard: Option<&Guard>) -> io::Result<Processes> {
        let door = guard.map(|_| Door::open()).transpose()?;
        Ok(Processes { door, running: Vec::new() })
    }

    /// Starts a worker, in a session of its own; its process id. From a thread that outlives it.
    pub(crate) fn start(&mut self, plan: WorkerPlan) -> io::Result<u32> {
        let mut command = match &self.door {
            Some(door) => door.command(&plan.program),
            None => {
                let mut command = Command::new(&plan.program);
                command.process_group(0);
                command
            }
        };
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

    /// Those that have ended since it was last asked, and whether nothing is left now.
    pub(crate) fn reap(&mut self) -> (Vec<Ended>, bool) {
        let mut ended = Vec::new();
        if self.door.is_none() {
            for index in (0..self.running.len()).rev() {
                let pid = Pid::from_child(&self.running[index].child);
                if let Ok(Some((pid, status))) = waitpid(Some(pid), WaitOptions::NOHANG) {
                    ended.extend(self.buried(pid, status));
                }
            }
            ended.sort_by_key(|worker| worker.local_rank);
            return (ended, self.running.is_empty());
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => ended.extend(self.buried(pid, status)),
                Ok(None) => return (ended, false),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return (ended, true),
            }
        }
    }

    /// A process has ended; the worker that it was, if it was one.
    fn buried(&mut self, pid: Pid, status: WaitStatus) -> Option<Ended> {
        let pid = pid.as_raw_nonzero().get() as u32;
        let index = self.running.iter().position(|worker| worker.child.id() == pid)?;
        let worker = self.running.remove(index);
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(Signal(signal)),
            (None, None) => Exit::Code(1),
        };
        let unborn = match (&self.door, exit) {
            (Some(door), Exit::Code(NOT_A_WORKER)) => door.heard_of(pid),
            _ => None,
        };
        Some(Ended {
            local_rank: worker.local_rank,
            pid,
            ran: worker.since.elapsed(),
            stopped: worker.stopped,
            exit: unborn.map_or(Ok(exit), Err),
        })
    }

    /// Sends a signal to a worker and all of its process group, or to what workers have left behind.
    pub(crate) fn send(&mut self, target: Target, Signal(number): Signal) {
        let Some(signal) = RawSignal::from_named_raw(number) else { return };
        match target {
            Target::Worker(local_rank) => {
                let worker = self.running.iter_mut().find(|worker| worker.local_rank == local_rank);
                if let Some(worker) = worker {
                    let pid = Pid::from_child(&worker.child);
                    worker.stopped = true;
                    tell(pid, number);
                    // It may not have come so far as to have a group.
                    if kill_process_group(pid, signal).is_err() {
                        let _ = kill_process(pid, signal);
                    }
                }
            }
            Target::Strays => {
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

    /// The process ids of those that run, each with its local rank.
    pub(crate) fn running(&self) -> impl Iterator<Item = (LocalRank, u32)> {
        self.running.iter().map(|worker| (worker.local_rank, worker.child.id()))
    }
}

/// In torch's words, which people look for.
fn tell(pid: Pid, number: i32) {
    let (pid, name) = (pid.as_raw_nonzero(), signal_name(number).unwrap_or("<N/A>"));
    match number {
        9 => tracing::warn!("Unable to shutdown process {pid} in time, forcefully exiting via {name}"),
        _ => tracing::warn!("Sending process {pid} closing signal {name}"),
    }
}

/// A process of ours that is no longer watched by anybody must not be left.
impl Drop for Processes {
    fn drop(&mut self) {
        for worker in &self.running {
            let _ = kill_process_group(Pid::from_child(&worker.child), RawSignal::KILL);
        }
    }
}
