//! A leader and its nodes in virtual time, without replicas and without a network.

use super::*;
use crate::job::Entry;
use crate::roster::Roster;
use crate::settings::JobSettings;

const STEP: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);
const GROUP: GroupId = GroupId(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A node as a test sees it. It starts and stops workers at once.
struct TestNode {
    node: Node,
    connection: Option<Connection>,
    activity: Activity,
    /// Whether the node sends heartbeats.
    is_alive: bool,
    /// Whether the node joins again as soon as its round ends.
    returns: bool,
    replies: Vec<Reply>,
}

/// A job with one leader, whose decisions are applied at once or when the test says so.
struct TestJob {
    job: Job,
    leader: Leader,
    now: Duration,
    nodes: Vec<TestNode>,
    /// A decision that is not applied yet.
    pending: Option<Decision>,
    holds_decisions: bool,
    closed: Vec<Connection>,
    unwanted: BTreeSet<NodeId>,
    next_connection: u64,
}

macro_rules! view {
    ($job:expr) => {
        View {
            job: &$job.job,
            group: GROUP,
            time: $job.now,
            now: $job.now,
            quorum_contact: Some($job.now),
            unwanted: &$job.unwanted,
        }
    };
}

impl TestJob {
    fn new(settings: JobSettings) -> TestJob {
        let (job, now, unwanted) = (Job::new(settings, "h0 (pid 1)".into()), SECOND, BTreeSet::new());
        let view =
            View { job: &job, group: GROUP, time: now, now, quorum_contact: Some(now), unwanted: &unwanted };
        let leader = Leader::new(view);
        TestJob {
            job,
            leader,
            now,
            nodes: Vec::new(),
            pending: None,
            holds_decisions: false,
            closed: Vec::new(),
            unwanted,
            next_connection: 1,
        }
    }

    /// Creates a job whose first nodes, h0 to h(n-1), are in round 0.
    fn running(settings: JobSettings, nodes: usize) -> TestJob {
        let mut job = TestJob::new(settings);
        (0..nodes).for_each(|_| _ = job.join());
        job.pass(31 * SECOND);
        assert_eq!(job.members(), (0..nodes).collect::<Vec<_>>());
        job
    }

    // ---- nodes ----

    /// Adds a node that does nothing yet, and returns its index. Its host is `h` and the index.
    fn add(&mut self) -> usize {
        let index = self.nodes.len();
        let host = format!("h{index}");
        let node = Node {
            id: NodeId(index as u64 + 1),
            address: format!("{host}:1"),
            host,
            pid: 1,
            workers: Some(1),
            command: Some(0),
            pin: None,
            preferred_rank: None,
            topology: Vec::new(),
        };
        let activity = Activity { last_round: None, phase: Phase::Joining { is_fenced: false } };
        self.nodes.push(TestNode {
            node,
            connection: None,
            activity,
            is_alive: true,
            returns: true,
            replies: Vec::new(),
        });
        index
    }

    /// Adds a node that joins.
    fn join(&mut self) -> usize {
        let index = self.add();
        self.connect(index);
        index
    }

    /// Adds a node that pins a rank and joins.
    fn join_pinned(&mut self, rank: u32) -> usize {
        let index = self.add();
        self.nodes[index].node.pin = Some(rank);
        self.connect(index);
        index
    }

    /// Restarts a node: a new process on the same host joins.
    fn restart(&mut self, index: usize) -> usize {
        let new = self.add();
        let host = self.nodes[index].node.host.clone();
        let pin = self.nodes[index].node.pin;
        let node = &mut self.nodes[new].node;
        (node.host, node.pin) = (host, pin);
        self.connect(new);
        new
    }

    fn connect(&mut self, index: usize) {
        let settings = self.job.settings.clone();
        self.connect_with(index, settings);
    }

    fn connect_with(&mut self, index: usize, settings: JobSettings) {
        let connection = Connection::from_bits(self.next_connection);
        self.next_connection += 1;
        let node = &mut self.nodes[index];
        node.connection = Some(connection);
        let hello = Hello {
            node: node.node.clone(),
            settings,
            group: node.activity.last_round.map(|_| GROUP),
            activity: node.activity.clone(),
        };
        self.leader.handle_hello(connection, hello, view!(self));
        self.send(index, Request::Heartbeat { number: 0 });
    }

    fn send(&mut self, index: usize, request: Request) {
        if let Some(connection) = self.nodes[index].connection {
            self.leader.handle_request(connection, request, view!(self));
        }
        self.collect();
    }

    fn report(&mut self, index: usize, phase: Phase) {
        self.nodes[index].activity.phase = phase;
        let activity = self.nodes[index].activity.clone();
        self.send(index, Request::Report(activity));
    }

    /// Reports a failed worker. The node has no workers any more, and joins again.
    fn fail_worker(&mut self, index: usize) {
        let round = self.nodes[index].activity.last_round.unwrap();
        self.send(index, Request::WorkerFailed { round, local_rank: 0, exit: "exited with code 1".into() });
        self.report(index, Phase::Joining { is_fenced: false });
    }

    /// Cuts the connection of a node.
    fn reset(&mut self, index: usize) {
        if let Some(connection) = self.nodes[index].connection.take() {
            self.leader.handle_close(connection, view!(self));
        }
        self.collect();
    }

    /// Kills the processes of a node, and lets the leader find that out.
    fn kill(&mut self, index: usize) {
        self.reset(index);
        self.nodes[index].is_alive = false;
        self.leader.handle_ended(&BTreeSet::from([self.nodes[index].node.id]));
        self.collect();
    }

    // ---- time ----

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Lets time pass until a round starts, and returns that time.
    fn wait_for_round(&mut self, number: u64) -> Duration {
        let start = self.now;
        while self.job.round.as_ref().is_none_or(|round| round.number < number) {
            assert!(
                self.now < start + 60 * SECOND,
                "round {number} does not start: {:?}",
                self.leader.waits_for
            );
            self.step();
        }
        self.collect();
        self.now - start
    }

    fn step(&mut self) {
        let is_tick = |now: Duration, interval: u64| now.as_millis().is_multiple_of(u128::from(interval));
        if is_tick(self.now, 1000) {
            for index in 0..self.nodes.len() {
                if self.nodes[index].is_alive {
                    self.send(index, Request::Heartbeat { number: 1 });
                }
            }
        }
        if is_tick(self.now, 100) {
            self.leader.check_leases(view!(self));
        }
        if self.pending.is_none() && self.leader.is_evaluation_due(self.now) {
            self.pending = self.leader.evaluate(view!(self));
        }
        if !self.holds_decisions {
            self.apply();
        }
        self.collect();
        self.now += STEP;
    }

    /// Applies the decision that the leader has taken last.
    fn apply(&mut self) {
        if let Some(decision) = self.pending.take() {
            self.job.apply(Entry { time: self.now, decision });
            self.leader.publish(view!(self));
        }
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(output) = self.leader.poll_output() {
            match output {
                Output::Send(connection, reply) => self.handle_reply(connection, reply),
                Output::Close(connection) => {
                    self.closed.push(connection);
                    let nodes = self.nodes.iter_mut().filter(|node| node.connection == Some(connection));
                    nodes.for_each(|node| node.connection = None);
                }
                Output::Probe(..) | Output::Redirect(_) => {}
            }
        }
    }

    fn handle_reply(&mut self, connection: Connection, reply: Reply) {
        let mut nodes = self.nodes.iter_mut();
        let is_receiver = |node: &&mut TestNode| node.connection == Some(connection) && node.is_alive;
        let Some(node) = nodes.find(is_receiver) else { return };
        node.replies.push(reply.clone());
        let phase = match reply {
            Reply::Started(assignment) => {
                node.activity.last_round = Some(assignment.round);
                Phase::Working
            }
            Reply::Ended { .. } if node.returns => Phase::Joining { is_fenced: false },
            _ => return,
        };
        node.activity.phase = phase;
        let activity = node.activity.clone();
        self.leader.handle_request(connection, Request::Report(activity), view!(self));
    }

    // ---- what tests see ----

    /// Returns the nodes of the round that started last, ordered by rank.
    fn members(&self) -> Vec<usize> {
        let Some(round) = &self.job.round else { return Vec::new() };
        let mut members: Vec<_> =
            round.members.values().map(|member| (member.rank, member.node.id)).collect();
        members.sort_unstable();
        members.into_iter().map(|(_, id)| id.0 as usize - 1).collect()
    }

    fn end(&self) -> Option<String> {
        Some(self.job.round.as_ref()?.end.as_ref()?.to_string())
    }

    /// Returns what the leader has told a node last that it waits for.
    fn wait_text(&self, index: usize) -> String {
        let texts = self.nodes[index].replies.iter().rev().find_map(|reply| match reply {
            Reply::Waiting(reason) => Some(reason.to_string()),
            _ => None,
        });
        texts.unwrap_or_default()
    }

    /// Returns why a node was refused.
    fn refusal(&self, index: usize) -> Option<String> {
        self.nodes[index].replies.iter().find_map(|reply| match reply {
            Reply::Refused(refusal) => Some(refusal.to_string()),
            _ => None,
        })
    }

    fn has(&self, index: usize, reply: &Reply) -> bool {
        self.nodes[index].replies.contains(reply)
    }

    fn roster(&self) -> Roster {
        self.leader.roster(1, "h0:1", &BTreeSet::new(), view!(self))
    }
}

mod departures;
mod nodes;
mod operators;
mod restarts;
mod rounds;
