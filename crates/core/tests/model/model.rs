//! A simple model of the store, with sorted maps and linear searches. It shares no code with the engine. If the model
//! and the engine disagree, one of them is wrong.

use std::collections::{BTreeMap, VecDeque};

use rallypoint_core::Limits;
use rallypoint_core::store::{RESERVED_PREFIX, SERVER_KEY, STORED_KEY};

use crate::operation::{Operation, Text};
use crate::server::Contents;

/// The value of the server key.
pub(crate) const IDENTITY: &[u8] = b"the identity";

/// The blocked request of a client, and the step at which it blocked.
#[derive(Debug)]
enum Blocked {
    /// The keys that the client still waits for. A key occurs as often as in the request.
    Wait {
        missing: Vec<Text>,
        since: usize,
    },
    Barrier {
        key: Text,
        world_size: i64,
        since: usize,
    },
}

#[derive(Debug, Default)]
struct Client {
    is_open: bool,
    /// Requests that have arrived and are not executed yet.
    pending: VecDeque<Operation>,
    blocked: Option<Blocked>,
    /// The values that the last WAIT saw, until the next request.
    latch: BTreeMap<Text, Text>,
    /// The queue that the client has a claim on, until the next request.
    claim: Option<Text>,
    /// Whether the client's last COMPARE_SET stored its value.
    stored: bool,
    replies: Vec<u8>,
}

/// The model of a store with a fixed number of clients.
pub(crate) struct Model {
    limits: Limits,
    keys: BTreeMap<Text, Text>,
    queues: BTreeMap<Text, VecDeque<Text>>,
    clients: Vec<Client>,
    /// Clients whose WAIT or BARRIER has ended and whose pending requests are not executed yet.
    released: VecDeque<usize>,
    /// The number of executed requests.
    steps: usize,
}

/// A refused request. The server closes its connection.
struct Refused;

impl Model {
    pub(crate) fn new(limits: Limits, slots: usize) -> Model {
        Model {
            limits,
            keys: BTreeMap::new(),
            queues: BTreeMap::new(),
            clients: (0..slots).map(|_| Client::default()).collect(),
            released: VecDeque::new(),
            steps: 0,
        }
    }

    // ---- connections ----

    pub(crate) fn connect(&mut self, slot: usize) {
        let replies = std::mem::take(&mut self.clients[slot].replies);
        self.clients[slot] = Client { is_open: true, replies, ..Client::default() };
    }

    /// Executes the requests that one piece of the stream completed.
    pub(crate) fn arrive(&mut self, slot: usize, operations: &[&Operation]) {
        for operation in operations {
            if !self.clients[slot].is_open {
                break;
            }
            if let Operation::Garbage(_) = operation {
                // The requests before the garbage are executed first.
                self.serve(slot);
                if self.clients[slot].is_open {
                    self.close(slot);
                }
                break;
            }
            self.clients[slot].pending.push_back((*operation).clone());
        }
        self.serve(slot);
        self.serve_released();
    }

    pub(crate) fn disconnect(&mut self, slot: usize) {
        self.close(slot);
        self.serve_released();
    }

    fn serve(&mut self, slot: usize) {
        while let Some(operation) = self.next(slot) {
            self.execute(slot, operation);
        }
    }

    fn serve_released(&mut self) {
        while let Some(slot) = self.released.pop_front() {
            self.serve(slot);
        }
    }

    /// Removes and returns the next request of a client to execute: the oldest one, or the oldest CANCEL_WAIT while the
    /// client is blocked.
    fn next(&mut self, slot: usize) -> Option<Operation> {
        let client = &mut self.clients[slot];
        if !client.is_open {
            return None;
        }
        match client.blocked {
            None => client.pending.pop_front(),
            Some(_) => {
                let cancel = client.pending.iter().position(|pending| *pending == Operation::CancelWait)?;
                client.pending.remove(cancel)
            }
        }
    }

    fn execute(&mut self, slot: usize, operation: Operation) {
        self.steps += 1;
        let latch = std::mem::take(&mut self.clients[slot].latch);
        let claim = self.clients[slot].claim.take();
        let result = self.apply(slot, operation, latch);
        if let Some(queue) = claim {
            self.wake_for_items(&queue);
        }
        match result {
            Ok(reply) => self.clients[slot].replies.extend(reply),
            Err(Refused) => self.close(slot),
        }
    }

    fn close(&mut self, slot: usize) {
        let replies = std::mem::take(&mut self.clients[slot].replies);
        let removed = std::mem::replace(&mut self.clients[slot], Client { replies, ..Client::default() });
        if let Some(queue) = removed.claim {
            self.wake_for_items(&queue);
        }
    }

    // ---- operations ----

    fn apply(
        &mut self,
        slot: usize,
        operation: Operation,
        latch: BTreeMap<Text, Text>,
    ) -> Result<Vec<u8>, Refused> {
        let no_reply = Ok(vec![]);
        let number = |number: i64| Ok(number.to_le_bytes().to_vec());
        match operation {
            Operation::Set(key, value) => {
                self.store(vec![(key, value)])?;
                no_reply
            }
            Operation::MultiSet(pairs) => {
                self.store(pairs)?;
                no_reply
            }
            Operation::CompareSet(key, expected, desired) => {
                self.clients[slot].stored = false;
                check_name(&key)?;
                let reply = match self.keys.get(&key) {
                    None if expected.is_empty() => desired.clone(),
                    None => return Ok(encode_string(&expected)),
                    Some(current) if *current == expected => desired.clone(),
                    Some(current) => return Ok(encode_string(current)),
                };
                self.store(vec![(key, desired)])?;
                self.clients[slot].stored = true;
                Ok(encode_string(&reply))
            }
            Operation::Get(key) => Ok(encode_string(&self.read(&key, &latch))),
            Operation::MultiGet(keys) => {
                Ok(keys.iter().flat_map(|key| encode_string(&self.read(key, &latch))).collect())
            }
            Operation::Add(key, delta) => {
                let current = match self.keys.get(&key) {
                    None => 0,
                    Some(value) => parse_decimal_prefix(value).ok_or(Refused)?,
                };
                let sum = current.checked_add(delta).ok_or(Refused)?;
                self.store(vec![(key, Text(sum.to_string().into_bytes()))])?;
                number(sum)
            }
            Operation::Append(key, more) => {
                let mut value = self.keys.get(&key).cloned().unwrap_or_default();
                value.0.extend_from_slice(&more);
                if value.len() > self.limits.value_len {
                    return Err(Refused);
                }
                self.store(vec![(key, value)])?;
                no_reply
            }
            Operation::Check(keys) => {
                let stored = |key: &Text| **key == *STORED_KEY && self.clients[slot].stored;
                Ok(vec![u8::from(!keys.iter().all(|key| self.is_present(key) || stored(key)))])
            }
            Operation::NumKeys => number(self.keys.len() as i64),
            // A model can't predict the order of the keys. `engine/tests` and the conformance suite test LIST_KEYS.
            Operation::ListKeys => unreachable!("no strategy of the model tests generates LIST_KEYS"),
            Operation::DeleteKey(key) => {
                check_name(&key)?;
                number(i64::from(self.keys.remove(&key).is_some()))
            }
            Operation::Ping(nonce) => Ok(nonce.to_le_bytes().to_vec()),
            Operation::QueuePush(key, item) => {
                check_name(&key)?;
                if self.queue_items() >= self.limits.queue_items {
                    return Err(Refused);
                }
                self.queues.entry(key.clone()).or_default().push_back(item);
                self.wake_for_item(&key);
                no_reply
            }
            Operation::QueuePop(key) => {
                let queue = self.queues.entry(key).or_default();
                let mut reply = (queue.len() as i64).to_le_bytes().to_vec();
                reply.extend(queue.pop_front().iter().flat_map(|item| encode_string(item)));
                Ok(reply)
            }
            Operation::QueueLen(key) => number(self.queues.get(&key).map_or(0, VecDeque::len) as i64),
            Operation::Wait(keys) => self.wait(slot, keys),
            Operation::Barrier(key, world_size) => self.barrier(slot, key, world_size),
            Operation::CancelWait => {
                self.clients[slot].blocked = None;
                self.clients[slot].latch.clear();
                Ok(vec![1])
            }
            Operation::Garbage(_) => unreachable!("garbage is not a request"),
        }
    }

    fn is_present(&self, key: &Text) -> bool {
        self.keys.contains_key(key)
            || self.queues.get(key).is_some_and(|q| !q.is_empty())
            || **key == *SERVER_KEY
    }

    fn read(&self, key: &Text, latch: &BTreeMap<Text, Text>) -> Text {
        match self.keys.get(key).or_else(|| latch.get(key)) {
            Some(value) => value.clone(),
            None if **key == *SERVER_KEY => IDENTITY.into(),
            None => Text::default(),
        }
    }

    /// Stores all pairs or none, and then wakes the waiters of their keys.
    fn store(&mut self, pairs: Vec<(Text, Text)>) -> Result<(), Refused> {
        let mut after = self.keys.clone();
        for (key, value) in &pairs {
            check_name(key)?;
            after.insert(key.clone(), value.clone());
        }
        if after.len() > self.limits.keys.max(self.keys.len()) {
            return Err(Refused);
        }
        self.keys = after;
        for (key, _) in &pairs {
            // The oldest waiter is woken first.
            let mut slots: Vec<usize> = (0..self.clients.len()).collect();
            slots.sort_by_key(|&slot| match &self.clients[slot].blocked {
                Some(Blocked::Wait { since, .. }) => *since,
                _ => 0,
            });
            for slot in slots {
                self.fulfill(slot, key);
            }
        }
        Ok(())
    }

    fn wait(&mut self, slot: usize, keys: Vec<Text>) -> Result<Vec<u8>, Refused> {
        let (present, missing): (Vec<Text>, Vec<Text>) =
            keys.into_iter().partition(|key| self.is_present(key));
        if missing.len() > self.limits.awaited_per_client
            || missing.len() + self.awaited() > self.limits.awaited_total
        {
            return Err(Refused);
        }
        for key in present {
            if let Some(value) = self.keys.get(&key) {
                self.clients[slot].latch.insert(key, value.clone());
            }
        }
        if missing.is_empty() {
            return Ok(vec![0]);
        }
        self.clients[slot].blocked = Some(Blocked::Wait { missing, since: self.steps });
        Ok(vec![])
    }

    fn barrier(&mut self, slot: usize, key: Text, world_size: i64) -> Result<Vec<u8>, Refused> {
        if world_size < 1 {
            return Err(Refused);
        }
        self.clients[slot].blocked =
            Some(Blocked::Barrier { key: key.clone(), world_size, since: self.steps });
        let mut arrived: Vec<(usize, usize)> = (0..self.clients.len())
            .filter_map(|slot| match &self.clients[slot].blocked {
                Some(Blocked::Barrier { key: name, world_size: size, since }) => {
                    (*name == key && *size == world_size).then_some((*since, slot))
                }
                _ => None,
            })
            .collect();
        arrived.sort();
        if arrived.len() as i64 == world_size {
            arrived.into_iter().for_each(|(_, slot)| self.release(slot));
            // `serve` is already executing the requests of the last client to arrive, so remove it from `released`.
            self.released.pop_back();
        }
        Ok(vec![])
    }

    // ---- wake-ups ----

    /// Removes `key`, which is present now, from the missing keys of a client, and latches its value. Returns whether
    /// this ended the WAIT of the client.
    fn fulfill(&mut self, slot: usize, key: &Text) -> bool {
        let client = &mut self.clients[slot];
        let Some(Blocked::Wait { missing, .. }) = &mut client.blocked else { return false };
        if !missing.contains(key) {
            return false;
        }
        missing.retain(|other| other != key);
        let is_complete = missing.is_empty();
        if let Some(value) = self.keys.get(key) {
            client.latch.insert(key.clone(), value.clone());
        }
        if is_complete {
            self.release(slot);
        }
        is_complete
    }

    /// Wakes waiters while a queue has more items than claims.
    fn wake_for_items(&mut self, queue: &Text) {
        loop {
            let claims = self.clients.iter().filter(|client| client.claim.as_ref() == Some(queue)).count();
            let is_covered = self.queues.get(queue).map_or(0, VecDeque::len) <= claims;
            if is_covered || !self.wake_for_item(queue) {
                return;
            }
        }
    }

    /// Removes a queue from the missing keys of its waiters, oldest first, until one WAIT ends. Returns whether a WAIT
    /// ended.
    fn wake_for_item(&mut self, queue: &Text) -> bool {
        loop {
            let oldest = (0..self.clients.len())
                .filter_map(|slot| match &self.clients[slot].blocked {
                    Some(Blocked::Wait { missing, since }) if missing.contains(queue) => Some((*since, slot)),
                    _ => None,
                })
                .min();
            let Some((_, slot)) = oldest else { return false };
            if self.fulfill(slot, queue) {
                self.clients[slot].claim = Some(queue.clone());
                return true;
            }
        }
    }

    fn release(&mut self, slot: usize) {
        self.released.push_back(slot);
        self.clients[slot].blocked = None;
        self.clients[slot].replies.push(0);
    }

    // ---- reads ----

    pub(crate) fn is_open(&self, slot: usize) -> bool {
        self.clients[slot].is_open
    }

    /// Returns all stored data.
    pub(crate) fn contents(&self) -> Contents {
        let text = |text: &Text| text.to_vec();
        let queues = self.queues.iter().filter(|(_, items)| !items.is_empty());
        (
            self.keys.iter().map(|(key, value)| (text(key), text(value))).collect(),
            queues.map(|(key, items)| (text(key), items.iter().map(text).collect())).collect(),
        )
    }

    pub(crate) fn take_replies(&mut self, slot: usize) -> Vec<u8> {
        std::mem::take(&mut self.clients[slot].replies)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn queue_items(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    pub(crate) fn awaited(&self) -> usize {
        let missing = |client: &Client| match &client.blocked {
            Some(Blocked::Wait { missing, .. }) => missing.len(),
            _ => 0,
        };
        self.clients.iter().map(missing).sum()
    }

    pub(crate) fn blocked(&self) -> usize {
        self.clients.iter().filter(|client| client.blocked.is_some()).count()
    }
}

fn check_name(key: &Text) -> Result<(), Refused> {
    if key.starts_with(RESERVED_PREFIX) { Err(Refused) } else { Ok(()) }
}

fn encode_string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// Parses the number at the start of `text`, as C++'s `std::stoll` does.
fn parse_decimal_prefix(text: &[u8]) -> Option<i64> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let digits = text.trim_start_matches(['+', '-']);
    let sign = text.len() - digits.len();
    let len = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    if sign > 1 { None } else { text[..sign + len].parse().ok() }
}
