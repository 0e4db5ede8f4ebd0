//! The steady loads: every connection sends a batch, awaits its replies, and sends the next, until the time is over.

use std::rc::Rc;
use std::time::{Duration, Instant};

use rallypoint_core::Value;
use rallypoint_core::wire::{KeyList, PairList, Reply, Request};

use crate::connection::Answer;
use crate::exchange::{Exchange, value_reply};
use crate::fleet::Script;
use crate::keys::Keys;
use crate::latencies::Latencies;
use crate::watch::Done;
use crate::workload::{Kind, Sized, Workload};

/// When a steady load has done enough.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After this time.
    After(Duration),
    /// After this number of requests.
    Requests(u64),
}

/// The batches of a load, ready to be sent, and the keys that must be there before.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) batches: Vec<Rc<Exchange>>,
    /// Keys it uses.
    pub(crate) keys: usize,
    /// What they must hold at the start.
    pub(crate) preset: Option<Vec<u8>>,
}

/// Large values are few, so that the batches of all keys together stay small.
const MOST_BATCHED: usize = 32 << 20;

impl Batches {
    /// Prints the batches of `in_flight` requests each, over so many keys.
    pub(crate) fn of(
        workload: Workload,
        in_flight: usize,
        keys: usize,
        value_bytes: usize,
        names: &Keys,
    ) -> Batches {
        let (per_request, value_bytes) = match (workload.sized(), workload.size) {
            (Sized::Keys, Some(size)) => (size, value_bytes),
            (Sized::ValueBytes, Some(size)) => (1, size),
            _ => (1, value_bytes),
        };
        let value = vec![b'v'; value_bytes];
        let most = (MOST_BATCHED / (per_request * (value_bytes + 64))).max(1);
        let requests = (keys / per_request).clamp(1, most).max(in_flight.min(most));
        let sets = names.names(0, requests * per_request);
        let sets: Vec<&[Vec<u8>]> = sets.chunks(per_request).collect();
        let batches = (0..requests.div_ceil(in_flight))
            .map(|batch| {
                let mut exchange = Exchange::named(workload.name());
                for n in 0..in_flight {
                    let keys = sets[(batch * in_flight + n) % sets.len()];
                    exchange = with_request(exchange, workload.kind, keys, &value);
                }
                Rc::new(if exchange.reply.len() == 0 { exchange.ping() } else { exchange })
            })
            .collect();
        let preset = !matches!(workload.kind, Kind::Add | Kind::Set | Kind::MultiSet);
        Batches { batches, keys: requests * per_request, preset: preset.then_some(value) }
    }
}

/// Puts one request of this kind behind the others.
fn with_request(exchange: Exchange, kind: Kind, keys: &[Vec<u8>], value: &[u8]) -> Exchange {
    let key = keys[0].as_slice();
    let list: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let list = KeyList::new(&list);
    match kind {
        Kind::Add => exchange.numbered(Request::Add { key, delta: 1 }),
        Kind::Get => exchange.answered(Request::Get { key }, &value_reply(value)),
        Kind::Set => exchange.unanswered(Request::Set { key, value: value.into() }),
        Kind::Check => exchange.answered(Request::Check { keys: list }, &Reply::Checked(true)),
        Kind::Wait => exchange.answered(Request::Wait { keys: list }, &Reply::Stop),
        // Puts the same value again, so that it succeeds whoever was there before.
        Kind::CompareSet => exchange.answered(
            Request::CompareSet { key, expected: value.into(), desired: value.into() },
            &value_reply(value),
        ),
        Kind::MultiGet => {
            let values = vec![Value::copied(value); keys.len()];
            exchange.answered(Request::MultiGet { keys: list }, &Reply::Values(values))
        }
        Kind::MultiSet => {
            let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_slice(), value)).collect();
            exchange.unanswered(Request::MultiSet { pairs: PairList::new(&pairs) })
        }
        Kind::Cancel | Kind::Connect | Kind::Bootstrap | Kind::Barrier => {
            unreachable!("gatherings are not steady")
        }
    }
}

/// A steady load while it runs.
#[derive(Debug)]
pub(crate) struct Steady {
    batches: Vec<Rc<Exchange>>,
    next: Vec<usize>,
    until: Until,
    asked: u64,
    started: Instant,
    pub(crate) ended: Instant,
    pub(crate) latencies: Latencies,
}

impl Steady {
    /// Each connection begins with another batch, so that they don't all ask for the same key.
    pub(crate) fn new(batches: &Batches, connections: usize, until: Until) -> Steady {
        let now = Instant::now();
        Steady {
            batches: batches.batches.clone(),
            next: (0..connections).collect(),
            until,
            asked: 0,
            started: now,
            ended: now,
            latencies: Latencies::default(),
        }
    }

    /// Since the load began, up to its last answer.
    pub(crate) fn elapsed(&self) -> Duration {
        self.ended.duration_since(self.started)
    }
}

impl Script for Steady {
    fn next(&mut self, who: usize, answer: Option<&Answer>) -> Option<Rc<Exchange>> {
        if let Some(answer) = answer {
            self.latencies.note(answer.took, answer.requests);
            self.ended = answer.at;
        }
        let enough = match self.until {
            Until::After(time) => answer.is_some() && self.elapsed() >= time,
            Until::Requests(count) => self.asked >= count,
        };
        if enough {
            return None;
        }
        let batch = self.next[who] % self.batches.len();
        self.next[who] = batch + 1;
        let exchange = Rc::clone(&self.batches[batch]);
        self.asked += exchange.requests;
        Some(exchange)
    }

    fn done(&self) -> Done {
        match self.until {
            Until::After(time) => Done {
                done: self.started.elapsed().as_millis() as u64,
                total: time.as_millis() as u64,
                unit: "ms",
            },
            Until::Requests(total) => Done { done: self.latencies.total(), total, unit: "requests" },
        }
    }
}
