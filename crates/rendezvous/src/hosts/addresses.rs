//! The addresses of names, found out in the background: a name server may take its time, and whoever joins a rendezvous is
//! not to wait for it longer than a moment. Each name is asked for once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::machine::addresses;

/// How long to wait for names that were asked for just now: mostly long enough.
const MOMENT: Duration = Duration::from_millis(200);

/// What is known of names.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// By name; `None` while it is being found out.
    known: Mutex<HashMap<String, Option<Vec<IpAddr>>>>,
    found: Condvar,
}

type Known = HashMap<String, Option<Vec<IpAddr>>>;

impl Addresses {
    /// Has these names looked up, those that were not before. Returns after a moment, whether or not they are found.
    pub(super) fn look_up(self: &Arc<Addresses>, names: &[String]) {
        self.look_up_by(names, addresses);
    }

    fn look_up_by(self: &Arc<Addresses>, names: &[String], resolve: fn(&str) -> Vec<IpAddr>) {
        let mut known = self.known();
        let fresh: Vec<_> = names.iter().filter(|name| !known.contains_key(*name)).cloned().collect();
        if fresh.is_empty() {
            return;
        }
        known.extend(fresh.iter().map(|name| (name.clone(), None)));
        let (here, asked) = (Arc::clone(self), fresh.clone());
        std::thread::spawn(move || {
            for name in asked {
                let found = resolve(&name);
                here.known().insert(name, Some(found));
                here.found.notify_all();
            }
        });
        let open = |known: &mut Known| fresh.iter().any(|name| known[name].is_none());
        drop(self.found.wait_timeout_while(known, MOMENT, open).unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether one of the addresses that are known of this name is such a one.
    pub(super) fn any_of(&self, name: &str, is_such: impl Fn(&IpAddr) -> bool) -> bool {
        matches!(self.known().get(name), Some(Some(addresses)) if addresses.iter().any(is_such))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

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
            assert!(!addresses.any_of("node0", |_| true));
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[test]
    fn what_is_found_is_known() {
        let addresses = Arc::<Addresses>::default();
        addresses.look_up_by(&["here".into()], |_| vec![[127, 0, 0, 9].into()]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !addresses.any_of("here", |ip| ip.is_loopback()) {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        assert!(!addresses.any_of("elsewhere", |_| true));
    }
}
