use proptest::prelude::*;

use super::*;
use crate::settings::JobSettings;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn address(id: u64) -> String {
    format!("h{id}:1")
}

/// Replicas that exchange messages at once, except with those that are cut off.
struct Group {
    replicas: BTreeMap<NodeId, Replica>,
    cut: BTreeSet<NodeId>,
    now: Duration,
}

impl Group {
    /// Founds a group whose voters are 1 to `count`.
    fn new(count: u64) -> Group {
        let job = Job::new(JobSettings::new(1, 5), String::new());
        let founder = Replica::found(NodeId(1), &address(1), job.clone(), 1, ms(0));
        let mut group =
            Group { replicas: BTreeMap::from([(NodeId(1), founder)]), cut: BTreeSet::new(), now: ms(0) };
        for id in 2..=count {
            group.replicas.insert(NodeId(id), Replica::join(NodeId(id), job.clone(), id, ms(0)));
        }
        let addresses = (1..=count).map(|id| (NodeId(id), address(id))).collect();
        group.leader().propose(Decision::Replicas(addresses), ms(0));
        for kind in [ConfChangeType::AddLearnerNode, ConfChangeType::AddNode] {
            for id in 2..=count {
                group.leader().propose_configuration(&[(NodeId(id), kind)], ms(0));
                group.pass(ms(300));
            }
        }
        assert_eq!(group.replicas[&NodeId(count)].voters().len(), count as usize);
        group
    }

    fn leader(&mut self) -> &mut Replica {
        self.replicas.get_mut(&NodeId(1)).unwrap()
    }

    fn deliver(&mut self) {
        loop {
            let mut messages = Vec::new();
            for (id, replica) in &mut self.replicas {
                let sent = std::iter::from_fn(|| replica.poll_message());
                messages.extend(sent.map(|(to, message)| (*id, to, message)));
            }
            messages.retain(|(from, to, _)| {
                !self.cut.contains(from) && !self.cut.iter().any(|id| address(id.0) == *to)
            });
            if messages.is_empty() {
                return;
            }
            for (from, to, message) in messages {
                let receiver = self.replicas.iter_mut().find(|(id, _)| address(id.0) == to);
                if let Some((_, replica)) = receiver {
                    replica.handle_message(&address(from.0), message, self.now);
                }
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.deliver();
            self.now += TICK_INTERVAL;
            self.replicas.values_mut().for_each(|replica| _ = replica.handle_timeout(self.now));
            self.deliver();
        }
    }

    fn leads(&self, id: u64) -> bool {
        self.replicas[&NodeId(id)].is_leader()
    }
}

#[test]
fn a_leader_hands_over_at_once() {
    let mut group = Group::new(3);
    let now = group.now;
    assert!(group.leader().hand_over(|id| id == NodeId(3), now));
    assert!(!group.leader().is_settled());
    group.deliver();
    assert!(group.leads(3) && !group.leads(1));
}

#[test]
fn a_leader_that_an_earlier_leader_has_removed_hands_over() {
    let mut group = Group::new(3);
    let now = group.now;
    // The entry that removes replica 2 reaches replica 2, but its leader is gone before it is committed.
    group.leader().propose_configuration(&[(NodeId(2), ConfChangeType::RemoveNode)], now);
    while let Some((to, message)) = group.leader().poll_message() {
        if to == address(2) {
            group.replicas.get_mut(&NodeId(2)).unwrap().handle_message(&address(1), message, now);
        }
    }
    group.cut.insert(NodeId(1));
    group.replicas.get_mut(&NodeId(2)).unwrap().replace_ended_leader(NodeId(1), now);
    group.deliver();
    // It was elected, and has applied the entry.
    let removed = &group.replicas[&NodeId(2)];
    assert!(removed.leads() && !removed.is_leader() && !removed.voters().contains(&NodeId(2)));
    group.cut.clear();
    group.pass(ms(300));
    assert!(group.leads(1) || group.leads(3));
}

#[test]
fn a_replica_replaces_only_the_leader_that_it_has_followed_last() {
    let mut group = Group::new(3);
    let term = group.leader().term();
    group.cut.insert(NodeId(3));
    group.pass(ms(5000));
    group.cut.clear();
    let now = group.now;
    let replica = group.replicas.get_mut(&NodeId(3)).unwrap();
    assert_eq!(replica.leader(), None);
    // Another voter has ended, which concerns the leader only.
    replica.replace_ended_leader(NodeId(2), now);
    assert!(replica.may_replace(NodeId(1)) && !replica.may_replace(NodeId(2)));
    group.deliver();
    assert!(group.leads(1) && group.leader().term() == term);
    group.pass(ms(500));
    let replica = group.replicas.get_mut(&NodeId(3)).unwrap();
    replica.replace_ended_leader(NodeId(1), group.now);
    assert!(!replica.may_replace(NodeId(1)));
}

#[test]
fn a_message_to_a_replica_that_has_forgotten_its_log_does_not_end_the_process() {
    let mut group = Group::new(3);
    let job = Job::new(JobSettings::new(1, 5), String::new());
    group.replicas.insert(NodeId(3), Replica::join(NodeId(3), job, 3, group.now));
    group.pass(ms(5000));
    assert!(group.leads(1));
}

#[test]
fn every_change_of_the_configuration_reaches_a_new_replica_in_a_snapshot() {
    let group = Group::new(5);
    let state = |id: u64| (group.replicas[&NodeId(id)].voters(), group.replicas[&NodeId(id)].job().clone());
    assert_eq!(state(5), state(1));
}

/// Generates small numbers, which are near those of a young group, and extreme ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..20u64, 1 => Just(u64::MAX), 1 => Just(1 << 62), 1 => any::<u64>()]
}

prop_compose! {
    fn entry()(
        term in number(),
        index in number(),
        changes in prop::option::weighted(0.3, prop::collection::vec((0..7u64, 0..3u8), 0..4)),
        text in prop_oneof![Just(String::new()), Just("{}".to_owned()), "\\PC{0,8}"],
    ) -> serde_json::Value {
        let kinds = ["AddVoter", "AddLearner", "Remove"];
        let data = match changes {
            None => serde_json::json!({ "Normal": text }),
            Some(changes) => {
                let change = |(replica, kind): &(u64, u8)| {
                    serde_json::json!({ "replica": replica, "kind": kinds[usize::from(*kind)] })
                };
                serde_json::json!({ "Configuration": changes.iter().map(change).collect::<Vec<_>>() })
            }
        };
        serde_json::json!({ "term": term, "index": index, "data": data })
    }
}

prop_compose! {
    fn snapshot()(
        index in number(),
        term in number(),
        lists in prop::collection::vec(prop::collection::vec(0..7u64, 0..4), 4),
        auto_leave in any::<bool>(),
        is_job in any::<bool>(),
    ) -> serde_json::Value {
        let job = serde_json::to_string(&Job::new(JobSettings::new(1, 2), String::new())).unwrap();
        serde_json::json!({
            "index": index,
            "term": term,
            "voters": lists[0],
            "learners": lists[1],
            "voters_outgoing": lists[2],
            "learners_next": lists[3],
            "auto_leave": auto_leave,
            "data": if is_job { job } else { "{}".to_owned() },
        })
    }
}

prop_compose! {
    /// Generates messages of Raft that no replica sends.
    fn message()(
        kind in 0..20i32,
        numbers in prop::collection::vec(number(), 6),
        from in 0..7u64,
        reject in any::<bool>(),
        is_transfer in any::<bool>(),
        entries in prop::collection::vec(entry(), 0..4),
        follows in any::<bool>(),
        snapshot in prop::option::of(snapshot()),
    ) -> serde_json::Value {
        let mut entries = entries;
        if follows {
            // Consecutive entries get past the first checks.
            for (offset, entry) in (1..).zip(&mut entries) {
                entry["index"] = numbers[2].saturating_add(offset).into();
                entry["term"] = numbers[0].into();
            }
        }
        let context: &[u8] = if is_transfer { b"CampaignTransfer" } else { b"" };
        serde_json::json!({
            "kind": kind,
            "to": 1,
            "from": from,
            "term": numbers[0],
            "log_term": numbers[1],
            "index": numbers[2],
            "commit": numbers[3],
            "commit_term": numbers[4],
            "reject": reject,
            "reject_hint": numbers[5],
            "context": context,
            "entries": entries,
            "snapshot": snapshot,
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_sequence_of_messages_ends_the_process(
        is_new in any::<bool>(),
        messages in prop::collection::vec((message(), any::<bool>()), 1..20),
    ) {
        let job = Job::new(JobSettings::new(1, 2), String::new());
        let mut replica = match is_new {
            true => Replica::join(NodeId(1), job, 1, ms(0)),
            false => Group::new(3).replicas.remove(&NodeId(1)).unwrap(),
        };
        let mut now = ms(2000);
        for (message, ticks) in messages {
            let message: RaftMessage = serde_json::from_value(message).unwrap();
            replica.handle_message("h2:1", message, now);
            if ticks {
                for _ in 0..30 {
                    now += TICK_INTERVAL;
                    replica.handle_timeout(now);
                }
            }
            replica.propose(Decision::Include { host: String::new() }, now);
            while replica.poll_message().is_some() {}
        }
    }
}
