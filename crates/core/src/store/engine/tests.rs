//! Tests of the engine with chosen requests. `tests/model` runs random sequences of requests.

mod barriers;
mod clients;
mod latches;
mod limits;
mod queues;
mod values;
mod waiting;

use std::collections::BTreeSet;

use super::*;
use crate::wire::PairList;

/// The reply that a client gets, or the refusal that closes its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Output {
    Reply { client: ClientId, reply: Reply },
    Close { client: ClientId, reason: Refusal },
}

/// An engine and the numbers of its blocked clients. Each request is followed by a check of the engine's invariants.
struct Store(Engine, BTreeSet<u32>);

impl Store {
    fn new() -> Store {
        Store::with(Limits::default())
    }

    fn with(limits: Limits) -> Store {
        let identity = Some(Value::copied(b"identity"));
        let guard = WriteGuard {
            prefix: b"/guarded",
            check: |_, value, _| match value {
                b"harmful" => Err("harmful".into()),
                _ => Ok(()),
            },
        };
        Store(
            Engine::new(EngineOptions { limits, seed: 7, identity, guard: Some(guard) }, ()),
            BTreeSet::new(),
        )
    }

    /// Sends a request. Returns the output for its client, if any, and the replies to the clients that the request
    /// wakes.
    fn send(&mut self, client: u32, request: Request<'_>) -> Vec<Output> {
        let outcome = self.0.handle_request(id(client), request);
        let was_blocked = self.1.remove(&client);
        let reply = match outcome {
            Ok(Outcome::NoReply) => None,
            Ok(Outcome::Reply(reply)) => Some(Output::Reply { client: id(client), reply }),
            Ok(Outcome::Blocked) => {
                self.1.insert(client);
                None
            }
            Err(reason) => {
                if was_blocked {
                    self.1.insert(client);
                }
                Some(Output::Close { client: id(client), reason: *reason })
            }
        };
        reply.into_iter().chain(self.outputs()).collect()
    }

    /// Disconnects a client. Returns the replies to the clients that this wakes.
    fn disconnect(&mut self, client: u32) -> Vec<Output> {
        self.0.handle_disconnect(id(client));
        self.1.remove(&client);
        self.outputs()
    }

    fn outputs(&mut self) -> Vec<Output> {
        self.0.check_invariants();
        let woken: Vec<ClientId> = std::iter::from_fn(|| self.0.poll_woken()).collect();
        woken.iter().for_each(|client| {
            assert!(self.1.remove(&(client.index() as u32)), "{client:?} was not blocked")
        });
        assert_eq!(self.1.len(), self.0.snapshot().blocked);
        woken.into_iter().map(|client| Output::Reply { client, reply: Reply::Stop }).collect()
    }

    /// Sends a request that must have no output and wake no client.
    fn run(&mut self, client: u32, request: Request<'_>) {
        assert_eq!(self.send(client, request), [], "{request:?}");
    }

    /// Sends a request that must wake no client, and returns its reply.
    fn reply(&mut self, client: u32, request: Request<'_>) -> Reply {
        match &self.send(client, request)[..] {
            [Output::Reply { client: to, reply }] if *to == id(client) => reply.clone(),
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Sends a request that must be refused and wake no client, and returns the refusal.
    fn refusal(&mut self, client: u32, request: Request<'_>) -> Refusal {
        match &self.send(client, request)[..] {
            [Output::Close { client: to, reason }] if *to == id(client) => reason.clone(),
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Returns the value of a key, read by a client without a latch.
    fn value(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        const OBSERVER: u32 = 1000;
        match self.reply(OBSERVER, check(&[key])) {
            Reply::Checked(true) => match self.reply(OBSERVER, get(key)) {
                Reply::Value(value) => Some(value.to_vec()),
                other => panic!("{other:?}"),
            },
            _ => None,
        }
    }

    /// Returns the numbers of keys, bytes, queue items, awaited keys and blocked clients.
    fn counts(&self) -> [usize; 5] {
        let snapshot = self.0.snapshot();
        [snapshot.keys, snapshot.bytes, snapshot.queue_items, snapshot.awaited, snapshot.blocked]
    }

    fn is_blocked(&self, client: u32) -> bool {
        self.1.contains(&client)
    }
}

fn id(client: u32) -> ClientId {
    ClientId::new(client)
}

fn stop(client: u32) -> Output {
    Output::Reply { client: id(client), reply: Reply::Stop }
}

fn canceled(client: u32) -> Output {
    Output::Reply { client: id(client), reply: Reply::Canceled }
}

fn value(bytes: &[u8]) -> Reply {
    Reply::Value(Value::copied(bytes))
}

fn values(values: &[&[u8]]) -> Reply {
    Reply::Values(values.iter().map(|bytes| Value::copied(bytes)).collect())
}

fn popped(before: i64, item: &[u8]) -> Reply {
    Reply::Popped { before, item: Some(Value::copied(item)) }
}

const EMPTY_POP: Reply = Reply::Popped { before: 0, item: None };

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Set { key, value: value.into() }
}

fn get(key: &[u8]) -> Request<'_> {
    Request::Get { key }
}

fn add(key: &[u8], delta: i64) -> Request<'_> {
    Request::Add { key, delta }
}

fn append<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Append { key, value: value.into() }
}

fn cas<'a>(key: &'a [u8], expected: &'a [u8], desired: &'a [u8]) -> Request<'a> {
    Request::CompareSet { key, expected: expected.into(), desired: desired.into() }
}

fn delete(key: &[u8]) -> Request<'_> {
    Request::DeleteKey { key }
}

fn check<'a>(keys: &'a [&'a [u8]]) -> Request<'a> {
    Request::Check { keys: KeyList::new(keys) }
}

fn wait<'a>(keys: &'a [&'a [u8]]) -> Request<'a> {
    Request::Wait { keys: KeyList::new(keys) }
}

fn multi_get<'a>(keys: &'a [&'a [u8]]) -> Request<'a> {
    Request::MultiGet { keys: KeyList::new(keys) }
}

fn multi_set<'a>(pairs: &'a [(&'a [u8], &'a [u8])]) -> Request<'a> {
    Request::MultiSet { pairs: PairList::new(pairs) }
}

fn push<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::QueuePush { key, value: value.into() }
}

fn pop(key: &[u8]) -> Request<'_> {
    Request::QueuePop { key }
}

fn queue_len(key: &[u8]) -> Request<'_> {
    Request::QueueLen { key }
}

fn barrier(key: &[u8], world_size: i64) -> Request<'_> {
    Request::Barrier { key, world_size }
}

const CANCEL: Request<'static> = Request::CancelWait;
const PING: Request<'static> = Request::Ping { nonce: 1 };
