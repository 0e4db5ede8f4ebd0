//! The agent's side: finds the leader, keeps the lease, and reports what the node does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::job::{Cause, Closing};
use crate::message::{Activity, Assignment, GroupId, Hello, NotServed, Phase, Refusal, Reply, Request};
use crate::node::{Node, NodeId};
use crate::terms::{PROTOCOL_VERSION, Terms};

/// The id of an outgoing connection.
pub type Link = u64;

/// Interval between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// After this long without a reply, the participant opens another connection in parallel, because TCP's backoff alone
/// can exceed a lease on lossy links.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for a connection and its first reply before another address is tried as well.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(500);
/// The first and the longest delay before all addresses are tried again.
const MIN_RETRY: Duration = Duration::from_millis(50);
const MAX_RETRY: Duration = Duration::from_secs(1);
/// A node's deadline is this much before the end of its lease, in addition to 1 % for clocks of different speed.
const FENCE_MARGIN: Duration = Duration::from_millis(250);

/// What the participant wants its caller to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Connect to an address.
    Connect(Link, String),
    /// Send a message.
    Send(Link, Request),
    /// Close a connection.
    Disconnect(Link),
    /// Tell the agent.
    Event(Event),
    /// The workers must be killed at this time, unless a later deadline follows.
    Deadline(Duration),
}

/// News for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The node is a member of a round that has started.
    Started(Assignment),
    /// The round of the node has ended.
    Ended {
        /// The round.
        round: u64,
        /// Why.
        cause: Cause,
    },
    /// The other nodes continue without this one. The node must kill its workers and join again.
    Lost,
    /// The job is closed.
    Closed(Closing),
    /// The node can't be in the job.
    Refused(Refusal),
    /// No coordinator serves this node now.
    NotServed(NotServed),
}

#[derive(Debug)]
struct Attempt {
    address: String,
    since: Duration,
    is_open: bool,
}

/// The agent's side of one node.
pub struct Participant {
    run_id: String,
    node: Node,
    terms: Terms,
    /// The addresses that the user configured.
    endpoints: Vec<String>,
    /// The voters that the last leader named.
    voters: Vec<String>,
    /// Addresses to try next.
    queue: VecDeque<String>,
    attempts: BTreeMap<Link, Attempt>,
    /// The connection to the leader.
    serving: Option<Link>,
    last_heard: Duration,
    next_link: Link,
    retry_at: Duration,
    retry_delay: Duration,
    group: Option<(GroupId, u64)>,
    activity: Activity,
    /// The node was declared lost, and its workers still run.
    is_lost: bool,
    /// The seed of the next id.
    seed: u64,
    next_heartbeat: Duration,
    /// When each heartbeat without a reply was sent.
    heartbeats: BTreeMap<u64, Duration>,
    next_number: u64,
    deadline: Option<Duration>,
    is_over: bool,
    outputs: VecDeque<Output>,
}

impl Participant {
    /// Creates a participant that does not want to join yet.
    pub fn new(run_id: &str, node: Node, terms: Terms, endpoints: Vec<String>, seed: u64) -> Participant {
        Participant {
            run_id: run_id.to_owned(),
            node,
            terms,
            endpoints,
            voters: Vec::new(),
            queue: VecDeque::new(),
            attempts: BTreeMap::new(),
            serving: None,
            last_heard: Duration::ZERO,
            next_link: 0,
            retry_at: Duration::ZERO,
            retry_delay: MIN_RETRY,
            group: None,
            activity: Activity { last_round: None, phase: Phase::Idle },
            is_lost: false,
            seed,
            next_heartbeat: Duration::ZERO,
            heartbeats: BTreeMap::new(),
            next_number: 0,
            deadline: None,
            is_over: false,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the terms of the job, or of the node if no job is known.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the group that serves the node.
    pub fn group(&self) -> Option<GroupId> {
        self.group.map(|(group, _)| group)
    }

    /// Returns when the workers must be dead.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns what the node does.
    pub fn activity(&self) -> Activity {
        self.activity
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Asks to join the next round. The node has no workers.
    pub fn join(&mut self, now: Duration) {
        self.set_phase(Phase::Joining, now);
    }

    /// Reports that the node has no workers.
    pub fn stopped(&mut self, now: Duration) {
        let is_fenced = self.deadline.is_some_and(|deadline| deadline <= now);
        self.set_phase(if is_fenced { Phase::Fenced } else { Phase::Idle }, now);
    }

    fn set_phase(&mut self, phase: Phase, now: Duration) {
        if std::mem::take(&mut self.is_lost) {
            self.renew_id();
        }
        if self.activity.phase != phase {
            self.activity.phase = phase;
            if let Some(link) = self.serving {
                self.outputs.push_back(Output::Send(link, Request::Report(self.activity)));
            }
        }
        self.handle_timeout(now);
    }

    /// Reports that a worker has failed, so that the round ends.
    pub fn worker_failed(&mut self, local_rank: u32, exit: &str) {
        if let (Some(link), Some(round)) = (self.serving, self.activity.last_round) {
            let request = Request::WorkerFailed { round, local_rank, exit: exit.into() };
            self.outputs.push_back(Output::Send(link, request));
        }
    }

    /// Leaves the job. The node has no workers.
    pub fn leave(&mut self) {
        if let Some(link) = self.serving {
            self.outputs.push_back(Output::Send(link, Request::Leave));
        }
        self.is_over = true;
    }

    /// Gives the node a new identity, because the old one was declared lost.
    fn renew_id(&mut self) {
        // The constant of SplitMix64, which visits all 64-bit numbers.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.node.id = NodeId(self.seed.max(1));
        self.activity.last_round = None;
        self.deadline = None;
        self.drop_links();
    }

    fn drop_links(&mut self) {
        for link in std::mem::take(&mut self.attempts).into_keys() {
            self.outputs.push_back(Output::Disconnect(link));
        }
        self.serving = None;
        self.heartbeats.clear();
    }

    /// Handles a connection that was opened.
    pub fn handle_open(&mut self, link: Link, now: Duration) {
        let Some(attempt) = self.attempts.get_mut(&link) else { return };
        attempt.is_open = true;
        attempt.since = now;
        let hello = Hello {
            version: PROTOCOL_VERSION,
            run_id: self.run_id.clone(),
            node: self.node.clone(),
            terms: self.terms.clone(),
            group: self.group,
            activity: self.activity,
        };
        self.outputs.push_back(Output::Send(link, Request::Hello(hello.into())));
    }

    /// Handles a connection that was closed or could not be opened.
    pub fn handle_close(&mut self, link: Link, now: Duration) {
        self.attempts.remove(&link);
        if self.serving == Some(link) {
            self.serving = None;
            (self.retry_at, self.retry_delay) = (now, MIN_RETRY);
        }
        self.handle_timeout(now);
    }

    /// Handles a message of a coordinator.
    pub fn handle_reply(&mut self, link: Link, reply: Reply, now: Duration) {
        if !self.attempts.contains_key(&link) {
            return;
        }
        if self.serving == Some(link) {
            self.last_heard = now;
        }
        match reply {
            Reply::Welcome { group, term, terms, voters } => {
                self.group = Some((group, term));
                self.terms = terms;
                self.voters = voters;
                self.serve(link, now);
            }
            Reply::Redirect { addresses, why } => {
                self.close_link(link);
                self.outputs.push_back(Output::Event(Event::NotServed(why)));
                if why == NotServed::NotLeader {
                    addresses.into_iter().rev().for_each(|address| self.queue.push_front(address));
                }
                self.handle_timeout(now);
            }
            Reply::Granted { number, lease } => self.handle_grant(number, lease),
            Reply::Started(assignment) => self.handle_start(assignment, now),
            Reply::Ended { round, cause } => {
                if self.activity.last_round.is_none_or(|last| last < round) {
                    // The node never starts workers of this round.
                    self.activity.last_round = Some(round);
                    self.outputs.push_back(Output::Send(link, Request::Report(self.activity)));
                } else if self.activity.last_round == Some(round) {
                    self.outputs.push_back(Output::Event(Event::Ended { round, cause }));
                }
            }
            Reply::Lost => {
                self.drop_links();
                self.outputs.push_back(Output::Event(Event::Lost));
                match self.activity.phase {
                    Phase::Working => self.is_lost = true,
                    _ => self.renew_id(),
                }
            }
            Reply::Closed(closing) => self.end(Event::Closed(closing)),
            Reply::Refused(refusal) => self.end(Event::Refused(refusal)),
            Reply::Waiting { .. } | Reply::Identity(_) => {}
        }
    }

    fn end(&mut self, event: Event) {
        self.is_over = true;
        self.drop_links();
        self.outputs.push_back(Output::Event(event));
    }

    /// Uses this connection from now on, and closes all others.
    fn serve(&mut self, link: Link, now: Duration) {
        self.serving = Some(link);
        (self.last_heard, self.next_heartbeat) = (now, now);
        self.retry_delay = MIN_RETRY;
        self.queue.clear();
        let others: Vec<Link> = self.attempts.keys().copied().filter(|other| *other != link).collect();
        others.into_iter().for_each(|other| self.close_link(other));
        self.handle_timeout(now);
    }

    fn close_link(&mut self, link: Link) {
        self.attempts.remove(&link);
        if self.serving == Some(link) {
            self.serving = None;
        }
        self.outputs.push_back(Output::Disconnect(link));
    }

    /// Extends the deadline. It is counted from the time at which the heartbeat was sent.
    fn handle_grant(&mut self, number: u64, lease: Duration) {
        let Some(sent) = self.heartbeats.get(&number).copied() else { return };
        self.heartbeats.retain(|other, _| *other > number);
        let deadline = (sent + lease * 99 / 100).saturating_sub(FENCE_MARGIN);
        if self.deadline.is_none_or(|earlier| deadline > earlier) {
            self.deadline = Some(deadline);
            self.outputs.push_back(Output::Deadline(deadline));
        }
    }

    fn handle_start(&mut self, assignment: Assignment, now: Duration) {
        let is_new = self.activity.last_round.is_none_or(|last| last < assignment.round);
        if !is_new {
            return;
        }
        self.activity.last_round = Some(assignment.round);
        let has_lease = self.deadline.is_some_and(|deadline| deadline > now);
        if self.activity.phase == Phase::Joining && has_lease {
            self.activity.phase = Phase::Working;
            self.outputs.push_back(Output::Event(Event::Started(assignment)));
        } else if let Some(link) = self.serving {
            // The node has no workers and starts none.
            self.outputs.push_back(Output::Send(link, Request::Report(self.activity)));
        }
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Duration) {
        let is_idle = self.activity.phase == Phase::Idle && self.activity.last_round.is_none();
        if self.is_over || self.is_lost || is_idle {
            return;
        }
        if let Some(link) = self.serving
            && now >= self.next_heartbeat
        {
            let number = self.next_number;
            self.next_number += 1;
            self.heartbeats.insert(number, now);
            self.next_heartbeat = now + HEARTBEAT_INTERVAL;
            self.outputs.push_back(Output::Send(link, Request::Heartbeat { number }));
        }
        let is_silent = now.saturating_sub(self.last_heard) >= SILENCE_TIMEOUT;
        if self.serving.is_some() && !is_silent {
            return;
        }
        self.attempt(now);
    }

    /// Opens another connection, unless one was opened less than [`ATTEMPT_TIMEOUT`] ago.
    fn attempt(&mut self, now: Duration) {
        let pending = self.attempts.iter().filter(|(link, _)| Some(**link) != self.serving);
        let newest = pending.clone().map(|(_, attempt)| attempt.since).max();
        if newest.is_some_and(|since| now.saturating_sub(since) < ATTEMPT_TIMEOUT) {
            return;
        }
        // An attempt without a reply after four timeouts is given up.
        let old: Vec<Link> =
            pending.filter(|(_, attempt)| now.saturating_sub(attempt.since) >= 4 * ATTEMPT_TIMEOUT).map(|(link, _)| *link).collect();
        old.into_iter().for_each(|link| self.close_link(link));
        if self.queue.is_empty() {
            if now < self.retry_at {
                return;
            }
            self.queue = self.voters.iter().chain(&self.endpoints).cloned().collect();
            self.retry_at = now + self.retry_delay;
            self.retry_delay = (self.retry_delay * 2).min(MAX_RETRY);
        }
        if let Some(address) = self.queue.pop_front() {
            let link = self.next_link;
            self.next_link += 1;
            self.attempts.insert(link, Attempt { address: address.clone(), since: now, is_open: false });
            self.outputs.push_back(Output::Connect(link, address));
        }
    }

    /// Returns when [`handle_timeout`](Participant::handle_timeout) is due.
    pub fn next_timeout(&self, now: Duration) -> Duration {
        match self.serving {
            Some(_) => self.next_heartbeat.min((self.last_heard + SILENCE_TIMEOUT).max(now + MIN_RETRY)),
            None => now + MIN_RETRY,
        }
    }
}
