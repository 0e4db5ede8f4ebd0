//! One total order of requests, and what each of them does.
//!
//! *Tell*: [`Engine::handle_request`], [`Engine::handle_disconnect`]. *Ask*: [`Engine::poll_output`].
//! A driver that has others to serve lets requests of very many keys be carried out in steps: *tell* [`Engine::begin`], *do*
//! [`Engine::work`] while there is some, and [`Engine::tidy`] now and then. The rest looks.
//! It needs no clock: clients bound their own waits and cancel them. Only the expiry of idle jobs needs the time, which the
//! driver passes in ([`Engine::set_time`]).

mod expiry;
mod long;
mod waiting;
mod writing;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use ahash::RandomState;

use super::barriers::{Arrival, Barriers};
use super::jobs::{JobIndex, Jobs};
use super::listing::Listing;
use super::map::Map;
use super::queues::Queues;
use super::snapshot::{Snapshot, Waiting};
use super::waiters::{ClientIndex, Places, Waiters};
use crate::error::Refusal;
use crate::key::Key;
use crate::limits::Limits;
use crate::value::Value;
use crate::wire::{KeyList, Op, Reply, Request, Strings};
pub use expiry::ExpiredJob;
use long::Long;

/// Names the server keeps for itself. Torch's clients put `/` before every key, so they never use one.
pub const RESERVED_PREFIX: &[u8] = b"rallypoint/";
/// The read-only name under which a server says who it is. It is in no count and no list.
pub const SERVER_KEY: &[u8] = b"rallypoint/server";
/// A name for CHECK alone: it is there if this connection's last COMPARE_SET stored what it desired. The reply to a
/// COMPARE_SET can't say, for the value may have been held already.
pub const STORED_KEY: &[u8] = b"rallypoint/stored";

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

/// The same where it lies, with lists of keys not printed yet.
#[derive(Debug)]
pub enum Next {
    /// Send this, or close.
    Output(Output),
    /// Send the list of all keys: their number, then what [`Engine::print_keys`] gives.
    Keys {
        /// To whom.
        client: ClientId,
        /// What.
        listing: Listing,
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
    /// Apart, because few have one at a time and every request looks whether there is one.
    keepsake: Option<Box<Keepsake>>,
    /// Whether its last COMPARE_SET stored.
    stored: bool,
    /// The job of the last rendezvous key that this client named.
    job: Option<JobIndex>,
}

/// What a wait leaves its client until its next request.
#[derive(Debug, Default)]
struct Keepsake {
    /// What the wait has seen: a `get` that follows finds the value even if somebody has deleted the key since.
    latch: Vec<(Key, Value)>,
    /// What the latch is counted as.
    bytes: usize,
    /// The queue it was woken for.
    claim: Option<Key>,
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
    outputs: VecDeque<Next>,
    /// An empty one with room, for whoever waits next.
    spare: Option<Box<Keepsake>>,
    /// A request that is being carried out in steps.
    long: Option<Box<Long>>,
    /// What nobody wants any more, where letting go of it takes long.
    rubbish: Vec<Vec<(Key, Value)>>,
    /// What all latches together are counted as.
    latched: usize,
    /// The jobs with keys in this store. `None` unless idle jobs expire.
    jobs: Option<Box<Jobs>>,
    hasher: RandomState,
    empty: Value,
}

/// Latches longer than this are looked up through a table.
const LATCH_SCAN: usize = 16;
/// Values looked at in one tidying: a fraction of a millisecond.
const TIDIED: usize = 4096;
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
            waiters: Waiters::new(hasher.clone()),
            clients: Vec::new(),
            blocked: 0,
            outputs: VecDeque::new(),
            spare: None,
            long: None,
            rubbish: Vec::new(),
            latched: 0,
            jobs: None,
            hasher,
            empty: Value::default(),
        }
    }

    /// A client asks. What comes of it is in [`Engine::poll_output`].
    ///
    /// While a client is blocked only CANCEL_WAIT is accepted from it; [`Session`](crate::Session) keeps the rest back.
    #[inline]
    pub fn handle_request(&mut self, client: ClientId, request: Request<'_>) {
        if self.long.is_some() {
            self.make_way(client, &request);
        }
        let known = self.admit(client);
        let blocked = !matches!(known.state, State::Free);
        if blocked && !matches!(request, Request::CancelWait) {
            let reason = Refusal::Blocked { op: request.op() };
            return self.effect(Output::Close { client, reason });
        }
        // This request ends what the one before left open.
        let keepsake = known.keepsake.take();
        if self.jobs.is_some() {
            self.use_jobs(client, &request);
        }
        // What most stores are asked most often goes past the rest.
        if let (Request::Get { key }, None) = (&request, &keepsake) {
            let reply = Reply::Value(self.value(key, &[]));
            return self.effect(Output::Reply { client, reply });
        }
        let latch = keepsake.as_deref().map_or(&[][..], |keepsake| &keepsake.latch);
        match self.answer(client, request, latch) {
            Ok(Some(reply)) => self.effect(Output::Reply { client, reply }),
            Ok(None) => {}
            Err(reason) => self.effect(Output::Close { client, reason }),
        }
        if let Some(keepsake) = keepsake {
            self.discard(keepsake);
        }
    }

    /// A client that is not blocked asks for SETs in a row, up to one that is refused or wakes somebody. How many that were.
    #[inline]
    pub fn handle_sets<'a>(
        &mut self,
        client: ClientId,
        mut sets: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> usize {
        let Some((key, value)) = sets.next() else { return 0 };
        // The first ends what the request before left open.
        self.handle_request(client, Request::Set { key, value: value.into() });
        let mut handled = 1;
        while self.outputs.is_empty()
            && self.long.is_none()
            && let Some((key, value)) = sets.next()
        {
            handled += 1;
            if self.jobs.is_some() {
                self.use_job(client, key, true);
            }
            if let Err(reason) = self.set(key, &value.into()) {
                self.effect(Output::Close { client, reason });
            }
        }
        handled
    }

    /// A client is gone: whatever it waited for, it doesn't any more.
    pub fn handle_disconnect(&mut self, client: ClientId) {
        self.abandon(client);
        let Some(known) = self.clients.get_mut(client.index()) else { return };
        if known.generation != client.generation {
            return;
        }
        known.stored = false;
        let keepsake = known.keepsake.take();
        if let Some(jobs) = &mut self.jobs {
            jobs.leave(known.job.take());
        }
        self.unblock(client.index);
        if let Some(keepsake) = keepsake {
            self.discard(keepsake);
        }
    }

    /// Ends what a wait left open.
    fn discard(&mut self, mut keepsake: Box<Keepsake>) {
        let claim = keepsake.claim.take();
        self.latched -= std::mem::take(&mut keepsake.bytes);
        if keepsake.latch.len() > self.limits.turn_keys {
            self.rubbish.push(std::mem::take(&mut keepsake.latch));
        } else if keepsake.latch.capacity() <= LATCH_KEEP {
            keepsake.latch.clear();
            self.spare = Some(keepsake);
        }
        if let Some(queue) = claim {
            self.queues.end_claim(&queue);
            self.wake_for_items(&queue);
        }
    }

    /// What [`Engine::poll_output`] gives next, where it lies: for a driver that takes from it what it needs, and
    /// moves nothing else.
    #[inline]
    pub fn next_output(&mut self) -> Option<&mut Next> {
        self.outputs.front_mut()
    }

    /// The next thing to do, until `None`.
    #[inline]
    pub fn poll_output(&mut self) -> Option<Output> {
        match self.outputs.pop_front()? {
            Next::Keys { client, mut listing } => {
                let mut keys = Vec::with_capacity(listing.count());
                while let Some(printed) = self.print_keys(&mut listing) {
                    keys.extend(Strings::of(&printed).map(Key::from));
                }
                if !keys.is_empty() {
                    self.tidy();
                }
                Some(Output::Reply { client, reply: Reply::Keys(keys) })
            }
            Next::Output(output) => Some(output),
        }
    }

    #[inline]
    fn effect(&mut self, output: Output) {
        self.outputs.push_back(Next::Output(output));
    }

    /// The next keys of a list, as they travel, until `None`.
    pub fn print_keys(&mut self, listing: &mut Listing) -> Option<Value> {
        self.map.print(listing)
    }

    /// Whether something is kept for others that they may have let go of since: then [`Engine::tidy`] is to be called,
    /// now and then.
    pub fn is_tidy(&self) -> bool {
        self.map.is_tidy()
    }

    /// Lets go of what replies have held and hold no more.
    pub fn tidy(&mut self) {
        self.map.tidy(TIDIED);
    }

    /// Whether this client is blocked in a WAIT or BARRIER.
    #[inline]
    pub fn is_blocked(&self, client: ClientId) -> bool {
        self.clients
            .get(client.index())
            .is_some_and(|known| known.generation == client.generation && !matches!(known.state, State::Free))
    }

    /// The engine in figures.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            keys: self.map.len(),
            bytes: self.stored_bytes(),
            queue_items: self.queues.items(),
            awaited: self.waiters.len(),
            blocked: self.blocked,
        }
    }

    /// What a key holds.
    pub fn value_of(&self, key: &[u8]) -> Option<&Value> {
        self.map.get(key)
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

    /// Returns the bytes of keys, values and queue items.
    fn stored_bytes(&self) -> usize {
        self.map.bytes() + self.queues.bytes() + self.adding()
    }

    /// Returns the bytes that [`Limits::store_bytes`] bounds: stored data, awaited names, barriers and the table of jobs.
    fn bytes(&self) -> usize {
        let jobs = self.jobs.as_ref().map_or(0, |jobs| jobs.bytes());
        self.stored_bytes() + self.waiters.bytes() + self.barriers.bytes() + jobs
    }

    #[inline]
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
        latch: &[(Key, Value)],
    ) -> Result<Option<Reply>, Refusal> {
        Ok(match request {
            // The session has checked it; a second one never gets here.
            Request::Validate { .. } => None,
            Request::Ping { nonce } => Some(Reply::Nonce(nonce)),
            Request::Set { key, value } => {
                self.set(key, &value)?;
                None
            }
            Request::CompareSet { key, expected, desired } => {
                Some(Reply::Value(self.compare_set(client, key, expected, desired)?))
            }
            Request::Get { key } => Some(Reply::Value(self.value(key, latch))),
            Request::Add { key, delta } => Some(Reply::Number(self.add(key, delta)?)),
            Request::Check { keys } => {
                let stored = self.identity.is_some() && self.clients[client.index()].stored;
                let stored = |key| stored && key == STORED_KEY;
                Some(Reply::Checked(keys.iter().all(|key| self.is_present(key) || stored(key))))
            }
            Request::Wait { keys } => self.wait(client, keys)?,
            Request::NumKeys => Some(Reply::Number(self.map.len() as i64)),
            Request::DeleteKey { key } => {
                self.writable(Op::DeleteKey, key)?;
                Some(Reply::Number(i64::from(self.map.remove(key))))
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
            Request::ListKeys => {
                let listing = self.map.list();
                self.outputs.push_back(Next::Keys { client, listing });
                None
            }
            Request::Barrier { key, world_size } => self.barrier(client, key, world_size)?,
        })
    }

    // ---- reading ----

    fn is_present(&self, key: &[u8]) -> bool {
        self.map.get(key).is_some() || self.is_present_otherwise(key)
    }

    /// Whether a name that is no key of the map is there all the same.
    fn is_present_otherwise(&self, key: &[u8]) -> bool {
        self.queues.len(key) > 0 || self.reserved(key).is_some()
    }

    fn reserved(&self, key: &[u8]) -> Option<&Value> {
        self.identity.as_ref().filter(|_| key == SERVER_KEY)
    }

    fn value(&self, key: &[u8], latch: &[(Key, Value)]) -> Value {
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

    fn values(&self, keys: KeyList<'_>, latch: &[(Key, Value)]) -> Vec<Value> {
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

    /// Panics if the index of waiters disagrees with the clients. For tests; it walks everything.
    #[doc(hidden)]
    pub fn assert_consistent(&self) {
        let (mut registered, mut blocked) = (0, 0);
        for (index, known) in self.clients.iter().enumerate() {
            match &known.state {
                State::Free => continue,
                State::Waiting(places) => {
                    assert_eq!(self.waiters.missing(places).count(), places.left());
                    let is_registered = !self.is_registering(index as ClientIndex);
                    assert!(places.left() > 0 || !is_registered, "a client waits for nothing");
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
