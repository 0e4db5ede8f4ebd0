//! What a client knows of its server, and how it sees that another has taken its place. It asks nobody itself.
//!
//! Our servers have a name. Torch's have none, but one that was restarted has none of the keys that were there.

use std::collections::VecDeque;

use super::link::user_key;

/// Keys remembered as a sign that a server without a name is still the same.
const WITNESSES: usize = 8;

/// What is known of a server.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    /// Whether it was ever reached.
    met: bool,
    /// What it says of itself, if it is one of ours.
    identity: Option<String>,
    /// Keys that were there, newest first.
    witnesses: VecDeque<Vec<u8>>,
    /// A key that was there and that nobody deletes.
    steady: Option<Vec<u8>>,
    /// Set once it was found replaced: nothing works from then on.
    reset: Option<String>,
}

impl Known {
    /// What the server says of itself.
    pub(super) fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// How it was noticed that another server has taken its place.
    pub(super) fn reset(&self) -> Option<&str> {
        self.reset.as_deref()
    }

    /// Whether the server says that it can do this.
    pub(super) fn is_capable_of(&self, capability: &str) -> bool {
        let all = self.identity().and_then(|identity| part(identity, "capabilities="));
        all.is_some_and(|all| all.split(',').any(|one| one == capability))
    }

    /// The longest value the server takes, as it says.
    pub(super) fn value_len(&self) -> Option<usize> {
        self.identity().and_then(|identity| part(identity, "value_len="))?.parse().ok()
    }

    /// Remembers that this key was there. It must be a key: a queue is gone when it is empty.
    pub(super) fn witness(&mut self, key: &[u8]) {
        if self.identity.is_none() && !self.witnesses.iter().any(|witness| witness == key) {
            self.witnesses.truncate(WITNESSES - 1);
            self.witnesses.push_front(key.to_vec());
        }
    }

    /// Remembers that this key was there, and that nobody has a way to delete it.
    pub(super) fn witness_steady(&mut self, key: &[u8]) {
        self.steady = Some(key.to_vec());
    }

    /// Remembers that this key may be gone for a good reason.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.witnesses.retain(|witness| witness != key);
    }

    /// The keys to look for on a server that was reached anew and says this of itself; none where its name tells.
    pub(super) fn witnesses(&self, identity: Option<&str>) -> Vec<Vec<u8>> {
        match (self.met, self.identity(), identity) {
            (true, None, None) => self.steady.iter().chain(&self.witnesses).cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// A server was reached that says this of itself and has so many of the keys looked for. If it is not the one that
    /// was known, nothing works from now on.
    pub(super) fn meet(&mut self, identity: Option<String>, looked_for: &[Vec<u8>], there: usize) {
        let instance = |identity: &str| part(identity, "instance=").unwrap_or(identity).to_owned();
        let evidence = match (self.identity(), identity.as_deref()) {
            _ if !self.met => None,
            (Some(before), Some(now)) if instance(before) == instance(now) => None,
            (Some(before), Some(now)) => {
                Some(format!("it was instance {}, now it is {}", instance(before), instance(now)))
            }
            (Some(_), None) => Some("it was a rallypoint server and is none now".into()),
            (None, Some(_)) => Some("it was not a rallypoint server and is one now".into()),
            (None, None) if looked_for.is_empty() || there > 0 => None,
            (None, None) => {
                let names = looked_for.iter().map(|key| user_key(key)).collect::<Vec<_>>().join(", ");
                Some(format!("none of the keys seen before is there: {names}"))
            }
        };
        match evidence {
            Some(_) => self.reset = evidence,
            None => {
                self.met = true;
                self.identity = identity;
            }
        }
    }
}

/// One part of what a server says of itself.
fn part<'a>(identity: &'a str, name: &str) -> Option<&'a str> {
    identity.split(' ').find_map(|part| part.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(instance: &str) -> Option<String> {
        Some(format!("version=1 instance={instance} capabilities=in-order,stored"))
    }

    #[test]
    fn a_server_with_a_name_is_known_by_its_instance_alone() {
        let mut known = Known::default();
        known.meet(ours("a"), &[], 0);
        known.witness(b"/k");
        assert!(known.witnesses(ours("a").as_deref()).is_empty());
        known.meet(Some("version=2 instance=a capabilities=in-order".into()), &[], 0);
        assert_eq!(known.reset(), None);
        assert!(known.is_capable_of("in-order") && !known.is_capable_of("stored"));
        assert!(!known.is_capable_of("order"));
        assert_eq!(known.value_len(), None);
        known.meet(Some("instance=a value_len=77".into()), &[], 0);
        assert_eq!(known.value_len(), Some(77));
        known.meet(ours("b"), &[], 0);
        assert_eq!(known.reset(), Some("it was instance a, now it is b"));
    }

    #[test]
    fn a_server_without_a_name_is_known_by_any_key_that_is_left() {
        let mut known = Known::default();
        known.meet(None, &[], 0);
        for n in 0..20u8 {
            known.witness(&[b'/', n]);
        }
        known.forget(b"/\x13");
        let looked_for = known.witnesses(None);
        assert_eq!(looked_for, (12..19u8).rev().map(|n| vec![b'/', n]).collect::<Vec<_>>());
        known.meet(None, &looked_for, 1);
        assert_eq!(known.reset(), None);
        known.meet(None, &looked_for, 0);
        assert!(known.reset().is_some());
    }

    #[test]
    fn a_steady_key_is_never_pushed_out() {
        let mut known = Known::default();
        known.meet(None, &[], 0);
        known.witness_steady(b"init/");
        for n in 0..20u8 {
            known.witness(&[b'/', n]);
        }
        assert_eq!(known.witnesses(None)[0], b"init/");
    }
}
