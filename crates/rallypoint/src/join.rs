//! `rallypoint join`: one node of a rendezvous, from the shell. It runs at most one command, once; restarting workers is
//! the launcher's work.

mod arguments;
mod command;
mod progress;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    AssignedRanks, DynamicRendezvousHandler, RendezvousError, RendezvousHandler, RendezvousInfo,
    RendezvousParameters, RoleInfo, StaticRendezvousHandler, assign_ranks, rendezvous_handler_registry,
};
use rallypoint_store::StoreError;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) use arguments::JoinArgs;
use progress::Progress;

use crate::output;

/// How long a node that has finished waits for the others, as torch's agents do.
const EXIT_BARRIER: Duration = Duration::from_secs(300);

pub(crate) fn run(args: JoinArgs) -> ExitCode {
    let parameters = match args.parameters() {
        Ok(parameters) => parameters,
        Err(error) => return complain(&error),
    };
    let signals = match Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT]) {
        Ok(signals) => signals,
        Err(error) => {
            output::complain(&format!("rallypoint join: cannot handle signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let progress = Arc::new(Progress::new(&parameters));
    let handler = match create(&parameters, &progress) {
        Ok(handler) => handler,
        Err(error) => return complain(&error),
    };
    let node = Node { handler, progress, signal: Arc::default() };
    let signalled = node.listen(signals);
    match args.command.split_first() {
        None => node.stay(&signalled),
        Some((program, arguments)) => node.run(program, arguments, &signalled),
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
    /// The first signal that came; 0 if none has.
    signal: Arc<AtomicI32>,
}

impl Node {
    /// Passes signals on. The first one also ends a wait for the others.
    fn listen(&self, mut signals: Signals) -> Receiver<i32> {
        let (send, signalled) = channel();
        let (handler, first) = (Arc::clone(&self.handler), Arc::clone(&self.signal));
        std::thread::spawn(move || {
            for signal in signals.forever() {
                let _ = first.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
                handler.interrupt();
                if send.send(signal).is_err() {
                    return;
                }
            }
        });
        signalled
    }

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
                output::say(format!("{line}\n")).map(|()| round)
            }
            Err(RendezvousError::GracefulExit { .. }) => {
                tracing::info!("the job has ended; this node was a spare and was not needed");
                Err(ExitCode::SUCCESS)
            }
            Err(RendezvousError::Interrupted { .. }) => {
                tracing::info!("left the rendezvous on a signal");
                Err(ExitCode::from(128 + self.signal.load(Ordering::SeqCst) as u8))
            }
            Err(error) => Err(complain(&error)),
        }
    }

    /// Stays in the rendezvous, through as many rounds as it takes, until a signal.
    fn stay(&self, signalled: &Receiver<i32>) -> ExitCode {
        loop {
            let round = match self.join() {
                Ok(round) => round,
                Err(code) => return code,
            };
            // Nodes that run workers wait for everybody's numbers; this one has none.
            let assigning = self.take_part(&round);
            if let Err(code) = self.watch(signalled) {
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
            if let Err(error) = assign_ranks(&*store, &mine, world_size) {
                tracing::debug!("ranks of workers were not assigned: {error}");
            }
        })
    }

    /// Watches a round until it is to be started over.
    fn watch(&self, signalled: &Receiver<i32>) -> Result<(), ExitCode> {
        loop {
            self.handler.wait_for_change(Duration::from_secs(1));
            if signalled.try_recv().is_ok() {
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
                    return Err(ExitCode::SUCCESS);
                }
                Ok((false, 0)) => {}
                Ok((false, _)) => return Ok(()),
                Err(error) => return Err(complain(&error)),
            }
        }
    }

    /// Joins and runs a command as the one worker of this node.
    fn run(&self, program: &str, arguments: &[String], signalled: &Receiver<i32>) -> ExitCode {
        let round = match self.join() {
            Ok(round) => round,
            Err(code) => return code,
        };
        let mine = RoleInfo { role: "default".into(), rank: round.rank, local_world_size: 1 };
        let ranks = match self.assign(&round, mine, signalled) {
            Ok(ranks) => ranks,
            Err(code) => return code,
        };
        let environment = command::environment(&*self.handler, &round, &ranks);
        let mut child = match command::start(program, arguments, &environment) {
            Ok(child) => child,
            Err(error) => {
                output::complain(&format!("rallypoint join: cannot run {program:?}: {error}"));
                let _ = self.handler.leave();
                return ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 });
            }
        };
        let (send, ended) = channel();
        let pid = child.id();
        std::thread::spawn(move || send.send(child.wait()));
        let status = loop {
            match ended.recv_timeout(Duration::from_millis(20)) {
                Ok(status) => break status,
                Err(RecvTimeoutError::Timeout) => {
                    signalled.try_iter().for_each(|signal| command::send_signal(pid, signal));
                }
                Err(RecvTimeoutError::Disconnected) => return ExitCode::FAILURE,
            }
        };
        let code = command::exit_code(status);
        match code {
            0 => self.finish(&round, signalled),
            _ => {
                if let Err(error) = self.handler.leave() {
                    tracing::warn!("could not leave the rendezvous: {error}");
                }
            }
        }
        ExitCode::from(code)
    }

    /// Learns the ranks of this node's workers, unless a signal comes first.
    fn assign(
        &self,
        round: &RendezvousInfo,
        mine: RoleInfo,
        signalled: &Receiver<i32>,
    ) -> Result<AssignedRanks, ExitCode> {
        let (store, world_size) = (Arc::clone(&round.store), round.world_size);
        let (send, assigned) = channel();
        std::thread::spawn(move || send.send(assign_ranks(&*store, &mine, world_size)));
        loop {
            match assigned.recv_timeout(Duration::from_millis(20)) {
                Ok(Ok(ranks)) => return Ok(ranks),
                Ok(Err(source)) => {
                    let run_id = self.handler.run_id().to_owned();
                    return Err(complain(&RendezvousError::Connection { run_id, source }));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(ExitCode::FAILURE),
                Err(RecvTimeoutError::Timeout) => {
                    if let Ok(signal) = signalled.try_recv() {
                        let _ = self.handler.leave();
                        return Err(ExitCode::from(128 + signal as u8));
                    }
                }
            }
        }
    }

    /// The command has succeeded here: waits until it has everywhere, because one of the nodes hosts the store. The last one
    /// closes the rendezvous. Torch's agents meet at the same keys.
    fn finish(&self, round: &RendezvousInfo, signalled: &Receiver<i32>) {
        const MEETING: &str = "torchelastic/agent/terminal_state";
        let (count, last) = (format!("{MEETING}/num_members"), format!("{MEETING}/last_member"));
        let meet = || {
            let store = &*round.store;
            if store.add(&count, 1)? == round.world_size as i64 {
                // Now, while whoever hosts the store is still waiting. All have finished, so nobody joins again.
                if let Err(error) = self.handler.set_closed() {
                    tracing::warn!("could not close the rendezvous: {error}");
                }
                store.set(&last, b"<val_ignored>")?;
            }
            let deadline = Instant::now() + EXIT_BARRIER;
            loop {
                match store.wait_for(&[&last], Duration::from_millis(500)) {
                    Err(StoreError::Timeout { .. })
                        if Instant::now() < deadline && signalled.try_recv().is_err() => {}
                    other => return other,
                }
            }
        };
        if let Err(error) = meet() {
            tracing::warn!("not all nodes have finished: {error}");
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
