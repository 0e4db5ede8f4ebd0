//! The `c10d` backend: the shared state under one key of a store. With it comes the store itself, hosted by one of the
//! nodes.

mod announcements;
mod hosting;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{NodeDesc, Phase, Signal, cell, keys, pickle};
use rallypoint_store::{Exchange, Failure, Store, StoreError};

use crate::backend::{RendezvousBackend, Token, Written};
use crate::error::{RendezvousError, Result};

pub use hosting::{C10dStore, TcpC10dStore, create_store, create_tcp_store};
pub(crate) use hosting::{DEFAULT_PORT, TakeOver, create_file_store};

/// The state of one job in any store.
pub struct C10dBackend {
    store: Arc<dyn Store>,
    run_id: String,
    key: String,
    limits: Limits,
    /// What was seen last: to put it back if it vanishes.
    last_value: Arc<Mutex<Token>>,
    /// How long the last read of the state took, in microseconds.
    read_time: Arc<AtomicU64>,
}

/// The shortest timeout of a call to the store.
const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(1);
/// How long a read waits for the state before it asks whether there is one. The key is there from the start, so it is absent
/// only if it was deleted.
const MIN_READ_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for a store that is far away: several times as long as the last read took, up to this.
const MAX_READ_TIMEOUT: Duration = Duration::from_secs(5);

impl C10dBackend {
    /// A backend over this store. Plants the mark of an empty state, as torch does.
    pub fn new(store: Arc<dyn Store>, run_id: &str) -> Result<C10dBackend> {
        if run_id.is_empty() {
            return Err(RendezvousError::parameter("The run id must be a non-empty string."));
        }
        let backend = C10dBackend {
            store,
            run_id: run_id.into(),
            key: keys::state(run_id),
            limits: Limits::default(),
            last_value: Arc::new(Mutex::new(Token::from_static(cell::NULL))),
            read_time: Arc::default(),
        };
        let start = Instant::now();
        backend.restore_state()?;
        // A first read over a slow link must not be given up after `PRESENT_TIMEOUT`.
        backend.read_time.store(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        Ok(backend)
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// This same backend, which waits for its store at most so long.
    pub fn with_timeout(&self, timeout: Duration) -> C10dBackend {
        let timeout = self.store.timeout().map_or(timeout, |store_timeout| timeout.min(store_timeout));
        C10dBackend {
            store: Arc::from(self.store.with_timeout(Some(timeout.max(MIN_CALL_TIMEOUT)))),
            run_id: self.run_id.clone(),
            key: self.key.clone(),
            limits: self.limits.clone(),
            last_value: Arc::clone(&self.last_value),
            read_time: Arc::clone(&self.read_time),
        }
    }

    /// If the state key is absent, puts back what was there last. Another node may be faster.
    ///
    /// If nothing was, this is the beginning of a job, and what another of that name has left goes first.
    fn restore_state(&self) -> Result<()> {
        let last = self.last_value.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if last == cell::NULL {
            self.remove_stale_rounds();
        }
        self.store.compare_set(&self.key, b"", &last).map(drop).map_err(|source| self.failed(source))
    }

    /// Removes what a former job of that name has left whose state was deleted: else whoever had announced itself for its
    /// rounds would be let into ours, and we would meet where its rank 0 was.
    ///
    /// All of that is older than the state is absent. Once there is a state again, the same names may be of the new job.
    fn remove_stale_rounds(&self) {
        // A store that can't say is about to say why.
        let is_absent = || matches!(self.store.check(&[&self.key]), Ok(false));
        if !is_absent() {
            return;
        }
        self.remove_round_keys(u64::MAX, is_absent);
    }

    /// Removes the keys of all rounds up to `last`, as long as `goes_on` returns true. Returns whether all of them are
    /// removed. Of a store that can't list its keys, only those of one round are: `last`, or the first if `last` is
    /// `u64::MAX`.
    fn remove_round_keys(&self, last: u64, should_continue: impl Fn() -> bool) -> bool {
        let keys = match self.store.list_keys() {
            Ok(mut keys) => {
                keys.retain(|key| keys::round_of(&self.run_id, key).is_some_and(|round| round <= last));
                keys
            }
            Err(_) => self.keys_of_round(if last == u64::MAX { 0 } else { last }),
        };
        keys.iter().all(|key| should_continue() && self.store.delete_key(key).is_ok())
    }

    /// The keys beside the state of one round.
    fn keys_of_round(&self, round: u64) -> Vec<String> {
        let phases = [false, true].map(|complete| keys::phase_over(&self.run_id, Phase { round, complete }));
        let other_keys = [keys::announced(&self.run_id, round), keys::wanted(&self.run_id, round)];
        phases.into_iter().chain(other_keys).collect()
    }

    /// Our server lets nothing but states be written there, and ends the connection of who tries: it is there, these bytes
    /// are no state, and they are not there.
    fn refusal(&self, state: &[u8], source: &StoreError) -> Option<RendezvousError> {
        let Some(Failure::Indeterminate(_)) = source.failure() else { return None };
        let source = pickle::decode(state, &self.limits).err()?;
        let stored = self.state().ok()?;
        let is_stored = stored.is_some_and(|(stored, _)| stored == state);
        (!is_stored).then(|| RendezvousError::State { run_id: self.run_id.clone(), source })
    }

    fn failed(&self, source: StoreError) -> RendezvousError {
        RendezvousError::Connection { run_id: self.run_id.clone(), source }
    }

    /// What lies under the key, as bytes of a state.
    fn decode(&self, value: Vec<u8>) -> Result<Option<(Vec<u8>, Token)>> {
        if value == cell::NULL {
            return Ok(None);
        }
        let bytes = cell::decode(&value, &self.limits)
            .map_err(|source| RendezvousError::State { run_id: self.run_id.clone(), source })?;
        // Only what reads is worth putting back.
        let token = Token::from(value);
        self.save_last(&token);
        Ok(Some((bytes, token)))
    }

    fn save_last(&self, value: &Token) {
        self.last_value.lock().unwrap_or_else(PoisonError::into_inner).clone_from(value);
    }

    fn key_of(&self, signal: Signal) -> String {
        match signal {
            Signal::Over(phase) => keys::phase_over(&self.run_id, phase),
            Signal::Wanted { round } => keys::wanted(&self.run_id, round),
        }
    }
}

impl RendezvousBackend for C10dBackend {
    fn name(&self) -> &str {
        "c10d"
    }

    fn state(&self) -> Result<Option<(Vec<u8>, Token)>> {
        let (start, timeout) = (Instant::now(), self.store.timeout());
        let read_time = Duration::from_micros(self.read_time.load(Ordering::Relaxed));
        let read_timeout = (8 * read_time).clamp(MIN_READ_TIMEOUT, MAX_READ_TIMEOUT);
        let read_timeout = timeout.map_or(read_timeout, |timeout| read_timeout.min(timeout));
        let value = self.store.with_timeout(Some(read_timeout)).get(&self.key);
        self.read_time.store(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        if let Ok(value) = value {
            return self.decode(value);
        }
        // It was deleted, or the server is slow or away, for which it has as long as the store gives it, all in all.
        // At least 1 ms: the first read may have waited for all of it, for a key that is not there.
        let remaining =
            || timeout.map(|timeout| timeout.saturating_sub(start.elapsed()).max(MIN_CALL_TIMEOUT));
        loop {
            match self.store.with_timeout(remaining()).check(&[&self.key]) {
                Ok(true) => break,
                Ok(false) => self.restore_state()?,
                Err(source) => return Err(self.failed(source)),
            }
        }
        let value = self.store.with_timeout(remaining()).get(&self.key);
        self.decode(value.map_err(|source| self.failed(source))?)
    }

    fn set_state(&self, state: &[u8], token: &[u8]) -> Result<Written> {
        let expected = if token.is_empty() { cell::NULL } else { token };
        let desired = cell::encode(state);
        match self.store.compare_exchange(&self.key, expected, &desired) {
            Ok(Exchange::Stored) => {
                let token = Token::from(desired);
                self.save_last(&token);
                Ok(Written { won: true, now: Some((state.to_vec(), token)) })
            }
            Ok(Exchange::Held(value)) => {
                drop(desired);
                Ok(Written { won: false, now: self.decode(value)? })
            }
            Ok(Exchange::Absent) => {
                self.restore_state()?;
                Ok(Written { won: false, now: self.state()? })
            }
            Err(source) => Err(self.refusal(state, &source).unwrap_or_else(|| self.failed(source))),
        }
    }

    fn within(&self, timeout: Duration) -> Option<Box<dyn RendezvousBackend>> {
        Some(Box::new(self.with_timeout(timeout)))
    }

    fn announce(&self, round: u64, node: &NodeDesc) -> Result<()> {
        let line = announcements::format_line(true, node);
        self.store
            .append(&keys::announced(&self.run_id, round), line.as_bytes())
            .map_err(|source| self.failed(source))
    }

    fn announced(&self, round: u64) -> Result<Vec<NodeDesc>> {
        let key = keys::announced(&self.run_id, round);
        match self.store.check(&[&key]).and_then(|exists| exists.then(|| self.store.get(&key)).transpose()) {
            Ok(Some(lines)) => Ok(announcements::parse(&lines, &self.limits)),
            Ok(None) => Ok(Vec::new()),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn retract(&self, round: u64, nodes: &[NodeDesc]) -> Result<()> {
        let lines: String = nodes.iter().map(|node| announcements::format_line(false, node)).collect();
        self.store
            .append(&keys::announced(&self.run_id, round), lines.as_bytes())
            .map_err(|source| self.failed(source))
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = self.store.set(&self.key_of(signal), b"1") {
            tracing::debug!("could not wake the other nodes: {error}");
        }
    }

    fn wait(&self, signal: Signal, timeout: Duration) -> bool {
        let start = Instant::now();
        match self.store.wait_for(&[&self.key_of(signal)], Some(timeout)) {
            Ok(()) => true,
            Err(_) => {
                // A store that fails at once must not make this a busy loop; reading the state will say what is wrong.
                rallypoint_store::sleep(
                    timeout.saturating_sub(start.elapsed()),
                    self.store.cancellation().as_ref(),
                );
                false
            }
        }
    }

    fn remove_rounds(&self, round: u64, timeout: Duration) -> bool {
        let start = Instant::now();
        self.remove_round_keys(round, || start.elapsed() < timeout)
    }
}
