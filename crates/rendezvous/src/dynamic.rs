//! The dynamic rendezvous: nodes join and leave, and rounds re-form.
//!
//! The core decides which operation a node executes next. This module executes the operations with real clocks and a
//! backend. *Rank 0* is the node with group rank 0.

mod bootstrap;
mod driver;
mod keep_alive;
mod local_id;

use std::process::id as process_id;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{
    End, Goal, JoinedRound, Launch, Member, Membership, NodeDesc, Reason, Settings, Signal, State, Terms,
    WallTime, keys,
};
use rallypoint_store::{PrefixStore, Store};

use crate::backend::RendezvousBackend;
use crate::c10d::{C10dBackend, create_store};
use crate::error::{RendezvousError, Result};
use crate::handler::{RendezvousHandler, RendezvousInfo};
use crate::hosts::{ExpectedHosts, MissingHosts};
use crate::observer::{Observer, describe_node};
use crate::parameters::RendezvousParameters;
use crate::settings::settings;
use crate::store_info::is_address;
use bootstrap::{Bootstrap, NewRound};
use driver::Driver;
pub(crate) use driver::system_clock;
use keep_alive::KeepAlive;
use local_id::next_local_id;

/// The clock for the timestamps of heartbeats. Other nodes only check whether a timestamp has changed. They never
/// compare it with their own clocks.
pub type WallClock = Arc<dyn Fn() -> WallTime + Send + Sync>;

/// The handler of one node in a dynamic rendezvous.
pub struct DynamicRendezvousHandler {
    driver: Arc<Driver>,
    store: Arc<dyn Store>,
    is_host: bool,
    keep_alive: Mutex<Option<KeepAlive>>,
    bootstrap: Mutex<Bootstrap>,
    cache: Mutex<RoundCache>,
}

/// What this node has read since it joined its round.
#[derive(Default)]
struct RoundCache {
    /// The state that was read last, the time of that read, and the round that this node was in at that time.
    last_read: Option<(Instant, Arc<State>, Option<Arc<JoinedRound>>)>,
    /// The round in which this node received [`Signal::NextRoundWanted`].
    signaled_round: Option<u64>,
}

/// How long a cached state is used. Torch's nodes use the same interval.
const STATE_CACHE_TIMEOUT: Duration = Duration::from_secs(1);

/// Creates a handler with the `c10d` backend and its store.
///
/// # Errors
///
/// Fails with [`RendezvousError::Parameters`] if `parameters` are invalid, and with `Connection` if the store can't be
/// created or reached.
pub fn create_dynamic_handler(parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>> {
    Ok(Box::new(DynamicRendezvousHandler::create(parameters, None, None)?))
}

impl DynamicRendezvousHandler {
    /// Creates a handler with the `c10d` backend and its store.
    ///
    /// `observer` is notified while the node waits. `launch` describes the command that the node runs, so that other
    /// nodes can compare it with theirs.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if `parameters` are invalid, and with `Connection` if the store can't
    /// be created or reached.
    pub fn create(
        parameters: &RendezvousParameters,
        observer: Option<Arc<dyn Observer>>,
        launch: Option<Launch>,
    ) -> Result<DynamicRendezvousHandler> {
        let settings = Settings { launch, ..settings(parameters)? };
        let expected_hosts = ExpectedHosts::from_parameters(parameters)?;
        let created =
            create_store(parameters, observer.as_deref().map(|observer| observer as &dyn Observer))?;
        let backend = C10dBackend::new(Arc::clone(&created.store), &parameters.run_id)?;
        let addr = parameters.local_addr.clone().unwrap_or(created.reachable_as);
        let mut handler = DynamicRendezvousHandler::new(Arc::new(backend), created.store, &addr, settings)?;
        let driver = Arc::get_mut(&mut handler.driver).expect("the new handler has the only reference");
        driver.observer = observer;
        driver.take_over = created.take_over;
        driver.expected_hosts = expected_hosts;
        handler.is_host = created.is_host;
        Ok(handler)
    }

    /// Creates a handler over any backend. `store` contains the keys of each round, and `addr` is the address at which
    /// other nodes reach this node.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if `settings` or `addr` are invalid.
    pub fn new(
        backend: Arc<dyn RendezvousBackend>,
        store: Arc<dyn Store>,
        addr: &str,
        settings: Settings,
    ) -> Result<DynamicRendezvousHandler> {
        let mut errors = settings.check();
        if !is_address(addr) {
            let shown: String = addr.chars().take(64).collect();
            errors
                .push(format!("the address of this node, {shown:?}, is neither a host name nor an address"));
        }
        if !errors.is_empty() {
            return Err(RendezvousError::Parameters(errors));
        }
        let me = NodeDesc::new(addr, i64::from(process_id()), next_local_id());
        Ok(DynamicRendezvousHandler::for_member(backend, store, Member::new(me, settings)))
    }

    pub(crate) fn for_member(
        backend: Arc<dyn RendezvousBackend>,
        store: Arc<dyn Store>,
        member: Member,
    ) -> DynamicRendezvousHandler {
        DynamicRendezvousHandler {
            driver: Arc::new(Driver::new(backend, Arc::clone(&store), member)),
            store,
            is_host: false,
            keep_alive: Mutex::default(),
            bootstrap: Mutex::default(),
            cache: Mutex::default(),
        }
    }

    /// Removes the node of another process from the rendezvous.
    ///
    /// That process may have announced the node for the next round, which this process can't know. So if the state
    /// contains the node, this function always retracts an announcement. If there is none, that has no effect.
    pub(crate) fn leave_from_another_process(&self) -> Result<()> {
        let state = self.driver.read_state()?;
        if state.has(self.node()) {
            self.driver.assume_announced(&state);
            self.leave()?;
        }
        Ok(())
    }

    /// Sets the clock for the timestamps of heartbeats.
    ///
    /// # Panics
    ///
    /// Panics while the node sends heartbeats, which it does after it has joined a round.
    pub fn with_wall_clock(mut self, clock: WallClock) -> DynamicRendezvousHandler {
        Arc::get_mut(&mut self.driver).expect("no thread runs before the node has joined").wall_clock = clock;
        self
    }

    /// Sets the expected hosts, so that messages can name the missing ones. `hosts` is a list such as `host1;host2` or
    /// `host[1-8]`. If it is `None`, Slurm's node list is used.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if `hosts` is malformed.
    ///
    /// # Panics
    ///
    /// Panics while the node sends heartbeats, which it does after it has joined a round.
    pub fn with_expected_hosts(mut self, hosts: Option<&str>) -> Result<DynamicRendezvousHandler> {
        let driver = Arc::get_mut(&mut self.driver).expect("no thread runs before the node has joined");
        driver.expected_hosts = ExpectedHosts::parse(hosts)?;
        Ok(self)
    }

    /// Returns the address, process id and local id of this node.
    pub fn node(&self) -> &NodeDesc {
        &self.driver.me
    }

    /// Returns the settings of this node.
    pub fn settings(&self) -> &Settings {
        &self.driver.settings
    }

    /// Stops the heartbeats of this node until it joins another round. Without heartbeats, the other nodes remove this
    /// node as dead.
    pub fn stop_heartbeats(&self) {
        drop(self.keep_alive.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn run_id_owned(&self) -> String {
        self.driver.settings.run_id.clone()
    }

    fn cache(&self) -> MutexGuard<'_, RoundCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discards the cached state and the published address of the round that this node was in.
    fn reset_round(&self) {
        *self.cache() = RoundCache::default();
        *self.driver.published.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn join(&self) -> Result<Arc<State>> {
        let run_id = self.run_id_owned();
        Err(match self.driver.pursue(Goal::Join)? {
            End::Reached { state, .. } => return Ok(state),
            End::Failed(reason @ Reason::Closed { .. }) => RendezvousError::Closed { run_id, reason },
            End::Failed(reason @ (Reason::TermsConflict { .. } | Reason::TooFewNodes { .. })) => {
                RendezvousError::Refused { run_id, reason }
            }
            End::Failed(Reason::SpareNotNeeded) => RendezvousError::GracefulExit { run_id },
            End::Failed(reason) => {
                // `participants` contains the participants of the round before this node withdrew.
                let missing = match &reason {
                    Reason::JoinTimeout { participants, .. } | Reason::NoNextRound { participants, .. } => {
                        let latest = self.driver.latest();
                        let present = latest.iter().flat_map(|state| state.all_nodes()).chain([self.node()]);
                        self.driver.expected_hosts.missing(participants.iter().chain(present))
                    }
                    _ => MissingHosts::default(),
                };
                RendezvousError::Timeout { run_id, reason, missing }
            }
            End::Outage(_) | End::Error => unreachable!("the driver has returned the error"),
        })
    }

    /// Enters a complete round that contains this node: starts the heartbeats and reads or publishes the address of the
    /// workers' store. Returns `None` if the round ends before its rank 0 has published that address.
    fn enter_round(&self, state: &State) -> Result<Option<RendezvousInfo>> {
        let (me, run_id) = (self.node(), self.run_id());
        let keep_alive = KeepAlive::start(Arc::clone(&self.driver)).map_err(|error| {
            let source = format!("cannot start a thread for the heartbeats: {error}").into();
            RendezvousError::Backend { backend: self.backend().into(), source }
        })?;
        *self.keep_alive.lock().unwrap_or_else(PoisonError::into_inner) = Some(keep_alive);
        let participants: Vec<_> = state.participants.keys().cloned().collect();
        let rank =
            participants.iter().position(|node| node == me).expect("a node is in the round it joined") as u64;
        let world_size = participants.len() as u64;
        let prefix = keys::round_prefix(run_id, state.round);
        let store = Arc::new(PrefixStore::new(prefix, Arc::clone(&self.store)));
        tracing::info!(
            "The node '{me}' has joined round {} of the rendezvous '{run_id}' as rank {rank} in a world of size \
             {world_size}.",
            state.round
        );
        self.driver.handle_joined();
        self.compare_terms(state);
        let start = Instant::now();
        let new_round =
            NewRound { handler: self, round: state.round, rank_0: &participants[0], store: &*store };
        let mut bootstrap = self.bootstrap.lock().unwrap_or_else(PoisonError::into_inner);
        let use_agent_store = DynamicRendezvousHandler::use_agent_store();
        let Some(bootstrap_store_info) = bootstrap.build(&new_round, rank, use_agent_store)? else {
            // Torch's rank 0 publishes the address in its first round only, so this node can't get the address. Rank 0
            // is no longer in the rendezvous, so if this node joined the next round, it could train alone.
            if self.driver.has_lost_torch_rank_0(state.round, &participants[0]) {
                let (run_id, rank_0) = (run_id.into(), describe_node(&participants[0]));
                return Err(RendezvousError::NoMaster { run_id, rank_0, waited: start.elapsed() });
            }
            tracing::warn!(
                "Round {} of the rendezvous '{run_id}' ended before the node with group rank 0, {}, published the \
                 address of the workers' store. This node joins the next round.",
                state.round,
                describe_node(&participants[0])
            );
            return Ok(None);
        };
        if rank == 0 {
            *self.driver.published.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((state.round, bootstrap_store_info.clone(), store.generation()));
        }
        let round = state.round;
        Ok(Some(RendezvousInfo {
            store,
            rank,
            world_size,
            bootstrap_store_info,
            use_agent_store,
            round,
            lost: 0,
            participants,
        }))
    }

    /// Warns if this node and the node that published the terms of the job were started with different options.
    fn compare_terms(&self, state: &State) {
        let mine = Terms::new(self.node(), self.settings());
        let Some(theirs) = state.terms() else { return };
        for difference in mine.differences(&theirs) {
            tracing::warn!(
                "This node of the rendezvous '{}' was started differently from node {}: {difference}.",
                self.run_id(),
                theirs.node
            );
        }
    }

    /// Returns whether this round is still complete and contains both this node and its rank 0.
    ///
    /// Fails with `RendezvousError::Interrupted` if this node was interrupted.
    fn is_round_intact(&self, round: u64, rank_0: &NodeDesc) -> Result<bool> {
        self.driver.check_interrupted()?;
        // If the state can't be read, the round counts as intact, because the caller handles outages. The heartbeat
        // thread may have written a newer state than the cached one.
        let Ok((state, _)) = self.read_state() else { return Ok(true) };
        let state = self.driver.latest().unwrap_or(state);
        let is_in = |node| state.participants.contains_key(node);
        Ok(state.complete && !state.closed && state.round == round && is_in(rank_0) && is_in(self.node()))
    }

    /// Returns whether the agent of rank 0 serves the workers' store. It does unless the environment variable
    /// `TORCH_DISABLE_SHARE_RDZV_TCP_STORE` is `1`.
    pub fn use_agent_store() -> bool {
        std::env::var("TORCH_DISABLE_SHARE_RDZV_TCP_STORE").map_or(true, |value| value != "1")
    }

    /// Returns a state that is at most 1 s old, and the round that this node was in before the state was read. During
    /// an outage of the store, a node in a round gets the last state that it has read or written, however old it is.
    fn read_state(&self) -> Result<(Arc<State>, Option<Arc<JoinedRound>>)> {
        let joined = self.driver.joined();
        if let Some((read_at, state, joined_then)) = &self.cache().last_read
            && read_at.elapsed() < STATE_CACHE_TIMEOUT
            && *joined_then == joined
        {
            return Ok((Arc::clone(state), joined));
        }
        let start = self.driver.now();
        let state = match self.driver.read_state() {
            Ok(state) => state,
            Err(error) => {
                let latest = self.driver.latest().filter(|_| joined.is_some());
                let Some(state) = latest else { return Err(error) };
                self.driver.tolerate(error, start)?;
                return Ok((state, joined));
            }
        };
        self.driver.handle_success(start);
        self.cache().last_read = Some((Instant::now(), Arc::clone(&state), joined.clone()));
        Ok((state, joined))
    }
}

impl RendezvousHandler for DynamicRendezvousHandler {
    fn backend(&self) -> &str {
        self.driver.backend.name()
    }

    fn run_id(&self) -> &str {
        &self.driver.settings.run_id
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo> {
        let (me, run_id) = (self.node(), self.run_id());
        tracing::info!("The node '{me}' attempts to join the next round of the rendezvous '{run_id}'.");
        loop {
            self.stop_heartbeats();
            self.reset_round();
            match self.join().and_then(|state| self.enter_round(&state)) {
                Ok(Some(info)) => return Ok(info),
                // The round has ended before its rank 0 published an address. The node joins the next round with a new
                // join timeout.
                Ok(None) => {}
                Err(error) => {
                    // During an outage this node can't leave. The other nodes remove it when they receive no heartbeats
                    // from it.
                    if matches!(error, RendezvousError::Interrupted { .. }) && !self.driver.has_outage() {
                        self.leave()?;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Returns what this node knows about its round. A dead node appears as lost once any node has removed it from the
    /// state.
    fn membership(&self) -> Result<Membership> {
        let (state, joined) = self.read_state()?;
        let membership = self.driver.membership(joined.as_deref(), &state);
        if membership.is_dropped {
            self.driver.log_dropped();
        }
        Ok(membership)
    }

    fn set_closed(&self) -> Result<()> {
        let end = self.driver.pursue(Goal::Close)?;
        // Discard the cached state, which does not show that the rendezvous is closed.
        self.cache().last_read = None;
        match end {
            End::Failed(_) => Err(RendezvousError::OperationTimeout {
                run_id: self.run_id_owned(),
                operation: "closing",
                limit: self.driver.settings.close_timeout,
                setting: "close_timeout",
            }),
            _ => Ok(()),
        }
    }

    fn leave(&self) -> Result<()> {
        self.stop_heartbeats();
        self.reset_round();
        match self.driver.pursue(Goal::Leave)? {
            End::Failed(_) => Err(RendezvousError::OperationTimeout {
                run_id: self.run_id_owned(),
                operation: "leaving",
                limit: Goal::LEAVE_TIMEOUT,
                setting: "a fixed limit",
            }),
            _ => Ok(()),
        }
    }

    fn hosts_store(&self) -> bool {
        self.is_host || self.driver.has_taken_over()
    }

    fn interrupt(&self) {
        self.driver.interrupted.store(true, Ordering::SeqCst);
    }

    fn wait_for_change(&self, timeout: Duration) {
        let round = self.driver.joined().map(|joined| joined.round);
        let signaled_round = self.cache().signaled_round;
        match round {
            Some(round) if signaled_round != Some(round) => {
                if self.driver.wait(Signal::NextRoundWanted { round }, timeout) {
                    let mut cache = self.cache();
                    (cache.signaled_round, cache.last_read) = (Some(round), None);
                }
            }
            _ => self.driver.sleep(timeout),
        }
    }
}

impl Drop for DynamicRendezvousHandler {
    fn drop(&mut self) {
        self.stop_heartbeats();
    }
}
