//! The addresses of names, found out in the background: a name server may take its time, and whoever joins a rendezvous is
//! not to wait for it longer than a moment. A few threads ask, for thousands of names if need be, and not for ever.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::machine::addresses;

/// How long to wait for names that were asked for just now: mostly long enough.
const MOMENT: Duration = Duration::from_millis(200);
/// So many ask at once.
const THREADS: usize = 8;
/// A name without addresses is asked for again after this time: it may be that of a machine that has yet to start.
const AGAIN: Duration = Duration::from_secs(10);
/// After this time nobody is asked any more: a name server that has not answered by then does not.
const PATIENCE: Duration = Duration::from_secs(300);

/// What is known of names.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    known: Mutex<Known>,
    found: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    /// By name; `None` while it is being found out.
    names: HashMap<String, Option<(Instant, Vec<IpAddr>)>>,
    waiting: VecDeque<String>,
    threads: usize,
    since: Option<Instant>,
}

impl Addresses {
    /// Has these names looked up, those that were not before. Returns after a moment, whether or not they are found.
    pub(super) fn look_up(self: &Arc<Addresses>, names: &[String]) {
        self.look_up_by(names, addresses);
    }

    fn look_up_by(self: &Arc<Addresses>, names: &[String], resolve: fn(&str) -> Vec<IpAddr>) {
        let mut known = self.known();
        if known.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return;
        }
        let mut fresh = 0;
        for name in names {
            let is_due = match known.names.get(name) {
                None => true,
                Some(None) => false,
                Some(Some((at, addresses))) => addresses.is_empty() && at.elapsed() > AGAIN,
            };
            if !is_due {
                continue;
            }
            fresh += usize::from(!known.names.contains_key(name));
            if let Ok(address) = name.parse() {
                known.names.insert(name.clone(), Some((Instant::now(), vec![address])));
                continue;
            }
            known.names.insert(name.clone(), None);
            known.waiting.push_back(name.clone());
        }
        while known.threads < THREADS.min(known.waiting.len()) {
            known.threads += 1;
            let here = Arc::clone(self);
            std::thread::spawn(move || here.work(resolve));
        }
        if fresh > 0 {
            let is_open = |known: &mut Known| !known.waiting.is_empty() || known.threads > 0;
            drop(
                self.found.wait_timeout_while(known, MOMENT, is_open).unwrap_or_else(PoisonError::into_inner),
            );
        }
    }

    /// Asks for one name after the other, until there are none or the time is up.
    fn work(&self, resolve: fn(&str) -> Vec<IpAddr>) {
        loop {
            let mut known = self.known();
            let is_late = known.since.is_some_and(|since| since.elapsed() > PATIENCE);
            let Some(name) = known.waiting.pop_front().filter(|_| !is_late) else {
                known.threads -= 1;
                self.found.notify_all();
                return;
            };
            drop(known);
            let found = resolve(&name);
            self.known().names.insert(name, Some((Instant::now(), found)));
        }
    }

    /// The addresses of this name; `None` if none are known, or not yet.
    pub(super) fn of(&self, name: &str) -> Option<Vec<IpAddr>> {
        match self.known().names.get(name) {
            Some(Some((_, addresses))) if !addresses.is_empty() => Some(addresses.clone()),
            _ => None,
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rallypoint_testkit::eventually;

    use super::*;

    fn never(_: &str) -> Vec<IpAddr> {
        std::thread::sleep(Duration::from_secs(60));
        Vec::new()
    }

    #[test]
    fn a_name_server_that_does_not_answer_holds_nobody_up_and_only_once() {
        let addresses = Arc::<Addresses>::default();
        let names: Vec<_> = (0..64).map(|number| format!("node{number}")).collect();
        let start = Instant::now();
        for _ in 0..100 {
            addresses.look_up_by(&names, never);
            assert_eq!(addresses.of("node0"), None);
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[test]
    fn thousands_of_names_are_looked_up_by_a_few() {
        let addresses = Arc::<Addresses>::default();
        let names: Vec<_> = (0..5_000).map(|number| format!("node{number}")).collect();
        addresses.look_up_by(&names, |name| {
            let number: u16 = name[4..].parse().unwrap();
            vec![[10, 0, (number >> 8) as u8, number as u8].into()]
        });
        assert!(addresses.known().threads <= THREADS);
        eventually("all names are looked up", || names.iter().all(|name| addresses.of(name).is_some()));
        assert_eq!(addresses.of("node4999"), Some(vec![[10, 0, 19, 135].into()]));
    }

    #[test]
    fn what_is_found_is_known() {
        let addresses = Arc::<Addresses>::default();
        addresses.look_up_by(&["here".into()], |_| vec![[127, 0, 0, 9].into()]);
        eventually("the name is looked up", || addresses.of("here") == Some(vec![[127, 0, 0, 9].into()]));
        assert_eq!(addresses.of("elsewhere"), None);
    }
}
