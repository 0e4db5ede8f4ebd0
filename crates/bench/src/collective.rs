//! Collective workloads: many clients run the same steps once, and the workload ends when the last client has finished.

use std::rc::Rc;
use std::time::Instant;

use rallypoint_core::Value;
use rallypoint_core::wire::{KeyList, Reply, Request};

use crate::connection::Completion;
use crate::connection_pool::Load;
use crate::exchange::Exchange;
use crate::keys::Keys;
use crate::latencies::Latencies;
use crate::monitor::Progress;

/// The number of keys that each client of the `cancel` workload waits for.
const KEYS_PER_WAIT: usize = 64;

/// Returns the exchange for a client's next step, or `None` after the last step. The arguments are the client, the
/// step, and the last number that the client received.
type Steps = Box<dyn Fn(usize, usize, i64) -> Option<Rc<Exchange>>>;

/// A collective workload while it runs.
pub(crate) struct Collective {
    steps: Steps,
    /// The number of steps that each client has started, and the time of its first step.
    clients: Vec<(usize, Instant)>,
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    pub(crate) latencies: Latencies,
}

impl Collective {
    fn new(clients: usize, steps: Steps) -> Collective {
        let now = Instant::now();
        let clients = vec![(0, now); clients];
        Collective { steps, clients, started: now, ended: now, latencies: Latencies::default() }
    }

    /// Makes each client wait for absent keys of its own. The server sends no replies to these requests.
    pub(crate) fn wait_for_absent_keys(clients: usize, names: &Keys) -> Collective {
        let prefix = names.prefix().to_owned();
        Collective::new(
            clients,
            Box::new(move |client, step, _| {
                let keys: Vec<String> =
                    (0..KEYS_PER_WAIT).map(|n| format!("{prefix}absent/{client:05}/{n:02}")).collect();
                let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
                let wait = Request::Wait { keys: KeyList::new(&keys) };
                (step == 0).then(|| Rc::new(Exchange::new("wait").without_reply(wait)))
            }),
        )
    }

    /// Makes each client cancel the WAIT in which it is blocked.
    pub(crate) fn cancel(clients: usize) -> Collective {
        let cancel = Rc::new(Exchange::new("cancel_wait").with_reply(Request::CancelWait, &Reply::Canceled));
        Collective::new(clients, Box::new(move |_, step, _| (step == 0).then(|| Rc::clone(&cancel))))
    }

    /// Makes each client set its key and get the values of all clients' keys. Like torch's client, it waits for the
    /// keys and then requests their values.
    pub(crate) fn bootstrap(clients: usize, names: &Keys, value: &[u8]) -> Collective {
        let keys = names.names(0, clients);
        let list: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let all = KeyList::new(&list);
        let wait = Rc::new(Exchange::new("wait").with_reply(Request::Wait { keys: all }, &Reply::Stop));
        let values = Reply::Values(vec![Value::copied(value); clients]);
        let multi_get = Exchange::new("multi_get").with_reply(Request::MultiGet { keys: all }, &values);
        let (multi_get, value) = (Rc::new(multi_get), value.to_vec());
        Collective::new(
            clients,
            Box::new(move |client, step, _| match step {
                0 => {
                    let set = Request::Set { key: &keys[client], value: value.as_slice().into() };
                    Some(Rc::new(Exchange::new("set").without_reply(set)))
                }
                1 => Some(Rc::clone(&wait)),
                2 => Some(Rc::clone(&multi_get)),
                _ => None,
            }),
        )
    }

    /// Makes each client add to a counter. The last client sets a key that all clients wait for.
    pub(crate) fn barrier(clients: usize, names: &Keys) -> Collective {
        let (count, last) = (names.name(0), names.name(1));
        let add = Rc::new(Exchange::new("add").with_number_reply(Request::Add { key: &count, delta: 1 }));
        let awaited = [last.as_slice()];
        let wait = Request::Wait { keys: KeyList::new(&awaited) };
        let set = Request::Set { key: &last, value: b"1".as_slice().into() };
        let wait_only = Rc::new(Exchange::new("wait").with_reply(wait, &Reply::Stop));
        let set_and_wait = Rc::new(Exchange::new("set").without_reply(set).with_reply(wait, &Reply::Stop));
        Collective::new(
            clients,
            Box::new(move |_, step, number| match step {
                0 => Some(Rc::clone(&add)),
                1 if number == clients as i64 => Some(Rc::clone(&set_and_wait)),
                1 => Some(Rc::clone(&wait_only)),
                _ => None,
            }),
        )
    }
}

impl Load for Collective {
    fn next(&mut self, client: usize, completion: Option<&Completion>) -> Option<Rc<Exchange>> {
        let (step, start) = &mut self.clients[client];
        if completion.is_none() {
            *start = Instant::now();
        }
        let next = (self.steps)(client, *step, completion.map_or(0, |completion| completion.number));
        *step += 1;
        if let (None, Some(completion)) = (&next, completion) {
            self.latencies.record(completion.at.duration_since(*start), 1);
            self.ended = completion.at;
        }
        next
    }

    fn progress(&self) -> Progress {
        Progress { done: self.latencies.total(), total: self.clients.len() as u64, unit: "clients" }
    }
}
