//! `rallypoint join`: one node of a rendezvous, from the shell. It runs at most one command, once; restarting workers is
//! the launcher's work.

mod arguments;
mod command;
mod meeting;
mod signals;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rallypoint_rendezvous::{
    AssignedRanks, DynamicRendezvousHandler, RendezvousError, RendezvousHandler, RendezvousInfo,
    RendezvousParameters, RoleInfo, StaticRendezvousHandler, assign_ranks, rendezvous_handler_registry,
};
use serde_json::json;

pub(crate) use arguments::JoinArgs;
use signals::Listener;

use crate::output;
use crate::progress::Progress;

/// How long the host of the store stays when the rendezvous was closed: the others look once a second.
const LINGER: Duration = Duration::from_millis(1500);

pub(crate) fn run(args: JoinArgs) -> ExitCode {
    let parameters = match args.parameters() {
        Ok(parameters) => parameters,
        Err(error) => return complain(&error),
    };
    let signals = match Listener::start() {
        Ok(signals) => signals,
        Err(error) => {
            output::complain(&format!("rallypoint join: cannot handle signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let progress = Arc::new(Progress::new(&parameters.run_id));
    let handler = match create(&parameters, &progress) {
        Ok(handler) => handler,
        Err(error) => return complain(&error),
    };
    signals.set_handler(Arc::clone(&handler));
    let node = Node { handler, progress, signals };
    match args.command.split_first() {
        None => node.stay(),
        Some((program, arguments)) => node.run(program, arguments),
    }
}

fn create(
    parameters: &RendezvousParameters,
    progress: &Arc<Progress>,
) -> Result<Arc<dyn RendezvousHandler>, RendezvousError> {
    Ok(match parameters.backend.as_str() {
        "c10d" => Arc::new(DynamicRendezvousHandler::create(parameters, Some(Arc::clone(progress) as _))?),
        "static" => Arc::new(StaticRendezvousHandler::create(parameters)?),
        _ => Arc::from(rendezvous_handler_registry().create_handler(parameters)?),
    })
}

struct Node {
    handler: Arc<dyn RendezvousHandler>,
    progress: Arc<Progress>,
    signals: Listener,
}

impl Node {
    /// Joins, and says so on standard output.
    fn join(&self) -> Result<RendezvousInfo, ExitCode> {
        let joined = self.handler.next_rendezvous();
        self.progress.end();
        match joined {
            Ok(round) => {
                let place = &round.bootstrap_store_info;
                let participants: Vec<_> = round
                    .participants
                    .iter()
                    .map(|node| json!({"addr": &*node.addr, "pid": node.pid, "local_id": node.local_id}))
                    .collect();
                let line = json!({
                    "run_id": self.handler.run_id(),
                    "round": round.round,
                    "rank": round.rank,
                    "world_size": round.world_size,
                    "master_addr": place.master_addr,
                    "master_port": place.master_port,
                    "participants": participants,
                });
                output::say(format!("{line}\n")).map(|()| round).inspect_err(|_| self.leave())
            }
            Err(RendezvousError::GracefulExit { .. }) => {
                tracing::info!("the job has ended; this node was a spare and was not needed");
                self.linger();
                Err(ExitCode::SUCCESS)
            }
            Err(RendezvousError::Interrupted { .. }) => {
                tracing::info!("left the rendezvous on a signal");
                Err(ExitCode::from(128 + self.signals.first() as u8))
            }
            Err(error) => {
                // It may have been in the round already.
                if matches!(error, RendezvousError::NoMaster { .. }) {
                    self.leave();
                }
                Err(complain(&error))
            }
        }
    }

    /// This node, and it alone, is to be out of the rendezvous.
    fn leave(&self) {
        if let Err(error) = self.handler.leave() {
            tracing::warn!("could not leave the rendezvous: {error}");
        }
    }

    /// It is over, but the others must be able to see that.
    fn linger(&self) {
        if self.handler.hosts_store() {
            let _ = self.signals.signalled.recv_timeout(LINGER);
        }
    }

    /// Stays in the rendezvous, through as many rounds as it takes, until a signal.
    fn stay(&self) -> ExitCode {
        loop {
            let round = match self.join() {
                Ok(round) => round,
                Err(code) => return code,
            };
            // Nodes that run workers wait for everybody's numbers; this one has none.
            let assigning = self.take_part(&round);
            if let Err(code) = self.watch() {
                return code;
            }
            // It ends with the round: what it waits for, if it does, will not come.
            drop(assigning);
        }
    }

    fn take_part(&self, round: &RendezvousInfo) -> std::thread::JoinHandle<()> {
        let (store, rank, world_size) = (Arc::clone(&round.store), round.rank, round.world_size);
        std::thread::spawn(move || {
            let mine = RoleInfo { role: "default".into(), rank, local_world_size: 0 };
            let taken = meeting::count_as_finished(&*store);
            if let Err(error) = taken.and_then(|()| assign_ranks(&*store, &mine, world_size)) {
                tracing::debug!("ranks of workers were not assigned: {error}");
            }
        })
    }

    /// Watches a round until it is to be started over.
    fn watch(&self) -> Result<(), ExitCode> {
        loop {
            self.handler.wait_for_change(Duration::from_secs(1));
            if self.signals.signalled.try_recv().is_ok() {
                return Err(match self.handler.leave() {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => complain(&error),
                });
            }
            let seen =
                self.handler.is_closed().and_then(|closed| Ok((closed, self.handler.num_nodes_waiting()?)));
            match seen {
                Ok((true, _)) => {
                    tracing::info!("the rendezvous was closed");
                    self.linger();
                    return Err(ExitCode::SUCCESS);
                }
                Ok((false, 0)) => {}
                Ok((false, _)) => return Ok(()),
                Err(error) => return Err(complain(&error)),
            }
        }
    }

    /// Joins and runs a command as the one worker of this node.
    fn run(&self, program: &str, arguments: &[String]) -> ExitCode {
        let round = match self.join() {
            Ok(round) => round,
            Err(code) => return code,
        };
        let mine = RoleInfo { role: "default".into(), rank: round.rank, local_world_size: 1 };
        let ranks = match self.assign(&round, mine) {
            Ok(ranks) => ranks,
            Err(code) => return code,
        };
        let environment = command::environment(&*self.handler, &round, &ranks);
        let mut child = match command::start(program, arguments, &environment) {
            Ok(child) => child,
            Err(error) => {
                output::complain(&format!("rallypoint join: cannot run {program:?}: {error}"));
                meeting::fail(&round);
                self.leave();
                return ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 });
            }
        };
        let (send, ended) = channel();
        let pid = child.id();
        std::thread::spawn(move || send.send(child.wait()));
        self.signals.set_running(true);
        let status = loop {
            match ended.recv_timeout(Duration::from_millis(20)) {
                Ok(status) => break status,
                Err(RecvTimeoutError::Timeout) => {
                    self.signals.signalled.try_iter().for_each(|signal| command::send_signal(pid, signal));
                }
                Err(RecvTimeoutError::Disconnected) => return ExitCode::FAILURE,
            }
        };
        self.signals.set_running(false);
        let code = command::exit_code(status);
        let stays_behind = match code {
            0 => meeting::finish(&*self.handler, &round, || self.signals.signalled.try_recv().is_ok()),
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
            match assigned.recv_timeout(Duration::from_millis(20)) {
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

/// Says what went wrong; the exit code for it.
fn complain(error: &RendezvousError) -> ExitCode {
    for line in error.to_string().lines() {
        output::complain(&format!("rallypoint join: {line}"));
    }
    ExitCode::from(match error {
        RendezvousError::Parameters(_) => {
            output::complain("hint: `rallypoint join --help` shows the options with examples");
            2
        }
        RendezvousError::Closed { .. } => 3,
        RendezvousError::Timeout { .. } | RendezvousError::StaticTimeout { .. } => 4,
        RendezvousError::Connection { .. } => {
            output::complain(
                "hint: is the node of the endpoint up, and do all nodes name the same endpoint?",
            );
            5
        }
        _ => 1,
    })
}
