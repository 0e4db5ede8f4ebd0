//! The dynamic rendezvous: nodes come and go, rounds form and re-form. What a node does next is decided in the core; here
//! it is executed, against a clock and a backend.

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
use crate::observer::Observer;
use crate::parameters::RendezvousParameters;
use crate::settings::settings;
use crate::store_info::is_address;
use bootstrap::{Bootstrap, InRound};
use driver::Driver;
use keep_alive::KeepAlive;
use local_id::next_local_id;

/// The clock by which a node stamps its heartbeats. Others see them; nobody compares them with a clock of their own.
pub type WallClock = Arc<dyn Fn() -> WallTime + Send + Sync>;

/// One node's handler of a dynamic rendezvous.
pub struct DynamicRendezvousHandler {
    driver: Arc<Driver>,
    store: Arc<dyn Store>,
    is_host: bool,
    keep_alive: Mutex<Option<KeepAlive>>,
    bootstrap: Mutex<Bootstrap>,
    seen: Mutex<Seen>,
}

/// What was seen since this node joined its round.
#[derive(Default)]
struct Seen {
    /// The state that was read last, when, and the round that this node had joined by then.
    last: Option<(Instant, Arc<State>, Option<Arc<JoinedRound>>)>,
    /// The round in which a signal has said that a node wants to be in the next one.
    heard: Option<u64>,
}

/// A node asks for the state at most so often, as torch's does.
const CACHE: Duration = Duration::from_secs(1);

/// Makes a handler as `parameters` ask for: a store, the backend over it, and this node.
pub fn create_dynamic_handler(parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>> {
    Ok(Box::new(DynamicRendezvousHandler::create(parameters, None, None)?))
}

impl DynamicRendezvousHandler {
    /// A handler with the `c10d` backend, watched by `observer`. `launch` is what its node runs.
    pub fn create(
        parameters: &RendezvousParameters,
        observer: Option<Arc<dyn Observer>>,
        launch: Option<Launch>,
    ) -> Result<DynamicRendezvousHandler> {
        let settings = Settings { launch, ..settings(parameters)? };
        let expected = ExpectedHosts::of(parameters)?;
        let made = create_store(parameters, observer.as_deref().map(|observer| observer as &dyn Observer))?;
        let backend = C10dBackend::new(Arc::clone(&made.store), &parameters.run_id)?;
        let addr = parameters.local_addr.clone().unwrap_or(made.reachable_as);
        let mut handler = DynamicRendezvousHandler::new(Arc::new(backend), made.store, &addr, settings)?;
        let driver = Arc::get_mut(&mut handler.driver).expect("nobody else has it yet");
        driver.observer = observer;
        driver.take_over = made.take_over;
        driver.expected = expected;
        handler.is_host = made.is_host;
        Ok(handler)
    }

    /// A handler over any backend. `store` is where the nodes of a round meet; `addr` is how the others reach this one.
    pub fn new(
        backend: Arc<dyn RendezvousBackend>,
        store: Arc<dyn Store>,
        addr: &str,
        settings: Settings,
    ) -> Result<DynamicRendezvousHandler> {
        let mut wrong = settings.check();
        if !is_address(addr) {
            let shown: String = addr.chars().take(64).collect();
            wrong.push(format!("the address of this node, {shown:?}, is neither a host name nor an address"));
        }
        if !wrong.is_empty() {
            return Err(RendezvousError::Parameters(wrong));
        }
        let me = NodeDesc::new(addr, i64::from(process_id()), next_local_id());
        Ok(DynamicRendezvousHandler::of_member(backend, store, Member::new(me, settings)))
    }

    pub(crate) fn of_member(
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
            seen: Mutex::default(),
        }
    }

    /// Takes the node of another process out of the rendezvous. Whether that process has announced the node for the next
    /// round is not known here, so an announcement is taken back in any case.
    pub(crate) fn leave_from_outside(&self) -> Result<()> {
        let state = self.driver.look()?;
        if state.has(self.node()) {
            self.driver.suppose_announced(&state);
            self.leave()?;
        }
        Ok(())
    }

    /// The same with another clock than this machine's.
    pub fn with_wall_clock(mut self, clock: WallClock) -> DynamicRendezvousHandler {
        Arc::get_mut(&mut self.driver).expect("nothing runs before it has joined").wall_clock = clock;
        self
    }

    /// Names the hosts of the job in messages: those of `hosts` (`host1;host2` or `host[1-8]`), or those of Slurm's node
    /// list. Fails with [`RendezvousError::Parameters`] if `hosts` is not such a list.
    pub fn expecting(mut self, hosts: Option<&str>) -> Result<DynamicRendezvousHandler> {
        let driver = Arc::get_mut(&mut self.driver).expect("nothing runs before it has joined");
        driver.expected = ExpectedHosts::parse(hosts)?;
        Ok(self)
    }

    /// This node.
    pub fn node(&self) -> &NodeDesc {
        &self.driver.me
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.driver.settings
    }

    /// Ends the heartbeats of this node, until it is in a round again. The others take it for dead after a while.
    pub fn stop_heartbeats(&self) {
        drop(self.keep_alive.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn run_id_owned(&self) -> String {
        self.driver.settings.run_id.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what belongs to the round that this node was in.
    fn forget(&self) {
        *self.seen() = Seen::default();
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
                // As it was before this node withdrew.
                let missing = match &reason {
                    Reason::JoinTimeout { participants, .. } | Reason::NoNextRound { participants, .. } => {
                        self.driver.expected.missing(participants.iter())
                    }
                    _ => MissingHosts::default(),
                };
                RendezvousError::Timeout { run_id, reason, missing }
            }
            End::Outage(_) | End::Error => unreachable!("the driver has returned the error"),
        })
    }

    /// Takes this node's place in a round that it is in. `None` if that round falls apart before its rank 0 has said where
    /// the workers meet.
    fn enter(&self, state: &State) -> Result<Option<RendezvousInfo>> {
        let (me, run_id) = (self.node(), self.run_id());
        let keep_alive = KeepAlive::start(Arc::clone(&self.driver)).map_err(|error| {
            let source = format!("cannot start a thread for the heartbeats: {error}").into();
            RendezvousError::Backend { backend: self.backend().into(), source }
        })?;
        *self.keep_alive.lock().unwrap_or_else(PoisonError::into_inner) = Some(keep_alive);
        let participants: Vec<_> = state.participants.keys().cloned().collect();
        let rank =
            participants.iter().position(|node| node == me).expect("it is in the round it joined") as u64;
        let world_size = participants.len() as u64;
        let prefix = keys::round_prefix(run_id, state.round);
        let store = Arc::new(PrefixStore::new(prefix, Arc::clone(&self.store)));
        tracing::info!(
            "The node '{me}' has joined round {} of the rendezvous '{run_id}' as rank {rank} in a world of size \
             {world_size}.",
            state.round
        );
        self.compare_terms(state);
        let entered = Instant::now();
        let in_round =
            InRound { handler: self, round: state.round, rank_0: &participants[0], store: &*store };
        let mut bootstrap = self.bootstrap.lock().unwrap_or_else(PoisonError::into_inner);
        let use_agent_store = DynamicRendezvousHandler::use_agent_store();
        let Some(bootstrap_store_info) = bootstrap.build(&in_round, rank, use_agent_store)? else {
            // A node that starts over here would train alone, beside a job that can't take it in.
            if self.driver.has_lost_torch_host(state.round, &participants[0]) {
                let (run_id, rank_0) = (run_id.into(), participants[0].to_string());
                return Err(RendezvousError::NoMaster { run_id, rank_0, waited: entered.elapsed() });
            }
            tracing::warn!(
                "Round {} of the rendezvous '{run_id}' fell apart before its rank 0, '{:?}', had said where the workers \
                 meet. The node '{me}' starts over.",
                state.round,
                participants[0]
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
            participants,
        }))
    }

    /// Warns if this node and the node that published the terms of the job were started differently.
    fn compare_terms(&self, state: &State) {
        let mine = Terms::new(self.node(), self.settings());
        let Some(theirs) = state.terms() else { return };
        for difference in mine.differences(&theirs) {
            tracing::warn!(
                "The node '{}' of the rendezvous '{}' was started differently from node {}: {difference}.",
                self.node(),
                self.run_id(),
                theirs.node
            );
        }
    }

    /// Whether a round that this node is in, and that waits for its rank 0, is still what it was. Fails with
    /// `RendezvousError::Interrupted` if this node was told to stop waiting.
    fn stands(&self, round: u64, rank_0: &NodeDesc) -> Result<bool> {
        self.driver.check_interrupted()?;
        // Whether the store can be reached is asked elsewhere. What the thread of the heartbeats has written since is newer.
        let Ok((state, _)) = self.look() else { return Ok(true) };
        let state = self.driver.latest().unwrap_or(state);
        let is_in = |node| state.participants.contains_key(node);
        Ok(state.complete && !state.closed && state.round == round && is_in(rank_0) && is_in(self.node()))
    }

    /// Whether the agent of rank 0 serves the workers' store, unless the environment says `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`.
    pub fn use_agent_store() -> bool {
        std::env::var("TORCH_DISABLE_SHARE_RDZV_TCP_STORE").map_or(true, |value| value != "1")
    }

    /// The state, at most a second old, and the round that this node had joined before the state was read.
    fn look(&self) -> Result<(Arc<State>, Option<Arc<JoinedRound>>)> {
        let joined = self.driver.joined();
        if let Some((at, state, then)) = &self.seen().last
            && at.elapsed() < CACHE
            && *then == joined
        {
            return Ok((Arc::clone(state), joined));
        }
        let began = self.driver.now();
        let state = match self.driver.look() {
            Ok(state) => state,
            Err(error) => {
                // In a round, this node goes on with the last state that it has read.
                let last = self.driver.latest().filter(|_| joined.is_some());
                let Some(state) = last else { return Err(error) };
                self.driver.tolerate(error, began)?;
                return Ok((state, joined));
            }
        };
        self.driver.answered(began);
        self.seen().last = Some((Instant::now(), Arc::clone(&state), joined.clone()));
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
            self.forget();
            match self.join().and_then(|state| self.enter(&state)) {
                Ok(Some(info)) => return Ok(info),
                // As who has been in a round: with its whole time to join the next.
                Ok(None) => {}
                Err(error) => {
                    // During an outage this node can't be taken out. The others drop it when they miss its heartbeats.
                    if matches!(error, RendezvousError::Interrupted { .. }) && !self.driver.is_store_out() {
                        self.leave()?;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// A node that is dead is lost once a node has found that out and written it down; all nodes look for it.
    fn membership(&self) -> Result<Membership> {
        let (state, joined) = self.look()?;
        let membership = self.driver.membership(joined.as_deref(), &state);
        if membership.is_dropped {
            self.driver.log_dropped();
        }
        Ok(membership)
    }

    fn set_closed(&self) -> Result<()> {
        let closed = self.driver.pursue(Goal::Close)?;
        // What was seen before is no longer so.
        self.seen().last = None;
        match closed {
            End::Failed(_) => Err(RendezvousError::TooLong {
                run_id: self.run_id_owned(),
                what: "closing",
                limit: self.driver.settings.close_timeout,
                setting: "close_timeout",
            }),
            _ => Ok(()),
        }
    }

    fn leave(&self) -> Result<()> {
        self.stop_heartbeats();
        self.forget();
        match self.driver.pursue(Goal::Leave)? {
            End::Failed(_) => Err(RendezvousError::TooLong {
                run_id: self.run_id_owned(),
                what: "leaving",
                limit: Goal::LEAVE_TIMEOUT,
                setting: "fixed",
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

    fn wait_for_change(&self, most: Duration) {
        let round = self.driver.joined().map(|joined| joined.round);
        let heard = self.seen().heard;
        match round {
            Some(round) if heard != Some(round) => {
                if self.driver.wait(Signal::NextRoundWanted { round }, most) {
                    let mut seen = self.seen();
                    (seen.heard, seen.last) = (Some(round), None);
                }
            }
            _ => self.driver.sleep(most),
        }
    }
}

impl Drop for DynamicRendezvousHandler {
    fn drop(&mut self) {
        self.stop_heartbeats();
    }
}
