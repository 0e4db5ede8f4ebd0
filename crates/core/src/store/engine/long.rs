//! Requests of very many keys, or of much to be stored, carried out in steps so that others have their turns in between.
//!
//! First its keys are sorted by the table they are in, a step at a time; nobody sees anything of that. When that is done
//! the request counts as carried out, all at once: from then on a table is looked at or written, as the request asks,
//! before anybody else gets at it. What nobody wants meanwhile is done in further steps.
//!
//! A WAIT needs no such moment: it may see each key at its own time. It is registered for some keys at a time.

use std::collections::BTreeMap;

use super::{Engine, Keepsake, LATCH_KEEP, Output, STORED_KEY, State};
use crate::error::Refusal;
use crate::store::ClientId;
use crate::store::map::cost;
use crate::store::waiters::{ClientIndex, Places, WAIT_OVERHEAD};
use crate::value::Value;
use crate::wire::{Frame, Kept, Op, Reply, Request};

/// A request that is being carried out.
#[derive(Debug)]
pub(super) struct Long {
    client: ClientId,
    request: Kept,
    /// How far it is sorted, or registered: the place of the next key in the request, and how many there were before it.
    at: usize,
    sorted: u32,
    is_sorted: bool,
    /// For each table, the keys of the request that are in it: their places and their numbers.
    tables: Vec<Vec<(u32, u32)>>,
    /// The next table; others may have been done before their turn.
    next: usize,
    /// The number of its keys, and how many of them are not done yet.
    keys: usize,
    left: usize,
    /// Bytes that it may add to the store and has not yet.
    adding: usize,
    /// What a MULTI_GET has found.
    values: Vec<Option<Value>>,
    /// What a CHECK has found.
    all_present: bool,
    /// What a wait before it has left.
    keepsake: Option<Box<Keepsake>>,
}

impl Long {
    /// Whether others may see a difference between before and after.
    fn writes(&self) -> bool {
        matches!(self.request.request(), Request::MultiSet { .. })
    }

    fn waits(&self) -> bool {
        matches!(self.request.request(), Request::Wait { .. })
    }
}

/// Approximate bytes per key of a long request beyond the request itself: an index entry and a result.
const KEY_OVERHEAD: usize = 32;
/// At most so many times [`Limits::turn_keys`](crate::Limits::turn_keys) are handled at once.
const AT_ONCE: usize = 3;
/// A MULTI_SET is long from so many bytes on, and has as many stored in a step as a connection is read of in a turn.
const MUCH: usize = 2 * 1024 * 1024;

/// How many keys a request has, if it can be carried out in steps.
fn keys_of(request: &Request<'_>) -> usize {
    match request {
        Request::Check { keys } | Request::MultiGet { keys } | Request::Wait { keys } => keys.len(),
        Request::MultiSet { pairs } => pairs.len(),
        _ => 0,
    }
}

impl Engine {
    /// Whether this request is to be carried out in steps: [`Engine::begin`].
    pub fn is_long(&self, frame: &Frame<'_>) -> bool {
        let (many, bytes) = (self.limits.turn_keys.saturating_mul(AT_ONCE), frame.bytes().len());
        // Each key takes at least its length.
        if bytes <= MUCH.min(many.saturating_mul(8)) || u32::try_from(bytes).is_err() {
            return false;
        }
        let keys = keys_of(&frame.request());
        keys > many || (keys > 1 && bytes > MUCH && frame.op() == Op::MultiSet)
    }

    /// A client asks for what takes long. It is carried out by [`Engine::work`]; until then nothing else is to come from
    /// this client, and no other long request.
    pub fn begin(&mut self, client: ClientId, frame: Frame<'_>) {
        self.finish();
        let keepsake = self.admit(client).keepsake.take();
        let request = frame.keep();
        if self.jobs.is_some() {
            self.use_jobs(client, &request.request());
        }
        let left = keys_of(&request.request());
        let tables = match request.request() {
            Request::Wait { .. } => {
                self.begin_waiting(client, left);
                Vec::new()
            }
            _ => (0..self.map.divide_early()).map(|_| Vec::with_capacity(left / 192)).collect(),
        };
        let (values, all_present) = (Vec::new(), true);
        let (at, sorted, is_sorted, next, adding) = (0, 0, false, 0, 0);
        self.long = Some(Box::new(Long {
            client,
            request,
            at,
            sorted,
            is_sorted,
            tables,
            next,
            keys: left,
            left,
            adding,
            values,
            all_present,
            keepsake,
        }));
    }

    /// For whom a long request is being carried out.
    #[inline]
    pub fn works_for(&self) -> Option<ClientId> {
        self.long.as_deref().map(|long| long.client)
    }

    /// Returns the bytes of this client's long request while it is carried out, or 0.
    pub fn long_request_bytes(&self, client: ClientId) -> usize {
        let long = self.long.as_deref().filter(|long| long.client == client);
        long.map_or(0, |long| long.request.len() + long.keys * KEY_OVERHEAD)
    }

    /// The next step of a long request. Whose it was, once it is done.
    pub fn work(&mut self) -> Option<ClientId> {
        let step = self.limits.turn_keys;
        self.clear_away(step);
        let mut long = self.long.take()?;
        if long.waits() {
            if let Err(reason) = self.register_some(&mut long, step) {
                self.unblock(long.client.index);
                return Some(self.refuse(*long, reason));
            }
        } else if !long.is_sorted {
            // Half the work of the other steps.
            if let Err(reason) = self.sort(&mut long, step.saturating_mul(2)) {
                return Some(self.refuse(*long, reason));
            }
        } else {
            let (keys, bytes) = (long.left, long.adding);
            while keys - long.left < step && bytes - long.adding < self.limits.turn_bytes && long.left > 0 {
                let table = long.next;
                long.next += 1;
                self.do_table(&mut long, table);
            }
        }
        if (long.is_sorted || long.waits()) && long.left == 0 {
            return Some(self.answer_long(*long));
        }
        self.long = Some(long);
        None
    }

    /// Whether [`Engine::work`] has something to do.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.long.is_some() || !self.rubbish.is_empty()
    }

    /// Lets go of so many values that nobody wants any more: of very many, that takes long as well.
    fn clear_away(&mut self, how_many: usize) {
        if let Some(some) = self.rubbish.last_mut() {
            some.truncate(some.len().saturating_sub(how_many));
            if some.is_empty() {
                self.rubbish.pop();
            }
        }
    }

    /// Does all that is left of a long request, and answers it.
    fn finish(&mut self) {
        while self.long.is_some() {
            self.work();
        }
    }

    /// Does all of a long request that others may see. The answer comes in its own step.
    pub(super) fn do_all(&mut self) {
        if let Some(mut long) = self.long.take_if(|long| long.is_sorted) {
            (0..long.tables.len()).for_each(|table| self.do_table(&mut long, table));
            self.long = Some(long);
        }
    }

    /// Before another request is handled: does that part of the long one which it could see, or change.
    pub(super) fn make_way(&mut self, client: ClientId, request: &Request<'_>) {
        let Some(long) = &self.long else { return };
        if long.client == client {
            return match long.waits() {
                true => self.abandon(client),
                false => self.finish(),
            };
        }
        if !long.is_sorted {
            return;
        }
        let writes = long.writes();
        match request {
            Request::Validate { .. }
            | Request::Ping { .. }
            | Request::CancelWait
            | Request::Barrier { .. } => {}
            Request::Set { key, .. }
            | Request::CompareSet { key, .. }
            | Request::Add { key, .. }
            | Request::DeleteKey { key }
            | Request::Append { key, .. }
            | Request::QueuePush { key, .. }
            | Request::QueuePop { key } => self.do_table_of(key),
            Request::MultiSet { pairs } => pairs.iter().for_each(|(key, _)| self.do_table_of(key)),
            // Who only reads sees no difference unless the other writes.
            _ if !writes => {}
            Request::Get { key } | Request::QueueLen { key } => self.do_table_of(key),
            Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
                keys.iter().for_each(|key| self.do_table_of(key));
            }
            Request::NumKeys | Request::ListKeys => self.do_all(),
        }
    }

    /// A client is gone that a long request may be of. What counts as written is written; the rest nobody wants.
    pub(super) fn abandon(&mut self, client: ClientId) {
        let Some(long) = self.long.as_mut().filter(|long| long.client == client) else { return };
        let keepsake = long.keepsake.take();
        if !(long.is_sorted && long.writes()) {
            self.long = None;
        }
        if let Some(keepsake) = keepsake {
            self.discard(keepsake);
        }
    }

    /// Whether this client is still being registered for what it waits for.
    pub(super) fn is_registering(&self, index: ClientIndex) -> bool {
        self.long.as_deref().is_some_and(|long| long.client.index == index && long.waits())
    }

    /// Bytes the store will grow by, at most.
    pub(super) fn adding(&self) -> usize {
        self.long.as_deref().filter(|long| long.is_sorted).map_or(0, |long| long.adding)
    }

    /// Keys the store will have more, at most.
    pub(super) fn adding_keys(&self) -> usize {
        self.long.as_deref().filter(|long| long.is_sorted && long.writes()).map_or(0, |long| long.left)
    }

    fn sort(&mut self, long: &mut Long, mut step: usize) -> Result<(), Refusal> {
        let Long { request, at, sorted, tables, adding, .. } = long;
        let mut place = |at: usize, key: &[u8]| {
            tables[self.map.table(key)].push((at as u32, *sorted));
            *sorted += 1;
        };
        let request = request.request();
        match request {
            Request::Check { keys } | Request::MultiGet { keys } => loop {
                if step == 0 {
                    return Ok(());
                }
                let before = *at;
                let Some(key) = keys.take(at) else { break };
                place(before, key);
                step -= 1;
            },
            Request::MultiSet { pairs } => loop {
                if step == 0 {
                    return Ok(());
                }
                let before = *at;
                let Some((key, value)) = pairs.take(at) else { break };
                self.writable(Op::MultiSet, key)?;
                self.harmless(Op::MultiSet, key, value.bytes())?;
                *adding += cost(key.len(), value.bytes().len());
                place(before, key);
                step -= 1;
            },
            _ => unreachable!("{:?} is not carried out in steps", request.op()),
        }
        match request {
            Request::MultiSet { pairs } => self.permit_all(pairs, *adding)?,
            Request::MultiGet { keys } => long.values = vec![None; keys.len()],
            _ => {}
        }
        long.is_sorted = true;
        Ok(())
    }

    // ---- a wait ----

    fn begin_waiting(&mut self, client: ClientId, keys: usize) {
        self.clients[client.index()].state = State::Waiting(Places::default());
        self.blocked += 1;
        let most = keys.min(self.latches_left());
        self.keepsake(client.index).latch.reserve_exact(most);
    }

    fn register_some(&mut self, long: &mut Long, step: usize) -> Result<(), Refusal> {
        let Long { client, request, at, left, .. } = long;
        let Request::Wait { keys } = request.request() else { unreachable!("it waits") };
        let mut state = std::mem::take(&mut self.clients[client.index()].state);
        let State::Waiting(places) = &mut state else { unreachable!("it waits") };
        let mut all = Ok(());
        for _ in 0..step {
            let Some(key) = keys.take(at) else { break };
            *left -= 1;
            match self.map.entry(key).map(|(key, value)| (key.clone(), value.clone())) {
                Some((key, value)) => self.latch(client.index, key, value),
                None if self.is_present_otherwise(key) => {}
                None => {
                    all = self.permit_awaiting(places.left(), 1, key.len() + WAIT_OVERHEAD, || key);
                    if all.is_err() {
                        break;
                    }
                    self.waiters.register(client.index, places, key);
                }
            }
        }
        self.clients[client.index()].state = state;
        all
    }

    /// It is registered for all that was not there.
    fn end_registering(&mut self, client: ClientId) {
        let known = &mut self.clients[client.index()];
        if let Some(keepsake) = known.keepsake.as_deref_mut()
            && keepsake.latch.len() < keepsake.latch.capacity() / 2
        {
            keepsake.latch.shrink_to(LATCH_KEEP);
        }
        if matches!(&known.state, State::Waiting(places) if places.left() == 0) {
            self.release(client.index);
        }
    }

    // ---- the rest ----

    fn do_table_of(&mut self, key: &[u8]) {
        let table = self.map.table(key);
        let Some(mut long) = self.long.take_if(|long| !long.tables[table].is_empty()) else { return };
        self.do_table(&mut long, table);
        self.long = Some(long);
    }

    fn do_table(&mut self, long: &mut Long, table: usize) {
        let places = std::mem::take(&mut long.tables[table]);
        long.left -= places.len();
        match long.request.request() {
            Request::Check { keys } => {
                let stored = self.identity.is_some() && self.clients[long.client.index()].stored;
                let present = |(at, _): &(u32, u32)| {
                    keys.take(&mut (*at as usize))
                        .is_some_and(|key| self.is_present(key) || (stored && key == STORED_KEY))
                };
                long.all_present &= places.iter().all(present);
            }
            Request::MultiGet { keys } => {
                for (at, number) in places {
                    let key = keys.take(&mut (at as usize));
                    let found = key.and_then(|key| self.map.get(key).or_else(|| self.reserved(key)));
                    long.values[number as usize] = found.cloned();
                }
            }
            Request::MultiSet { pairs } => {
                let pairs = || places.iter().filter_map(|&(at, _)| pairs.take(&mut (at as usize)));
                for (key, value) in pairs() {
                    long.adding -= cost(key.len(), value.bytes().len());
                    self.store(key, value);
                }
                if self.waiters.len() > 0 {
                    pairs().for_each(|(key, _)| self.wake_if_present(key));
                }
            }
            other => unreachable!("{:?} is not carried out in steps", other.op()),
        }
    }

    /// All of it is done.
    fn answer_long(&mut self, long: Long) -> ClientId {
        let Long { client, request, values, all_present, keepsake, .. } = long;
        let reply = match request.request() {
            Request::Check { .. } => Some(Reply::Checked(all_present)),
            Request::MultiGet { keys } => {
                let latch = keepsake.as_deref().map_or(&[][..], |keepsake| &keepsake.latch);
                let mut table: Option<BTreeMap<&[u8], &Value>> = None;
                let mut latched = |key: &[u8]| {
                    let by_key = || latch.iter().map(|(key, value)| (&**key, value)).collect();
                    table.get_or_insert_with(by_key).get(key).map_or(&self.empty, |value| value).clone()
                };
                let found = values.into_iter().zip(keys.iter());
                Some(Reply::Values(found.map(|(value, key)| value.unwrap_or_else(|| latched(key))).collect()))
            }
            Request::Wait { .. } => {
                self.end_registering(client);
                None
            }
            _ => None,
        };
        if let Some(reply) = reply {
            self.effect(Output::Reply { client, reply });
        }
        if let Some(keepsake) = keepsake {
            self.discard(keepsake);
        }
        client
    }

    fn refuse(&mut self, long: Long, reason: Refusal) -> ClientId {
        self.effect(Output::Close { client: long.client, reason });
        if let Some(keepsake) = long.keepsake {
            self.discard(keepsake);
        }
        long.client
    }
}
