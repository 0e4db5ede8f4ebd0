//! Executes the operations that the core decides on, such as reads, writes and pauses. The driver provides the clocks,
//! the backend and the random numbers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{
    Cell, End, Fault, Goal, JoinedRound, Member, Membership, Moment, MonoTime, NodeDesc, Notice, Operation,
    Outcome, Phase, Pursuit, Reason, Settings, Signal, State, StateError, WallTime, keys, pickle,
};
use rallypoint_store::{Cancellation, PrefixStore, Store, TcpStore, sleep};

use super::WallClock;
use crate::backend::{RendezvousBackend, Token};
use crate::c10d::TakeOver;
use crate::error::{RendezvousError, Result};
use crate::exit_barrier::count_finished;
use crate::hosts::{ExpectedHosts, MissingHosts};
use crate::observer::{Observer, Waiting, describe_node};
use crate::store_info::RendezvousStoreInfo;

/// Executes the operations of one node.
pub(super) struct Driver {
    pub(super) backend: Arc<dyn RendezvousBackend>,
    store: Arc<dyn Store>,
    /// The cancellation of the store, which makes pending calls return early.
    pub(super) cancellation: Option<Arc<dyn Cancellation>>,
    pub(super) me: NodeDesc,
    pub(super) settings: Settings,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) expected_hosts: ExpectedHosts,
    pub(super) wall_clock: WallClock,
    /// Whether this node was interrupted.
    pub(super) interrupted: AtomicBool,
    /// Whether it was logged that this node is no longer in the round that it joined last.
    logged_drop: AtomicBool,
    /// The core's view of this node. It is locked only while the core decides, never during a call to the backend.
    member: Mutex<Member>,
    /// The state that was read or written last and its token, so that an unchanged state is not decoded again.
    cached: Mutex<Option<(Token, Arc<State>)>>,
    /// A function that hosts the store in place of a lost host. `None` if this node hosts the store already, or if no
    /// node hosts it.
    pub(super) take_over: Option<TakeOver>,
    /// The store that this node hosts after it took over. Dropping it stops the server.
    hosted: Mutex<Option<TcpStore>>,
    /// The duration of the last call to the store, in microseconds.
    round_trip: AtomicU64,
    /// The generation of the store that the state was last read from.
    generation: AtomicU64,
    /// The generation of the store whose state last contained this node.
    present_in: AtomicU64,
    /// What this node has published as rank 0: the round, the address of the workers' store, and the generation of the
    /// rendezvous store that contains the address.
    pub(super) published: Mutex<Option<(u64, RendezvousStoreInfo, u64)>>,
    limits: Limits,
    start: Instant,
}

/// Interval for checking whether the node was interrupted during a pause.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// A node waits for signals only if the last round trip to the store was at most this long. With a longer round trip,
/// canceling the wait costs more time than the signal saves.
const SLOW_ROUND_TRIP_INTERVAL: Duration = Duration::from_millis(50);
/// The timeout of each task that follows a heartbeat, so that it does not delay the next heartbeat.
const UPKEEP_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of each call that checks whether a removed node had finished.
const FINISHED_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

impl Driver {
    pub(super) fn new(backend: Arc<dyn RendezvousBackend>, store: Arc<dyn Store>, member: Member) -> Driver {
        Driver {
            cancellation: store.cancellation(),
            backend,
            store,
            me: member.me.clone(),
            settings: member.settings.clone(),
            observer: None,
            expected_hosts: ExpectedHosts::default(),
            wall_clock: Arc::new(system_clock),
            interrupted: AtomicBool::default(),
            logged_drop: AtomicBool::default(),
            member: Mutex::new(member),
            cached: Mutex::default(),
            take_over: None,
            hosted: Mutex::default(),
            round_trip: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            present_in: AtomicU64::new(0),
            published: Mutex::default(),
            limits: Limits::default(),
            start: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> MonoTime {
        MonoTime::from_start(self.start.elapsed())
    }

    /// Converts `moment` to this node's monotonic clock.
    pub(super) fn at(&self, moment: Instant) -> MonoTime {
        MonoTime::from_start(moment.saturating_duration_since(self.start))
    }

    /// Returns the time until this node has to write to the state: a heartbeat is due, another node is dead, or the
    /// store has lost the round.
    pub(super) fn until_keep_alive(&self) -> Duration {
        self.member().until_keep_alive(self.now())
    }

    /// Returns the round that this node is in.
    pub(super) fn joined(&self) -> Option<Arc<JoinedRound>> {
        self.member().joined.clone()
    }

    /// Returns the membership in `state`. `joined` is the round that this node was in before `state` was read.
    pub(super) fn membership(&self, joined: Option<&JoinedRound>, state: &State) -> Membership {
        self.member().membership(joined, state)
    }

    /// Returns the expected hosts that have no node in the state that was read or written last.
    pub(super) fn missing(&self) -> MissingHosts {
        self.expected_hosts.missing(self.latest().iter().flat_map(|state| state.all_nodes()))
    }

    /// Returns the state that a thread of this node has read or written last.
    pub(super) fn latest(&self) -> Option<Arc<State>> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.as_ref().map(|(_, state)| Arc::clone(state))
    }

    /// Reads the state. If the store has lost the round that this node is in, returns the last state of that round
    /// instead.
    pub(super) fn read_state(&self) -> Result<Arc<State>> {
        let timeout = self.member().call_timeout(self.now());
        let limited = self.backend.within(timeout);
        let state = self.read_cell(limited.as_deref().unwrap_or(&*self.backend))?.state;
        let mut member = self.member();
        member.observe(state.as_ref(), self.now());
        Ok(member.current(state.as_ref()))
    }

    /// Publishes the address of the workers' store again if this node is rank 0 and the rendezvous store has lost the
    /// address.
    pub(super) fn publish_again(&self) {
        let generation = self.store.generation();
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((round, info, published_in)) = &mut *published else { return };
        if *published_in == generation {
            return;
        }
        let prefix = keys::round_prefix(&self.settings.run_id, *round);
        let store = Arc::from(self.store.with_timeout(Some(UPKEEP_TIMEOUT)));
        match info.publish(&PrefixStore::new(prefix, store)) {
            Ok(()) => *published_in = generation,
            // The next call of this function tries again.
            Err(error) => {
                tracing::debug!("could not publish the address of the workers' store again: {error}")
            }
        }
    }

    /// Removes the keys of old rounds, for at most `UPKEEP_TIMEOUT`. The next call removes the rest.
    pub(super) fn remove_stale_keys(&self) {
        let stale = self.member().stale_round;
        if let Some(round) = stale
            && self.backend.remove_rounds(round, UPKEEP_TIMEOUT)
        {
            self.member().stale_round.take_if(|stale| *stale == round);
        }
    }

    /// Assumes that another process has announced this node for the open round or, if the round is complete, for the
    /// next one.
    pub(super) fn assume_announced(&self, state: &State) {
        self.member().announcement = Some(state.round + u64::from(state.complete));
    }

    /// Tolerates a failed call to the store that started at `start`.
    ///
    /// # Errors
    ///
    /// Fails with the same error if it is final or the state has been corrupt for 10 s, with
    /// `RendezvousError::Interrupted` if the calling thread was interrupted, and with `RendezvousError::Outage` if the
    /// outage has lasted for `store_outage_timeout`.
    pub(super) fn tolerate(&self, error: RendezvousError, start: MonoTime) -> Result<()> {
        if self.is_canceled() {
            return Err(self.interrupted());
        }
        let Some(fault) = fault_of(&error) else { return Err(error) };
        let tolerated = self.member().outage.handle_failure(fault, start, self.now(), &self.settings);
        match tolerated {
            Ok(warning) => warning.iter().for_each(|warning| self.log(warning, Some(&error))),
            Err(lasted) => return Err(error.after_outage(lasted)),
        }
        Ok(())
    }

    /// Records that the store has replied to a call that started at `start`.
    pub(super) fn handle_success(&self, start: MonoTime) {
        self.record_round_trip(start);
        let notice = self.member().outage.handle_success(self.now());
        notice.iter().for_each(|notice| self.log(notice, None));
    }

    fn record_round_trip(&self, start: MonoTime) {
        self.round_trip.store(self.now().since(start).as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns whether the last call to the store failed because of an outage.
    pub(super) fn has_outage(&self) -> bool {
        let now = self.now();
        !self.member().outage.lasted(now).is_zero()
    }

    /// Returns whether this node hosts the store in place of a lost host.
    pub(super) fn has_taken_over(&self) -> bool {
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn take_over(&self) {
        let mut hosted = self.hosted.lock().unwrap_or_else(PoisonError::into_inner);
        if hosted.is_none()
            && let Some(take_over) = &self.take_over
        {
            *hosted = take_over();
        }
    }

    /// Waits for a signal until it is received, `timeout` has passed, or this node is interrupted. Returns whether the
    /// signal was received.
    pub(super) fn wait(&self, signal: Signal, timeout: Duration) -> bool {
        if Duration::from_micros(self.round_trip.load(Ordering::Relaxed)) > SLOW_ROUND_TRIP_INTERVAL {
            self.sleep(timeout);
            return false;
        }
        self.wait_interruptibly(timeout, |interval| self.backend.wait(signal, interval))
    }

    /// Sleeps until `timeout` has passed or this node is interrupted.
    pub(super) fn sleep(&self, timeout: Duration) {
        self.wait_interruptibly(timeout, |interval| {
            sleep(interval, self.cancellation.as_ref());
            false
        });
    }

    fn wait_interruptibly(&self, timeout: Duration, wait: impl Fn(Duration) -> bool) -> bool {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() || self.is_interrupted() {
                return false;
            }
            if wait(left.min(INTERRUPT_CHECK_INTERVAL)) {
                return true;
            }
        }
    }

    /// Returns whether this node or the calling thread was interrupted.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst) || self.is_canceled()
    }

    /// Fails with `RendezvousError::Interrupted` if this node or the calling thread was interrupted.
    pub(super) fn check_interrupted(&self) -> Result<()> {
        if self.is_interrupted() { Err(self.interrupted()) } else { Ok(()) }
    }

    /// Returns whether the calling thread was interrupted.
    fn is_canceled(&self) -> bool {
        !sleep(Duration::ZERO, self.cancellation.as_ref())
    }

    fn interrupted(&self) -> RendezvousError {
        RendezvousError::Interrupted { run_id: self.settings.run_id.clone() }
    }

    /// Executes the operations of the core until the goal is reached or fails.
    pub(super) fn pursue(&self, goal: Goal) -> Result<End> {
        let pursuit_start = Instant::now();
        let (mut pursuit, mut operation) = Pursuit::start(goal, &mut self.member(), self.now());
        let mut error = None;
        loop {
            // An interrupted node must still be able to leave and to close the rendezvous.
            if if goal.waits() { self.is_interrupted() } else { self.is_canceled() } {
                return Err(self.interrupted());
            }
            let outcome = match operation {
                Operation::End(End::Outage(lasted)) => {
                    return Err(
                        error.map_or_else(no_error, |error: RendezvousError| error.after_outage(lasted))
                    );
                }
                Operation::End(End::Error) => return Err(error.unwrap_or_else(no_error)),
                Operation::End(end) => return Ok(end),
                Operation::Pause { timeout, wake } => {
                    if goal.waits() {
                        self.report(&pursuit, pursuit_start);
                    }
                    Outcome::Paused { is_woken: self.pause(goal, timeout, wake) }
                }
                Operation::Host => {
                    self.take_over();
                    Outcome::Done
                }
                operation => {
                    let start = self.now();
                    let timeout = pursuit.call_timeout(&self.member(), start);
                    let limited = self.backend.within(timeout);
                    let bytes = self.encode(&operation)?;
                    match self.call(limited.as_deref().unwrap_or(&*self.backend), operation, bytes) {
                        Ok(outcome) => {
                            self.record_round_trip(start);
                            outcome
                        }
                        Err(failure) => {
                            let Some(fault) = fault_of(&failure) else { return Err(failure) };
                            error = Some(failure);
                            Outcome::Failed(fault)
                        }
                    }
                }
            };
            let moment = Moment { mono: self.now(), wall: (self.wall_clock)(), random: random() };
            operation = pursuit.handle(&mut self.member(), outcome, moment);
            while let Some(notice) = pursuit.poll_notice() {
                self.log(&notice, error.as_ref());
            }
        }
    }

    /// Pauses for `timeout`, or until the end of the phase `wake` is signaled. Returns whether a signal ended the
    /// pause.
    fn pause(&self, goal: Goal, timeout: Duration, wake: Option<Phase>) -> bool {
        match wake {
            Some(phase) => return self.wait(Signal::PhaseOver(phase), timeout),
            None if goal.waits() => self.sleep(timeout),
            // An interrupted node that leaves must still pause between attempts.
            None => drop(sleep(timeout, self.cancellation.as_ref())),
        }
        false
    }

    /// Encodes the state of a write, and returns no bytes for other operations. A state that can't be encoded is a
    /// final error, unlike a state that can't be decoded.
    fn encode(&self, operation: &Operation) -> Result<Vec<u8>> {
        let Operation::Write { state, .. } = operation else { return Ok(Vec::new()) };
        let run_id = || self.settings.run_id.clone();
        pickle::encode(state, &self.limits)
            .map_err(|source| RendezvousError::State { run_id: run_id(), source })
    }

    /// Executes an operation that calls the store.
    fn call(&self, backend: &dyn RendezvousBackend, operation: Operation, bytes: Vec<u8>) -> Result<Outcome> {
        Ok(match operation {
            Operation::Read => Outcome::Cell(self.read_cell(backend)?),
            Operation::Announce { round } => {
                backend.announce(round, &self.me)?;
                Outcome::Done
            }
            Operation::ReadAnnounced { round } => Outcome::Nodes(backend.announced(round)?.into()),
            Operation::Retract { round, nodes } => {
                backend.retract(round, &nodes)?;
                Outcome::Done
            }
            Operation::Write { token, state, signals } => {
                self.write(backend, token, state, bytes, &signals)?
            }
            other => unreachable!("{other:?} does not call the store"),
        })
    }

    fn write(
        &self,
        backend: &dyn RendezvousBackend,
        token: Token,
        state: Arc<State>,
        bytes: Vec<u8>,
        signals: &[Signal],
    ) -> Result<Outcome> {
        let written = backend.set_state(&bytes, &token)?;
        // States may be large, so free these bytes before another state is decoded.
        drop((bytes, token));
        let cell = match (written.won, written.now) {
            (true, Some((_, token))) => {
                signals.iter().for_each(|signal| backend.signal(*signal));
                self.cache_state(&token, &state);
                Cell { state: Some(state), token }
            }
            (_, now) => {
                drop(state);
                self.decode(now)?
            }
        };
        Ok(Outcome::Written { won: written.won, cell })
    }

    /// Logs a notice of the core. `error` is the last error of the store.
    fn log(&self, notice: &Notice, error: Option<&RendezvousError>) {
        let run_id = &self.settings.run_id;
        match notice {
            Notice::Failing { fault: Fault::Outage, lasted } => {
                let cause = error.and_then(RendezvousError::store_error);
                tracing::warn!(
                    "The store of the rendezvous '{run_id}' has not answered for {:.0} s: {}. This node continues, \
                     and gives up after {} s (store_outage_timeout).",
                    lasted.as_secs_f64(),
                    cause.map_or_else(String::new, ToString::to_string),
                    self.settings.store_outage_timeout.as_secs()
                );
            }
            // The message about the outage is a warning, so this one is, too: every log contains both or neither.
            Notice::StoreAnswers { lasted } => {
                let seconds = lasted.as_secs_f64();
                tracing::warn!("The store of the rendezvous '{run_id}' answers again, after {seconds:.0} s.");
            }
            Notice::Failing { fault: Fault::Corrupt, .. } => {
                let cause = error.map_or_else(String::new, ToString::to_string);
                tracing::warn!("{cause}; waiting until it is repaired");
            }
            Notice::Spare(reason) => tracing::warn!(
                "This node is a spare of the rendezvous '{run_id}': {reason}. It runs no workers until a node of the \
                 round is lost.\nhint: if it is not meant as a spare, give its job a --rdzv-id of its own"
            ),
            Notice::Removed { nodes, round } => {
                nodes.iter().for_each(|node| self.log_removed(node, *round));
            }
        }
    }

    fn log_removed(&self, node: &NodeDesc, round: Option<u64>) {
        let what = format!(
            "The node {} was removed from the rendezvous '{}' by this node: no heartbeat for {} s (keep_alive_interval × \
             keep_alive_max_attempt)",
            describe_node(node),
            self.settings.run_id,
            self.settings.keep_alive_limit().as_secs_f64()
        );
        match round.is_some_and(|round| self.may_have_finished(round, node)) {
            true => tracing::info!(
                "{what}. Workers of the round have finished. A torch agent whose workers have finished sends no heartbeats \
                 while it waits for the other nodes, so this is probably not a failure."
            ),
            false => tracing::warn!("{what}."),
        }
    }

    /// Records that this node has joined a round, and the generation of the store that contains this round.
    pub(super) fn handle_joined(&self) {
        self.present_in.store(self.generation.load(Ordering::Relaxed), Ordering::Relaxed);
        self.logged_drop.store(false, Ordering::Relaxed);
    }

    /// Logs once per round why this node is no longer in the round: the other nodes have dropped this node, or the
    /// store was restarted and the state that other nodes wrote since never contained this node.
    pub(super) fn log_dropped(&self) {
        let is_lost = self.generation.load(Ordering::Relaxed) != self.present_in.load(Ordering::Relaxed);
        let reason = if is_lost { Reason::StateLost } else { Reason::Dropped };
        if !self.logged_drop.swap(true, Ordering::Relaxed) {
            tracing::warn!("In the rendezvous '{}', {reason}.", self.settings.run_id);
        }
    }

    /// Returns whether rank 0 of this round was lost and runs torch. Returns `false` for round 0.
    ///
    /// Torch's nodes never announce themselves. They publish the address of the workers' store in their first round
    /// only.
    pub(super) fn has_lost_torch_rank_0(&self, round: u64, rank_0: &NodeDesc) -> bool {
        let is_lost = self.latest().is_some_and(|state| !state.has(rank_0));
        round > 0 && is_lost && !self.backend.announced(round).is_ok_and(|ours| ours.contains(rank_0))
    }

    /// Returns whether a node of a complete round may be a torch agent that waits for other nodes to finish.
    ///
    /// Such an agent sends no heartbeats, because its client is blocked. Our nodes announce themselves and send
    /// heartbeats until they leave.
    fn may_have_finished(&self, round: u64, node: &NodeDesc) -> bool {
        let limited = self.backend.within(FINISHED_CHECK_TIMEOUT);
        let announced = limited.as_deref().unwrap_or(&*self.backend).announced(round);
        if announced.is_ok_and(|ours| ours.contains(node)) {
            return false;
        }
        let prefix = keys::round_prefix(&self.settings.run_id, round);
        let round =
            PrefixStore::new(prefix, Arc::from(self.store.with_timeout(Some(FINISHED_CHECK_TIMEOUT))));
        count_finished(&round).is_ok_and(|nodes| nodes > 0)
    }

    fn report(&self, pursuit: &Pursuit, start: Instant) {
        if let Some(observer) = &self.observer {
            let state = pursuit.state();
            observer.waiting(&Waiting {
                reason: pursuit.reason(),
                state: state.map(|state| &**state),
                settings: &self.settings,
                waited: start.elapsed(),
                left: pursuit.deadline().since(self.now()),
                missing: self.missing(),
            });
        }
    }

    fn read_cell(&self, backend: &dyn RendezvousBackend) -> Result<Cell> {
        let read = backend.state()?;
        let generation = self.store.generation();
        if self.generation.swap(generation, Ordering::Relaxed) != generation {
            self.member().handle_store_emptied();
        }
        let cell = self.decode(read)?;
        if cell.state.as_ref().is_some_and(|state| state.has(&self.me)) {
            self.present_in.store(generation, Ordering::Relaxed);
        }
        Ok(cell)
    }

    fn decode(&self, read: Option<(Vec<u8>, Token)>) -> Result<Cell> {
        let Some((bytes, token)) = read else { return Ok(Cell { state: None, token: Token::new() }) };
        {
            let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, state)) = cached.as_ref().filter(|(cached, _)| *cached == token) {
                return Ok(Cell { state: Some(Arc::clone(state)), token });
            }
        }
        let state = pickle::decode(&bytes, &self.limits)
            .map_err(|source| RendezvousError::State { run_id: self.settings.run_id.clone(), source })?;
        let state = Arc::new(state);
        self.cache_state(&token, &state);
        Ok(Cell { state: Some(state), token })
    }

    fn cache_state(&self, token: &Token, state: &Arc<State>) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        *cached = Some((token.clone(), Arc::clone(state)));
    }

    fn member(&self) -> MutexGuard<'_, Member> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Classifies an error for the core. Returns `None` if the error is final.
pub(super) fn fault_of(error: &RendezvousError) -> Option<Fault> {
    match error {
        RendezvousError::Connection { source, .. } if source.is_outage() => Some(Fault::Outage),
        // This error is final, because agents from before torch 2.6 keep writing states that this node can't share.
        RendezvousError::State { source: StateError::OldAgent, .. } => None,
        RendezvousError::State { .. } => Some(Fault::Corrupt),
        _ => None,
    }
}

fn no_error() -> RendezvousError {
    unreachable!("a pursuit fails only after an operation has failed")
}

/// Returns the time of this machine's clock.
pub(crate) fn system_clock() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime::UNIX_EPOCH.checked_add(since).unwrap_or(WallTime::UNIX_EPOCH)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use rallypoint_store::{TcpStore, TcpStoreServer};

    use super::*;
    use crate::c10d::C10dBackend;

    #[test]
    fn an_address_counts_as_published_again_only_if_the_store_accepts_it() {
        let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
        let store = TcpStore::connect("127.0.0.1", server.port()).unwrap();
        // The store refuses keys that contain the long run id.
        for (run_id, is_refused) in [("job".into(), false), ("x".repeat(1 << 20), true)] {
            let settings = Settings::new(run_id, 1, 1);
            let member = Member::new(NodeDesc::new("host", 1, 0), settings);
            let backend = C10dBackend::new(Arc::new(store.clone()), "job").unwrap();
            let driver = Driver::new(Arc::new(backend), Arc::new(store.clone()), member);
            let info = RendezvousStoreInfo { master_addr: "host".into(), master_port: 1 };
            let other_generation = store.generation() + 1;
            *driver.published.lock().unwrap() = Some((0, info, other_generation));
            driver.publish_again();
            let published_in = driver.published.lock().unwrap().as_ref().map(|published| published.2);
            assert_eq!(published_in == Some(other_generation), is_refused);
        }
        let published = format!("{}/MASTER_PORT", keys::round_prefix("job", 0));
        assert_eq!(store.get(&published).unwrap(), b"1");
    }
}
