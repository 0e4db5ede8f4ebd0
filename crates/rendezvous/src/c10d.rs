//! The `c10d` backend: stores the shared state under one key of a store. One of the nodes hosts the store, unless the
//! store is a file or has a standalone server.

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

/// A backend that stores the state of one job in any store.
pub struct C10dBackend {
    store: Arc<dyn Store>,
    run_id: String,
    key: String,
    limits: Limits,
    /// The last valid value of the state key. The backend writes it again if the key is deleted.
    last_value: Arc<Mutex<Token>>,
    /// The duration of the last read of the state, in microseconds.
    read_time: Arc<AtomicU64>,
}

/// The shortest timeout of a call to the store.
const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(1);
/// The shortest time that a read waits for the state before it checks whether the key exists, unless the timeout of the
/// store is shorter. [`C10dBackend::new`] creates the key, so it is absent only if it was deleted.
const MIN_READ_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that a read waits before that check. Between the two bounds, it waits eight times as long as the
/// last read took.
const MAX_READ_TIMEOUT: Duration = Duration::from_secs(5);

impl C10dBackend {
    /// Creates a backend over `store`. Writes the value of an empty state if there is no state, as torch does.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if `run_id` is empty, and with `Connection` if the store can't be
    /// used.
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
        // Over a slow link, the first read may need more than `MIN_READ_TIMEOUT`, so derive its timeout from the
        // duration of this call.
        backend.read_time.store(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        Ok(backend)
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns a copy of this backend whose calls to the store take at most `timeout`.
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

    /// Writes the last value again if the state key is absent. If another node has written a value first, that value
    /// stays.
    ///
    /// If this node has neither read nor written a state yet, an absent key means that the job is new. In that case
    /// this function first removes the keys of an earlier job with the same run id.
    fn restore_state(&self) -> Result<()> {
        let last = self.last_value.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if last == cell::NULL {
            self.remove_stale_rounds();
        }
        self.store.compare_set(&self.key, b"", &last).map(drop).map_err(|source| self.failed(source))
    }

    /// Removes the keys that an earlier job with the same run id has left, if the state of that job was deleted.
    ///
    /// If these keys stayed, nodes that had announced themselves for the earlier job would be added to the new one, and
    /// the nodes of the new job would use the old address of the workers' store. The removal stops once there is a
    /// state again, because keys with these names may then belong to the new job.
    fn remove_stale_rounds(&self) {
        // Errors of the store are ignored here, because the write that follows returns them.
        let is_absent = || matches!(self.store.check(&[&self.key]), Ok(false));
        if !is_absent() {
            return;
        }
        self.remove_round_keys(u64::MAX, is_absent);
    }

    /// Removes the keys of all rounds up to `last` while `should_continue` returns true. Returns whether all of them
    /// are removed.
    ///
    /// If the store can't list its keys, this function removes and reports on only the keys of one round: `last`, or
    /// round 0 if `last` is `u64::MAX`.
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

    /// Returns the names of our own keys for one round.
    fn keys_of_round(&self, round: u64) -> Vec<String> {
        let phases = [false, true].map(|complete| keys::phase_over(&self.run_id, Phase { round, complete }));
        let other_keys =
            [keys::announcements(&self.run_id, round), keys::next_round_wanted(&self.run_id, round)];
        phases.into_iter().chain(other_keys).collect()
    }

    /// Returns the error to report if the server refused to store `state`, or `None` if `source` has another cause.
    ///
    /// Our server accepts only states under this key and closes the connection of a client that writes anything else. A
    /// refusal is recognized by four conditions: the outcome of the write is indeterminate, the bytes are not a state,
    /// the server still replies, and the bytes are not stored.
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

    /// Decodes the value of the state key to the bytes of a state. Returns `None` for an empty state.
    fn decode(&self, value: Vec<u8>) -> Result<Option<(Vec<u8>, Token)>> {
        if value == cell::NULL {
            return Ok(None);
        }
        let bytes = cell::decode(&value, &self.limits)
            .map_err(|source| RendezvousError::State { run_id: self.run_id.clone(), source })?;
        // Only a valid value may be written again later.
        let token = Token::from(value);
        self.save_last(&token);
        Ok(Some((bytes, token)))
    }

    fn save_last(&self, value: &Token) {
        self.last_value.lock().unwrap_or_else(PoisonError::into_inner).clone_from(value);
    }

    fn key_of(&self, signal: Signal) -> String {
        match signal {
            Signal::PhaseOver(phase) => keys::phase_over(&self.run_id, phase),
            Signal::NextRoundWanted { round } => keys::next_round_wanted(&self.run_id, round),
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
        // The key was deleted, or the server is slow or unreachable. The following checks and the second read share
        // what is left of the store's timeout. They get at least 1 ms, because the first read may have spent the whole
        // timeout waiting for an absent key.
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
            Ok(Exchange::Mismatch(value)) => {
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
            .append(&keys::announcements(&self.run_id, round), line.as_bytes())
            .map_err(|source| self.failed(source))
    }

    fn announced(&self, round: u64) -> Result<Vec<NodeDesc>> {
        let key = keys::announcements(&self.run_id, round);
        match self.store.check(&[&key]).and_then(|exists| exists.then(|| self.store.get(&key)).transpose()) {
            Ok(Some(lines)) => Ok(announcements::parse(&lines, &self.limits)),
            Ok(None) => Ok(Vec::new()),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn retract(&self, round: u64, nodes: &[NodeDesc]) -> Result<()> {
        let lines: String = nodes.iter().map(|node| announcements::format_line(false, node)).collect();
        self.store
            .append(&keys::announcements(&self.run_id, round), lines.as_bytes())
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
                // Return only after `timeout`, even if the store fails immediately, because the caller would otherwise
                // loop without a pause. The next read of the state returns the error.
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
