//! What a client knows about its server, and how it detects that the server was restarted and lost its data.
//!
//! Our servers have an identity, which changes with every start. Torch's servers have none. A client concludes that a
//! server without an identity was restarted if, after a reconnect, none of the keys that the client remembers exists.
//! The conclusion is wrong if other clients deleted all of these keys.

use std::collections::VecDeque;

use super::connection::Ack;
use super::printable_key;
use crate::counted::first_few;

/// The maximum number of keys that a client remembers of a server without an identity.
const MAX_REMEMBERED_KEYS: usize = 64;

/// What a client knows about its server.
#[derive(Debug, Default)]
pub struct Server {
    /// Whether a call has queried the server's identity, even if the server turned out to have none.
    pub(super) is_identified: bool,
    /// The request whose reply shows that the server has handled the requests before it, which may have no reply.
    pub(super) ack: Ack,
    /// Whether the server has replied to a queue operation, which shows that it supports queues.
    pub(super) has_answered_queue: bool,
    identity: Option<String>,
    /// Keys that the client has seen, if the server has no identity. The oldest key is first.
    remembered: VecDeque<Vec<u8>>,
    /// Whether a connection was lost since the client last verified the server.
    is_reconnect: bool,
    /// The evidence that the server was restarted. Only [`OnReset::Fail`] sets it.
    reset: Option<String>,
    on_reset: OnReset,
    generation: u64,
}

/// What a client does when it detects that its server was restarted and lost its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnReset {
    /// Every call fails.
    #[default]
    Fail,
    /// The client continues with the empty server and increments its generation.
    Continue,
}

impl Server {
    pub(super) fn new(on_reset: OnReset) -> Server {
        Server { on_reset, ..Server::default() }
    }

    /// Returns how many times the client has continued with an empty server.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the identity of the server, if it is one of ours.
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// Returns whether the identity of the server lists this capability.
    pub fn has_capability(&self, capability: &str) -> bool {
        let capabilities = self.identity().and_then(|identity| identity_field(identity, "capabilities="));
        capabilities.is_some_and(|names| names.split(',').any(|name| name == capability))
    }

    /// Returns the server's limit on the length of a value, if its identity states one.
    pub fn value_len(&self) -> Option<usize> {
        self.identity().and_then(|identity| identity_field(identity, "value_len="))?.parse().ok()
    }

    /// Returns whether the server is known to support queues. All of our servers do.
    pub(super) fn has_queues(&self) -> bool {
        self.has_answered_queue || self.identity.is_some()
    }

    /// Returns the evidence that the server was restarted, if there is any.
    pub(super) fn reset(&self) -> Option<&str> {
        self.reset.as_deref()
    }

    /// Remembers that a key exists, if the server has no identity.
    ///
    /// It must not be the key of a queue, which disappears when the queue is emptied. That would look like a reset.
    pub(super) fn remember(&mut self, key: &[u8]) {
        if self.identity.is_some() || self.remembered.iter().any(|remembered| remembered == key) {
            return;
        }
        if self.remembered.len() == MAX_REMEMBERED_KEYS {
            // The first key is never dropped, because it is often torch's counter of joined workers, which no client
            // deletes.
            self.remembered.remove(1);
        }
        self.remembered.push_back(key.to_vec());
    }

    /// Forgets a key that was deleted.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.remembered.retain(|remembered| remembered != key);
    }

    /// Records that a connection was lost, so the server may have been restarted.
    pub(super) fn connection_lost(&mut self) {
        self.is_reconnect = true;
    }

    /// Returns the keys whose presence must be checked on a new connection to a server with this identity.
    ///
    /// Returns no keys if the client has not identified its server yet, if no connection was lost since the client last
    /// verified the server, or if the known server or this one has an identity.
    pub(super) fn keys_to_check(&self, identity: Option<&str>) -> Vec<Vec<u8>> {
        match self.is_identified && self.is_reconnect && self.identity.is_none() && identity.is_none() {
            true => self.remembered.iter().cloned().collect(),
            false => Vec::new(),
        }
    }

    /// Compares the server of a new connection with the known one, and handles a reset as [`OnReset`] selects.
    ///
    /// `identity` is the identity of the new server, and `missing` contains the remembered keys that it does not have.
    pub(super) fn verify(&mut self, identity: Option<String>, missing: &[Vec<u8>]) {
        // If another thread of this client deleted the last remembered key during the check, a missing key is no
        // evidence of a reset.
        let had_keys = !self.remembered.is_empty();
        missing.iter().for_each(|key| self.forget(key));
        let instance = |identity: &str| identity_field(identity, "instance=").unwrap_or(identity).to_owned();
        let evidence = match (self.identity(), identity.as_deref()) {
            _ if self.reset.is_some() => return,
            _ if !self.is_identified => None,
            (Some(before), Some(now)) if instance(before) == instance(now) => None,
            (Some(before), Some(now)) => {
                Some(format!("it was instance {}, now it is {}", instance(before), instance(now)))
            }
            (Some(_), None) => Some("it was a rallypoint server and is not one now".into()),
            (None, Some(_)) => Some("it was not a rallypoint server and is one now".into()),
            (None, None) if had_keys && self.remembered.is_empty() => {
                let names = first_few(missing.iter().map(|key| printable_key(key)));
                Some(format!("none of the keys seen before exists: {names}"))
            }
            (None, None) => None,
        };
        self.is_reconnect = false;
        match (evidence, self.on_reset) {
            (Some(evidence), OnReset::Fail) => {
                self.reset = Some(evidence);
                return;
            }
            (Some(_), OnReset::Continue) => {
                let generation = self.generation + 1;
                *self = Server { generation, ..Server::new(self.on_reset) };
            }
            (None, _) => {}
        }
        self.is_identified = true;
        self.identity = identity;
        // All of our servers support PING. If one closed the connection after a PING, it had another reason.
        if self.identity.is_some() {
            self.ack = Ack::Ping;
        }
    }
}

/// Returns the value of a field of an identity. `name` includes the equals sign.
fn identity_field<'a>(identity: &'a str, name: &str) -> Option<&'a str> {
    identity.split(' ').find_map(|field| field.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(instance: &str) -> Option<String> {
        Some(format!("version=1 instance={instance} capabilities=in-order,stored"))
    }

    fn key(n: usize) -> Vec<u8> {
        format!("/{n}").into_bytes()
    }

    /// Returns what a client knows about a server without an identity after it has seen this number of keys.
    fn torch_server(keys: usize) -> Server {
        let mut server = Server::default();
        server.verify(None, &[]);
        (0..keys).for_each(|n| server.remember(&key(n)));
        server
    }

    /// Simulates a reconnect to a server that has none of the remembered keys.
    fn reconnect_to_empty(server: &mut Server) {
        server.connection_lost();
        let checked = server.keys_to_check(None);
        server.verify(None, &checked);
    }

    #[test]
    fn a_server_with_an_identity_is_recognized_by_its_instance_alone() {
        let mut server = Server::default();
        server.verify(identity("a"), &[]);
        server.remember(b"/k");
        server.connection_lost();
        assert!(server.keys_to_check(identity("a").as_deref()).is_empty());
        server.verify(Some("version=2 instance=a capabilities=in-order value_len=77".into()), &[]);
        assert_eq!((server.reset(), server.value_len()), (None, Some(77)));
        assert!(server.has_capability("in-order") && !server.has_capability("stored"));
        assert!(!server.has_capability("order"));
        server.verify(identity("b"), &[]);
        assert_eq!(server.reset(), Some("it was instance a, now it is b"));
        assert_eq!(server.identity(), Some("version=2 instance=a capabilities=in-order value_len=77"));
    }

    #[test]
    fn a_server_without_an_identity_is_recognized_by_any_remaining_key() {
        let mut server = torch_server(100);
        server.forget(&key(99));
        server.connection_lost();
        let checked = server.keys_to_check(None);
        assert_eq!(checked, std::iter::once(0).chain(37..99).map(key).collect::<Vec<_>>());
        // One key is still present, so there was no reset. The client forgets the other keys.
        server.verify(None, &checked[1..]);
        assert_eq!(server.reset(), None);
        server.remember(b"/k");
        reconnect_to_empty(&mut server);
        assert!(server.reset().unwrap().ends_with("exists: 0, k"), "{:?}", server.reset());
    }

    #[test]
    fn a_second_connection_is_not_a_reconnect() {
        let mut server = torch_server(3);
        assert!(server.keys_to_check(None).is_empty());
        server.verify(None, &[]);
        assert_eq!(server.reset(), None);
    }

    #[test]
    fn keys_deleted_during_the_check_are_no_evidence_of_a_reset() {
        let mut server = torch_server(1);
        server.connection_lost();
        let checked = server.keys_to_check(None);
        server.forget(&key(0));
        server.verify(None, &checked);
        assert_eq!(server.reset(), None);
    }

    #[test]
    fn a_client_that_continues_counts_one_generation_per_reset() {
        let mut server = Server::new(OnReset::Continue);
        for (n, found) in [identity("a"), identity("b"), None].into_iter().enumerate() {
            server.verify(found.clone(), &[]);
            assert_eq!((server.generation(), server.identity()), (n as u64, found.as_deref()));
        }
        server.remember(b"/k");
        reconnect_to_empty(&mut server);
        assert_eq!((server.generation(), server.reset()), (3, None));
    }
}
