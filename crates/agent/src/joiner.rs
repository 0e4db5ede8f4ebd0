//! Joins rounds: creates the handler, waits for the rendezvous, and gets the ranks of the workers. Joining blocks, so
//! it runs on its own thread and can be interrupted.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    AssignedRanks, DeadlineObserver, Departure, DynamicRendezvousHandler, KeyWait, Launch, NATIVE_BACKEND,
    NativeNode, NativeRendezvousHandler, NodeDesc, RendezvousError, RendezvousHandler, RendezvousInfo,
    Report, RoleInfo, StaticRendezvousHandler, assign_ranks, count_as_idle, rendezvous_handler_registry,
    report_ended, role_infos,
};
use rallypoint_store::Store;

use crate::agent::LaunchObserver;
use crate::config::LaunchConfig;
use crate::error::{AgentError, Result};
use crate::formation::Formation;
use crate::{announcements, guard};

/// Interval for checking whether the ranks of the workers can still be assigned.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Joins one round after the other with one handler.
pub(crate) struct Joiner {
    config: Arc<LaunchConfig>,
    observer: Arc<dyn LaunchObserver>,
    handler: OnceLock<Arc<dyn RendezvousHandler>>,
    is_giving_up: AtomicBool,
    /// Whether an operator has drained the node before it had a handler.
    is_drained: AtomicBool,
}

impl Joiner {
    pub(crate) fn new(config: Arc<LaunchConfig>, observer: Arc<dyn LaunchObserver>) -> Joiner {
        Joiner {
            config,
            observer,
            handler: OnceLock::new(),
            is_giving_up: AtomicBool::new(false),
            is_drained: AtomicBool::new(false),
        }
    }

    /// Returns the handler, if it has been created.
    pub(crate) fn handler(&self) -> Option<&Arc<dyn RendezvousHandler>> {
        self.handler.get()
    }

    /// Makes the joining thread give up. Returns whether a handler exists. If one does, the node may have to leave the
    /// rendezvous.
    pub(crate) fn give_up(&self) -> bool {
        self.is_giving_up.store(true, Ordering::SeqCst);
        let handler = self.handler.get();
        if let Some(handler) = handler {
            handler.interrupt();
        }
        handler.is_some()
    }

    /// Reports that an operator drains the node, as soon as there is a handler.
    pub(crate) fn drain(&self) {
        self.is_drained.store(true, Ordering::SeqCst);
        if let Some(handler) = self.handler.get() {
            self.report_drain(&**handler);
        }
    }

    fn report_drain(&self, handler: &dyn RendezvousHandler) {
        if self.is_drained.swap(false, Ordering::SeqCst) {
            handler.report(Report::Drain);
        }
    }

    /// Joins a round. `restarts` is the number of restarts that this node has counted.
    ///
    /// # Errors
    ///
    /// Fails if the rendezvous or the assignment of ranks fails, or if [`give_up`](Joiner::give_up) was called. The
    /// node has then left the rendezvous, except during an outage of the store.
    pub(crate) fn join(&self, restarts: u32) -> Result<Formation> {
        let handler = match self.handler.get() {
            Some(handler) => handler,
            None => {
                let created = self.create_handler()?;
                self.handler.get_or_init(|| created)
            }
        };
        self.report_drain(&**handler);
        let leave = || {
            if let Err(error) = handler.leave() {
                tracing::warn!("could not leave the rendezvous: {error}");
            }
        };
        loop {
            if self.is_giving_up.load(Ordering::SeqCst) {
                // The node may still be in its last round.
                leave();
                return Err(self.interrupted());
            }
            let start = Instant::now();
            let round = handler.next_rendezvous().inspect_err(|error| {
                if matches!(error, RendezvousError::NoMaster { .. }) {
                    leave();
                }
            })?;
            match self.assign_ranks_in(&**handler, round, restarts, start.elapsed()) {
                Ok(Some(formation)) => return Ok(formation),
                Ok(None) => {}
                // The node that served the store of the round may be gone.
                Err(AgentError::Store { .. })
                    if handler.membership().is_ok_and(|now| now.end.is_some() || now.has_failed) => {}
                Err(error) => {
                    leave();
                    return Err(error);
                }
            }
            tracing::info!("the round ended before all workers had ranks; joining the next one");
        }
    }

    fn create_handler(&self) -> Result<Arc<dyn RendezvousHandler>> {
        let parameters = &self.config.rendezvous;
        Ok(match parameters.backend.as_str() {
            "c10d" => {
                let handler = DynamicRendezvousHandler::create(
                    parameters,
                    Some(self.observer.rendezvous()),
                    (!self.config.runs_once).then(|| describe_launch(&self.config)),
                )?;
                // If a process that hosts a store at a private port is killed, no node is left in that rendezvous.
                if !parameters.has_private_port() {
                    guard::prepare_departure(&Departure::new(parameters, handler.node()));
                }
                Arc::new(handler)
            }
            "static" => {
                let handler = StaticRendezvousHandler::create(parameters)?;
                Arc::new(handler.with_observer(self.observer.rendezvous()))
            }
            NATIVE_BACKEND => {
                let node = NativeNode {
                    workers: Some(self.config.nproc_per_node),
                    // The commands of nodes that run once may differ.
                    command: (!self.config.runs_once).then(|| describe_launch(&self.config).command),
                    // The node prints them.
                    wants_participants: self.config.runs_once,
                };
                let fence = guard::FenceFile::create().unwrap_or_else(|error| {
                    tracing::warn!(
                        "only the agent itself will stop the workers at the end of its lease: {error}"
                    );
                    None
                });
                let fence =
                    fence.map(|file| -> DeadlineObserver { Box::new(move |deadline| file.set(deadline)) });
                let observer = Some(self.observer.rendezvous());
                Arc::new(NativeRendezvousHandler::create(parameters, node, observer, fence)?)
            }
            _ => Arc::from(rendezvous_handler_registry().create_handler(parameters)?),
        })
    }

    /// Gets the ranks of this node's workers in the round. Returns `None` if the round ends before all nodes have
    /// published their workers.
    fn assign_ranks_in(
        &self,
        handler: &dyn RendezvousHandler,
        round: RendezvousInfo,
        restarts: u32,
        rendezvous_time: Duration,
    ) -> Result<Option<Formation>> {
        let mut start = Instant::now();
        self.observer.joined(&round).map_err(AgentError::system("write to standard output"))?;
        let workers = u64::from(self.config.nproc_per_node);
        let (rank, nodes) = (round.rank, round.world_size);
        if self.config.identical_workers || nodes == 1 || workers == 0 {
            let (first, world_size) = (rank * workers, nodes * workers);
            let ranks = AssignedRanks { first, world_size, role_first: first, role_world_size: world_size };
            // This node does not read which of the other nodes are ours, so any of them may run torch.
            let torch_nodes = (0..nodes).filter(|other| *other != rank).collect();
            return Ok(Some(Formation {
                round,
                ranks,
                restarts,
                torch_nodes,
                took: (rendezvous_time, start.elapsed()),
            }));
        }
        let own = RoleInfo { role: self.config.role.clone(), rank, local_world_size: workers };
        let store = &*round.store;
        let failed = |source| AgentError::Store { doing: "workers got their ranks".into(), source };
        announcements::publish_restarts(store, rank, restarts).map_err(failed)?;
        // Publish before waiting, because the node with group rank 0 waits for this key of every node.
        store.set(&format!("torchelastic/role_info/{rank}"), own.to_json().as_bytes()).map_err(failed)?;
        let awaited: Vec<String> = match rank {
            0 => (0..nodes).map(|rank| format!("torchelastic/role_info/{rank}")).collect(),
            rank => vec![format!("torchelastic/assigned_ranks/{rank}")],
        };
        let awaited: Vec<&str> = awaited.iter().map(String::as_str).collect();
        let mut wait = KeyWait::new(store, &awaited, CHECK_INTERVAL);
        let generation = store.generation();
        loop {
            match wait.poll(Duration::MAX) {
                Ok(true) => break,
                Ok(false) => {}
                // An outage restarts the timeout. If the outage lasts too long, the call to `membership` below fails.
                Err(error) if error.is_outage() => start = Instant::now(),
                Err(error) => return Err(failed(error)),
            }
            if self.is_giving_up.load(Ordering::SeqCst) {
                return Err(self.interrupted());
            }
            // A restarted store has lost what the nodes published. In a closed job, nodes may be gone; the next join fails
            // with the reason.
            let seen = handler.membership()?;
            if !seen.is_intact() || seen.has_failed || store.generation() != generation {
                return Ok(None);
            }
            if store.timeout().is_some_and(|timeout| start.elapsed() >= timeout) {
                return Err(AgentError::NoRanks { waited: start.elapsed() });
            }
        }
        let ranks = assign_ranks(store, &own, nodes).map_err(failed)?;
        let (restarts, torch_nodes) = announcements::read_restarts(store, nodes).map_err(failed)?;
        Ok(Some(Formation { round, ranks, restarts, torch_nodes, took: (rendezvous_time, start.elapsed()) }))
    }

    fn interrupted(&self) -> AgentError {
        RendezvousError::Interrupted { run_id: self.config.rendezvous.run_id.clone() }.into()
    }
}

/// Takes part in a round as a node without workers, and returns the nodes that have workers. The other nodes wait until
/// every node has published how many workers it has.
pub(crate) fn take_part_without_workers(round: &RendezvousInfo) -> rallypoint_store::Result<Vec<NodeDesc>> {
    let (store, rank) = (&*round.store, round.rank);
    // This node must count as finished before the other nodes know all ranks. Then the last node to finish is one with
    // workers.
    report_ended(store, rank)?;
    count_as_idle(store)?;
    announcements::publish_restarts(store, rank, 0)?;
    let own = RoleInfo { role: "default".into(), rank, local_world_size: 0 };
    assign_ranks(store, &own, round.world_size)?;
    let nodes = round.participants.iter().zip(role_infos(store, round.world_size)?);
    Ok(nodes.filter(|(_, info)| info.local_world_size > 0).map(|(node, _)| node.clone()).collect())
}

/// Returns a description of what this node runs, for other nodes to compare with theirs.
fn describe_launch(config: &LaunchConfig) -> Launch {
    let mut hasher = DefaultHasher::new();
    (&config.command.target, &config.command.args).hash(&mut hasher);
    Launch { max_restarts: config.max_restarts, command: hasher.finish() }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use rallypoint_rendezvous::{EndCause, Membership, Observer, RendezvousStoreInfo, Waiting};
    use rallypoint_store::{Endpoint, PrefixStore, TcpStore, TcpStoreOptions, TcpStoreServer};

    use super::*;
    use crate::environment::tests::config;

    /// The handler of a node in a round. Its `leave` and its reports are recorded.
    #[derive(Default)]
    struct Handler {
        has_left: AtomicBool,
        reports: Mutex<Vec<Report>>,
    }

    impl RendezvousHandler for Handler {
        fn backend(&self) -> &str {
            "test"
        }

        fn run_id(&self) -> &str {
            "test"
        }

        fn next_rendezvous(&self) -> rallypoint_rendezvous::Result<RendezvousInfo> {
            unreachable!("the node gives up")
        }

        fn membership(&self) -> rallypoint_rendezvous::Result<Membership> {
            unreachable!("the node gives up")
        }

        fn set_closed(&self) -> rallypoint_rendezvous::Result<()> {
            unreachable!("the node leaves")
        }

        fn leave(&self) -> rallypoint_rendezvous::Result<()> {
            self.has_left.store(true, Ordering::SeqCst);
            Ok(())
        }

        fn report(&self, report: Report) {
            self.reports.lock().unwrap().push(report);
        }
    }

    struct Silent;

    impl Observer for Silent {
        fn waiting(&self, _: &Waiting<'_>) {}
    }

    impl LaunchObserver for Silent {
        fn rendezvous(&self) -> Arc<dyn Observer> {
            Arc::new(Silent)
        }

        fn formed(&self, _: &str) {}

        fn ended(&self) {}
    }

    /// The handler of a node whose round has ended. Calls on the store of the round fail. The second join fails.
    struct EndedRound {
        store: Arc<PrefixStore>,
        joins: AtomicUsize,
    }

    impl RendezvousHandler for EndedRound {
        fn backend(&self) -> &str {
            "test"
        }

        fn run_id(&self) -> &str {
            "test"
        }

        fn next_rendezvous(&self) -> rallypoint_rendezvous::Result<RendezvousInfo> {
            match self.joins.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(RendezvousInfo {
                    store: Arc::clone(&self.store),
                    rank: 1,
                    world_size: 2,
                    bootstrap_store_info: RendezvousStoreInfo { master_addr: "node0".into(), master_port: 1 },
                    use_agent_store: true,
                    round: 0,
                    lost: 0,
                    participants: Vec::new(),
                }),
                _ => Err(RendezvousError::Interrupted { run_id: "test".into() }),
            }
        }

        fn membership(&self) -> rallypoint_rendezvous::Result<Membership> {
            Ok(Membership { end: Some(EndCause::NodeLost), is_round_over: true, ..Membership::default() })
        }

        fn set_closed(&self) -> rallypoint_rendezvous::Result<()> {
            unreachable!("the node joins again")
        }

        fn leave(&self) -> rallypoint_rendezvous::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_node_joins_again_if_the_store_of_its_round_fails_after_the_round_has_ended() {
        let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
        let is_canceled = Arc::new(AtomicBool::new(false));
        let options = TcpStoreOptions::new(Endpoint::new("127.0.0.1", server.port()));
        let store = TcpStore::open(options)
            .unwrap()
            .with_cancellation(Some(is_canceled.clone() as Arc<dyn rallypoint_store::Cancellation>));
        is_canceled.store(true, Ordering::SeqCst);
        let store = Arc::new(PrefixStore::new("round", Arc::new(store)));
        let joiner = Joiner::new(Arc::new(config(1)), Arc::new(Silent));
        let handler = Arc::new(EndedRound { store, joins: AtomicUsize::new(0) });
        joiner.handler.get_or_init(|| handler.clone());
        let result = joiner.join(0);
        assert!(
            matches!(result, Err(AgentError::Rendezvous(RendezvousError::Interrupted { .. }))),
            "{:?}",
            result.err()
        );
        assert_eq!(handler.joins.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_node_that_gives_up_between_two_rounds_leaves_the_rendezvous() {
        let joiner = Joiner::new(Arc::new(config(1)), Arc::new(Silent));
        let handler = Arc::new(Handler::default());
        joiner.handler.get_or_init(|| handler.clone());
        assert!(joiner.give_up());
        let result = joiner.join(0);
        assert!(matches!(result, Err(AgentError::Rendezvous(RendezvousError::Interrupted { .. }))));
        assert!(handler.has_left.load(Ordering::SeqCst));
    }

    #[test]
    fn a_drain_is_reported_once_even_if_it_comes_before_the_handler() {
        let joiner = Joiner::new(Arc::new(config(1)), Arc::new(Silent));
        joiner.drain();
        let handler = Arc::new(Handler::default());
        joiner.handler.get_or_init(|| handler.clone());
        joiner.give_up();
        joiner.join(0).unwrap_err();
        assert_eq!(*handler.reports.lock().unwrap(), [Report::Drain]);
        joiner.drain();
        assert_eq!(handler.reports.lock().unwrap().len(), 2);
    }
}
