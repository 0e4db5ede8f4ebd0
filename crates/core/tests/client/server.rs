//! A model of a store server. It records all requests and handles each with the behavior that the test selected.

use std::collections::{BTreeMap, VecDeque};

use rallypoint_core::wire::{Op, Reply, Request, RequestDecoder};
use rallypoint_core::{Limits, Value};
use std::time::Duration;

/// How the model handles a request.
#[derive(Debug, Clone)]
pub(crate) enum Behavior {
    /// Carries the request out and sends the reply.
    Reply,
    /// Carries the request out, sends no reply, and closes the connection.
    Close,
    /// Closes the connection without carrying the request out.
    Refuse,
    /// Ignores this request and all later ones of the connection.
    Ignore,
    /// Carries the request out and sends these bytes instead of the reply.
    Send(Vec<u8>),
    /// Sends the reply twice, 3 ms apart.
    Duplicate,
    /// Sends this number of bytes of the reply and closes the connection.
    Truncate(usize),
    /// Sends the reply byte by byte, with this pause before each byte.
    SplitBytes(Duration),
}

/// The reply to a request, the connection to which it belongs, and how to deliver it.
pub(crate) struct Response {
    pub(crate) to: usize,
    pub(crate) behavior: Behavior,
    pub(crate) reply: Vec<u8>,
}

/// The model's state of one connection.
#[derive(Default)]
struct Peer {
    decoder: RequestDecoder,
    /// The operation in which the peer is blocked, and the keys or the barrier it waits for.
    awaited: Option<(Op, Vec<Vec<u8>>)>,
    /// Requests that the peer sent while it was blocked. The model handles them when the wait ends.
    deferred: VecDeque<Vec<u8>>,
    is_ignored: bool,
}

/// The model of a store.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) values: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    peers: BTreeMap<usize, Peer>,
    /// Whether the last COMPARE_SET stored its value.
    has_stored: bool,
    /// All received requests, each with the number of its connection.
    pub(crate) requests: Vec<(usize, Op)>,
    /// Behaviors for the next request of an operation. Each applies once.
    pub(crate) next_behaviors: Vec<(Op, Behavior)>,
    /// Behaviors for all requests of an operation.
    pub(crate) permanent_behaviors: Vec<(Op, Behavior)>,
    /// The number of further CHECKs that get a reply. `None` means all of them.
    pub(crate) checks_left: Option<usize>,
}

impl Clone for Model {
    /// Copies only the values and the queues.
    fn clone(&self) -> Model {
        Model { values: self.values.clone(), queues: self.queues.clone(), ..Model::default() }
    }
}

const SERVER_KEY: &[u8] = b"rallypoint/server";

impl Model {
    /// Creates a model of torch's server, which has no identity.
    pub(crate) fn torch() -> Model {
        Model::default()
    }

    /// Creates a model of our server.
    pub(crate) fn ours(instance: &str) -> Model {
        let identity = format!("version=0 instance={instance} capabilities=in-order,stored value_len=100");
        let mut model = Model::default();
        model.values.insert(SERVER_KEY.into(), identity.into_bytes());
        model
    }

    pub(crate) fn with(mut self, key: &str, value: &str) -> Model {
        self.values.insert(key.into(), value.into());
        self
    }

    pub(crate) fn push(&mut self, queue: &str, item: &str) {
        self.queues.entry(queue.into()).or_default().push_back(item.into());
    }

    /// Sets the behavior for the next request of this operation.
    pub(crate) fn on_next(&mut self, op: Op, behavior: Behavior) {
        self.next_behaviors.push((op, behavior));
    }

    pub(crate) fn count(&self, op: Op) -> usize {
        self.requests.iter().filter(|(_, request)| *request == op).count()
    }

    pub(crate) fn disconnect(&mut self, peer: usize) {
        self.peers.remove(&peer);
    }

    pub(crate) fn receive(&mut self, from: usize, bytes: &[u8]) -> Vec<Response> {
        let mut responses = Vec::new();
        let mut decoder = std::mem::take(&mut self.peers.entry(from).or_default().decoder);
        let mut input = bytes;
        while let Some(frame) = decoder.next(&mut input, &Limits::default()).expect("well-formed requests") {
            let request = frame.request();
            let op = request.op();
            self.requests.push((from, op));
            let peer = self.peers.entry(from).or_default();
            if peer.is_ignored {
                continue;
            }
            if peer.awaited.is_some() && op != Op::CancelWait {
                let mut bytes = Vec::new();
                request.encode(&mut bytes);
                peer.deferred.push_back(bytes);
                continue;
            }
            if !self.serve(from, request, &mut responses) {
                return responses;
            }
        }
        self.peers.entry(from).or_default().decoder = decoder;
        responses
    }

    /// Handles one request. Returns whether the connection is still open.
    fn serve(&mut self, from: usize, request: Request<'_>, responses: &mut Vec<Response>) -> bool {
        let op = request.op();
        let index = self.next_behaviors.iter().position(|(expected, _)| *expected == op);
        let behavior = match index {
            Some(index) => self.next_behaviors.remove(index).1,
            None => self
                .permanent_behaviors
                .iter()
                .find(|(expected, _)| *expected == op)
                .map_or(Behavior::Reply, |(_, behavior)| behavior.clone()),
        };
        let behavior = match &mut self.checks_left {
            Some(0) if op == Op::Check => Behavior::Ignore,
            Some(left) if op == Op::Check => {
                *left -= 1;
                behavior
            }
            _ => behavior,
        };
        match behavior {
            Behavior::Refuse => {
                responses.push(Response { to: from, behavior, reply: Vec::new() });
                return false;
            }
            Behavior::Ignore => {
                self.peers.entry(from).or_default().is_ignored = true;
                return true;
            }
            _ => {}
        }
        let Some(reply) = self.execute(from, request) else {
            responses.push(Response { to: from, behavior: Behavior::Refuse, reply: Vec::new() });
            return false;
        };
        let is_open = !matches!(behavior, Behavior::Close | Behavior::Truncate(_));
        responses.push(Response { to: from, behavior, reply });
        self.wake(responses);
        is_open
    }

    /// Completes the waits whose keys are all present, and handles the requests behind them.
    pub(crate) fn wake(&mut self, responses: &mut Vec<Response>) {
        let ready: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| {
                let awaited = peer.awaited.as_ref().filter(|(op, _)| *op == Op::Wait);
                awaited.is_some_and(|(_, keys)| keys.iter().all(|key| self.has(key)))
            })
            .map(|(id, _)| *id)
            .collect();
        for id in ready {
            self.end_wait(id, Reply::Stop, responses);
        }
    }

    fn end_wait(&mut self, id: usize, reply: Reply, responses: &mut Vec<Response>) {
        let peer = self.peers.get_mut(&id).expect("a peer that waits");
        peer.awaited = None;
        let deferred = std::mem::take(&mut peer.deferred);
        responses.push(Response { to: id, behavior: Behavior::Reply, reply: encoded(reply) });
        for bytes in deferred {
            let mut decoder = RequestDecoder::default();
            let mut input = &bytes[..];
            let frame = decoder.next(&mut input, &Limits::default()).unwrap().expect("one request");
            self.serve(id, frame.request(), responses);
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|queue| !queue.is_empty())
    }

    /// Carries out one request. Returns the bytes of the reply, or `None` if the server closes the connection.
    fn execute(&mut self, from: usize, request: Request<'_>) -> Option<Vec<u8>> {
        let value = |value: Option<&Vec<u8>>| Value::copied(value.map_or(&[][..], |value| value));
        let reply = |reply: Reply| Some(encoded(reply));
        match request {
            Request::Validate { .. } => Some(Vec::new()),
            // An unknown operation.
            Request::Message { .. } => None,
            Request::Ping { nonce } => reply(Reply::Nonce(nonce)),
            Request::Set { key, value } => {
                self.values.insert(key.into(), value.bytes().to_vec());
                Some(Vec::new())
            }
            Request::MultiSet { pairs } => {
                for (key, value) in pairs.iter() {
                    self.values.insert(key.into(), value.to_vec());
                }
                Some(Vec::new())
            }
            Request::Append { key, value } => {
                let stored = self.values.entry(key.into()).or_default();
                if stored.len() + value.bytes().len() > 100 {
                    return None;
                }
                stored.extend_from_slice(value.bytes());
                Some(Vec::new())
            }
            Request::Get { key } => reply(Reply::Value(value(self.values.get(key)))),
            Request::MultiGet { keys } => {
                reply(Reply::Values(keys.iter().map(|key| value(self.values.get(key))).collect()))
            }
            Request::Add { key, delta } => {
                let number = self.values.get(key).map_or(Some(0), |value| {
                    std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok())
                });
                let sum = number?.checked_add(delta)?;
                self.values.insert(key.into(), sum.to_string().into_bytes());
                reply(Reply::Number(sum))
            }
            Request::CompareSet { key, expected, desired } => {
                let expected = expected.bytes();
                let current = self.values.get(key).cloned();
                self.has_stored = current.as_deref().map_or(expected.is_empty(), |value| value == expected);
                if self.has_stored {
                    self.values.insert(key.into(), desired.bytes().to_vec());
                    return reply(Reply::Value(Value::copied(desired.bytes())));
                }
                reply(Reply::Value(Value::copied(current.as_deref().unwrap_or(expected))))
            }
            Request::Check { keys } => {
                let mut keys = keys.iter();
                let has_stored = self.has_stored && self.values.contains_key(SERVER_KEY);
                reply(Reply::Checked(
                    keys.all(|key| (key == b"rallypoint/stored" && has_stored) || self.has(key)),
                ))
            }
            Request::Wait { keys } => {
                let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
                if keys.iter().all(|key| self.has(key)) {
                    return reply(Reply::Stop);
                }
                self.peers.entry(from).or_default().awaited = Some((Op::Wait, keys));
                Some(Vec::new())
            }
            Request::Barrier { key, world_size } => {
                if world_size <= 1 {
                    return reply(Reply::Stop);
                }
                // The model never releases such a barrier.
                self.peers.entry(from).or_default().awaited = Some((Op::Barrier, vec![key.into()]));
                Some(Vec::new())
            }
            Request::CancelWait => {
                if self.peers.entry(from).or_default().awaited.is_none() {
                    return reply(Reply::Canceled);
                }
                let mut responses = Vec::new();
                self.end_wait(from, Reply::Canceled, &mut responses);
                Some(responses.into_iter().flat_map(|response| response.reply).collect())
            }
            Request::NumKeys => reply(Reply::Number(self.values.len() as i64)),
            Request::DeleteKey { key } => reply(Reply::Number(i64::from(self.values.remove(key).is_some()))),
            Request::QueuePush { key, value } => {
                self.queues.entry(key.into()).or_default().push_back(value.bytes().to_vec());
                Some(Vec::new())
            }
            Request::QueuePop { key } => {
                let queue = self.queues.entry(key.into()).or_default();
                let before = queue.len() as i64;
                let item = queue.pop_front().map(|item| Value::copied(&item));
                reply(Reply::Popped { before, item })
            }
            Request::QueueLen { key } => {
                reply(Reply::Number(self.queues.get(key).map_or(0, |queue| queue.len() as i64)))
            }
            Request::ListKeys => {
                reply(Reply::Keys(self.values.keys().map(|key| key.as_slice().into()).collect()))
            }
        }
    }
}

pub(crate) fn encoded(reply: Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}
