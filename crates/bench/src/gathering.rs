//! The gatherings: many clients do one thing together, and it is over when the last of them has done it.

use std::rc::Rc;
use std::time::Instant;

use rallypoint_core::Value;
use rallypoint_core::wire::{KeyList, Reply, Request};

use crate::connection::Answer;
use crate::exchange::Exchange;
use crate::fleet::Script;
use crate::keys::Keys;
use crate::latencies::Latencies;
use crate::watch::Done;

/// Keys that each client of `cancel` waits for.
const AWAITED: usize = 64;

/// What one client does, step by step.
type Steps = Box<dyn Fn(usize, usize, i64) -> Option<Rc<Exchange>>>;

/// A gathering while it runs.
pub(crate) struct Gathering {
    /// What client `who` does as its step `n`, given the number it got last.
    steps: Steps,
    /// How many steps each has begun, and when its first.
    begun: Vec<(usize, Instant)>,
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    pub(crate) latencies: Latencies,
}

impl Gathering {
    fn new(clients: usize, steps: Steps) -> Gathering {
        let now = Instant::now();
        let begun = vec![(0, now); clients];
        Gathering { steps, begun, started: now, ended: now, latencies: Latencies::default() }
    }

    /// Each waits for keys of its own that are not there. Nobody is answered.
    pub(crate) fn wait_in_vain(clients: usize, names: &Keys) -> Gathering {
        let prefix = names.prefix().to_owned();
        Gathering::new(
            clients,
            Box::new(move |who, step, _| {
                let keys: Vec<String> =
                    (0..AWAITED).map(|n| format!("{prefix}absent/{who:05}/{n:02}")).collect();
                let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
                let wait = Request::Wait { keys: KeyList::new(&keys) };
                (step == 0).then(|| Rc::new(Exchange::named("wait").unanswered(wait)))
            }),
        )
    }

    /// Each gives up its wait.
    pub(crate) fn cancel(clients: usize) -> Gathering {
        let cancel = Rc::new(Exchange::named("cancel_wait").answered(Request::CancelWait, &Reply::Canceled));
        Gathering::new(clients, Box::new(move |_, step, _| (step == 0).then(|| Rc::clone(&cancel))))
    }

    /// Each sets its key, then gets the keys of all: waits for them, and asks for their values, as torch's client does.
    pub(crate) fn bootstrap(clients: usize, names: &Keys, value: &[u8]) -> Gathering {
        let keys = names.names(0, clients);
        let list: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let all = KeyList::new(&list);
        let wait = Rc::new(Exchange::named("wait").answered(Request::Wait { keys: all }, &Reply::Stop));
        let values = Reply::Values(vec![Value::copied(value); clients]);
        let multi_get = Exchange::named("multi_get").answered(Request::MultiGet { keys: all }, &values);
        let (multi_get, value) = (Rc::new(multi_get), value.to_vec());
        Gathering::new(
            clients,
            Box::new(move |who, step, _| match step {
                0 => {
                    let set = Request::Set { key: &keys[who], value: value.as_slice().into() };
                    Some(Rc::new(Exchange::named("set").unanswered(set)))
                }
                1 => Some(Rc::clone(&wait)),
                2 => Some(Rc::clone(&multi_get)),
                _ => None,
            }),
        )
    }

    /// Each counts itself; the last one sets a key that all wait for.
    pub(crate) fn barrier(clients: usize, names: &Keys) -> Gathering {
        let (count, last) = (names.name(0), names.name(1));
        let add = Rc::new(Exchange::named("add").numbered(Request::Add { key: &count, delta: 1 }));
        let awaited = [last.as_slice()];
        let wait = Request::Wait { keys: KeyList::new(&awaited) };
        let set = Request::Set { key: &last, value: b"1".as_slice().into() };
        let others = Rc::new(Exchange::named("wait").answered(wait, &Reply::Stop));
        let last = Rc::new(Exchange::named("set").unanswered(set).answered(wait, &Reply::Stop));
        Gathering::new(
            clients,
            Box::new(move |_, step, number| match step {
                0 => Some(Rc::clone(&add)),
                1 if number == clients as i64 => Some(Rc::clone(&last)),
                1 => Some(Rc::clone(&others)),
                _ => None,
            }),
        )
    }
}

impl Script for Gathering {
    fn next(&mut self, who: usize, answer: Option<&Answer>) -> Option<Rc<Exchange>> {
        let (step, begun) = &mut self.begun[who];
        if answer.is_none() {
            *begun = Instant::now();
        }
        let next = (self.steps)(who, *step, answer.map_or(0, |answer| answer.number));
        *step += 1;
        if let (None, Some(answer)) = (&next, answer) {
            self.latencies.note(answer.at.duration_since(*begun), 1);
            self.ended = answer.at;
        }
        next
    }

    fn done(&self) -> Done {
        Done { done: self.latencies.total(), total: self.begun.len() as u64, unit: "clients" }
    }
}
