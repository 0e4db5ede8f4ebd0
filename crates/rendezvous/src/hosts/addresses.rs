//! Resolves names in the background, because a name server may be slow. A node that joins waits at most 200 ms for new
//! names. Up to 8 threads resolve all names. No lookup starts later than 5 min after the first one.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::machine::addresses;

/// How long a call waits for names that it looks up for the first time.
const FIRST_LOOKUP_TIMEOUT: Duration = Duration::from_millis(200);
/// The largest number of threads that resolve names.
const MAX_THREADS: usize = 8;
/// The interval after which a name without addresses is looked up again. It may get an address when its machine starts.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The time after the first lookup during which further lookups start. Names that are still in the queue then are never
/// resolved.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(300);

/// A cache of resolved names.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    lookups: Mutex<Lookups>,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct Lookups {
    /// The addresses by name, with the time of the lookup. `None` while the lookup is pending.
    names: HashMap<String, Option<(Instant, Vec<IpAddr>)>>,
    queue: VecDeque<String>,
    threads: usize,
    first_lookup: Option<Instant>,
}

impl Addresses {
    /// Looks up these names in the background, unless they are cached. Waits up to 200 ms if a name is new.
    pub(super) fn look_up(self: &Arc<Addresses>, names: &[String]) {
        self.look_up_with(names, addresses);
    }

    fn look_up_with(self: &Arc<Addresses>, names: &[String], resolve: fn(&str) -> Vec<IpAddr>) {
        let mut lookups = self.lookups();
        if lookups.first_lookup.get_or_insert_with(Instant::now).elapsed() > LOOKUP_TIMEOUT {
            return;
        }
        let mut new_names = 0;
        for name in names {
            let is_due = match lookups.names.get(name) {
                None => true,
                Some(None) => false,
                Some(Some((at, addresses))) => addresses.is_empty() && at.elapsed() > RETRY_INTERVAL,
            };
            if !is_due {
                continue;
            }
            new_names += usize::from(!lookups.names.contains_key(name));
            if let Ok(address) = name.parse() {
                lookups.names.insert(name.clone(), Some((Instant::now(), vec![address])));
                continue;
            }
            lookups.names.insert(name.clone(), None);
            lookups.queue.push_back(name.clone());
        }
        while lookups.threads < MAX_THREADS.min(lookups.queue.len()) {
            lookups.threads += 1;
            let this = Arc::clone(self);
            std::thread::spawn(move || this.run_lookups(resolve));
        }
        if new_names > 0 {
            let is_pending = |lookups: &mut Lookups| !lookups.queue.is_empty() || lookups.threads > 0;
            drop(
                self.finished
                    .wait_timeout_while(lookups, FIRST_LOOKUP_TIMEOUT, is_pending)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }

    /// Resolves queued names until the queue is empty or `LOOKUP_TIMEOUT` has passed.
    fn run_lookups(&self, resolve: fn(&str) -> Vec<IpAddr>) {
        loop {
            let mut lookups = self.lookups();
            let is_over =
                lookups.first_lookup.is_some_and(|first_lookup| first_lookup.elapsed() > LOOKUP_TIMEOUT);
            let Some(name) = lookups.queue.pop_front().filter(|_| !is_over) else {
                lookups.threads -= 1;
                self.finished.notify_all();
                return;
            };
            drop(lookups);
            let addresses = resolve(&name);
            self.lookups().names.insert(name, Some((Instant::now(), addresses)));
        }
    }

    /// Returns the addresses of a name, or `None` if there are none or the lookup is pending.
    pub(super) fn get(&self, name: &str) -> Option<Vec<IpAddr>> {
        match self.lookups().names.get(name) {
            Some(Some((_, addresses))) if !addresses.is_empty() => Some(addresses.clone()),
            _ => None,
        }
    }

    fn lookups(&self) -> MutexGuard<'_, Lookups> {
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rallypoint_testkit::eventually;

    use super::*;

    fn resolve_for_60_s(_: &str) -> Vec<IpAddr> {
        std::thread::sleep(Duration::from_secs(60));
        Vec::new()
    }

    #[test]
    fn a_silent_name_server_delays_only_the_first_call() {
        let addresses = Arc::<Addresses>::default();
        let names: Vec<_> = (0..64).map(|number| format!("node{number}")).collect();
        let start = Instant::now();
        for _ in 0..100 {
            addresses.look_up_with(&names, resolve_for_60_s);
            assert_eq!(addresses.get("node0"), None);
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[test]
    fn a_few_threads_look_up_thousands_of_names() {
        let addresses = Arc::<Addresses>::default();
        let names: Vec<_> = (0..5_000).map(|number| format!("node{number}")).collect();
        addresses.look_up_with(&names, |name| {
            let number: u16 = name[4..].parse().unwrap();
            vec![[10, 0, (number >> 8) as u8, number as u8].into()]
        });
        assert!(addresses.lookups().threads <= MAX_THREADS);
        eventually("all names are looked up", || names.iter().all(|name| addresses.get(name).is_some()));
        assert_eq!(addresses.get("node4999"), Some(vec![[10, 0, 19, 135].into()]));
    }

    #[test]
    fn a_resolved_name_has_its_addresses() {
        let addresses = Arc::<Addresses>::default();
        addresses.look_up_with(&["this".into()], |_| vec![[127, 0, 0, 9].into()]);
        eventually("the name is looked up", || addresses.get("this") == Some(vec![[127, 0, 0, 9].into()]));
        assert_eq!(addresses.get("elsewhere"), None);
    }
}
