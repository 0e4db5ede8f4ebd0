//! How long a group of replicas has no leader after an outage, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use raft::prelude::ConfChangeType;
use rallypoint_coordinator::JobSettings;
use rallypoint_coordinator::job::{Decision, Job};
use rallypoint_coordinator::node::NodeId;
use rallypoint_coordinator::replica::{Replica, TICK_INTERVAL};

/// Replicas whose messages arrive at once, unless the network is down.
struct Group {
    replicas: Vec<Replica>,
    is_down: bool,
    now: Duration,
}

fn address(index: usize) -> String {
    format!("h{index}:1")
}

fn id(index: usize) -> NodeId {
    NodeId(index as u64 + 1)
}

impl Group {
    /// Founds a group with three voters. The first one leads.
    fn new() -> Group {
        let now = Duration::from_secs(100);
        let job = Job::new(JobSettings::new(1, 5), String::new());
        let mut replicas = vec![Replica::found(id(0), &address(0), job.clone(), 0, now)];
        replicas.extend((1..3).map(|index| Replica::join(id(index), job.clone(), index as u64, now)));
        let mut group = Group { replicas, is_down: false, now };
        let addresses: BTreeMap<NodeId, String> = (0..3).map(|index| (id(index), address(index))).collect();
        group.replicas[0].propose(Decision::Replicas(addresses), now);
        for kind in [ConfChangeType::AddLearnerNode, ConfChangeType::AddNode] {
            for index in 1..3 {
                group.replicas[0].propose_configuration(&[(id(index), kind)], group.now);
                group.pass(Duration::from_millis(500));
            }
        }
        assert_eq!(group.replicas[2].voters().len(), 3);
        assert!(group.has_leader());
        group
    }

    fn deliver(&mut self) {
        loop {
            let mut messages = Vec::new();
            for (index, replica) in self.replicas.iter_mut().enumerate() {
                messages.extend(std::iter::from_fn(|| replica.poll_message()).map(|sent| (index, sent)));
            }
            if messages.is_empty() || self.is_down {
                return;
            }
            for (from, (to, message)) in messages {
                let index = (0..3).find(|index| address(*index) == to).expect("the address of a replica");
                self.replicas[index].handle_message(&address(from), message, self.now);
            }
        }
    }

    /// Lets time pass. The replicas tick one after the other.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK_INTERVAL / 3;
            for index in 0..self.replicas.len() {
                if self.replicas[index].next_timeout() <= self.now {
                    self.replicas[index].handle_timeout(self.now);
                    self.deliver();
                }
            }
        }
    }

    fn has_leader(&self) -> bool {
        self.replicas.iter().any(|replica| {
            replica.quorum_contact().is_some_and(|contact| contact + Duration::from_secs(1) > self.now)
        })
    }
}

#[test]
fn a_group_has_a_leader_within_a_second_after_an_outage_of_any_length() {
    for length in (5_000..9_000).step_by(100).map(Duration::from_millis) {
        let mut group = Group::new();
        group.is_down = true;
        group.pass(length);
        assert!(!group.has_leader());
        group.is_down = false;
        group.pass(Duration::from_secs(1));
        assert!(group.has_leader(), "an outage of {length:?}");
    }
}
