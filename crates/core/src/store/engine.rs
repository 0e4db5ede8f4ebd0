//! One total order of requests, and what each of them does.
//!
//! A request is decided first and applied second: the engine checks it against what is stored, then passes [`Effect`]s to
//! [`Engine::apply`]. The same sequence of inputs gives the same outputs and refusals on every machine. The engine has no
//! clock: clients bound their own waits and cancel them.

mod waiting;
mod writing;

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

/// Names that the server reserves. Torch's clients put `/` before every key, so they never use one.
pub const RESERVED_PREFIX: &[u8] = b"rallypoint/";
/// The read-only name under which a server identifies itself. No count and no list includes it.
pub const SERVER_KEY: &[u8] = b"rallypoint/server";
/// A name for CHECK alone: it is present if the last COMPARE_SET of this connection stored its value. The reply to a
/// COMPARE_SET can't tell, because the key may have held that value already.
pub const STORED_KEY: &[u8] = b"rallypoint/stored";

/// A client of the engine, numbered by the caller. Numbers should be small and reused after a disconnect.
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

/// What comes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The request has no reply.
    NoReply,
    /// The client gets this reply.
    Reply(Reply),
    /// The client is blocked. [`Engine::poll_woken`] returns it when its request is answered.
    Blocked,
}

/// Refusals are boxed to keep results small.
type Result<T, E = Box<Refusal>> = std::result::Result<T, E>;

/// A check of the values written under keys with a prefix, beyond the limits that hold for all keys.
#[derive(Debug, Clone, Copy)]
pub struct WriteGuard {
    /// The prefix of the keys it checks.
    pub prefix: &'static [u8],
    /// The check.
    pub check: CheckWrite,
}

/// Returns why a key may not hold a value.
pub type CheckWrite = fn(key: &[u8], value: &[u8], limits: &Limits) -> Result<(), String>;

/// How to create an [`Engine`].
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// The limits on what is stored.
    pub limits: Limits,
    /// Makes the placement of keys in hash tables unpredictable to clients.
    pub seed: u64,
    /// What [`SERVER_KEY`] reads as. Without an identity no name is reserved.
    pub identity: Option<Value>,
    /// A check of written values.
    pub guard: Option<WriteGuard>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Waiting(Registrations),
    AtBarrier(Box<Arrival>),
}

/// What the engine knows of a client.
#[derive(Debug, Default)]
struct Client {
    state: State,
    /// Boxed, because few clients have one at a time.
    latch: Option<Box<Latch>>,
    /// Whether its last COMPARE_SET stored its value.
    stored: bool,
}

/// What a wait leaves to its client until the client's next request.
#[derive(Debug, Default)]
struct Latch {
    /// The values that the wait has seen. A `get` that follows finds them even if the keys were deleted since.
    values: Vec<(Key, Value)>,
    /// What the values count towards [`Limits::latched_bytes`].
    bytes: usize,
    /// The queue whose item the client was woken for.
    claim: Option<Key>,
}

/// The store.
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
    /// What all latches together count as.
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

    /// Carries out a request. While a client is blocked, only CANCEL_WAIT is accepted from it.
    ///
    /// # Errors
    ///
    /// Fails if the request is refused. It has changed nothing then, and the client's connection is to be closed.
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

    /// Forgets a client that has disconnected, with whatever it waited for.
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

    /// Returns the next client whose blocked request is answered, with [`Reply::Stop`].
    #[inline]
    pub fn poll_woken(&mut self) -> Option<ClientId> {
        self.woken.pop_front()
    }

    /// Records an effect, changes what is stored, and answers the clients that waited for it. Nothing else changes what is
    /// stored.
    ///
    /// Always inline: each request decides on one kind of effect, and pays for that kind alone.
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
                // A waiter sees what the whole list left, not a value that a later pair replaced.
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
                // A push wakes a waiter even if another client was woken for an item that is gone.
                self.wake_for_item(key);
            }
            Effect::Pop { key } => self.queues.pop(key),
        }
    }

    /// Returns a view of the engine at this moment.
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

    /// Panics if the parts of the engine disagree or a limit is passed. For tests: it walks everything.
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

    /// Returns the bytes that [`Limits::store_bytes`] bounds: stored data, awaited names and barriers.
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.map.bytes() + self.queues.bytes() + self.waiters.bytes() + self.barriers.bytes()
    }

    /// Answers the first request after a wait, which ends what the wait left open.
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
            // The session has checked it. A second VALIDATE never reaches the engine.
            Request::Validate { .. } => return Ok(Outcome::NoReply),
        }))
    }

    // ---- reading ----

    fn is_present(&self, key: &[u8]) -> bool {
        self.map.get(key).is_some() || self.queues.len(key) > 0 || self.reserved(key).is_some()
    }

    fn reserved(&self, key: &[u8]) -> Option<&Value> {
        self.identity.as_ref().filter(|_| key == SERVER_KEY)
    }

    /// Returns the value of a key as it is now, or else as a wait has seen it.
    #[inline]
    fn value<'a>(&'a self, key: &[u8], latched: impl FnOnce() -> Option<&'a Value>) -> Value {
        let stored = self.map.get(key).or_else(|| self.reserved(key));
        stored.or_else(latched).unwrap_or(&self.empty).clone()
    }

    fn values(&self, keys: KeyList<'_>, latched: &[(Key, Value)]) -> Vec<Value> {
        // Few requests need it: most keys are still there.
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

/// Refuses a request that needs more of something than the limit.
#[inline(always)]
fn check(op: Op, key: &[u8], what: &'static str, needed: usize, limit: usize) -> Result<()> {
    match needed > limit {
        true => Err(Refusal::Limit { op, key: printable(key), what, needed, limit }.into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
