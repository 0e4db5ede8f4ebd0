//! The agent's side: finds the leader, keeps the lease of the node, and reports what the node does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::job::{Cause, Closing};
use crate::message::{Activity, Assignment, GroupId, Hello, NotServed, Phase, Refusal, Reply, Request};
use crate::node::Node;
use crate::roster::WaitReason;
use crate::settings::JobSettings;

/// The id of a connection that the client opens.
pub type Link = u64;

/// After this long without a reply, the client opens another connection in parallel. On lossy links, the backoff of TCP
/// alone can exceed a lease.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the client waits for the reply on a new connection before it tries another address as well.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);
/// How long the client waits for the reply on a new connection before it closes the connection.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The shortest and the longest interval between two tries of all addresses.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The number of redirects that the client follows before it tries all addresses again.
const MAX_REDIRECTS: u32 = 4;
/// The workers of a node are killed this much before the end of the lease, in addition to 1 % of the lease for clocks of
/// different speed. Killing them takes time, too.
const FENCE_MARGIN: Duration = Duration::from_millis(250);
/// The agent kills the workers this much before the guard does, so that their ends do not look like failures.
const SELF_FENCE_MARGIN: Duration = Duration::from_millis(250);

/// An instruction of the client to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Open a connection.
    Connect(Link, String),
    /// Send a message.
    Send(Link, Request),
    /// Close a connection.
    Close(Link),
    /// Tell the agent.
    Event(Event),
}

/// An event for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A coordinator serves the node.
    Served {
        /// The address of the leader.
        leader: String,
    },
    /// What the node waits for.
    Waiting(WaitReason),
    /// A process does not serve the node.
    NotServed {
        /// The address.
        address: String,
        /// Why.
        why: NotServed,
    },
    /// The node is a member of a round that has started.
    Started(Assignment),
    /// The round of the node has ended.
    Ended {
        /// The round.
        round: u64,
        /// Why.
        cause: Cause,
    },
    /// The lease of the node is renewed until this time. At that time, the workers must be killed.
    Lease {
        /// The time.
        deadline: Duration,
    },
    /// The lease of the node could not be renewed, so its workers must be dead now.
    LeaseOver {
        /// The round of the workers.
        round: u64,
    },
    /// The node is drained. It leaves the job when its workers have ended.
    Drained,
    /// The node has left the job.
    Left,
    /// No node is connected to the coordinator on this process. See
    /// [`Service::report_idle`](crate::service::Service::report_idle).
    Idle,
    /// The job is closed.
    Closed(Closing),
    /// The node can't be in the job.
    Refused(Refusal),
    /// A warning for the log.
    Warning(String),
}

#[derive(Debug)]
struct Attempt {
    address: String,
    since: Duration,
    /// What the client has said that the node does.
    said: Option<Activity>,
    /// The number of the heartbeat that was sent with the first message, and when.
    heartbeat: Option<(u64, Duration)>,
}

/// The agent's side of one node.
#[derive(Debug)]
pub struct Client {
    node: Node,
    settings: JobSettings,
    endpoints: Vec<String>,
    /// The address of the last leader.
    leader: Option<String>,
    /// The addresses of the voters, as the last leader has named them.
    voters: Vec<String>,
    /// The addresses to try next.
    queue: VecDeque<String>,
    redirects: u32,
    attempts: BTreeMap<Link, Attempt>,
    /// The connection to the leader.
    serving: Option<Link>,
    last_heard: Duration,
    next_link: Link,
    retry_time: Duration,
    retry_interval: Duration,
    group: Option<GroupId>,
    activity: Activity,
    last_heartbeat: Duration,
    /// When each heartbeat without a reply was sent.
    heartbeats: BTreeMap<u64, Duration>,
    next_number: u64,
    deadline: Option<Duration>,
    /// Whether the lease ended while the node worked in its last round.
    is_fenced: bool,
    /// The requests that no leader is known to have handled, each with the number of the next heartbeat at that time.
    requests: Vec<(u64, Request)>,
    is_leaving: bool,
    is_over: bool,
    outputs: VecDeque<Output>,
}

impl Client {
    /// Creates the client of a node that does not want to join yet.
    pub fn new(node: Node, settings: JobSettings, endpoints: Vec<String>) -> Client {
        Client {
            node,
            settings,
            endpoints,
            leader: None,
            voters: Vec::new(),
            queue: VecDeque::new(),
            redirects: 0,
            attempts: BTreeMap::new(),
            serving: None,
            last_heard: Duration::ZERO,
            next_link: 0,
            retry_time: Duration::ZERO,
            retry_interval: MIN_RETRY_INTERVAL,
            group: None,
            activity: Activity { last_round: None, phase: Phase::Outside(String::new()) },
            last_heartbeat: Duration::ZERO,
            heartbeats: BTreeMap::new(),
            next_number: 0,
            deadline: None,
            is_fenced: false,
            requests: Vec::new(),
            is_leaving: false,
            is_over: false,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the settings of the job, or those of the node if no leader has served it yet.
    pub fn settings(&self) -> &JobSettings {
        &self.settings
    }

    /// Returns the group that has served the node.
    pub fn group(&self) -> Option<GroupId> {
        self.group
    }

    /// Returns the address of the leader that serves the node.
    pub fn leader(&self) -> Option<&str> {
        Some(&self.attempts.get(&self.serving?)?.address)
    }

    /// Returns what the node does.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Returns when the workers must be dead.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    // ---- calls of the agent ----

    /// Asks to join the next round. The node must have no workers.
    pub fn join(&mut self, now: Duration) {
        let is_fenced = std::mem::take(&mut self.is_fenced);
        self.set_phase(Phase::Joining { is_fenced }, now);
    }

    /// Reports that the node has no workers and does not want to join now.
    pub fn stay_outside(&mut self, reason: &str, now: Duration) {
        self.set_phase(Phase::Outside(reason.to_owned()), now);
    }

    /// Reports that all workers of the round have finished.
    pub fn finish(&mut self, now: Duration) {
        if self.activity.phase == Phase::Working {
            self.set_phase(Phase::Finished, now);
        }
    }

    /// Reports that a worker has failed, so that the round ends.
    pub fn worker_failed(&mut self, local_rank: u32, exit: &str) {
        if let Some(round) = self.activity.last_round.filter(|_| self.activity.phase == Phase::Working) {
            self.request(Request::WorkerFailed { round, local_rank, exit: exit.into() });
        }
    }

    /// Asks to drain the node.
    pub fn drain(&mut self, within: Option<Duration>) {
        self.request(Request::Drain { within });
    }

    /// Leaves the job. The node must have no workers.
    ///
    /// The leader replies after another node has taken over what this process does for the group. If no leader serves the
    /// node, it has left at once, and the coordinator drops it.
    pub fn leave(&mut self) {
        if self.serving.is_none() {
            return self.end(Event::Left);
        }
        self.is_leaving = true;
        if self.activity.phase != Phase::Finished {
            self.activity.phase = Phase::Outside("the node leaves".into());
        }
        self.request(Request::Leave);
    }

    /// Closes the job.
    pub fn close(&mut self, time: &str, reason: &str) {
        self.request(Request::Close { time: time.into(), reason: reason.into() });
    }

    /// Sends a request, and sends it again to the next leader if this one is lost before it has handled the request.
    fn request(&mut self, request: Request) {
        if !self.requests.iter().any(|(_, other)| *other == request) {
            self.requests.push((self.next_number, request.clone()));
            self.send(request);
        }
    }

    fn set_phase(&mut self, phase: Phase, now: Duration) {
        if self.activity.phase != phase {
            self.activity.phase = phase;
            self.send(Request::Report(self.activity.clone()));
        }
        self.handle_timeout(now);
    }

    fn send(&mut self, request: Request) {
        if let Some(link) = self.serving {
            self.outputs.push_back(Output::Send(link, request));
        }
    }

    fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    // ---- connections ----

    /// Handles a connection that was opened. Returns its first message, which a heartbeat follows.
    pub fn handle_open(&mut self, link: Link, now: Duration) -> Option<Hello> {
        let attempt = self.attempts.get_mut(&link)?;
        let number = self.next_number;
        self.next_number += 1;
        (attempt.since, attempt.said) = (now, Some(self.activity.clone()));
        attempt.heartbeat = Some((number, now));
        // Waiting for the reply to the hello would cost a round trip. Only a leader reads the heartbeat.
        self.outputs.push_back(Output::Send(link, Request::Heartbeat { number }));
        Some(Hello {
            node: self.node.clone(),
            settings: self.settings.clone(),
            group: self.group,
            activity: self.activity.clone(),
        })
    }

    /// Handles a connection that was closed or could not be opened.
    pub fn handle_close(&mut self, link: Link, now: Duration) {
        if self.is_leaving && self.serving == Some(link) {
            // The coordinator closes the connection of a node that has left.
            return self.end(Event::Left);
        }
        self.forget(link, now);
        self.handle_timeout(now);
    }

    /// Handles a connection that could not be opened, or whose other end is no coordinator.
    pub fn handle_failure(&mut self, link: Link, why: NotServed, now: Duration) {
        let unopened = self.attempts.get(&link).filter(|attempt| attempt.said.is_none());
        if let Some(address) =
            unopened.filter(|_| self.serving.is_none()).map(|attempt| attempt.address.clone())
        {
            self.event(Event::NotServed { address, why });
        }
        self.handle_close(link, now);
    }

    fn forget(&mut self, link: Link, now: Duration) {
        self.attempts.remove(&link);
        if self.serving == Some(link) {
            self.serving = None;
            (self.retry_time, self.retry_interval) = (now, MIN_RETRY_INTERVAL);
        }
    }

    fn close_link(&mut self, link: Link, now: Duration) {
        self.forget(link, now);
        self.outputs.push_back(Output::Close(link));
    }

    fn close_all(&mut self) {
        for link in std::mem::take(&mut self.attempts).into_keys() {
            self.outputs.push_back(Output::Close(link));
        }
        self.serving = None;
    }

    /// Handles a message of a coordinator.
    pub fn handle_reply(&mut self, link: Link, reply: Reply, now: Duration) {
        let Some(attempt) = self.attempts.get(&link) else { return };
        if self.serving == Some(link) {
            self.last_heard = now;
        }
        match reply {
            Reply::Welcome { group, settings, voters } => {
                let is_active = matches!(self.activity.phase, Phase::Working | Phase::Finished);
                let is_other = self.group.is_some_and(|own| own != group);
                if settings.check().is_err() || is_active && is_other {
                    // The node has started workers for its own group since it said hello, so it says hello again.
                    self.close_link(link, now);
                    return self.handle_timeout(now);
                }
                if self.group.replace(group) != Some(group) {
                    // Another group counts rounds and leases of its own.
                    (self.activity.last_round, self.deadline) = (None, None);
                }
                (self.settings, self.voters) = (*settings, voters);
                let leader = attempt.address.clone();
                self.leader = Some(leader.clone());
                let has_changed = attempt.said.as_ref() != Some(&self.activity);
                self.serve(link, now);
                if has_changed {
                    self.send(Request::Report(self.activity.clone()));
                }
                let next_number = self.next_number;
                for (number, request) in std::mem::take(&mut self.requests) {
                    self.send(request.clone());
                    self.requests.push((number.max(next_number), request));
                }
                self.event(Event::Served { leader });
            }
            Reply::Redirect { addresses, why } => {
                let address = attempt.address.clone();
                self.close_link(link, now);
                if why == NotServed::NotLeader && self.redirects < MAX_REDIRECTS {
                    self.redirects += 1;
                    addresses.into_iter().rev().for_each(|address| self.queue.push_front(address));
                }
                self.event(Event::NotServed { address, why });
                self.handle_timeout(now);
            }
            // The messages below are valid only from the leader.
            _ if self.serving.is_some_and(|serving| serving != link) => {}
            Reply::Granted { number, lease } => self.handle_grant(number, lease),
            Reply::Replicas(addresses) => self.voters = addresses,
            Reply::Waiting(reason) => self.event(Event::Waiting(reason)),
            Reply::Started(assignment) => self.handle_start(assignment, now),
            Reply::Ended { round, cause } => self.handle_end(round, cause),
            Reply::Drained => self.event(Event::Drained),
            Reply::Closed(closing) => self.end(Event::Closed(closing)),
            Reply::Refused(refusal) => self.end(Event::Refused(refusal)),
            Reply::Warning(text) => self.event(Event::Warning(text)),
            Reply::Identity(_) | Reply::Done(_) | Reply::Failed(_) | Reply::Roster(_) => {}
        }
    }

    fn end(&mut self, event: Event) {
        self.is_over = true;
        self.close_all();
        if self.is_leaving && event != Event::Left {
            self.event(Event::Left);
        }
        self.event(event);
    }

    /// Uses this connection from now on, and closes all others.
    fn serve(&mut self, link: Link, now: Duration) {
        self.serving = Some(link);
        self.last_heard = now;
        (self.retry_interval, self.redirects) = (MIN_RETRY_INTERVAL, 0);
        self.queue.clear();
        let heartbeat = self.attempts.get(&link).and_then(|attempt| attempt.heartbeat);
        self.last_heartbeat = heartbeat.map_or(Duration::ZERO, |(_, sent)| sent);
        self.heartbeats = heartbeat.into_iter().collect();
        let others: Vec<Link> = self.attempts.keys().copied().filter(|other| *other != link).collect();
        others.into_iter().for_each(|other| self.close_link(other, now));
        self.handle_timeout(now);
    }

    /// Extends the deadline. It counts from the time at which the heartbeat was sent, because only that time is known to
    /// be before the time at which the leader granted the lease.
    fn handle_grant(&mut self, number: u64, lease: Duration) {
        let Some(sent) = self.heartbeats.get(&number).copied() else { return };
        self.heartbeats.retain(|other, _| *other > number);
        // The leader has handled the requests before this heartbeat. A node leaves, or closes the job, only once.
        let is_final = |request: &Request| matches!(request, Request::Leave | Request::Close { .. });
        self.requests.retain(|(next, request)| *next > number || is_final(request));
        let lease = lease.min(self.settings.lease);
        let deadline = (sent + lease * 99 / 100).saturating_sub(FENCE_MARGIN);
        if self.deadline.is_none_or(|earlier| deadline > earlier) {
            self.deadline = Some(deadline);
            self.event(Event::Lease { deadline });
        }
    }

    /// Handles the start of a round. The node starts workers only if it still waits for a round and has a lease.
    /// Otherwise it reports that it has none.
    fn handle_start(&mut self, assignment: Assignment, now: Duration) {
        if self.activity.last_round.is_some_and(|last| last >= assignment.round) {
            return;
        }
        self.activity.last_round = Some(assignment.round);
        let has_lease = self.self_fence_time().is_some_and(|time| time > now);
        match (&self.activity.phase, has_lease) {
            (Phase::Joining { .. }, true) => {
                self.activity.phase = Phase::Working;
                self.is_fenced = false;
                self.event(Event::Started(assignment));
            }
            (Phase::Joining { .. }, false) => self.activity.phase = Phase::Joining { is_fenced: true },
            _ => {}
        }
        self.send(Request::Report(self.activity.clone()));
    }

    fn handle_end(&mut self, round: u64, cause: Cause) {
        if self.activity.last_round.is_none_or(|last| last < round) {
            // The node never starts workers of this round.
            self.activity.last_round = Some(round);
            self.send(Request::Report(self.activity.clone()));
        } else if matches!(self.activity.phase, Phase::Working | Phase::Finished) {
            self.event(Event::Ended { round, cause });
        }
    }

    // ---- time ----

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.is_over || self.is_idle() {
            return;
        }
        self.check_lease(now);
        if self.serving.is_some() && now >= self.heartbeat_time() {
            let number = self.next_number;
            self.next_number += 1;
            // A reply to an older heartbeat would not extend the lease.
            self.heartbeats.retain(|_, sent| *sent + self.settings.lease > now);
            self.heartbeats.insert(number, now);
            self.last_heartbeat = now;
            self.send(Request::Heartbeat { number });
        }
        if self.serving.is_none() || self.is_silent(now) {
            self.attempt(now);
        }
    }

    /// Returns whether the node has not asked for anything yet.
    fn is_idle(&self) -> bool {
        let is_outside = self.activity.phase == Phase::Outside(String::new());
        self.activity.last_round.is_none() && is_outside && self.requests.is_empty()
    }

    /// Returns when the next heartbeat is due. While a heartbeat has had no reply for half an interval, further ones follow
    /// four times as often: TCP sends a lost packet again soon only if later ones arrive.
    fn heartbeat_time(&self) -> Duration {
        let interval = self.settings.heartbeat_interval();
        let regular = self.last_heartbeat + interval;
        let oldest = self.heartbeats.values().next();
        let overdue = oldest.map(|sent| (*sent + interval / 2).max(self.last_heartbeat + interval / 4));
        overdue.map_or(regular, |overdue| overdue.min(regular))
    }

    fn is_silent(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_heard) >= SILENCE_TIMEOUT
    }

    /// Returns when the agent kills the workers itself, unless the lease is renewed before.
    fn self_fence_time(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_sub(SELF_FENCE_MARGIN))
    }

    fn check_lease(&mut self, now: Duration) {
        let is_over = self.self_fence_time().is_some_and(|time| time <= now);
        // A node whose workers have finished has nothing to kill.
        let is_working = self.activity.phase == Phase::Working;
        if let Some(round) = self.activity.last_round.filter(|_| is_over && is_working && !self.is_fenced) {
            self.is_fenced = true;
            self.event(Event::LeaseOver { round });
        }
    }

    /// Opens another connection, unless one was opened less than [`ATTEMPT_INTERVAL`] ago.
    fn attempt(&mut self, now: Duration) {
        let pending = self.attempts.iter().filter(|(link, _)| Some(**link) != self.serving);
        let old = pending.clone().filter(|(_, attempt)| now >= attempt.since + ATTEMPT_TIMEOUT);
        let old: Vec<Link> = old.map(|(link, _)| *link).collect();
        let newest = pending.map(|(_, attempt)| attempt.since).max();
        old.into_iter().for_each(|link| self.close_link(link, now));
        if newest.is_some_and(|since| now < since + ATTEMPT_INTERVAL) {
            return;
        }
        if self.queue.is_empty() {
            if now < self.retry_time {
                return;
            }
            self.queue.clear();
            for address in self.leader.iter().chain(&self.voters).chain(&self.endpoints) {
                if !self.queue.contains(address) {
                    self.queue.push_back(address.clone());
                }
            }
            self.redirects = 0;
            self.retry_time = now + self.retry_interval;
            self.retry_interval = (self.retry_interval * 2).min(MAX_RETRY_INTERVAL);
        }
        // A process that has the hello of this node is slow, and further connections would make it slower.
        let has_hello = |address: &String| {
            let mut pending = self.attempts.iter().filter(|(link, _)| Some(**link) != self.serving);
            pending.any(|(_, attempt)| attempt.said.is_some() && attempt.address == *address)
        };
        self.queue.retain(|address| !has_hello(address));
        if let Some(address) = self.queue.pop_front() {
            let link = self.next_link;
            self.next_link += 1;
            self.attempts
                .insert(link, Attempt { address: address.clone(), since: now, said: None, heartbeat: None });
            self.outputs.push_back(Output::Connect(link, address));
        }
    }

    /// Returns when the next attempt is due, if the client needs one.
    fn attempt_time(&self) -> Duration {
        let pending = self.attempts.iter().filter(|(link, _)| Some(**link) != self.serving);
        let newest = pending.map(|(_, attempt)| attempt.since + ATTEMPT_INTERVAL).max();
        let earliest = if self.queue.is_empty() { self.retry_time } else { Duration::ZERO };
        newest.map_or(earliest, |newest| newest.max(earliest))
    }

    /// Returns when [`handle_timeout`](Client::handle_timeout) is due. The result does not depend on the current time, so
    /// a driver may ask before or after that time.
    pub fn next_timeout(&self) -> Option<Duration> {
        if self.is_over || self.is_idle() {
            return None;
        }
        let is_unfenced = self.activity.phase == Phase::Working && !self.is_fenced;
        let fence = self.self_fence_time().filter(|_| is_unfenced);
        let next = match self.serving {
            // A silent leader is replaced by the first one that replies.
            Some(_) => {
                self.heartbeat_time().min((self.last_heard + SILENCE_TIMEOUT).max(self.attempt_time()))
            }
            None => self.attempt_time(),
        };
        Some(fence.map_or(next, |fence| next.min(fence)))
    }
}

#[cfg(test)]
mod tests;
