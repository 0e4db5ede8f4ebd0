//! The engine: one total order of requests, and the effects of each request.
//!
//! The engine first checks whether a request is allowed, and then passes its [`Effect`] to [`Engine::apply`]. The same
//! sequence of inputs gives the same outputs and refusals on every machine. The engine has no clock: a client with a
//! timeout cancels its own WAIT.

mod waits;
mod writes;

use std::cell::LazyCell;
use std::collections::{BTreeMap, VecDeque};

use ahash::RandomState;

use super::barriers::{Arrival, Barriers};
use super::effect::{Effect, EffectLog};
use super::map::Map;
use super::queues::Queues;
use super::snapshot::Snapshot;
use super::waiters::{Registrations, Waiters};
use crate::error::{Refusal, printable};
use crate::key::Key;
use crate::limits::Limits;
use crate::value::Value;
use crate::wire::{KeyList, Op, Reply, Request};

/// The prefix of reserved keys. Torch's clients put `/` before every user's key, so they never use a reserved key.
pub const RESERVED_PREFIX: &[u8] = b"rallypoint/";
/// The read-only key whose value is the identity of the server. NUM_KEYS and LIST_KEYS exclude it.
pub const SERVER_KEY: &[u8] = b"rallypoint/server";
/// A key that only CHECK knows. It is present if the last COMPARE_SET of this connection stored its value. The reply to
/// a COMPARE_SET does not show this: if it equals the desired value, the key may have had that value before.
pub const STORED_KEY: &[u8] = b"rallypoint/stored";

/// The number of a client. The caller chooses the numbers. They should be small, because the engine uses them as
/// indices. A number may be reused after its client has disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(u32);

impl ClientId {
    /// Creates the id with this number.
    pub fn new(index: u32) -> ClientId {
        ClientId(index)
    }

    /// Returns the number.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The request has no reply.
    NoReply,
    /// The client gets this reply.
    Reply(Reply),
    /// The client is blocked in a WAIT or BARRIER. [`Engine::poll_woken`] returns the client when that request has
    /// succeeded, and never if it is canceled.
    Blocked,
}

/// A result with a boxed refusal, which keeps `Ok` results small.
type Result<T, E = Box<Refusal>> = std::result::Result<T, E>;

/// A check of the values that clients write under keys with a given prefix. It applies in addition to the limits.
#[derive(Debug, Clone, Copy)]
pub struct WriteGuard {
    /// The prefix of the checked keys. It must not be empty.
    pub prefix: &'static [u8],
    /// The check of a key and its new value.
    pub check: CheckWrite,
}

/// Returns an error with the reason if `value` must not be stored under `key`.
pub type CheckWrite = fn(key: &[u8], value: &[u8], limits: &Limits) -> Result<(), String>;

/// Options of an [`Engine`].
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// The limits on stored data and waits.
    pub limits: Limits,
    /// The seed of the hash tables. Clients that do not know it cannot provoke collisions.
    pub seed: u64,
    /// The value of [`SERVER_KEY`]. Without an identity, no key is reserved.
    pub identity: Option<Value>,
    /// A check of written values, in addition to the limits.
    pub guard: Option<WriteGuard>,
}

/// Whether a client is blocked, and by which request.
#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Waiting(Registrations),
    AtBarrier(Box<Arrival>),
}

/// The engine's record of a client.
#[derive(Debug, Default)]
struct Client {
    state: State,
    /// The latch of the last WAIT. It is boxed, because few clients have a latch at the same time.
    latch: Option<Box<Latch>>,
    /// Whether the client's last COMPARE_SET stored its value.
    stored: bool,
}

/// The data that a WAIT leaves for the client's next request.
#[derive(Debug, Default)]
struct Latch {
    /// The values that the WAIT saw. A GET that follows finds them even if the keys were deleted in between.
    values: Vec<(Key, Value)>,
    /// The number of bytes by which the values count toward [`Limits::latched_bytes`].
    bytes: usize,
    /// The queue that the client has a claim on.
    claim: Option<Key>,
}

/// A store without IO.
pub struct Engine<L = ()> {
    limits: Limits,
    identity: Option<Value>,
    guard: Option<WriteGuard>,
    map: Map,
    queues: Queues,
    barriers: Barriers,
    waiters: Waiters,
    clients: Vec<Client>,
    blocked: usize,
    /// The number of bytes of all latches.
    latched: usize,
    woken: VecDeque<ClientId>,
    log: L,
    empty: Value,
}

impl<L: EffectLog> Engine<L> {
    /// Creates an empty store that records its effects in `log`.
    pub fn new(options: EngineOptions, log: L) -> Engine<L> {
        let seed = options.seed;
        let hasher = RandomState::with_seeds(seed, !seed, seed.rotate_left(32), seed ^ 0x9E37_79B9_7F4A_7C15);
        Engine {
            limits: options.limits,
            identity: options.identity,
            guard: options.guard,
            map: Map::new(hasher.clone()),
            queues: Queues::new(hasher.clone()),
            barriers: Barriers::new(hasher.clone()),
            waiters: Waiters::new(hasher),
            clients: Vec::new(),
            blocked: 0,
            latched: 0,
            woken: VecDeque::new(),
            log,
            empty: Value::default(),
        }
    }

    /// Executes a request of a client. If the client is blocked, the request must be a CANCEL_WAIT.
    ///
    /// # Errors
    ///
    /// Fails with a [`Refusal`] if the request exceeds a limit or is not allowed. A refused request has not changed any
    /// stored data. The caller closes the client's connection.
    #[inline(always)]
    pub fn handle_request(&mut self, client: ClientId, request: Request<'_>) -> Result<Outcome> {
        if client.index() >= self.clients.len() {
            self.clients.resize_with(client.index() + 1, Client::default);
        }
        let record = &mut self.clients[client.index()];
        if !matches!(record.state, State::Idle) && request != Request::CancelWait {
            return Err(Refusal::Blocked { op: request.op() }.into());
        }
        match record.latch.take() {
            None => self.run(client, request, &[]),
            Some(latch) => self.run_after_wait(client, request, *latch),
        }
    }

    /// Removes a disconnected client, with its WAIT or BARRIER, its latch and its claim.
    pub fn handle_disconnect(&mut self, client: ClientId) {
        if client.index() >= self.clients.len() {
            return;
        }
        self.unblock(client);
        let removed = std::mem::take(&mut self.clients[client.index()]);
        if let Some(latch) = removed.latch {
            self.end_latch(*latch);
        }
    }

    /// Returns the next client whose WAIT or BARRIER has succeeded. The caller sends [`Reply::Stop`] to the client.
    #[inline]
    pub fn poll_woken(&mut self) -> Option<ClientId> {
        self.woken.pop_front()
    }

    /// Records an effect, applies it to the stored data, and wakes the clients that waited for it. No other method
    /// changes the stored data.
    ///
    /// The method is always inlined, so that the compiled code for each kind of request contains only the branch for
    /// its kind of effect.
    #[inline(always)]
    pub fn apply(&mut self, effect: Effect<'_>) {
        self.log.record(&effect);
        match effect {
            Effect::Put { key, value } => {
                self.map.put(key, value);
                self.wake(key);
            }
            Effect::PutAll { pairs } => {
                for (key, value) in pairs.iter() {
                    self.map.put(key, value.into());
                }
                // Wake the waiters after the last pair, so that no waiter latches a value that a later pair replaces.
                if self.waiters.len() > 0 {
                    pairs.iter().for_each(|(key, _)| self.wake(key));
                }
            }
            Effect::Append { key, bytes } => {
                self.map.append(key, bytes);
                self.wake(key);
            }
            Effect::Delete { key } => self.map.remove(key),
            Effect::Push { key, item } => {
                self.queues.push(key, item.to_value());
                // Wake a waiter even if the queue has claims: a client without a claim may have popped a claimed item,
                // so the number of claims can exceed the number of items.
                self.wake_for_item(key);
            }
            Effect::Pop { key } => self.queues.pop(key),
        }
    }

    /// Returns a snapshot of the engine.
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            keys: self.map.len(),
            bytes: self.map.bytes() + self.queues.bytes(),
            queue_items: self.queues.items(),
            awaited: self.waiters.len(),
            blocked: self.blocked,
            map: &self.map,
            queues: &self.queues,
        }
    }

    /// Checks the invariants of the engine, for tests. The check visits all clients and their registrations.
    ///
    /// # Panics
    ///
    /// Panics if the parts of the engine are inconsistent, or if a limit is exceeded.
    pub fn check_invariants(&self) {
        let (mut registered, mut blocked, mut latched) = (0, 0, 0);
        for record in &self.clients {
            latched += record.latch.as_ref().map_or(0, |latch| latch.bytes);
            blocked += usize::from(!matches!(record.state, State::Idle));
            let State::Waiting(registrations) = &record.state else { continue };
            assert!(registrations.remaining() > 0, "a client waits for nothing");
            assert_eq!(self.waiters.missing(registrations).count(), registrations.remaining());
            for key in self.waiters.missing(registrations) {
                assert!(self.map.get(key).is_none(), "a wake-up was lost");
                assert!(!self.queues.has_unclaimed(key), "a wake-up for a queue was lost");
                assert!(self.waiters.is_awaited(key));
            }
            registered += registrations.remaining();
        }
        assert_eq!((registered, blocked, latched), (self.waiters.len(), self.blocked, self.latched));
        assert!(self.bytes() <= self.limits.store_bytes, "{} bytes", self.bytes());
        assert!(self.map.len() <= self.limits.keys && self.queues.items() <= self.limits.queue_items);
        assert!(self.waiters.len() <= self.limits.awaited_total);
        assert!(self.latched <= self.limits.latched_bytes);
    }

    /// Returns the number of bytes that count toward [`Limits::store_bytes`]: stored data, awaited keys and barriers.
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.map.bytes() + self.queues.bytes() + self.waiters.bytes() + self.barriers.bytes()
    }

    /// Executes the first request after a WAIT, and ends the latch of the WAIT.
    #[inline(never)]
    fn run_after_wait(&mut self, client: ClientId, request: Request<'_>, latch: Latch) -> Result<Outcome> {
        let outcome = self.run(client, request, &latch.values);
        self.end_latch(latch);
        outcome
    }

    #[inline(always)]
    fn run(&mut self, client: ClientId, request: Request<'_>, latched: &[(Key, Value)]) -> Result<Outcome> {
        Ok(Outcome::Reply(match request {
            Request::Get { key } => {
                let find = || latched.iter().find(|(name, _)| **name == *key).map(|(_, value)| value);
                Reply::Value(self.value(key, find))
            }
            Request::Set { key, value } => return self.set(key, value),
            Request::CompareSet { key, expected, desired } => {
                Reply::Value(self.compare_set(client, key, expected.bytes(), desired)?)
            }
            Request::Add { key, delta } => Reply::Number(self.add(key, delta)?),
            Request::Check { keys } => {
                let stored = self.identity.is_some() && self.clients[client.index()].stored;
                Reply::Checked(keys.iter().all(|key| self.is_present(key) || stored && key == STORED_KEY))
            }
            Request::Wait { keys } => return self.wait(client, keys),
            Request::NumKeys => Reply::Number(self.map.len() as i64),
            Request::DeleteKey { key } => Reply::Number(i64::from(self.delete(key)?)),
            Request::Append { key, value } => return self.append(key, value.bytes()),
            Request::MultiGet { keys } => Reply::Values(self.values(keys, latched)),
            Request::MultiSet { pairs } => return self.multi_set(pairs),
            Request::CancelWait => {
                self.unblock(client);
                Reply::Canceled
            }
            Request::Ping { nonce } => Reply::Nonce(nonce),
            Request::QueuePush { key, value } => return self.queue_push(key, value),
            Request::QueuePop { key } => self.queue_pop(key),
            Request::QueueLen { key } => Reply::Number(self.queues.len(key) as i64),
            Request::ListKeys => Reply::Keys(self.list_keys()?),
            Request::Barrier { key, world_size } => return self.barrier(client, key, world_size),
            // The session of the connection has checked VALIDATE, and the hub handles MESSAGE.
            Request::Validate { .. } | Request::Message { .. } => return Ok(Outcome::NoReply),
        }))
    }

    // ---- reads ----

    fn is_present(&self, key: &[u8]) -> bool {
        self.map.get(key).is_some() || self.queues.len(key) > 0 || self.reserved(key).is_some()
    }

    fn reserved(&self, key: &[u8]) -> Option<&Value> {
        self.identity.as_ref().filter(|_| key == SERVER_KEY)
    }

    /// Returns the stored value of a key. If the key is absent, returns its latched value, or an empty value if there
    /// is none.
    #[inline]
    fn value<'a>(&'a self, key: &[u8], latched: impl FnOnce() -> Option<&'a Value>) -> Value {
        let stored = self.map.get(key).or_else(|| self.reserved(key));
        stored.or_else(latched).unwrap_or(&self.empty).clone()
    }

    fn values(&self, keys: KeyList<'_>, latched: &[(Key, Value)]) -> Vec<Value> {
        // The index of latched values is built only if a key is absent, which is rare.
        let by_key =
            LazyCell::new(|| latched.iter().map(|(key, value)| (&**key, value)).collect::<BTreeMap<_, _>>());
        let mut values = Vec::with_capacity(keys.len());
        values.extend(keys.iter().map(|key| self.value(key, || by_key.get(key).copied())));
        values
    }

    fn list_keys(&self) -> Result<Vec<Key>> {
        let len = 8 + 8 * self.map.len() + self.map.key_bytes();
        check(Op::ListKeys, b"*", "bytes of reply", len, self.limits.output_hard)?;
        Ok(self.map.iter().map(|(key, _)| key.clone()).collect())
    }
}

/// Refuses a request if `needed` exceeds `limit`. `what` is their unit.
#[inline(always)]
fn check(op: Op, key: &[u8], what: &'static str, needed: usize, limit: usize) -> Result<()> {
    match needed > limit {
        true => Err(Refusal::Limit { op, key: printable(key), what, needed, limit }.into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
