//! Random faults, and their ends.

use std::time::Duration;

use rallypoint_coordinator::message::Command;

use super::agent::AgentEvent;
use super::config::FaultMix;
use super::network::Side;
use super::world::{Event, World};

/// A pause that costs no lease of at least 5 s.
const HARMLESS_PAUSE_MS: u64 = 1_000;

/// The end of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FaultEnd {
    Restore(Vec<(usize, usize)>),
    /// The host is powered on, and its process starts.
    Start(usize),
    Resume(usize, u64),
}

/// A point of the protocol at which a process can crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    /// The leader has proposed a decision that is not committed.
    Proposed,
    /// The leader has applied a decision.
    Committed,
    /// A follower has applied a decision.
    Followed,
    /// A node was told that it is in a round.
    Told,
    /// The agent has decided to start its worker, and has not forked.
    Decided,
    /// The process of a worker was forked.
    Forked,
    /// The worker of a node has started.
    Started,
}

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strike {
    Kill,
    PowerOff,
    Pause,
}

/// A crash at the next time at which a process reaches a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArmedCrash {
    pub(super) point: Point,
    pub(super) strike: Strike,
    /// Whether the leader is struck instead of the process that has reached the point.
    pub(super) strikes_leader: bool,
    /// The number of times that the point is reached before.
    pub(super) skips: u64,
}

impl World {
    fn draw_ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.random.between(low * 1_000, high * 1_000))
    }

    fn draw_host(&mut self) -> usize {
        self.random.between(0, self.hosts.len() as u64) as usize
    }

    /// Returns the leader's host in two of three cases, otherwise any host.
    fn draw_host_or_leader(&mut self) -> usize {
        match self.leader() {
            Some(leader) if !self.random.one_in(3) => leader,
            _ => self.draw_host(),
        }
    }

    fn end_after(&mut self, time: Duration, end: FaultEnd) {
        self.queue.schedule(self.now + time, Event::EndFault(end));
    }

    /// Causes a random fault.
    pub(super) fn cause_fault(&mut self) {
        match self.config.faults {
            FaultMix::All => self.cause_any_fault(),
            FaultMix::Harmless => self.cause_harmless_fault(),
            FaultMix::Commands => self.cause_command(),
            FaultMix::None => {}
        }
    }

    fn cause_any_fault(&mut self) {
        match self.random.between(0, 16) {
            0 => {
                let host = self.draw_host();
                self.kill(host, true);
            }
            1 => {
                let host = self.draw_host_or_leader();
                self.kill(host, true);
            }
            2 => {
                let host = self.draw_host_or_leader();
                let time = self.draw_ms(500, 10_000);
                self.lose_power(host, Some(time));
            }
            3 | 4 => {
                let one_way = self.random.one_in(2);
                let links = self.draw_partition(one_way);
                let time = self.draw_ms(200, 12_000);
                self.cut_for(links, time);
            }
            5 => {
                let links = self.draw_link();
                let time = self.draw_ms(200, 12_000);
                self.cut_for(links, time);
            }
            6 | 7 => {
                let host = self.draw_host_or_leader();
                let time = self.draw_ms(100, 15_000);
                self.pause(host, time);
            }
            8 => self.reset_connections(),
            9 => {
                let host = self.draw_host();
                self.fail_worker(host);
            }
            10 => self.jump_wall_clock(),
            11 => self.cause_command(),
            12 => {
                // A separate server, or the first endpoint, is killed and restarted empty.
                self.kill(0, false);
                let time = self.draw_ms(0, 500);
                self.end_after(time, FaultEnd::Start(0));
            }
            _ => self.arm(),
        }
    }

    fn cause_harmless_fault(&mut self) {
        // With one node or one voter, the separate server is the only voter.
        let has_other_voters =
            self.config.has_server && self.config.nodes > 1 && self.config.settings.max_voters > 1;
        match self.random.between(0, if has_other_voters { 9 } else { 6 }) {
            0 => self.reset_connections(),
            1 => self.jump_wall_clock(),
            2 => {
                let host = self.draw_host();
                let time = self.draw_ms(10, HARMLESS_PAUSE_MS);
                self.pause(host, time);
            }
            3 => {
                if let Some(leader) = self.leader() {
                    let time = self.draw_ms(10, HARMLESS_PAUSE_MS);
                    self.pause(leader, time);
                }
            }
            4 => {
                let links = self.draw_link();
                let time = self.draw_ms(10, HARMLESS_PAUSE_MS);
                self.cut_for(links, time);
            }
            5 => {
                let links = self.draw_partition(false);
                let time = self.draw_ms(10, HARMLESS_PAUSE_MS);
                self.cut_for(links, time);
            }
            6 => {
                self.kill(0, false);
                let time = self.draw_ms(0, 8_000);
                self.end_after(time, FaultEnd::Start(0));
            }
            7 => {
                let time = self.draw_ms(500, 8_000);
                self.lose_power(0, Some(time));
            }
            _ => {
                let others: Vec<_> = (1..self.hosts.len()).flat_map(|host| [(0, host), (host, 0)]).collect();
                let time = self.draw_ms(100, 20_000);
                self.cut_for(others, time);
            }
        }
    }

    fn cause_command(&mut self) {
        let host = self.draw_host();
        let name = self.hosts[host].name.clone();
        let command = match self.random.between(0, 9) {
            0 | 1 => Command::Exclude { host: name, time: Duration::from_secs(5), reason: "a test".into() },
            2 => {
                let within = self.random.one_in(2).then(|| Duration::from_secs(2));
                Command::Drain { host: name, within }
            }
            3 => {
                self.rules.included.insert(name.clone());
                Command::Include { host: name }
            }
            4 => return self.signal_agent(host, AgentEvent::Terminate),
            5 if self.random.one_in(2) => return self.signal_agent(host, AgentEvent::Drain),
            6 => return self.kill(host, true),
            _ => return self.fail_worker(host),
        };
        let to = self.draw_host_or_leader();
        self.command(to, command);
    }

    fn signal_agent(&mut self, host: usize, event: AgentEvent) {
        if let Some(process) = &self.hosts[host].process {
            let number = process.number;
            self.trace(|| format!("fault: h{host} gets a signal: {event:?}"));
            self.schedule_agent(host, number, Duration::ZERO, event);
        }
    }

    // ---- faults of hosts ----

    /// Kills the agent and its guard together. The process may start again.
    pub(super) fn kill(&mut self, host: usize, may_restart: bool) {
        if self.hosts[host].process.is_none() {
            return;
        }
        self.trace(|| format!("fault: h{host} is killed"));
        self.end_process(host, true);
        if may_restart && !self.random.one_in(4) {
            let time = self.draw_ms(0, 8_000);
            self.end_after(time, FaultEnd::Start(host));
        }
    }

    pub(super) fn lose_power(&mut self, host: usize, time: Option<Duration>) {
        self.trace(|| format!("fault: h{host} loses power"));
        self.power_off(host);
        if let Some(time) = time {
            self.end_after(time, FaultEnd::Start(host));
        }
    }

    /// Stops an agent with SIGSTOP. Its guard and its workers run on.
    pub(super) fn pause(&mut self, host: usize, time: Duration) {
        let until = self.now + time;
        let Some(process) = &mut self.hosts[host].process else { return };
        let number = process.number;
        process.paused_until = process.paused_until.max(Some(until));
        self.trace(|| format!("fault: h{host} is paused for {time:?}"));
        self.end_after(time, FaultEnd::Resume(host, number));
    }

    fn jump_wall_clock(&mut self) {
        let host = self.draw_host();
        let jump = self.random.between(0, 7_200) as i64 - 3_600;
        self.hosts[host].clock.wall_error += jump;
        self.trace(|| format!("fault: the wall clock of h{host} jumps by {jump} s"));
    }

    // ---- faults of the network ----

    pub(super) fn cut_for(&mut self, links: Vec<(usize, usize)>, time: Duration) {
        self.trace(|| format!("fault: these links are cut for {time:?}: {links:?}"));
        self.network.cut(&links);
        self.end_after(time, FaultEnd::Restore(links));
    }

    /// Returns the links between a random group of hosts and the others.
    fn draw_partition(&mut self, one_way: bool) -> Vec<(usize, usize)> {
        let side: Vec<bool> = (0..self.hosts.len()).map(|_| self.random.one_in(2)).collect();
        partition(&side, one_way)
    }

    /// Returns the link between two random hosts, in one or both directions.
    fn draw_link(&mut self) -> Vec<(usize, usize)> {
        let (one, other) = (self.draw_host_or_leader(), self.draw_host());
        match self.random.between(0, 3) {
            0 => vec![(one, other)],
            1 => vec![(other, one)],
            _ => vec![(one, other), (other, one)],
        }
    }

    /// Resets connections, as a middlebox does.
    fn reset_connections(&mut self) {
        for _ in 0..self.random.between(1, 5) {
            let open = self.open_connections();
            if open.is_empty() {
                return;
            }
            let index = open[self.random.between(0, open.len() as u64) as usize];
            let sides: &[Side] = match self.random.between(0, 3) {
                0 => &[Side::Opener],
                1 => &[Side::Acceptor],
                _ => &[Side::Opener, Side::Acceptor],
            };
            self.trace(|| format!("fault: connection {:?} is reset", self.network.connections[index].ends));
            self.reset(index, sides);
        }
    }

    // ---- crashes at points of the protocol ----

    fn arm(&mut self) {
        let points = [
            Point::Proposed,
            Point::Committed,
            Point::Followed,
            Point::Told,
            Point::Decided,
            Point::Forked,
            Point::Started,
        ];
        let strikes = [Strike::Kill, Strike::Kill, Strike::PowerOff, Strike::Pause, Strike::Pause];
        let crash = ArmedCrash {
            point: points[self.random.between(0, 7) as usize],
            strike: strikes[self.random.between(0, 5) as usize],
            strikes_leader: self.random.one_in(3),
            skips: self.random.between(0, 3),
        };
        self.trace(|| format!("fault: {crash:?}"));
        self.armed = Some(crash);
        // Something must happen, so that a process reaches the point.
        let host = self.draw_host();
        self.fail_worker(host);
    }

    /// Strikes the process of a host if it has reached the point of the armed crash. Returns whether it did.
    pub(super) fn strike(&mut self, point: Point, host: usize) {
        let Some(crash) = self.armed.as_mut().filter(|crash| crash.point == point) else { return };
        if crash.skips > 0 {
            crash.skips -= 1;
            return;
        }
        let Some(crash) = self.armed.take() else { return };
        let host = if crash.strikes_leader { self.leader().unwrap_or(host) } else { host };
        match crash.strike {
            Strike::Kill => self.kill(host, true),
            Strike::PowerOff => {
                let time = self.draw_ms(500, 10_000);
                self.lose_power(host, Some(time));
            }
            Strike::Pause => {
                let time = self.draw_ms(100, 15_000);
                self.pause(host, time);
            }
        }
    }

    /// Strikes the process of a host that has applied an entry, or that has proposed one.
    pub(super) fn strike_replica(&mut self, host: usize, is_leader: bool) {
        if self.armed.is_some() {
            let process = self.hosts[host].process.as_mut();
            let is_settled = process
                .and_then(|process| process.coordinator())
                .is_none_or(|coordinator| coordinator.replica().is_settled());
            let point = match (is_leader, is_settled) {
                (true, false) => Point::Proposed,
                (true, true) => Point::Committed,
                (false, _) => Point::Followed,
            };
            self.strike(point, host);
        }
    }

    // ---- the end of faults ----

    pub(super) fn end_fault(&mut self, end: FaultEnd) {
        match end {
            FaultEnd::Restore(links) => {
                self.network.restore(&links);
                self.trace(|| format!("these links are restored: {links:?}"));
                self.release_held();
            }
            FaultEnd::Start(host) => self.restart(host),
            FaultEnd::Resume(host, process) => self.resume(host, process),
        }
    }

    /// Powers a host on, and starts its process, unless the job is over on this host.
    pub(super) fn restart(&mut self, host: usize) {
        if !std::mem::replace(&mut self.hosts[host].is_powered, true) {
            self.release_held();
        }
        if !self.is_closed() {
            self.launch(host);
        }
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.trace(|| "all faults end".into());
        (self.is_faulty, self.armed) = (false, None);
        self.network.restore_all();
        for host in 0..self.hosts.len() {
            if let Some(process) = &mut self.hosts[host].process
                && process.paused_until.is_some()
            {
                process.paused_until = Some(self.now);
                let number = process.number;
                self.resume(host, number);
            }
            self.restart(host);
        }
        self.release_held();
    }
}

/// Returns the links from one side to the other, and back unless they are cut one way.
pub(super) fn partition(side: &[bool], one_way: bool) -> Vec<(usize, usize)> {
    let mut links = Vec::new();
    for from in 0..side.len() {
        for to in 0..side.len() {
            if side[from] != side[to] && (side[from] || !one_way) {
                links.push((from, to));
            }
        }
    }
    links
}
