//! `rallypoint join`: one node of a rendezvous, from the shell. It runs at most one command, once; restarting workers is
//! the launcher's work.

mod arguments;
mod command;
mod meeting;
mod signals;
mod worker;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    DynamicRendezvousHandler, Membership, NodeDesc, RendezvousError, RendezvousHandler, RendezvousInfo,
    RendezvousParameters, RoleInfo, StaticRendezvousHandler, assign_ranks, rendezvous_handler_registry,
    role_infos,
};
use rallypoint_store::StoreError;
use serde_json::json;

pub(crate) use arguments::JoinArgs;
pub(crate) use command::{BECOME, become_command};
use signals::Listener;
pub(crate) use signals::is_ignored;

use crate::output;
use crate::progress::Progress;
use crate::waiting::Waiting;

/// How long the host of the store stays when the rendezvous was closed: the others look once a second.
const LINGER: Duration = Duration::from_millis(1500);
/// So long after a round has formed its nodes may take to say who has workers. Some never do.
const SAYING: Duration = Duration::from_secs(3);

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
    // While a TCP store can't be reached, `progress` reports why.
    let _waiting = parameters.uses_file().then(|| {
        Waiting::show(format!("looking for the store of the rendezvous at {}", parameters.endpoint))
    });
    Ok(match parameters.backend.as_str() {
        "c10d" => {
            let handler = DynamicRendezvousHandler::create(parameters, Some(Arc::clone(progress) as _), None);
            progress.end();
            Arc::new(handler?)
        }
        "static" => {
            Arc::new(StaticRendezvousHandler::create(parameters)?.with_observer(Arc::clone(progress) as _))
        }
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
                tracing::warn!(
                    "this node ran no workers: the job {:?} ended while it was a spare",
                    self.handler.run_id()
                );
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
            let with_workers = self.take_part(&round);
            if let Err(code) = self.watch(&with_workers) {
                return code;
            }
        }
    }

    /// Nodes that run workers wait for everybody's numbers, and this one has none. Who has workers comes when all have said
    /// how many. It ends with the round: what it waits for then will not come.
    fn take_part(&self, round: &RendezvousInfo) -> Arc<OnceLock<Vec<NodeDesc>>> {
        let with_workers = Arc::<OnceLock<_>>::default();
        let (found, round) = (Arc::clone(&with_workers), round.clone());
        std::thread::spawn(move || {
            let (store, rank) = (&*round.store, round.rank);
            let mine = RoleInfo { role: "default".into(), rank, local_world_size: 0 };
            let taken = meeting::come_without_workers(store, rank);
            let taken = taken.and_then(|()| assign_ranks(store, &mine, round.world_size));
            match taken.and_then(|_| role_infos(store, round.world_size)) {
                Ok(infos) => {
                    let nodes = round.participants.into_iter().zip(infos);
                    let nodes = nodes.filter(|(_, info)| info.local_world_size > 0).map(|(node, _)| node);
                    let _ = found.set(nodes.collect());
                }
                Err(error) => tracing::debug!("ranks of workers were not assigned: {error}"),
            }
        });
        with_workers
    }

    /// Watches a round until it is to be started over. Where others have workers in it that is theirs to decide: they would
    /// lose them. A node that was dropped from it has nothing to wait for.
    fn watch(&self, with_workers: &OnceLock<Vec<NodeDesc>>) -> Result<(), ExitCode> {
        let handler = &self.handler;
        let (joined, mut said, mut lost) = (Instant::now(), false, None);
        loop {
            handler.wait_for_change(Duration::from_secs(1));
            if self.signals.signalled.try_recv().is_ok() {
                return Err(match handler.leave() {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => complain(&error),
                });
            }
            let seen = match handler.membership() {
                Ok(seen) => seen,
                Err(error) => return Err(complain(&error)),
            };
            lost = tell_lost(&seen, lost);
            match seen.num_nodes_waiting() {
                _ if seen.is_closed => {
                    tracing::info!("the rendezvous was closed");
                    self.linger();
                    return Err(ExitCode::SUCCESS);
                }
                0 => said = false,
                waiting => {
                    let would_lose = match with_workers.get() {
                        Some(nodes) => nodes.iter().any(|node| !seen.is_gone(node)),
                        // They may be about to say so.
                        None => joined.elapsed() < SAYING,
                    };
                    if seen.is_dropped || !would_lose || seen.is_round_over {
                        return Ok(());
                    }
                    if !said && with_workers.get().is_some() {
                        tracing::info!(
                            "nodes wait for the next round ({waiting} now); it begins when those with a command end or start over"
                        );
                    }
                    said = with_workers.get().is_some();
                }
            }
        }
    }
}

/// Says who is no longer in the round, if that has changed; what was said.
fn tell_lost(seen: &Membership, before: Option<String>) -> Option<String> {
    let lost = seen.lost.as_ref().map(ToString::to_string);
    if let Some(nodes) = lost.as_ref().filter(|_| lost != before) {
        // Whether something is wrong with that is said by whoever took them out: a torch agent that has finished is silent too.
        tracing::info!("no longer in the round: {nodes}");
    }
    lost
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
        error => match error.store_error() {
            Some(source) => {
                output::complain(&format!("hint: {}", store_hint(source)));
                5
            }
            None => 1,
        },
    })
}

/// Returns what the user can check if the store of a rendezvous can't be used.
pub(crate) fn store_hint(error: &StoreError) -> &'static str {
    match (error, error.connection_fault()) {
        (StoreError::File { .. }, _) => {
            "check that all nodes name the same file, and can read, write and lock it"
        }
        (_, Some(fault)) => fault.hint(),
        _ => "check that the node of the endpoint is up, and that all nodes name the same endpoint",
    }
}
