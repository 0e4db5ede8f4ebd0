//! One total order of requests, and what each of them does.
//!
//! *Tell*: [`Engine::handle_request`], [`Engine::handle_disconnect`]. *Ask*: [`Engine::poll_output`]. The rest looks.
//! It needs no clock: clients bound their own waits and cancel them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use ahash::RandomState;

use super::barriers::{Arrival, Barriers};
use super::map::{Map, cost};
use super::queues::Queues;
use super::snapshot::{Snapshot, Waiting};
use super::waiters::{ClientIndex, Places, Seen, Waiters};
use crate::error::{Refusal, printable};
use crate::limits::Limits;
use crate::number::{Decimal, parse_prefix};
use crate::value::Value;
use crate::wire::{KeyList, Op, PairList, Payload, Reply, Request};

/// Names the server keeps for itself. Torch's clients put `/` before every key, so they never use one.
pub const RESERVED_PREFIX: &[u8] = b"rallypoint/";
/// The read-only name under which a server says who it is. It is in no count and no list.
pub const SERVER_KEY: &[u8] = b"rallypoint/server";

/// A connection, as the driver numbers them: a slot, and which of those who had that slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId {
    index: ClientIndex,
    generation: u32,
}

impl ClientId {
    /// Slots should be small numbers, used again after a disconnect with another generation.
    pub fn new(index: u32, generation: u32) -> ClientId {
        ClientId { index, generation }
    }

    /// The slot.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Which of those who had the slot.
    pub fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this reply.
    Reply {
        /// To whom.
        client: ClientId,
        /// What.
        reply: Reply,
    },
    /// Close this connection: its request was refused and changed nothing.
    Close {
        /// Whose.
        client: ClientId,
        /// Why.
        reason: Refusal,
    },
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    Waiting(Places),
    AtBarrier(Arrival),
}

/// What the engine knows of a connection.
#[derive(Debug, Default)]
struct Client {
    generation: u32,
    state: State,
    /// What its wait has seen, until its next request: a `get` that follows finds the value even if somebody has
    /// deleted the key since.
    latch: Vec<(Arc<[u8]>, Value)>,
    /// The queue it was woken for, until its next request.
    claim: Option<Box<[u8]>>,
}

/// The store.
pub struct Engine {
    limits: Limits,
    /// What the server says of itself; without one, no name is reserved.
    identity: Option<Value>,
    map: Map,
    queues: Queues,
    barriers: Barriers,
    waiters: Waiters,
    clients: Vec<Client>,
    blocked: usize,
    outputs: VecDeque<Output>,
    /// An empty one with room, for whoever waits next.
    spare_latch: Vec<(Arc<[u8]>, Value)>,
    empty: Value,
}

/// Latches longer than this are looked up through a table.
const LATCH_SCAN: usize = 16;
/// Room kept for the next latch.
const LATCH_KEEP: usize = 4;

impl Engine {
    /// An empty store. `seed` makes the placing of keys unpredictable to those who choose them; `identity` is what
    /// [`SERVER_KEY`] reads as; without one no name is reserved.
    pub fn new(limits: Limits, seed: u64, identity: Option<&[u8]>) -> Engine {
        let hasher = RandomState::with_seeds(seed, !seed, seed.rotate_left(32), seed ^ 0x9E37_79B9_7F4A_7C15);
        Engine {
            limits,
            identity: identity.map(Value::copied),
            map: Map::new(hasher.clone()),
            queues: Queues::new(hasher.clone()),
            barriers: Barriers::new(hasher.clone()),
            waiters: Waiters::new(hasher),
            clients: Vec::new(),
            blocked: 0,
            outputs: VecDeque::new(),
            spare_latch: Vec::new(),
            empty: Value::default(),
        }
    }

    /// A client asks. What comes of it is in [`Engine::poll_output`].
    ///
    /// While a client is blocked only CANCEL_WAIT is accepted from it; [`Session`](crate::Session) keeps the rest back.
    pub fn handle_request(&mut self, client: ClientId, request: Request<'_>) {
        let known = self.admit(client);
        let blocked = !matches!(known.state, State::Free);
        if blocked && !matches!(request, Request::CancelWait) {
            let reason = Refusal::Blocked { op: request.op() };
            return self.outputs.push_back(Output::Close { client, reason });
        }
        // This request ends what the one before left open.
        let mut latch = std::mem::take(&mut known.latch);
        let claim = known.claim.take();
        match self.answer(client, request, &latch) {
            Ok(Some(reply)) => self.outputs.push_back(Output::Reply { client, reply }),
            Ok(None) => {}
            Err(reason) => self.outputs.push_back(Output::Close { client, reason }),
        }
        if latch.capacity() > 0 && latch.capacity() <= LATCH_KEEP {
            latch.clear();
            self.spare_latch = latch;
        }
        if let Some(queue) = claim {
            self.queues.end_claim(&queue);
            self.wake_for_items(&queue);
        }
    }

    /// A client is gone: whatever it waited for, it doesn't any more.
    pub fn handle_disconnect(&mut self, client: ClientId) {
        let Some(known) = self.clients.get_mut(client.index()) else { return };
        if known.generation != client.generation {
            return;
        }
        known.latch = Vec::new();
        let claim = known.claim.take();
        self.unblock(client.index);
        if let Some(queue) = claim {
            self.queues.end_claim(&queue);
            self.wake_for_items(&queue);
        }
    }

    /// The next thing to do, until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Whether this client is blocked in a WAIT or BARRIER.
    pub fn is_blocked(&self, client: ClientId) -> bool {
        self.clients
            .get(client.index())
            .is_some_and(|known| known.generation == client.generation && !matches!(known.state, State::Free))
    }

    /// The engine in figures.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            keys: self.map.len(),
            bytes: self.bytes(),
            queue_items: self.queues.items(),
            awaited: self.waiters.len(),
            blocked: self.blocked,
        }
    }

    /// What this client is blocked in.
    pub fn waiting(&self, client: ClientId) -> Option<Waiting<'_>> {
        let known = self.clients.get(client.index()).filter(|known| known.generation == client.generation)?;
        match &known.state {
            State::Free => None,
            State::Waiting(places) => {
                Some(Waiting::Keys(self.waiters.missing(places).map(|key| &**key).collect()))
            }
            State::AtBarrier(arrival) => {
                let (key, world_size, arrived) = self.barriers.look(*arrival);
                Some(Waiting::Barrier { key, world_size, arrived })
            }
        }
    }

    fn bytes(&self) -> usize {
        self.map.bytes() + self.queues.bytes()
    }

    fn admit(&mut self, client: ClientId) -> &mut Client {
        let index = client.index();
        if index >= self.clients.len() {
            self.clients.resize_with(index + 1, Client::default);
        }
        if self.clients[index].generation != client.generation {
            let before = ClientId::new(client.index, self.clients[index].generation);
            self.handle_disconnect(before);
            self.clients[index].generation = client.generation;
        }
        &mut self.clients[index]
    }

    fn answer(
        &mut self,
        client: ClientId,
        request: Request<'_>,
        latch: &[(Arc<[u8]>, Value)],
    ) -> Result<Option<Reply>, Refusal> {
        Ok(match request {
            // The session has checked it; a second one never gets here.
            Request::Validate { .. } => None,
            Request::Ping { nonce } => Some(Reply::Nonce(nonce)),
            Request::Set { key, value } => {
                self.set(key, value)?;
                None
            }
            Request::CompareSet { key, expected, desired } => {
                Some(Reply::Value(self.compare_set(key, expected, desired)?))
            }
            Request::Get { key } => Some(Reply::Value(self.value(key, latch))),
            Request::Add { key, delta } => Some(Reply::Number(self.add(key, delta)?)),
            Request::Check { keys } => Some(Reply::Checked(keys.iter().all(|key| self.is_present(key)))),
            Request::Wait { keys } => self.wait(client, keys)?,
            Request::NumKeys => Some(Reply::Number(self.map.len() as i64)),
            Request::DeleteKey { key } => {
                self.writable(Op::DeleteKey, key)?;
                Some(Reply::Number(i64::from(self.map.remove(key).is_some())))
            }
            Request::Append { key, value } => {
                self.append(key, value)?;
                None
            }
            Request::MultiGet { keys } => Some(Reply::Values(self.values(keys, latch))),
            Request::MultiSet { pairs } => {
                self.multi_set(pairs)?;
                None
            }
            Request::CancelWait => {
                self.unblock(client.index);
                Some(Reply::Canceled)
            }
            Request::QueuePush { key, value } => {
                self.queue_push(key, value)?;
                None
            }
            Request::QueuePop { key } => {
                let (before, item) = self.queues.pop(key);
                Some(Reply::Popped { before: before as i64, item })
            }
            Request::QueueLen { key } => Some(Reply::Number(self.queues.len(key) as i64)),
            Request::ListKeys => Some(Reply::Keys(self.map.keys().cloned().collect())),
            Request::Barrier { key, world_size } => self.barrier(client, key, world_size)?,
        })
    }

    // ---- reading ----

    fn is_present(&self, key: &[u8]) -> bool {
        self.map.get(key).is_some() || self.queues.len(key) > 0 || self.reserved(key).is_some()
    }

    fn reserved(&self, key: &[u8]) -> Option<&Value> {
        self.identity.as_ref().filter(|_| key == SERVER_KEY)
    }

    fn value(&self, key: &[u8], latch: &[(Arc<[u8]>, Value)]) -> Value {
        if let Some(value) = self.map.get(key) {
            return value.clone();
        }
        if let Some(identity) = self.reserved(key) {
            return identity.clone();
        }
        latch
            .iter()
            .find(|(seen, _)| **seen == *key)
            .map_or_else(|| self.empty.clone(), |(_, value)| value.clone())
    }

    fn values(&self, keys: KeyList<'_>, latch: &[(Arc<[u8]>, Value)]) -> Vec<Value> {
        let mut table: Option<BTreeMap<&[u8], &Value>> = None;
        keys.iter()
            .map(|key| match self.map.get(key) {
                Some(value) => value.clone(),
                None if latch.len() <= LATCH_SCAN => self.value(key, latch),
                None => {
                    let table = table
                        .get_or_insert_with(|| latch.iter().map(|(key, value)| (&**key, value)).collect());
                    table.get(key).map_or_else(|| self.value(key, &[]), |value| (*value).clone())
                }
            })
            .collect()
    }

    // ---- writing ----

    /// May anybody write this key?
    fn writable(&self, op: Op, key: &[u8]) -> Result<(), Refusal> {
        match self.identity.is_some() && key.starts_with(RESERVED_PREFIX) {
            true => Err(Refusal::Reserved { op, key: printable(key) }),
            false => Ok(()),
        }
    }

    /// May this key be written, and is there room for it to hold so many bytes?
    fn permit(&self, op: Op, key: &[u8], len: usize) -> Result<(), Refusal> {
        self.writable(op, key)?;
        let limit = self.limits.store_bytes;
        let bytes = self.bytes();
        if bytes + cost(key.len(), len) > limit {
            let freed = self.map.get(key).map_or(0, |held| cost(key.len(), held.len()));
            if bytes - freed + cost(key.len(), len) > limit {
                return Err(Refusal::StoreFull { op, key: printable(key), held: bytes, limit });
            }
        }
        if self.map.len() >= self.limits.keys && self.map.get(key).is_none() {
            return Err(Refusal::TooManyKeys { op, key: printable(key), limit: self.limits.keys });
        }
        Ok(())
    }

    /// Stores a value and wakes who waited for it.
    fn put(&mut self, key: &[u8], value: Value) {
        if self.waiters.len() == 0 {
            return self.map.set(key, value);
        }
        self.map.set(key, value.clone());
        self.wake(key, &value);
    }

    fn set(&mut self, key: &[u8], value: Payload<'_>) -> Result<(), Refusal> {
        // Nobody waits for a key that is there, and what is as long takes no more room.
        if self.map.get_mut(key).is_some_and(|held| held.overwrite(value.bytes())) {
            return Ok(());
        }
        self.permit(Op::Set, key, value.bytes().len())?;
        self.put(key, value.to_value());
        Ok(())
    }

    fn compare_set(&mut self, key: &[u8], expected: &[u8], desired: Payload<'_>) -> Result<Value, Refusal> {
        // First, lest it seem absent to those who expect something there.
        self.writable(Op::CompareSet, key)?;
        let fits = match self.map.get_mut(key) {
            Some(held) if **held != *expected => return Ok(held.clone()),
            Some(held) => {
                if held.overwrite(desired.bytes()) {
                    return Ok(held.clone());
                }
                true
            }
            None => expected.is_empty(),
        };
        if !fits {
            // Absent although a value was expected: torch answers the expectation, and its own code relies on it.
            return Ok(Value::copied(expected));
        }
        self.permit(Op::CompareSet, key, desired.bytes().len())?;
        let value = desired.to_value();
        self.put(key, value.clone());
        Ok(value)
    }

    fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, Refusal> {
        let mut place = self.map.get_mut(key);
        let held = match &place {
            None => 0,
            Some(value) => parse_prefix(value).ok_or_else(|| Refusal::NotANumber { key: printable(key) })?,
        };
        let sum =
            held.checked_add(delta).ok_or_else(|| Refusal::Overflow { key: printable(key), held, delta })?;
        let sum_text = Decimal::of(sum);
        if place.as_mut().is_some_and(|value| value.overwrite(sum_text.text())) {
            return Ok(sum);
        }
        self.permit(Op::Add, key, sum_text.text().len())?;
        self.put(key, Value::copied(sum_text.text()));
        Ok(sum)
    }

    fn append(&mut self, key: &[u8], value: Payload<'_>) -> Result<(), Refusal> {
        let held = self.map.get(key).map(|held| held.len());
        let len = held.unwrap_or(0) + value.bytes().len();
        if len > self.limits.value_len {
            let limit = self.limits.value_len;
            return Err(Refusal::ValueTooLong { key: printable(key), len, limit });
        }
        self.permit(Op::Append, key, len)?;
        match held {
            // Nobody waits for a key that is there.
            Some(_) => self.map.append(key, value.bytes()),
            None => self.put(key, value.to_value()),
        }
        Ok(())
    }

    fn multi_set(&mut self, pairs: PairList<'_>) -> Result<(), Refusal> {
        let mut added = 0;
        for (key, value) in pairs.iter() {
            self.writable(Op::MultiSet, key)?;
            added += cost(key.len(), value.len());
        }
        let limit = self.limits.store_bytes;
        let tight = self.bytes() + added > limit || self.map.len() + pairs.len() > self.limits.keys;
        if tight {
            self.permit_exactly(pairs)?;
        }
        for (key, value) in pairs.iter() {
            self.map.set(key, Value::copied(value));
        }
        if self.waiters.len() > 0 {
            self.wake_for_pairs(pairs);
        }
        Ok(())
    }

    /// The exact form of the check, for a store that is nearly full: all of it fits or none is stored.
    fn permit_exactly(&self, pairs: PairList<'_>) -> Result<(), Refusal> {
        let last: BTreeMap<&[u8], usize> = pairs.iter().map(|(key, value)| (key, value.len())).collect();
        let (mut bytes, mut keys) = (self.bytes(), self.map.len());
        for (key, len) in &last {
            match self.map.get(key) {
                Some(held) => bytes = bytes - held.len() + len,
                None => {
                    bytes += cost(key.len(), *len);
                    keys += 1;
                }
            }
        }
        let first = || pairs.iter().next().map(|(key, _)| printable(key)).unwrap_or_default();
        let op = Op::MultiSet;
        if keys > self.limits.keys {
            return Err(Refusal::TooManyKeys { op, key: first(), limit: self.limits.keys });
        }
        if bytes > self.limits.store_bytes {
            let (held, limit) = (self.bytes(), self.limits.store_bytes);
            return Err(Refusal::StoreFull { op, key: first(), held, limit });
        }
        Ok(())
    }

    fn queue_push(&mut self, key: &[u8], value: Payload<'_>) -> Result<(), Refusal> {
        self.writable(Op::QueuePush, key)?;
        if self.queues.items() >= self.limits.queue_items {
            return Err(Refusal::TooManyItems { key: printable(key), limit: self.limits.queue_items });
        }
        let (held, limit) = (self.bytes(), self.limits.store_bytes);
        if held + cost(key.len(), value.bytes().len()) > limit {
            return Err(Refusal::StoreFull { op: Op::QueuePush, key: printable(key), held, limit });
        }
        self.queues.push(key, value.to_value());
        self.wake_for_items(key);
        Ok(())
    }

    // ---- waiting ----

    fn wait(&mut self, client: ClientId, keys: KeyList<'_>) -> Result<Option<Reply>, Refusal> {
        let mut latch = std::mem::take(&mut self.spare_latch);
        let mut absent = Vec::new();
        for key in keys.iter() {
            match self.map.entry(key) {
                Some((key, value)) => latch.push((Arc::clone(key), value.clone())),
                None if self.is_present(key) => {}
                None => absent.push(key),
            }
        }
        for (held, limit) in
            [(0, self.limits.awaited_per_client), (self.waiters.len(), self.limits.awaited_total)]
        {
            if held + absent.len() > limit {
                return Err(Refusal::TooManyAwaited { asked: absent.len(), held, limit });
            }
        }
        let known = &mut self.clients[client.index()];
        known.latch = latch;
        if absent.is_empty() {
            return Ok(Some(Reply::Stop));
        }
        let mut places = Places::default();
        for key in absent {
            self.waiters.register(client.index, &mut places, key);
        }
        known.state = State::Waiting(places);
        self.blocked += 1;
        Ok(None)
    }

    fn barrier(&mut self, client: ClientId, key: &[u8], world_size: i64) -> Result<Option<Reply>, Refusal> {
        let size = u64::try_from(world_size)
            .ok()
            .filter(|&size| size > 0)
            .ok_or_else(|| Refusal::BadWorldSize { key: printable(key), world_size })?;
        match self.barriers.arrive(client.index, key, size) {
            Ok(arrival) => {
                self.clients[client.index()].state = State::AtBarrier(arrival);
                self.blocked += 1;
                Ok(None)
            }
            Err(others) => {
                for other in others {
                    self.release(other);
                }
                Ok(Some(Reply::Stop))
            }
        }
    }

    /// A key has come: all who waited for it have seen it.
    fn wake(&mut self, key: &[u8], value: &Value) {
        while let Some((seen, key)) = self.waiters.take_oldest(key) {
            self.clients[seen.client as usize].latch.push((key, value.clone()));
            if self.strike(&seen) {
                self.release(seen.client);
            }
        }
    }

    /// Several keys have come at once: what is seen is what all of it left, not a value that a later pair replaced.
    fn wake_for_pairs(&mut self, pairs: PairList<'_>) {
        for (key, _) in pairs.iter() {
            if self.waiters.is_awaited(key)
                && let Some(value) = self.map.get(key).cloned()
            {
                self.wake(key, &value);
            }
        }
    }

    /// A queue has items: one waiter for each that nobody is on its way to.
    fn wake_for_items(&mut self, key: &[u8]) {
        while self.queues.has_unclaimed(key) {
            let Some((seen, _)) = self.waiters.take_oldest(key) else { return };
            if self.strike(&seen) {
                self.release(seen.client);
                self.queues.claim(key);
                self.clients[seen.client as usize].claim = Some(key.into());
            }
        }
    }

    /// Notes that a waiter has seen one of its keys; whether it was the last.
    fn strike(&mut self, seen: &Seen) -> bool {
        let State::Waiting(places) = &mut self.clients[seen.client as usize].state else {
            unreachable!("only waiting clients are registered");
        };
        Waiters::strike(places, seen);
        places.left() == 0
    }

    /// A blocked request is over.
    fn release(&mut self, index: ClientIndex) {
        let known = &mut self.clients[index as usize];
        known.state = State::Free;
        self.blocked -= 1;
        let client = ClientId::new(index, known.generation);
        self.outputs.push_back(Output::Reply { client, reply: Reply::Stop });
    }

    /// A blocked request is given up, without a reply.
    fn unblock(&mut self, index: ClientIndex) {
        let known = &mut self.clients[index as usize];
        match std::mem::take(&mut known.state) {
            State::Free => return,
            State::Waiting(mut places) => self.waiters.cancel(&mut places),
            State::AtBarrier(arrival) => self.barriers.leave(arrival),
        }
        self.blocked -= 1;
        // What half a wait has seen is not for a later `get`.
        known.latch = Vec::new();
    }

    /// Panics if the index of waiters disagrees with the clients. For tests; it walks everything.
    #[doc(hidden)]
    pub fn assert_consistent(&self) {
        let (mut registered, mut blocked) = (0, 0);
        for known in &self.clients {
            match &known.state {
                State::Free => continue,
                State::Waiting(places) => {
                    assert_eq!(self.waiters.missing(places).count(), places.left());
                    assert!(places.left() > 0, "a client waits for nothing");
                    for key in self.waiters.missing(places) {
                        assert!(self.map.get(key).is_none(), "a wake-up was lost");
                        assert!(!self.queues.has_unclaimed(key), "a queue's wake-up was lost");
                        assert!(self.waiters.is_awaited(key));
                    }
                    registered += places.left();
                }
                State::AtBarrier(_) => {}
            }
            blocked += 1;
        }
        assert_eq!(registered, self.waiters.len());
        assert_eq!(blocked, self.blocked);
    }
}

#[cfg(test)]
mod tests;
