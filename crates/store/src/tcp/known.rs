//! What a client knows of its server, and how it sees that another has taken its place. It asks nobody itself.
//!
//! Our servers have a name. Torch's have none, but one that was restarted has none of the keys that were there. The same
//! holds when others have deleted them; but then connections that were made before go on.

use std::collections::VecDeque;

use super::connection::Ack;
use super::link::user_key;
use super::pulse::{Sign, Watched};
use crate::error::some;

/// Keys remembered as a sign that a server without a name is still the same: the first that were seen, which are often
/// there as long as the job is, and the last.
const OLDEST: usize = 8;
const NEWEST: usize = 56;

/// What is known of a server.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Whether it was ever reached.
    met: bool,
    /// How it acknowledges requests that have no reply.
    ack: Ack,
    /// Whether the server has answered a request about a queue.
    queues: bool,
    /// What it says of itself, if it is one of ours.
    identity: Option<String>,
    /// A number that was there and that nobody deletes or lessens: its key, and how large it was.
    steady: Option<(Vec<u8>, i64)>,
    /// Keys that were there, the first ones.
    oldest: Vec<Vec<u8>>,
    /// The others, newest first.
    newest: VecDeque<Vec<u8>>,
    /// It may have been replaced.
    suspicion: Option<Suspicion>,
    /// Set once it was found replaced, unless the client continues: nothing works from then on.
    reset: Option<String>,
    on_reset: OnReset,
    /// How often the client has continued with an empty server.
    generation: u64,
}

/// What a client does when it finds that its server was restarted and has lost its contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnReset {
    /// Every call fails with [`StoreError::StoreReset`](crate::StoreError::StoreReset).
    #[default]
    Fail,
    /// The client goes on with the empty server and counts one more [`generation`](crate::Store::generation).
    Continue,
}

/// None of the keys is there, and of the connections made before it is not known yet whether their server lives.
#[derive(Debug)]
struct Suspicion {
    missing: Vec<Vec<u8>>,
    watched: Vec<Watched>,
}

/// What other connections tell of the server, while it is in doubt.
#[derive(Debug)]
pub(super) enum Beside {
    /// One of them was asked just now, and answered.
    Answers,
    /// Nothing yet. These are in use, and will be answered or end.
    Unheard(Vec<Watched>),
}

impl Known {
    /// Returns a record of a server that was not met yet.
    pub(super) fn new(on_reset: OnReset) -> Known {
        Known { on_reset, ..Known::default() }
    }

    /// How often the client has continued with an empty server.
    pub(super) fn generation(&mut self) -> u64 {
        self.settle();
        self.generation
    }

    /// Records that the server was replaced, as `evidence` shows.
    fn replaced(&mut self, evidence: String) {
        match self.on_reset {
            OnReset::Fail => self.reset = Some(evidence),
            OnReset::Continue => {
                let generation = self.generation + 1;
                *self = Known { met: true, generation, ..Known::new(self.on_reset) };
            }
        }
    }

    /// Whether the server was identified.
    pub(super) fn is_met(&self) -> bool {
        self.met
    }

    /// How the server acknowledges requests that have no reply.
    pub(super) fn ack(&self) -> Ack {
        self.ack
    }

    /// Records how the server acknowledges requests that have no reply.
    pub(super) fn set_ack(&mut self, ack: Ack) {
        self.ack = ack;
    }

    /// Whether the server is known to have queues. All of ours have.
    pub(super) fn has_queues(&self) -> bool {
        self.queues || self.identity.is_some()
    }

    /// Records that the server has answered a request about a queue.
    pub(super) fn set_has_queues(&mut self) {
        self.queues = true;
    }

    /// What the server says of itself.
    pub(super) fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// How it was noticed that another server has taken its place.
    pub(super) fn reset(&mut self) -> Option<&str> {
        self.settle();
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
        if self.identity.is_some() || self.is_witness(key) {
            return;
        }
        if self.oldest.len() < OLDEST {
            self.oldest.push(key.to_vec());
        } else {
            self.newest.truncate(NEWEST - 1);
            self.newest.push_front(key.to_vec());
        }
    }

    /// Remembers that this number was there, and that nobody has a way to delete or lessen it.
    pub(super) fn witness_steady(&mut self, key: &[u8], number: i64) {
        self.steady = Some((key.to_vec(), number));
    }

    /// Whether this is a number that a server which was started anew may have again, but smaller: how large it was.
    pub(super) fn at_least(&self, key: &[u8]) -> Option<i64> {
        self.steady.as_ref().filter(|(steady, _)| steady == key).map(|(_, number)| *number)
    }

    /// Remembers that this key may be gone for a good reason.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.oldest.retain(|witness| witness != key);
        self.newest.retain(|witness| witness != key);
    }

    fn all_witnesses(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.steady.iter().map(|(key, _)| key).chain(&self.newest).chain(&self.oldest)
    }

    fn is_witness(&self, key: &[u8]) -> bool {
        self.all_witnesses().any(|witness| witness == key)
    }

    /// The keys to look for on a server that was reached anew and says this of itself; none where its name tells.
    pub(super) fn witnesses(&self, identity: Option<&str>) -> Vec<Vec<u8>> {
        match (self.met, self.identity(), identity) {
            (true, None, None) => self.all_witnesses().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// A server was reached that says this of itself, and lacks these of the keys looked for, which may be all. If it is not
    /// the one that was known, nothing works from now on. If it may be either, the keys come back, to be [judged].
    ///
    /// [judged]: Known::judge
    pub(super) fn meet(
        &mut self,
        identity: Option<String>,
        missing: Vec<Vec<u8>>,
        all_missing: bool,
    ) -> Option<Vec<Vec<u8>>> {
        let instance = |identity: &str| part(identity, "instance=").unwrap_or(identity).to_owned();
        let evidence = match (self.identity(), identity.as_deref()) {
            _ if self.reset.is_some() => return None,
            _ if !self.met => None,
            (Some(before), Some(now)) if instance(before) == instance(now) => None,
            (Some(before), Some(now)) => {
                Some(format!("it was instance {}, now it is {}", instance(before), instance(now)))
            }
            (Some(_), None) => Some("it was a rallypoint server and is none now".into()),
            (None, Some(_)) => Some("it was not a rallypoint server and is one now".into()),
            (None, None) if !all_missing => {
                self.let_go(&missing);
                None
            }
            (None, None) => {
                self.settle();
                let doubtful = self.suspicion.is_none() && self.reset.is_none();
                return doubtful.then(|| self.still_missed(missing)).filter(|missing| !missing.is_empty());
            }
        };
        if let Some(evidence) = evidence {
            self.replaced(evidence);
        }
        if self.reset.is_none() {
            self.met = true;
            self.identity = identity;
            // Our own servers have PING. One that closed a connection on PING did so for another reason.
            if self.identity.is_some() {
                self.ack = Ack::Ping;
            }
        }
        None
    }

    /// What is to be thought of a server without these keys, beside connections that were made before.
    pub(super) fn judge(&mut self, missing: Vec<Vec<u8>>, beside: Beside) {
        let missing = self.still_missed(missing);
        // What answers may have been let in by a suspicion that came in between.
        if missing.is_empty() || self.suspicion.is_some() {
            return;
        }
        match beside {
            Beside::Answers => self.let_go(&missing),
            Beside::Unheard(watched) => {
                self.suspicion = Some(Suspicion { missing, watched });
                self.settle();
            }
        }
    }

    /// Ends a suspicion if it can be.
    fn settle(&mut self) {
        let Some(suspicion) = &self.suspicion else { return };
        let signs: Vec<_> = suspicion.watched.iter().map(Watched::sign).collect();
        let answered = signs.contains(&Sign::Answered);
        if !answered && signs.contains(&Sign::None) {
            return;
        }
        let Some(Suspicion { missing, .. }) = self.suspicion.take() else { return };
        if answered {
            return self.let_go(&missing);
        }
        let names: Vec<_> = missing.iter().map(|key| user_key(key)).collect();
        self.replaced(format!("none of the keys seen before is there: {}", some(&names)));
    }

    /// Others have deleted them.
    fn let_go(&mut self, missing: &[Vec<u8>]) {
        missing.iter().for_each(|key| self.forget(key));
    }

    /// Without those that were deleted by this client meanwhile.
    fn still_missed(&self, mut missing: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        missing.retain(|key| self.is_witness(key));
        missing
    }
}

/// One part of what a server says of itself.
fn part<'a>(identity: &'a str, name: &str) -> Option<&'a str> {
    identity.split(' ').find_map(|part| part.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tcp::pulse::Pulse;

    fn ours(instance: &str) -> Option<String> {
        Some(format!("version=1 instance={instance} capabilities=in-order,stored"))
    }

    fn numbered(n: usize) -> Vec<u8> {
        format!("/{n}").into_bytes()
    }

    /// A server without a name and with so many keys.
    fn unnamed(keys: usize) -> Known {
        let mut known = Known::default();
        assert_eq!(known.meet(None, Vec::new(), true), None);
        (0..keys).for_each(|n| known.witness(&numbered(n)));
        known
    }

    #[test]
    fn a_client_that_continues_counts_the_servers_it_has_met() {
        let mut known = Known::new(OnReset::Continue);
        known.meet(ours("a"), Vec::new(), true);
        assert_eq!(known.generation(), 0);
        known.meet(ours("b"), Vec::new(), true);
        assert_eq!(known.reset(), None);
        assert_eq!(known.generation(), 1);
        assert_eq!(known.identity(), ours("b").as_deref());
        known.meet(None, Vec::new(), true);
        known.witness(b"/k");
        meet_empty(&mut known, &[]);
        assert_eq!(known.reset(), None);
        assert_eq!(known.generation(), 3);
    }

    /// Meets a server with none of the keys, beside so many connections that are in use.
    fn meet_empty(known: &mut Known, pulses: &[Arc<Pulse>]) {
        let looked_for = known.witnesses(None);
        if let Some(missing) = known.meet(None, looked_for, true) {
            known.judge(missing, Beside::Unheard(pulses.iter().map(Watched::from_now).collect()));
        }
    }

    #[test]
    fn a_server_with_a_name_is_known_by_its_instance_alone() {
        let mut known = Known::default();
        known.meet(ours("a"), Vec::new(), true);
        known.witness(b"/k");
        assert!(known.witnesses(ours("a").as_deref()).is_empty());
        known.meet(Some("version=2 instance=a capabilities=in-order".into()), Vec::new(), true);
        assert_eq!(known.reset(), None);
        assert!(known.is_capable_of("in-order") && !known.is_capable_of("stored"));
        assert!(!known.is_capable_of("order"));
        assert_eq!(known.value_len(), None);
        known.meet(Some("instance=a value_len=77".into()), Vec::new(), true);
        assert_eq!(known.value_len(), Some(77));
        known.meet(ours("b"), Vec::new(), true);
        assert_eq!(known.reset(), Some("it was instance a, now it is b"));
    }

    #[test]
    fn a_server_without_a_name_is_known_by_any_key_that_is_left() {
        let mut known = unnamed(100);
        known.forget(&numbered(99));
        let looked_for = known.witnesses(None);
        let expected: Vec<_> = (44..99).rev().chain(0..8).map(numbered).collect();
        assert_eq!(looked_for, expected);
        // Those that are not there make room.
        assert_eq!(known.meet(None, looked_for[1..].to_vec(), false), None);
        assert_eq!(known.reset(), None);
        assert_eq!(known.witnesses(None), looked_for[..1]);
        known.witness(b"/k");
        meet_empty(&mut known, &[]);
        assert!(known.reset().unwrap().contains("there: 98, k"), "{:?}", known.reset());
    }

    #[test]
    fn a_steady_key_is_never_pushed_out() {
        let mut known = unnamed(0);
        known.witness_steady(b"init/", 2);
        (0..100).for_each(|n| known.witness(&numbered(n)));
        assert_eq!(known.witnesses(None)[0], b"init/");
        assert_eq!((known.at_least(b"init/"), known.at_least(&numbered(0))), (Some(2), None));
    }

    #[test]
    fn what_was_deleted_while_it_was_looked_for_is_no_evidence() {
        let mut known = unnamed(1);
        let looked_for = known.witnesses(None);
        known.forget(&numbered(0));
        assert_eq!(known.meet(None, looked_for, true), None);
        known.witness(b"/k");
        let looked_for = known.witnesses(None);
        let missing = known.meet(None, looked_for, true).unwrap();
        known.forget(b"/k");
        known.judge(missing, Beside::Unheard(Vec::new()));
        assert_eq!(known.reset(), None);
    }

    #[test]
    fn keys_that_are_gone_while_another_connection_answers_were_deleted() {
        let mut known = unnamed(3);
        let looked_for = known.witnesses(None);
        let missing = known.meet(None, looked_for, true).unwrap();
        known.judge(missing, Beside::Answers);
        assert_eq!(known.reset(), None);
        assert!(known.witnesses(None).is_empty());
        meet_empty(&mut known, &[]);
        assert_eq!(known.reset(), None);
    }

    #[test]
    fn a_suspicion_ends_with_an_answer_to_any_of_those_from_before() {
        let mut known = unnamed(3);
        let pulses = [Arc::new(Pulse::default()), Arc::new(Pulse::default())];
        meet_empty(&mut known, &pulses);
        pulses[0].end();
        assert_eq!(known.reset(), None);
        assert_eq!(known.witnesses(None).len(), 3);
        pulses[1].beat();
        pulses[1].end();
        assert_eq!(known.reset(), None);
        assert!(known.witnesses(None).is_empty());
    }

    #[test]
    fn a_suspicion_is_confirmed_when_all_of_those_from_before_have_ended() {
        let mut known = unnamed(3);
        let pulses = [Arc::new(Pulse::default()), Arc::new(Pulse::default())];
        meet_empty(&mut known, &pulses);
        pulses[0].end();
        // One that was made since then belongs to the server in question and says nothing for it.
        let since = Arc::new(Pulse::default());
        meet_empty(&mut known, &[Arc::clone(&since)]);
        known.judge(vec![numbered(0)], Beside::Answers);
        since.beat();
        assert_eq!(known.reset(), None);
        pulses[1].end();
        assert!(known.reset().unwrap().contains("none of the keys seen before is there"));
    }
}
