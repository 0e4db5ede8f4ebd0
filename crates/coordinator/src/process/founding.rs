//! Founds the job, joins and leaves groups of replicas, and announces the leader.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Output, Process};
use crate::client::Client;
use crate::coordinator::Coordinator;
use crate::job::Job;
use crate::leader::Connection;
use crate::message::{Announcement, GroupId, Hello, Reply};
use crate::replica::Replica;
use crate::settings::JobSettings;

/// The interval at which a leader announces itself to the endpoints that are not in its group.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
/// How long an announcement is valid.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long nodes wait before a process founds a job for them, if they are not all that the job can have. If the job
/// exists already, its leader announces itself in that time, or one of its nodes says so. A client closes a connection
/// without a reply after 2 s.
const FOUND_GRACE: Duration = Duration::from_millis(1500);

impl Process {
    /// Returns the address of the leader that serves this node or that has announced itself here.
    pub(super) fn known_leader(&self, now: Duration) -> Option<String> {
        let serving = self.client.as_ref().and_then(Client::leader).map(str::to_owned);
        let announced = self.announced.as_ref().filter(|(_, at)| now < *at + ANNOUNCE_TIMEOUT);
        let leader = serving.or_else(|| Some(announced?.0.leader.clone()));
        leader.filter(|leader| *leader != self.address)
    }

    /// Returns whether this process has learned of a group from its leader.
    fn knows_group(&self, group: GroupId) -> bool {
        let announced = self.announced.as_ref().map(|(announced, _)| announced.group);
        announced == Some(group) || self.client_group() == Some(group)
    }

    /// Returns the group that serves the node of this process.
    fn client_group(&self) -> Option<GroupId> {
        self.client.as_ref().and_then(Client::group)
    }

    // ---- founding ----

    /// Handles the first message of a node when this process has no replica.
    pub(super) fn handle_early_hello(&mut self, connection: Connection, hello: Hello, now: Duration) {
        if hello.group.is_some() || self.client_group().is_some() {
            self.stop_founding(now);
        }
        if self.known_leader(now).is_some() || self.is_founded || !self.is_founder {
            return self.redirect(connection, now);
        }
        if self.waiting.is_empty() {
            self.waiting_since = now;
        }
        let id = hello.node.id;
        let place = self.waiting.get(&id).map_or(self.waiting.len(), |(place, ..)| *place);
        if let Some((_, earlier, _)) = self.waiting.insert(id, (place, connection, hello)) {
            // A node that waits for a reply tries again in parallel.
            self.outputs.push_back(Output::Close(earlier));
        }
        self.found_if_due(now);
    }

    /// Does not found the job, because another process has shown that the job exists. If its voters are lost, an operator
    /// has to force a quorum.
    fn stop_founding(&mut self, now: Duration) {
        self.is_founded = true;
        for (_, connection, _) in std::mem::take(&mut self.waiting).into_values() {
            self.redirect(connection, now);
        }
    }

    /// Returns when this process founds the job for the nodes that wait for that.
    pub(super) fn founding_time(&self) -> Option<Duration> {
        let (_, _, first) = self.waiting.values().next()?;
        let is_full = self.waiting.len() >= first.settings.max_nodes as usize;
        Some(if is_full { self.waiting_since } else { self.waiting_since + FOUND_GRACE })
    }

    pub(super) fn found_if_due(&mut self, now: Duration) {
        if self.founding_time().is_none_or(|time| now < time) {
            return;
        }
        let mut waiting: Vec<_> = std::mem::take(&mut self.waiting).into_values().collect();
        waiting.sort_by_key(|(place, ..)| *place);
        let Some((_, _, first)) = waiting.first() else { return };
        self.found(Job::new(first.settings.clone(), first.node.to_string()), now);
        if let Some(coordinator) = &mut self.coordinator {
            for (_, connection, hello) in waiting {
                coordinator.handle_hello(connection, hello, now);
            }
        }
    }

    /// Founds a group with this process as its only replica.
    fn found(&mut self, job: Job, now: Duration) {
        // The constant of SplitMix64, which visits all 64-bit numbers.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let group = GroupId(self.seed.rotate_left(32) ^ self.id.0);
        let replica = Replica::found(self.id, &self.address, job, self.seed, now);
        let mut coordinator = Coordinator::new(group, &self.address, self.client.is_some(), replica);
        coordinator.handle_timeout(now);
        self.coordinator = Some(coordinator);
    }

    /// Founds a new group with the state of this replica, because the operator vouches that the missing voters are
    /// stopped. A founder without a replica founds the job anew when a node asks for it.
    pub(super) fn force_quorum(&mut self, connection: Connection, now: Duration) {
        if self.coordinator.is_none() && self.is_founder && self.known_leader(now).is_none() {
            self.is_founded = false;
            let text = format!("{} founds the job anew when nodes join", self.address);
            return self.outputs.push_back(Output::Reply(connection, Reply::Done(text)));
        }
        let obstacle = match self.coordinator.as_ref().map(Coordinator::replica) {
            None => Some("this process has no replica of the job; send the command to one of its voters"),
            Some(replica) if replica.applied() == 0 => {
                Some("the replica of this process has no log yet; send the command to another voter")
            }
            Some(replica) if !replica.voters().contains(&replica.id()) => {
                Some("the replica of this process does not vote; send the command to a voter")
            }
            Some(replica) if replica.leader().is_some() => {
                Some("the replica of this process follows a leader; if that is lost, try again in 3 s")
            }
            Some(_) => None,
        };
        let reply = match obstacle {
            Some(obstacle) => Reply::Failed(obstacle.into()),
            None => {
                let job = self.leave_group(now);
                if let Some(job) = job {
                    let forced = job.forced.saturating_add(1);
                    self.found(Job { forced, ..job }, now);
                }
                Reply::Done(format!("{} is the only voter now", self.address))
            }
        };
        self.outputs.push_back(Output::Reply(connection, reply));
    }

    // ---- groups ----

    /// Gives this process a replica of a group whose leader it knows, if it has none yet.
    ///
    /// A replica of another group makes way if the node of this process is served by this one, which an operator has
    /// founded by force.
    pub(super) fn join_group(&mut self, group: GroupId, now: Duration) {
        if self.left.contains(&group) || !self.knows_group(group) {
            return;
        }
        let is_other = |coordinator: &Coordinator| coordinator.group() != group && !coordinator.is_leader();
        if self.client_group() == Some(group) && self.coordinator.as_ref().is_some_and(is_other) {
            self.leave_group(now);
        }
        if self.coordinator.is_some() {
            return;
        }
        // The leader's snapshot replaces this state.
        let settings = self.client.as_ref().map(|client| client.settings().clone());
        let job = Job::new(settings.unwrap_or_else(|| JobSettings::new(1, 1)), String::new());
        let replica = Replica::join(self.id, job, self.seed, now);
        self.coordinator = Some(Coordinator::new(group, &self.address, self.client.is_some(), replica));
        self.stop_founding(now);
    }

    /// Leaves the group for ever, and returns its job. The process forgets its votes, so it can't be a replica of this
    /// group again.
    fn leave_group(&mut self, now: Duration) -> Option<Job> {
        let coordinator = self.coordinator.take()?;
        self.left.insert(coordinator.group());
        self.disconnect_replicas();
        let job = coordinator.job().clone();
        coordinator.into_connections().for_each(|connection| self.redirect(connection, now));
        Some(job)
    }

    // ---- announcements ----

    /// Handles the announcement of a leader. Leaders announce themselves to endpoints that are not in their groups.
    pub(super) fn handle_announcement(&mut self, announcement: Announcement, now: Duration) {
        let is_server = self.client.is_none();
        let makes_way = self.coordinator.as_ref().is_some_and(|coordinator| {
            let own = coordinator.announcement(now);
            let is_older = (own.forced, own.age) < (announcement.forced, announcement.age);
            match own.group == announcement.group {
                // The group has removed this replica. It may need that of a node again.
                true => is_server && !coordinator.is_leader(),
                false if self.left.contains(&announcement.group) => false,
                false => announcement.has_round && (!own.has_round || is_older),
            }
        });
        let group = announcement.group;
        if makes_way || self.coordinator.as_ref().is_none_or(|coordinator| coordinator.group() == group) {
            self.announced = Some((announcement, now));
            self.stop_founding(now);
        }
        if makes_way {
            self.leave_group(now);
        }
    }

    pub(super) fn announce_if_due(&mut self, now: Duration) {
        let leads = self.coordinator.as_ref().filter(|coordinator| coordinator.is_leader());
        let Some(coordinator) = leads.filter(|_| now >= self.next_announcement) else { return };
        let replicas: BTreeSet<&String> = coordinator.job().replicas.values().collect();
        let is_other = |endpoint: &&String| !replicas.contains(endpoint) && **endpoint != self.address;
        let others: Vec<String> = self.endpoints.iter().filter(is_other).cloned().collect();
        self.next_announcement = now + ANNOUNCE_INTERVAL;
        self.announce_to(others);
    }
}
