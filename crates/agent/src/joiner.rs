//! Joins rounds: creates the handler, waits for the rendezvous, and gets the ranks of the workers. It blocks, so it runs on a
//! thread of its own and can be interrupted.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    AssignedRanks, Departure, DynamicRendezvousHandler, Launch, NodeDesc, PatientWait, RendezvousError,
    RendezvousHandler, RendezvousInfo, RoleInfo, StaticRendezvousHandler, assign_ranks, count_as_idle,
    rendezvous_handler_registry, role_infos, say_that_it_ended,
};

use crate::agent::LaunchObserver;
use crate::config::LaunchConfig;
use crate::error::{AgentError, Result};
use crate::{announcements, guard};

/// Interval for checking whether the ranks of the workers can still be assigned.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// How long nodes of torch's may take to notice that their workers have failed: Python may need a while to end.
const TORCH_NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

/// Joins rounds, one after the other, with one handler.
pub(crate) struct Joiner {
    config: Arc<LaunchConfig>,
    observer: Arc<dyn LaunchObserver>,
    handler: OnceLock<Arc<dyn RendezvousHandler>>,
    gives_up: AtomicBool,
}

/// What a node gets from a round, its workers' ranks included.
#[derive(Debug, Clone)]
pub(crate) struct Formation {
    pub(crate) round: RendezvousInfo,
    pub(crate) ranks: AssignedRanks,
    /// The most restarts that one of its nodes has counted.
    pub(crate) restarts: u32,
    /// How long each of the two took.
    pub(crate) took: (Duration, Duration),
}

impl Joiner {
    pub(crate) fn new(config: Arc<LaunchConfig>, observer: Arc<dyn LaunchObserver>) -> Joiner {
        Joiner { config, observer, handler: OnceLock::new(), gives_up: AtomicBool::new(false) }
    }

    /// Returns the handler, once it has been created.
    pub(crate) fn handler(&self) -> Option<&Arc<dyn RendezvousHandler>> {
        self.handler.get()
    }

    /// Makes the thread that joins give up. Returns whether there is a handler, so that the node may have to leave.
    pub(crate) fn give_up(&self) -> bool {
        self.gives_up.store(true, Ordering::SeqCst);
        let handler = self.handler.get();
        if let Some(handler) = handler {
            handler.interrupt();
        }
        handler.is_some()
    }

    /// Gives nodes of torch's the time to notice that their workers have failed along with ours. If they first notice that this
    /// node waits for the next round, they take that for a change of membership and count no restart. Workers with different
    /// restart counts never meet.
    pub(crate) fn wait_for_torch(&self, last: &Formation) {
        let Some(handler) = self.handler.get() else { return };
        let all_are_ours =
            || announcements::listening(&*last.round.store).is_ok_and(|ours| ours >= last.round.world_size);
        if last.round.world_size == 1 || all_are_ours() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < TORCH_NOTICE_TIMEOUT && !self.gives_up.load(Ordering::SeqCst) {
            match handler.membership() {
                Ok(seen) if seen.is_intact() => std::thread::sleep(CHECK_INTERVAL),
                _ => return,
            }
        }
    }

    /// Joins a round; this node has counted `restarts` restarts. Calls `in_round` when this node is in a round and only the ranks of
    /// its workers are missing.
    ///
    /// # Errors
    ///
    /// Fails if the rendezvous does. A node that was in a round already has left it then.
    pub(crate) fn join(&self, restarts: u32, in_round: impl Fn()) -> Result<Formation> {
        let joined = self.try_join(restarts, in_round);
        let was_in_round = match &joined {
            Ok(_) => false,
            Err(AgentError::Rendezvous(error)) => matches!(error, RendezvousError::NoMaster { .. }),
            Err(_) => true,
        };
        if let (true, Some(handler)) = (was_in_round, self.handler.get())
            && let Err(error) = handler.leave()
        {
            tracing::warn!("could not leave the rendezvous: {error}");
        }
        joined
    }

    fn try_join(&self, restarts: u32, in_round: impl Fn()) -> Result<Formation> {
        let handler = match self.handler.get() {
            Some(handler) => handler,
            None => {
                let made = self.make()?;
                self.handler.get_or_init(|| made)
            }
        };
        loop {
            if self.gives_up.load(Ordering::SeqCst) {
                return Err(self.interrupted());
            }
            let start = Instant::now();
            let round = handler.next_rendezvous()?;
            let (met, start) = (start.elapsed(), Instant::now());
            in_round();
            self.observer.joined(&round).map_err(|source| {
                let doing = "write to standard output".into();
                AgentError::System { doing, source }
            })?;
            if let Some((ranks, restarts)) = self.ranks(&**handler, &round, restarts)? {
                return Ok(Formation { round, ranks, restarts, took: (met, start.elapsed()) });
            }
            tracing::info!("the round is over before all workers have ranks; joining the next one");
        }
    }

    fn make(&self) -> Result<Arc<dyn RendezvousHandler>> {
        let parameters = &self.config.rendezvous;
        Ok(match parameters.backend.as_str() {
            "c10d" => {
                let handler = DynamicRendezvousHandler::create(
                    parameters,
                    Some(self.observer.rendezvous()),
                    (!self.config.runs_once).then(|| launch(&self.config)),
                )?;
                // The store at a port that the system chose is this process's, and no other node knows of it.
                if !parameters.endpoint.ends_with(":0") {
                    guard::prepare_departure(&Departure::new(parameters, handler.node()));
                }
                Arc::new(handler)
            }
            "static" => {
                let handler = StaticRendezvousHandler::create(parameters)?;
                Arc::new(handler.with_observer(self.observer.rendezvous()))
            }
            _ => Arc::from(rendezvous_handler_registry().create_handler(parameters)?),
        })
    }

    /// Returns the ranks of this node's workers, and how many restarts the nodes have counted; `None` if the round is over before
    /// all nodes have published their workers.
    fn ranks(
        &self,
        handler: &dyn RendezvousHandler,
        round: &RendezvousInfo,
        restarts: u32,
    ) -> Result<Option<(AssignedRanks, u32)>> {
        let workers = u64::from(self.config.nproc_per_node);
        let (rank, nodes) = (round.rank, round.world_size);
        if self.config.identical_workers || nodes == 1 || workers == 0 {
            let (first, world_size) = (rank * workers, nodes * workers);
            let ranks = AssignedRanks { first, world_size, role_first: first, role_world_size: world_size };
            return Ok(Some((ranks, restarts)));
        }
        let mine = RoleInfo { role: self.config.role.clone(), rank, local_world_size: workers };
        let store = &*round.store;
        let failed = |source| AgentError::Store { doing: "workers got their ranks".into(), source };
        announcements::publish_restarts(store, rank, restarts).map_err(failed)?;
        // Published first, so that no node waits for this one while it waits.
        store.set(&format!("torchelastic/role_info/{rank}"), mine.to_json().as_bytes()).map_err(failed)?;
        let awaited: Vec<String> = match rank {
            0 => (0..nodes).map(|rank| format!("torchelastic/role_info/{rank}")).collect(),
            rank => vec![format!("torchelastic/assigned_ranks/{rank}")],
        };
        let awaited: Vec<&str> = awaited.iter().map(String::as_str).collect();
        let mut wait = PatientWait::new(store, &awaited, CHECK_INTERVAL);
        let (mut start, generation) = (Instant::now(), store.generation());
        loop {
            match wait.poll(Duration::MAX) {
                Ok(true) => {
                    let ranks = assign_ranks(store, &mine, nodes).map_err(failed)?;
                    let restarts = announcements::max_restarts(store, nodes).map_err(failed)?;
                    return Ok(Some((ranks, restarts)));
                }
                Ok(false) => {}
                // The calls to the handler below bound how long an outage may last.
                Err(error) if error.is_outage() => start = Instant::now(),
                Err(error) => return Err(failed(error)),
            }
            if self.gives_up.load(Ordering::SeqCst) {
                return Err(self.interrupted());
            }
            // A restarted store has lost what the nodes published.
            if !handler.membership()?.is_intact() || store.generation() != generation {
                return Ok(None);
            }
            if store.timeout().is_some_and(|timeout| start.elapsed() >= timeout) {
                return Err(AgentError::NoRanks { waited: start.elapsed() });
            }
        }
    }

    fn interrupted(&self) -> AgentError {
        RendezvousError::Interrupted { run_id: self.config.rendezvous.run_id.clone() }.into()
    }
}

/// Takes part in a round without workers. The other nodes wait until every node has reported how many workers it has.
/// Returns the nodes that have some, once all have reported.
pub(crate) fn take_part_without_workers(round: &RendezvousInfo) -> rallypoint_store::Result<Vec<NodeDesc>> {
    let (store, rank) = (&*round.store, round.rank);
    // This node counts as finished before the others know all ranks, so the last node to finish is one with workers.
    say_that_it_ended(store, rank)?;
    count_as_idle(store)?;
    announcements::publish_restarts(store, rank, 0)?;
    let mine = RoleInfo { role: "default".into(), rank, local_world_size: 0 };
    assign_ranks(store, &mine, round.world_size)?;
    let nodes = round.participants.iter().zip(role_infos(store, round.world_size)?);
    Ok(nodes.filter(|(_, info)| info.local_world_size > 0).map(|(node, _)| node.clone()).collect())
}

/// Returns what this node runs, for other nodes to compare with theirs.
fn launch(config: &LaunchConfig) -> Launch {
    let mut hasher = DefaultHasher::new();
    (&config.command.target, &config.command.args).hash(&mut hasher);
    Launch { max_restarts: config.max_restarts, workers: config.nproc_per_node, command: hasher.finish() }
}
