//! Steady workloads: every connection sends a batch, waits for the replies, and sends the next batch, until the
//! workload ends.

use std::rc::Rc;
use std::time::{Duration, Instant};

use rallypoint_core::Value;
use rallypoint_core::wire::{KeyList, PairList, Reply, Request};

use crate::connection::Completion;
use crate::connection_pool::Load;
use crate::exchange::{Exchange, value_reply};
use crate::keys::Keys;
use crate::latencies::Latencies;
use crate::monitor::Progress;
use crate::workload::{Kind, SizeUnit, Workload};

/// The condition on which a steady workload ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// The time since the start.
    After(Duration),
    /// The number of requests.
    Requests(u64),
}

/// The encoded batches of a steady workload, and the keys that it needs.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) batches: Vec<Rc<Exchange>>,
    /// The number of keys that the batches use.
    pub(crate) keys: usize,
    /// The value that all keys get before the workload starts, if the keys must be present.
    pub(crate) preset: Option<Vec<u8>>,
}

/// The approximate limit on the length of all batches together, in bytes. Workloads with large values use fewer keys to
/// stay below it. One batch of `in_flight` requests is always encoded, even if it exceeds the limit.
const MAX_ENCODED_BYTES: usize = 32 << 20;

impl Batches {
    /// Encodes batches of `in_flight` requests each.
    pub(crate) fn of(
        workload: Workload,
        in_flight: usize,
        keys: usize,
        value_bytes: usize,
        names: &Keys,
    ) -> Batches {
        let (per_request, value_bytes) = match (workload.size_unit(), workload.size) {
            (SizeUnit::Keys, Some(size)) => (size, value_bytes),
            (SizeUnit::ValueBytes, Some(size)) => (1, size),
            _ => (1, value_bytes),
        };
        let value = vec![b'v'; value_bytes];
        let max = (MAX_ENCODED_BYTES / (per_request * (value_bytes + 64))).max(1);
        let requests = (keys / per_request).clamp(1, max).max(in_flight.min(max));
        let key_names = names.names(0, requests * per_request);
        let key_groups: Vec<&[Vec<u8>]> = key_names.chunks(per_request).collect();
        let batches = (0..requests.div_ceil(in_flight))
            .map(|batch| {
                let mut exchange = Exchange::new(workload.name());
                for n in 0..in_flight {
                    let keys = key_groups[(batch * in_flight + n) % key_groups.len()];
                    exchange = with_request(exchange, workload.kind, keys, &value);
                }
                Rc::new(if exchange.reply.len() == 0 { exchange.ping() } else { exchange })
            })
            .collect();
        let preset = !matches!(workload.kind, Kind::Add | Kind::Set | Kind::MultiSet);
        Batches { batches, keys: requests * per_request, preset: preset.then_some(value) }
    }
}

/// Adds a request of this kind to an exchange.
fn with_request(exchange: Exchange, kind: Kind, keys: &[Vec<u8>], value: &[u8]) -> Exchange {
    let key = keys[0].as_slice();
    let list: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let list = KeyList::new(&list);
    match kind {
        Kind::Add => exchange.with_number_reply(Request::Add { key, delta: 1 }),
        Kind::Get => exchange.with_reply(Request::Get { key }, &value_reply(value)),
        Kind::Set => exchange.without_reply(Request::Set { key, value: value.into() }),
        Kind::Check => exchange.with_reply(Request::Check { keys: list }, &Reply::Checked(true)),
        Kind::Wait => exchange.with_reply(Request::Wait { keys: list }, &Reply::Stop),
        // The request stores the same value again, so that every compare-and-set succeeds.
        Kind::CompareSet => exchange.with_reply(
            Request::CompareSet { key, expected: value.into(), desired: value.into() },
            &value_reply(value),
        ),
        Kind::MultiGet => {
            let values = vec![Value::copied(value); keys.len()];
            exchange.with_reply(Request::MultiGet { keys: list }, &Reply::Values(values))
        }
        Kind::MultiSet => {
            let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_slice(), value)).collect();
            exchange.without_reply(Request::MultiSet { pairs: PairList::new(&pairs) })
        }
        Kind::Cancel | Kind::Connect | Kind::Bootstrap | Kind::Barrier => {
            unreachable!("collective workloads are not steady")
        }
    }
}

/// A steady workload while it runs.
#[derive(Debug)]
pub(crate) struct SteadyLoad {
    batches: Vec<Rc<Exchange>>,
    next: Vec<usize>,
    until: Until,
    sent: u64,
    started: Instant,
    pub(crate) ended: Instant,
    pub(crate) latencies: Latencies,
}

impl SteadyLoad {
    /// Starts a workload. Connection `n` starts with batch `n` modulo the number of batches, so that the connections do
    /// not all use the same keys.
    pub(crate) fn new(batches: &Batches, connections: usize, until: Until) -> SteadyLoad {
        let now = Instant::now();
        SteadyLoad {
            batches: batches.batches.clone(),
            next: (0..connections).collect(),
            until,
            sent: 0,
            started: now,
            ended: now,
            latencies: Latencies::default(),
        }
    }

    /// Returns the time from the start to the last reply.
    pub(crate) fn elapsed(&self) -> Duration {
        self.ended.duration_since(self.started)
    }
}

impl Load for SteadyLoad {
    fn next(&mut self, client: usize, completion: Option<&Completion>) -> Option<Rc<Exchange>> {
        if let Some(completion) = completion {
            self.latencies.record(completion.latency, completion.requests);
            self.ended = completion.at;
        }
        let is_done = match self.until {
            Until::After(time) => completion.is_some() && self.elapsed() >= time,
            Until::Requests(count) => self.sent >= count,
        };
        if is_done {
            return None;
        }
        let batch = self.next[client] % self.batches.len();
        self.next[client] = batch + 1;
        let exchange = Rc::clone(&self.batches[batch]);
        self.sent += exchange.requests;
        Some(exchange)
    }

    fn progress(&self) -> Progress {
        match self.until {
            Until::After(time) => Progress {
                done: self.started.elapsed().as_millis() as u64,
                total: time.as_millis() as u64,
                unit: "ms",
            },
            Until::Requests(total) => Progress { done: self.latencies.total(), total, unit: "requests" },
        }
    }
}
