//! The store within one process: the same engine as the server's, with threads in the place of connections.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rallypoint_core::client::{Awaited, Cancellation, Deadline, Exchange, Failure};
use rallypoint_core::store::{Answer, ClientId, Engine, EngineOptions};
use rallypoint_core::wire::{KeyList, Op, PairList, Reply, Request};
use rallypoint_core::{Limits, Refusal, Value, printable};

use crate::deadline::now;
use crate::error::{Context, Result, StoreError, StoreKind};
use crate::store::{DEFAULT_TIMEOUT, Store};

/// A store shared by the threads of one process. Clones share its contents.
#[derive(Clone)]
pub struct HashStore {
    shared: Arc<Shared>,
    /// Shared with clones, but not with those that were given a time-out of their own.
    timeout: Arc<Mutex<Option<Duration>>>,
    cancellation: Option<Arc<dyn Cancellation>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    engine: Engine,
    /// Slots for calls under way, to be used again.
    free: Vec<u32>,
    slots: u32,
    /// Calls that wait and whose request was answered.
    woken: HashSet<ClientId>,
}

impl HashStore {
    /// An empty store.
    pub fn new() -> HashStore {
        // One process fills it, and may fill it as it likes: no limits but those of the machine.
        let mut limits = Limits::default();
        limits.store_bytes = usize::MAX / 2;
        limits.keys = usize::MAX / 2;
        limits.queue_items = usize::MAX / 2;
        limits.value_len = usize::MAX / 2;
        limits.awaited_total = usize::MAX / 2;
        limits.awaited_per_client = usize::MAX / 2;
        limits.output_hard = usize::MAX / 2;
        let options =
            EngineOptions { limits, seed: crate::server::random_number(), ..EngineOptions::default() };
        let state =
            State { engine: Engine::new(options, ()), free: Vec::new(), slots: 0, woken: HashSet::new() };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
        HashStore {
            shared: Arc::new(shared),
            timeout: Arc::new(Mutex::new(Some(DEFAULT_TIMEOUT))),
            cancellation: None,
        }
    }

    /// This store, whose calls are ended early by `cancellation`.
    pub fn with_cancellation(&self, cancellation: impl Into<Option<Arc<dyn Cancellation>>>) -> HashStore {
        HashStore { cancellation: cancellation.into(), ..self.clone() }
    }

    fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        Deadline::after(now(), timeout).or_cancelled(self.cancellation.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a request that doesn't block.
    fn call(&self, request: Request<'_>) -> Result<Option<Reply>> {
        self.ask(&mut self.state(), request)
    }

    /// Carries out a request that doesn't block. Requests under one lock are one step for other threads.
    fn ask(&self, state: &mut State, request: Request<'_>) -> Result<Option<Reply>> {
        let client = state.enter();
        let answer = state.engine.handle_request(client, request);
        self.leave(state, client);
        match answer.map_err(|refusal| refused(&request, *refusal))? {
            Answer::Reply(reply) => Ok(Some(reply)),
            Answer::Nothing | Answer::Blocked => Ok(None),
        }
    }

    /// Carries out a request that may block, and `then` at the moment it ends. Returns `None` when the time is up.
    fn block(
        &self,
        request: Request<'_>,
        then: Option<Request<'_>>,
        deadline: &Deadline,
    ) -> Result<Option<Reply>> {
        let mut state = self.state();
        let client = state.enter();
        let mut answer = state.engine.handle_request(client, request);
        self.wake(&mut state);
        while answer == Ok(Answer::Blocked) {
            if state.woken.remove(&client) {
                answer = Ok(Answer::Reply(Reply::Stop));
                break;
            }
            let changed = &self.shared.changed;
            state = match deadline.slice(now()) {
                Some(Duration::ZERO) => break,
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(slice) => {
                    let (woken, timeout) =
                        changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() {
                        drop(woken);
                        deadline.on_wait();
                        self.state()
                    } else {
                        woken
                    }
                }
            };
        }
        if let (Ok(Answer::Reply(_)), Some(then)) = (&answer, then) {
            answer = state.engine.handle_request(client, then);
        }
        self.leave(&mut state, client);
        match answer.map_err(|refusal| refused(&request, *refusal))? {
            Answer::Reply(reply) => Ok(Some(reply)),
            Answer::Nothing | Answer::Blocked => Ok(None),
        }
    }

    /// Ends a call.
    fn leave(&self, state: &mut State, client: ClientId) {
        state.engine.handle_disconnect(client);
        state.free.push(client.index() as u32);
        self.wake(state);
        state.woken.remove(&client);
    }

    /// Wakes the threads whose calls the engine has answered.
    fn wake(&self, state: &mut State) {
        let before = state.woken.len();
        while let Some(client) = state.engine.poll_woken() {
            state.woken.insert(client);
        }
        if state.woken.len() > before {
            self.shared.changed.notify_all();
        }
    }

    fn number(&self, request: Request<'_>) -> Result<i64> {
        match self.call(request)? {
            Some(Reply::Number(number)) => Ok(number),
            other => unreachable!("{:?} was answered {other:?}", request.op()),
        }
    }

    fn timed_out(&self, op: Op, keys: &[&[u8]], deadline: &Deadline) -> StoreError {
        let present = keys
            .iter()
            .map(|key| {
                let keys = [*key];
                let request = Request::Check { keys: KeyList::new(&keys) };
                matches!(self.call(request), Ok(Some(Reply::Checked(true))))
            })
            .collect();
        let keys: Vec<_> = keys.iter().map(|key| printable(key)).collect();
        let context = context(op, keys).after(deadline.waited(now()));
        context.failed(Failure::Timeout(Awaited::Keys(Some(present))))
    }

    fn wait_then(
        &self,
        op: Op,
        keys: &[&[u8]],
        then: Option<Request<'_>>,
        timeout: Option<Duration>,
    ) -> Result<Reply> {
        let deadline = self.deadline(timeout);
        self.block(Request::Wait { keys: KeyList::new(keys) }, then, &deadline)?
            .ok_or_else(|| self.timed_out(op, keys, &deadline))
    }
}

impl Default for HashStore {
    fn default() -> Self {
        HashStore::new()
    }
}

impl std::fmt::Debug for HashStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashStore").field("contents", &self.state().engine.snapshot()).finish()
    }
}

impl State {
    fn enter(&mut self) -> ClientId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        ClientId::new(slot)
    }
}

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(Request::Set { key: key.as_bytes(), value: value.into() }).map(drop)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let key = key.as_bytes();
        match self.wait_then(Op::Get, &[key], Some(Request::Get { key }), self.timeout())? {
            Reply::Value(value) => Ok(value.to_vec()),
            other => unreachable!("get was answered {other:?}"),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.number(Request::Add { key: key.as_bytes(), delta }).map_err(|error| match error {
            StoreError::Call { context, failure: Failure::NotANumber { .. } } => {
                let held = match self.call(Request::Get { key: key.as_bytes() }) {
                    Ok(Some(Reply::Value(value))) => value,
                    _ => Value::copied(b"what is not a number"),
                };
                context.failed(Failure::NotANumber { delta, held })
            }
            other => other,
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let keys: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        Ok(self.call(Request::Check { keys: KeyList::new(&keys) })? == Some(Reply::Checked(true)))
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        let keys: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        self.wait_then(Op::Wait, &keys, None, timeout).map(drop)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let request = Request::CompareSet { key: key.as_bytes(), expected, desired: desired.into() };
        match self.call(request)? {
            Some(Reply::Value(held)) => Ok(held.to_vec()),
            other => unreachable!("compare_set was answered {other:?}"),
        }
    }

    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        let key = key.as_bytes();
        let mut state = self.state();
        let held = state.engine.snapshot().get(key).cloned();
        let stored = held.as_deref().map_or(expected.is_empty(), |held| *held == *expected);
        self.ask(&mut state, Request::CompareSet { key, expected, desired: desired.into() })?;
        Ok(match held {
            _ if stored => Exchange::Stored,
            Some(held) => Exchange::Held(held.to_vec()),
            None => Exchange::Absent,
        })
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        Ok(self.number(Request::DeleteKey { key: key.as_bytes() })? == 1)
    }

    fn num_keys(&self) -> Result<u64> {
        Ok(self.number(Request::NumKeys)? as u64)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(Request::Append { key: key.as_bytes(), value: value.into() }).map(drop)
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        let then = Request::MultiGet { keys: KeyList::new(&keys) };
        match self.wait_then(Op::MultiGet, &keys, Some(then), self.timeout())? {
            Reply::Values(values) => Ok(values.iter().map(|value| value.to_vec()).collect()),
            other => unreachable!("multi_get was answered {other:?}"),
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_bytes(), *value)).collect();
        self.call(Request::MultiSet { pairs: PairList::new(&pairs) }).map(drop)
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(Request::QueuePush { key: key.as_bytes(), value: value.into() }).map(drop)
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let name = key.as_bytes();
        let deadline = self.deadline(self.timeout());
        let wanted = [name];
        loop {
            let wait = Request::Wait { keys: KeyList::new(&wanted) };
            match self.block(wait, Some(Request::QueuePop { key: name }), &deadline)? {
                Some(Reply::Popped { item: Some(item), .. }) => return Ok(item.to_vec()),
                None => return Err(self.timed_out(Op::QueuePop, &wanted, &deadline)),
                // Somebody took the item before the thread that was woken for it came to run. It waits on, unless what
                // ended its wait was a key of that name.
                Some(_) if self.state().engine.snapshot().get(name).is_some() => {
                    return Err(StoreError::QueueEmpty { key: key.into() });
                }
                Some(_) => {}
            }
        }
    }

    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        match self.call(Request::QueuePop { key: key.as_bytes() })? {
            Some(Reply::Popped { item: Some(item), .. }) => Ok(item.to_vec()),
            _ => Err(StoreError::QueueEmpty { key: key.into() }),
        }
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        Ok(self.number(Request::QueueLen { key: key.as_bytes() })? as u64)
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        match self.call(Request::ListKeys)? {
            Some(Reply::Keys(keys)) => {
                Ok(keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
            }
            other => unreachable!("list_keys was answered {other:?}"),
        }
    }

    fn barrier_for(&self, key: &str, world_size: u64, timeout: Option<Duration>) -> Result<()> {
        let deadline = self.deadline(timeout);
        let request = Request::Barrier {
            key: key.as_bytes(),
            world_size: i64::try_from(world_size).unwrap_or(i64::MAX),
        };
        match self.block(request, None, &deadline)? {
            Some(_) => Ok(()),
            None => {
                let context = context(Op::Barrier, vec![key.into()]).after(deadline.waited(now()));
                Err(context.failed(Failure::Timeout(Awaited::Arrivals(world_size))))
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        Box::new(HashStore { timeout: Arc::new(Mutex::new(timeout)), ..self.clone() })
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.clone()))
    }

    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        self.cancellation.clone()
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Hash
    }
}

/// What the engine refuses, as a store says it.
fn refused(request: &Request<'_>, refusal: Refusal) -> StoreError {
    let context = context(request.op(), names(request));
    match refusal {
        Refusal::NotANumber { .. } | Refusal::Overflow { .. } => {
            context.failed(Failure::NotANumber { delta: 0, held: Value::copied(b"") })
        }
        Refusal::BadWorldSize { key, world_size } => {
            StoreError::bad_world_size(&format!("barrier {key}"), world_size)
        }
        other => {
            let reason = match other {
                Refusal::StoreFull { held, limit, .. } => {
                    format!("the store is full, {held} of {limit} bytes")
                }
                other => other.to_string(),
            };
            context.failed(Failure::Refused(reason))
        }
    }
}

fn context(op: Op, keys: Vec<String>) -> Context {
    Context::new(StoreKind::Hash, "").during(op, keys)
}

/// Returns the keys of a request.
fn names(request: &Request<'_>) -> Vec<String> {
    let mut names = Vec::new();
    request.for_each_key(&mut |key| names.push(printable(key)));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_store_operation_and_keys_once() {
        let full = || Refusal::StoreFull { op: Op::Set, key: "k".into(), held: 5, limit: 4 };
        let error = refused(&Request::Set { key: b"k", value: b"v"[..].into() }, full());
        assert_eq!(error.to_string(), "set of k was refused by HashStore: the store is full, 5 of 4 bytes");
        let pairs: [(&[u8], &[u8]); 2] = [(b"a", b"1"), (b"b", b"2")];
        let error = refused(&Request::MultiSet { pairs: PairList::new(&pairs) }, full());
        assert!(error.to_string().starts_with("multi_set of a, b was refused by HashStore: "), "{error}");
    }
}
