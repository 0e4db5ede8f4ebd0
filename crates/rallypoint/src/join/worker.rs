//! A node that runs a command: it joins, runs it as its one worker, and ends as it does. Once; who wants it run again after
//! the others have started over calls `rallypoint join` again.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    AssignedRanks, RendezvousError, RendezvousHandler, RendezvousInfo, RoleInfo, assign_ranks,
};
use rustix::process::Signal;

use super::{Node, command, complain, meeting};
use crate::output;

/// The exit code of a node whose round was over before its command was.
const ROUND_OVER: u8 = 6;
/// How long a command that was told to end because the round is over may take.
const GRACE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

impl Node {
    /// Joins and runs a command as the one worker of this node.
    pub(super) fn run(&self, program: &OsStr, arguments: &[OsString]) -> ExitCode {
        let round = match self.join() {
            Ok(round) => round,
            Err(code) => return code,
        };
        let mine = RoleInfo { role: "default".into(), rank: round.rank, local_world_size: 1 };
        let ranks = match self.assign(&round, mine) {
            Ok(ranks) => ranks,
            Err(code) => return code,
        };
        let handler = Arc::clone(&self.handler);
        let environment = command::environment(&*handler, &round, &ranks);
        let mut child = match command::start(program, arguments, &environment) {
            Ok(child) => child,
            Err(error) => {
                output::complain(&format!("rallypoint join: cannot run {program:?}: {error}"));
                meeting::fail(&round);
                self.leave();
                return ExitCode::from(126);
            }
        };
        let (send, ended) = channel();
        let started = child.handle();
        std::thread::spawn(move || send.send(child.wait()));
        self.signals.set_running(true);
        let is_done = Arc::<AtomicBool>::default();
        let over = watch(Arc::clone(&handler), Arc::clone(&is_done));
        let mut told_to_end = None;
        let status = loop {
            match ended.recv_timeout(LOOK) {
                Ok(status) => break status,
                Err(RecvTimeoutError::Disconnected) => return ExitCode::FAILURE,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.signals.signalled.try_iter().for_each(|signal| started.pass_on(signal));
            match told_to_end {
                None if over.try_recv().is_ok() => {
                    tracing::warn!(
                        "other nodes have left round {} and start over; this node's command is told to end, and this node \
                         leaves (run it again to be in the next round)",
                        round.round
                    );
                    started.send(Signal::TERM);
                    let handler = Arc::clone(&handler);
                    told_to_end = Some((Instant::now(), std::thread::spawn(move || drop(handler.leave()))));
                }
                Some((since, _)) if since.elapsed() >= GRACE => started.send(Signal::KILL),
                _ => {}
            }
        };
        is_done.store(true, Ordering::SeqCst);
        self.signals.set_running(false);
        let code = command::exit_code(status);
        if let Some((_, leaving)) = told_to_end {
            meeting::fail(&round);
            let _ = leaving.join();
            return ExitCode::from(if code == 0 { 0 } else { ROUND_OVER });
        }
        let stays_behind = match code {
            0 => meeting::finish(&*handler, &round, || self.signals.signalled.try_recv().is_ok()),
            _ => {
                meeting::fail(&round);
                true
            }
        };
        if stays_behind {
            self.leave();
        }
        ExitCode::from(code)
    }

    /// Learns the ranks of this node's workers, unless a signal comes first.
    fn assign(&self, round: &RendezvousInfo, mine: RoleInfo) -> Result<AssignedRanks, ExitCode> {
        let (store, world_size) = (Arc::clone(&round.store), round.world_size);
        let (send, assigned) = channel();
        std::thread::spawn(move || send.send(assign_ranks(&*store, &mine, world_size)));
        loop {
            match assigned.recv_timeout(LOOK) {
                Ok(Ok(ranks)) => return Ok(ranks),
                Ok(Err(source)) => {
                    let run_id = self.handler.run_id().to_owned();
                    self.leave();
                    return Err(complain(&RendezvousError::Connection { run_id, source }));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(ExitCode::FAILURE),
                Err(RecvTimeoutError::Timeout) => {
                    if let Ok(signal) = self.signals.signalled.try_recv() {
                        self.leave();
                        return Err(ExitCode::from(128 + signal as u8));
                    }
                }
            }
        }
    }
}

/// Watches the round while the command runs; whether it is over comes when it is. A thread of its own, because a store that
/// does not answer must hold up neither signals nor the command's end.
fn watch(handler: Arc<dyn RendezvousHandler>, is_done: Arc<AtomicBool>) -> Receiver<()> {
    let (send, over) = channel();
    std::thread::spawn(move || {
        let (mut said, mut lost) = (false, None);
        while !is_done.load(Ordering::SeqCst) {
            handler.wait_for_change(Duration::from_secs(1));
            // What is wrong with the store is said by the thread that sends heartbeats.
            let Ok(seen) = handler.membership() else { continue };
            if seen.is_round_over {
                let _ = send.send(());
                return;
            }
            lost = super::tell_lost(&seen, lost);
            let waiting = seen.num_nodes_waiting();
            // That this node was dropped has been said.
            if waiting > 0 && !said && !seen.is_dropped {
                tracing::info!(
                    "nodes wait for the next round ({waiting} now); this node goes on until its command has ended"
                );
            }
            said = waiting > 0;
        }
    });
    over
}
