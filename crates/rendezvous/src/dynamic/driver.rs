//! Carries out what the core says, step by step: reads, writes, pauses. It has the clocks, the backend and the randomness,
//! and no opinions.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{
    Cell, End, Goal, Joined, Member, Membership, MonoTime, NodeDesc, Outage, Phase, ROLLBACK, Run, Settings,
    State, StateError, Step, Tolerance, WallTime, Watch, keys, pickle,
};
use rallypoint_store::{PrefixStore, Store, TcpStore, is_interrupted, sleep};

use super::{Flag, WallClock};
use crate::backend::{RendezvousBackend, Signal, Token};
use crate::c10d::TakeOver;
use crate::error::{RendezvousError, Result};
use crate::exit_barrier::nodes_that_finished;
use crate::hosts::{ExpectedHosts, MissingHosts};
use crate::observer::{Observer, Waiting};
use crate::patience::CALL_TIMEOUT;

/// One node's way to its backend.
pub(super) struct Driver {
    pub(super) backend: Arc<dyn RendezvousBackend>,
    store: Arc<dyn Store>,
    pub(super) me: NodeDesc,
    pub(super) settings: Settings,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) expected: ExpectedHosts,
    pub(super) wall_clock: WallClock,
    /// Somebody wants this node to stop waiting.
    pub(super) interrupted: Flag,
    /// The others have dropped this node, and it has said so.
    pub(super) dropped: Flag,
    /// Locked only while the core thinks, never while the backend is asked.
    member: Mutex<Member>,
    /// What was read last, so that what has not changed is not read twice.
    read: Mutex<Option<(Token, Arc<State>)>>,
    /// The round that this node has last announced itself for.
    asked: Mutex<Option<u64>>,
    outage: Mutex<Outage>,
    /// The last of the old rounds whose keys are to be removed.
    stale: Mutex<Option<u64>>,
    /// Hosts the store in place of a host that is gone; `None` if this node must not.
    pub(super) take_over: Option<TakeOver>,
    /// The store that this node hosts since it took over. Dropping it would stop the server.
    hosted: Mutex<Option<TcpStore>>,
    /// How long the last call to the store took, in microseconds.
    round_trip: AtomicU64,
    /// The generation of the store that the state was last read from.
    generation: AtomicU64,
    limits: Limits,
    start: Instant,
}

/// How long a pause goes on before it is looked whether somebody wants this node to stop.
const SLICE: Duration = Duration::from_millis(200);
/// Shorter pauses are slept; waiting would cost more than it brings.
const WORTH_WAITING: Duration = Duration::from_millis(20);
/// How long a state that can't be read is looked at again before it is an error: it may be put right.
pub(super) const CORRUPT: Duration = Duration::from_secs(10);
/// The longest round trip to a store at which waiting for a signal pays. Beyond it, canceling the wait costs more than the
/// wait saves.
const WAIT_ROUND_TRIP_TIMEOUT: Duration = Duration::from_millis(50);
/// The pause between two calls to a store that does not answer.
const OUTAGE_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How long an outage lasts before this node tries to host the store itself.
const TAKE_OVER_GRACE: Duration = Duration::from_secs(5);
/// How long the removal of old keys may hold up a heartbeat.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to find out more about somebody who was dropped.
const WHY: Duration = Duration::from_secs(1);

impl Driver {
    pub(super) fn new(backend: Arc<dyn RendezvousBackend>, store: Arc<dyn Store>, member: Member) -> Driver {
        Driver {
            backend,
            store,
            me: member.me.clone(),
            settings: member.settings.clone(),
            observer: None,
            expected: ExpectedHosts::default(),
            wall_clock: Arc::new(system_clock),
            interrupted: Flag::new(false),
            dropped: Flag::new(false),
            member: Mutex::new(member),
            read: Mutex::default(),
            asked: Mutex::default(),
            outage: Mutex::default(),
            stale: Mutex::default(),
            take_over: None,
            hosted: Mutex::default(),
            round_trip: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            limits: Limits::default(),
            start: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> MonoTime {
        MonoTime::from_start(self.start.elapsed())
    }

    /// Converts a moment to this node's own clock.
    pub(super) fn at(&self, moment: Instant) -> MonoTime {
        MonoTime::from_start(moment.saturating_duration_since(self.start))
    }

    /// How long until the next heartbeat is due.
    pub(super) fn until_heartbeat(&self) -> Duration {
        let beat = self.member().beat;
        let passed = beat.map_or(Duration::ZERO, |beat| self.now().since(beat));
        self.settings.keep_alive_interval.saturating_sub(passed)
    }

    /// Whether there is something for this node to write while it is in a round.
    pub(super) fn has_duty(&self) -> bool {
        self.member().has_duty(self.now())
    }

    /// The round that this node has joined and not left since.
    pub(super) fn joined(&self) -> Option<Arc<Joined>> {
        self.member().joined.clone()
    }

    /// The membership that `state` shows. `joined` is the round that this node had joined before `state` was read.
    pub(super) fn membership(&self, joined: Option<&Joined>, state: &State) -> Membership {
        self.member().membership(joined, state)
    }

    /// Who was expected by name and is not in the state that was read last.
    pub(super) fn missing(&self) -> MissingHosts {
        self.expected.missing(self.latest().iter().flat_map(|state| state.members()))
    }

    /// The state that was read or written last, by whichever thread.
    pub(super) fn latest(&self) -> Option<Arc<State>> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.as_ref().map(|(_, state)| Arc::clone(state))
    }

    /// Reads the state once.
    pub(super) fn look(&self) -> Result<Arc<State>> {
        let limited = self.backend.within(self.call_timeout());
        let state = self.cell(limited.as_deref().unwrap_or(&*self.backend))?.state;
        let mut member = self.member();
        member.observe(state.as_ref(), self.now());
        // The store has lost the round of this node. The keep-alive thread is about to restore it.
        match member.round.as_ref().filter(|_| member.is_ahead) {
            Some(round) => Ok(Arc::clone(round)),
            None => Ok(state.unwrap_or_default()),
        }
    }

    /// Returns how long one call may take, so that an outage lasts no longer than it may.
    fn call_timeout(&self) -> Duration {
        let left = self.settings.store_outage_timeout.saturating_sub(self.outage().lasted(self.now()));
        left.clamp(Duration::from_millis(100), CALL_TIMEOUT)
    }

    /// Returns how long until the next silent node counts as dead.
    pub(super) fn until_next_death(&self) -> Option<Duration> {
        let member = self.member();
        member.watch.until_next_death(self.settings.keep_alive_limit(), &self.me)
    }

    /// Removes the keys of old rounds, for at most `REMOVAL_TIMEOUT`. The next call removes the rest.
    pub(super) fn remove_stale_keys(&self) {
        let stale = *self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(round) = stale
            && self.backend.forget(round, REMOVAL_TIMEOUT)
        {
            self.stale.lock().unwrap_or_else(PoisonError::into_inner).take_if(|stale| *stale == round);
        }
    }

    /// Assumes that this node has announced itself for the next round to open, as another process may have done for it.
    pub(super) fn suppose_announced(&self, state: &State) {
        self.member().announcement = Some(state.round + u64::from(state.complete));
    }

    /// Tolerates a failed call to the store, begun at `began`.
    ///
    /// # Errors
    ///
    /// Fails with the same error if it is no outage, with `RendezvousError::Interrupted` if this thread was interrupted, and
    /// with `RendezvousError::Outage` after `store_outage_timeout`.
    pub(super) fn tolerate(&self, error: RendezvousError, began: MonoTime) -> Result<()> {
        if is_interrupted() {
            return Err(self.interrupted());
        }
        let source = match error {
            RendezvousError::Connection { source, .. } if source.is_outage() => source,
            error => return Err(error),
        };
        let (run_id, limit) = (&self.settings.run_id, self.settings.store_outage_timeout);
        let now = self.now();
        let tolerance = self.outage().handle_failure(began, now, limit);
        match tolerance {
            Tolerance::Quiet => {}
            Tolerance::Warn(lasted) => {
                tracing::warn!(
                    "The store of the rendezvous '{run_id}' has not answered for {:.0} s: {source}. The node '{}' \
                     carries on, and gives up after {} s (store_outage_timeout).",
                    lasted.as_secs_f64(),
                    self.me,
                    limit.as_secs()
                );
            }
            Tolerance::GiveUp(lasted) => {
                let (run_id, source) = (run_id.clone(), source.into());
                return Err(RendezvousError::Outage { run_id, lasted, source });
            }
        }
        if self.outage().lasted(now) >= TAKE_OVER_GRACE {
            self.take_over();
        }
        Ok(())
    }

    /// Records that the store has answered a call begun at `began`.
    pub(super) fn answered(&self, began: MonoTime) {
        let now = self.now();
        self.round_trip.store(now.since(began).as_micros() as u64, Ordering::Relaxed);
        if let Some(lasted) = self.outage().handle_answer(now) {
            let (run_id, seconds) = (&self.settings.run_id, lasted.as_secs_f64());
            tracing::info!("The store of the rendezvous '{run_id}' answers again, after {seconds:.0} s.");
        }
    }

    /// Whether the last call to the store failed because of an outage.
    pub(super) fn is_store_out(&self) -> bool {
        !self.outage().lasted(self.now()).is_zero()
    }

    /// Whether this node hosts the store in place of a host that is gone.
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

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a signal, at most for so long or until it is interrupted. Whether it came.
    pub(super) fn wait(&self, signal: Signal, most: Duration) -> bool {
        if Duration::from_micros(self.round_trip.load(Ordering::Relaxed)) > WAIT_ROUND_TRIP_TIMEOUT {
            self.sleep(most);
            return false;
        }
        self.in_slices(most, |slice| self.backend.wait(signal, slice))
    }

    /// Sleeps so long, or until it is interrupted.
    pub(super) fn sleep(&self, most: Duration) {
        self.in_slices(most, |slice| {
            sleep(slice);
            false
        });
    }

    fn in_slices(&self, most: Duration, wait: impl Fn(Duration) -> bool) -> bool {
        let start = Instant::now();
        loop {
            let left = most.saturating_sub(start.elapsed());
            if left.is_zero() || self.is_interrupted() {
                return false;
            }
            if wait(left.min(SLICE)) {
                return true;
            }
        }
    }

    /// Whether this node, or the thread that calls, was told to stop waiting.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst) || is_interrupted()
    }

    fn interrupted(&self) -> RendezvousError {
        RendezvousError::Interrupted { run_id: self.settings.run_id.clone() }
    }

    /// Pursues a goal to its end.
    pub(super) fn pursue(&self, goal: Goal, deadline: MonoTime) -> Result<End> {
        let started = Instant::now();
        let mut run = Run::new(goal, self.now(), deadline);
        let mut step = run.start(&mut self.member());
        let mut corrupt_since = None;
        let mut woken = None;
        let mut is_spare = false;
        let waits = matches!(goal, Goal::Join | Goal::Exit);
        // What must be done by then must not wait longer for a store that is away.
        let limited = if waits { None } else { self.backend.within(deadline.since(self.now())) };
        loop {
            // Who joins has that long and a little more to withdraw; a spare has no end.
            let joining = match waits && !run.is_spare(&self.me) {
                true => {
                    let left = run.deadline().since(self.now()) + ROLLBACK;
                    self.backend.within(left.min(self.call_timeout()))
                }
                false => None,
            };
            let backend = joining.as_deref().or(limited.as_deref()).unwrap_or(&*self.backend);
            // A node that was told to stop waiting still leaves, or closes the rendezvous.
            if if waits { self.is_interrupted() } else { is_interrupted() } {
                return Err(self.interrupted());
            }
            let began = self.now();
            let asks = !matches!(step, Step::Pause { .. });
            let reads = matches!(step, Step::Read);
            if waits && run.is_spare(&self.me) && !std::mem::replace(&mut is_spare, true) {
                tracing::warn!(
                    "The node '{}' is a spare of the rendezvous '{}': {}. It runs no workers until a node of the round \
                     is lost.\nhint: if it is not meant as a spare, give its job a --rdzv-id of its own",
                    self.me,
                    self.settings.run_id,
                    run.reason()
                );
            }
            let next = match step {
                Step::Read => self.cell(backend).map(|cell| {
                    let mut member = self.member();
                    run.handle_cell(&mut member, cell, self.now(), (self.wall_clock)())
                }),
                Step::Announce { round } => self.announce(backend, &mut run, round),
                Step::Write { token, state, retract } => self.write(backend, &mut run, token, state, retract),
                Step::Pause { most, phase } => {
                    self.report(&run, started);
                    // What doesn't wait for others has only collided with them; it is not to try again at once.
                    if most < WORTH_WAITING || !waits {
                        std::thread::sleep(most);
                    } else if woken == Some(phase) {
                        // It was said to be over and is not: what lies there is of an earlier life of this job, or a
                        // stranger's. It must not make this a busy loop.
                        self.sleep(most);
                    } else if self.wait(Signal::Over(phase), most) {
                        woken = Some(phase);
                    }
                    Ok(run.handle_pause(&self.member(), self.now()))
                }
                Step::End(end) => return Ok(end),
            };
            step = match next {
                Ok(step) => {
                    if asks {
                        self.answered(began);
                    }
                    // That it could be read is not enough where it is what was to be written that is wrong.
                    if !reads {
                        corrupt_since = None;
                    }
                    step
                }
                Err(error) => {
                    self.pause_before_retry(error, &mut corrupt_since, began, run.deadline(), waits)?;
                    run.handle_failure()
                }
            };
        }
    }

    /// Pauses before the next attempt.
    ///
    /// # Errors
    ///
    /// Fails with the error if another attempt is not worth it.
    fn pause_before_retry(
        &self,
        error: RendezvousError,
        corrupt_since: &mut Option<Instant>,
        began: MonoTime,
        deadline: MonoTime,
        waits: bool,
    ) -> Result<()> {
        match &error {
            RendezvousError::Connection { source, .. } if source.is_outage() => {
                let latest = if waits { deadline.after(ROLLBACK) } else { deadline };
                if self.now() >= latest {
                    return Err(error);
                }
                // A write may have happened or not. The next read shows it.
                self.tolerate(error, began)?;
                if waits {
                    self.sleep(OUTAGE_RETRY_INTERVAL);
                }
                Ok(())
            }
            // Old agents are in the rendezvous, and keep writing states that this node can't share.
            RendezvousError::State { source: StateError::OldAgent, .. } => Err(error),
            RendezvousError::State { source, .. } => {
                let since = corrupt_since.get_or_insert_with(|| {
                    tracing::warn!(
                        "the state of the rendezvous '{}' can't be read, waiting for it to be put right: {source}",
                        self.settings.run_id
                    );
                    Instant::now()
                });
                if since.elapsed() >= CORRUPT || self.now() > deadline {
                    return Err(error);
                }
                // Who was interrupted and now leaves, or only shows that it is alive, must not look again and again.
                match waits {
                    true => self.sleep(Duration::from_millis(500)),
                    false => std::thread::sleep(Duration::from_millis(500)),
                }
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn announce(&self, backend: &dyn RendezvousBackend, run: &mut Run, round: u64) -> Result<Step> {
        // Once is enough: who was taken back is not let in by others again, however often it asks.
        let helped = *self.asked() == Some(round) || backend.announce(round, &self.me)?;
        *self.asked() = helped.then_some(round);
        // In this order: whoever is taken back is so before the state changes.
        let cell = self.cell(backend)?;
        let is_settled = cell.state.as_ref().is_some_and(|state| run.is_settled(&self.me, state));
        let announced = if helped && !is_settled { backend.announced(round)? } else { Vec::new() };
        let mut member = self.member();
        Ok(run.handle_announced(&mut member, cell, announced, self.now(), (self.wall_clock)()))
    }

    fn write(
        &self,
        backend: &dyn RendezvousBackend,
        run: &mut Run,
        token: Token,
        state: State,
        retract: Option<(u64, Vec<NodeDesc>)>,
    ) -> Result<Step> {
        if let Some((round, nodes)) = retract {
            backend.retract(round, &nodes)?;
        }
        let bytes = pickle::encode_checked(&state, &self.limits)
            .map_err(|source| RendezvousError::State { run_id: self.settings.run_id.clone(), source })?;
        let before = run.shared_state().unwrap_or_default();
        let written = backend.set_state(&bytes, &token)?;
        // States may be large: what is not needed any more goes before the next is read.
        drop((bytes, token));
        let cell = match (written.won, written.now) {
            (true, Some((_, token))) => {
                let state = Arc::new(state);
                self.tell(backend, &before, &state);
                self.remember(&token, &state);
                Cell { state: Some(state), token }
            }
            (_, now) => {
                drop((state, before));
                self.decode(now)?
            }
        };
        let mut member = self.member();
        Ok(run.handle_written(&mut member, written.won, cell, random(), self.now(), (self.wall_clock)()))
    }

    /// After a write that won: wakes those whom it concerns, and says who was dropped.
    fn tell(&self, backend: &dyn RendezvousBackend, before: &State, after: &State) {
        let (was, is) = (Phase::of(before), Phase::of(after));
        if let Some(phase) = was.filter(|_| was != is) {
            backend.signal(Signal::Over(phase));
            if is.is_none() {
                backend.signal(Signal::Wanted { round: phase.round });
            } else if phase.round >= 2 && !phase.complete {
                *self.stale.lock().unwrap_or_else(PoisonError::into_inner) = Some(phase.round - 2);
            }
        }
        if after.complete && after.wait_list.contains(&self.me) && !before.wait_list.contains(&self.me) {
            backend.signal(Signal::Wanted { round: after.round });
        }
        let is_lost = |node: &&NodeDesc| **node != self.me && !after.has(node);
        // They start over without them, and need not wait until they look.
        if was == is && after.complete && before.participants.keys().any(|node| is_lost(&node)) {
            backend.signal(Signal::Wanted { round: after.round });
        }
        for node in before.last_heartbeats.keys().filter(is_lost) {
            let what = format!(
                "The node '{node:?}' was removed from the rendezvous '{}' by '{}': no heartbeat for {} s \
                 (keep_alive_interval × keep_alive_max_attempt)",
                self.settings.run_id,
                self.me,
                self.settings.keep_alive_limit().as_secs_f64()
            );
            match self.may_have_finished(backend, before, node) {
                true => tracing::info!(
                    "{what}. Workers of the round have finished: a torch agent whose own have says nothing more while it \
                     waits for the others, so nothing need be wrong."
                ),
                false => tracing::warn!("{what}."),
            }
        }
    }

    /// Whether a torch node that was rank 0 of this round, and not of the job's first one, is gone. Such a node does not
    /// publish where the workers meet.
    pub(super) fn has_lost_torch_host(&self, round: u64, rank_0: &NodeDesc) -> bool {
        let is_gone = self.latest().is_some_and(|state| !state.has(rank_0));
        round > 0 && is_gone && !self.backend.announced(round).is_ok_and(|ours| ours.contains(rank_0))
    }

    /// Whether this may be an agent of torch's that waits for the others to finish: its client can do one thing at a
    /// time, so its heartbeats wait as well. Ours have announced themselves, and show that they live until they go.
    fn may_have_finished(&self, backend: &dyn RendezvousBackend, before: &State, node: &NodeDesc) -> bool {
        if !before.complete || backend.announced(before.round).is_ok_and(|ours| ours.contains(node)) {
            return false;
        }
        let prefix = keys::round_prefix(&self.settings.run_id, before.round);
        let round = PrefixStore::new(prefix, Arc::from(self.store.with_timeout(Some(WHY))));
        nodes_that_finished(&round).is_ok_and(|nodes| nodes > 0)
    }

    fn report(&self, run: &Run, started: Instant) {
        if let Some(observer) = &self.observer {
            observer.waiting(&Waiting {
                reason: run.reason(),
                state: run.state(),
                settings: &self.settings,
                waited: started.elapsed(),
                left: run.deadline().since(self.now()),
                missing: self.missing(),
            });
        }
    }

    fn cell(&self, backend: &dyn RendezvousBackend) -> Result<Cell> {
        let read = backend.state()?;
        // A store that was restarted has lost heartbeats, so what was seen of them proves no silence.
        let generation = self.store.generation();
        if self.generation.swap(generation, Ordering::Relaxed) != generation {
            self.member().watch = Watch::default();
        }
        self.decode(read)
    }

    fn decode(&self, read: Option<(Vec<u8>, Token)>) -> Result<Cell> {
        let Some((bytes, token)) = read else { return Ok(Cell { state: None, token: Token::new() }) };
        {
            let known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, state)) = known.as_ref().filter(|(known, _)| *known == token) {
                return Ok(Cell { state: Some(Arc::clone(state)), token });
            }
        }
        let state = pickle::decode(&bytes, &self.limits)
            .map_err(|source| RendezvousError::State { run_id: self.settings.run_id.clone(), source })?;
        let state = Arc::new(state);
        self.remember(&token, &state);
        Ok(Cell { state: Some(state), token })
    }

    fn remember(&self, token: &Token, state: &Arc<State>) {
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((token.clone(), Arc::clone(state)));
    }

    fn asked(&self) -> MutexGuard<'_, Option<u64>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member(&self) -> MutexGuard<'_, Member> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time by this machine's clock.
fn system_clock() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime::from_unix(since).unwrap_or(WallTime::UNIX_EPOCH)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
