//! A whole cluster in one thread, in virtual time: services, a network with faults, guards and workers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use rallypoint_coordinator::JobSettings;
use rallypoint_coordinator::client::{Client, Event};
use rallypoint_coordinator::message::{GroupId, Phase};
use rallypoint_coordinator::node::{Node, NodeId};
use rallypoint_coordinator::service::{Action, Service, ServiceOptions};
use rallypoint_coordinator::settings::ScaleUp;
use rallypoint_core::hub::{ConnectionId, LinkEnd, Peer, Service as _};

#[derive(Clone)]
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(low * 1000 + self.below((high - low) * 1000 + 1))
    }
}

#[derive(Debug, Clone)]
enum Payload {
    Open,
    Closed { refused: bool },
    Message(Vec<u8>),
}

#[derive(Debug, Clone)]
enum Step {
    Deliver { conn: usize, to_b: bool, payload: Payload },
    Timer { host: usize, inc: u32 },
    Start { host: usize, inc: u32, round: u64 },
    Stopped { host: usize, inc: u32, round: u64 },
    Rejoin { host: usize, inc: u32 },
    Fence { host: usize, inc: u32, deadline: Duration },
    Fault(Fault),
}

#[derive(Debug, Clone)]
enum Fault {
    Kill(usize),
    PowerOff(usize),
    Restart(usize),
    Cut(Vec<usize>, bool),
    Heal,
    Pause(usize, Duration),
    Resume(usize),
    Reset,
    FailWorker(usize),
}

struct Host {
    service: Service,
    inc: u32,
    is_running: bool,
    is_powered: bool,
    is_paused: bool,
    backlog: Vec<Step>,
    rate: f64,
    offset: Duration,
    workers: Option<u64>,
    stopping: bool,
    deadline: Option<Duration>,
    timer: Duration,
    done: Option<String>,
}

struct Link {
    a: (usize, u32, Peer),
    b: (usize, u32, Peer),
    is_open: bool,
    last: [Duration; 2],
    held: Vec<(bool, Payload)>,
}

struct World {
    now: Duration,
    random: Random,
    seq: u64,
    heap: BinaryHeap<Reverse<(Duration, u64)>>,
    steps: BTreeMap<u64, Step>,
    hosts: Vec<Host>,
    links: Vec<Link>,
    index: BTreeMap<(usize, u32, Peer), usize>,
    cut: BTreeSet<(usize, usize)>,
    next_inbound: u64,
    settings: JobSettings,
    worlds: BTreeMap<(GroupId, u64), (String, u32)>,
    ranks: BTreeMap<(GroupId, u64, u32), usize>,
    log: Vec<String>,
    starts: u32,
    errors: Vec<String>,
}

fn address(host: usize) -> String {
    format!("h{host}:29400")
}

impl World {
    fn new(seed: u64, hosts: usize, settings: JobSettings) -> World {
        let mut world = World {
            now: Duration::ZERO,
            random: Random(seed),
            seq: 0,
            heap: BinaryHeap::new(),
            steps: BTreeMap::new(),
            hosts: Vec::new(),
            links: Vec::new(),
            index: BTreeMap::new(),
            cut: BTreeSet::new(),
            next_inbound: 1,
            settings,
            worlds: BTreeMap::new(),
            ranks: BTreeMap::new(),
            log: Vec::new(),
            starts: 0,
            errors: Vec::new(),
        };
        for host in 0..hosts {
            let rate = 1.0 + (world.random.below(1001) as f64 - 500.0) / 100_000.0;
            let offset = world.random.ms(0, 100_000);
            let service = new_service(host, 1);
            world.hosts.push(Host {
                service,
                inc: 0,
                is_running: false,
                is_powered: true,
                is_paused: false,
                backlog: Vec::new(),
                rate,
                offset,
                workers: None,
                stopping: false,
                deadline: None,
                timer: Duration::MAX,
                done: None,
            });
            let delay = world.random.ms(0, 300);
            world.at(delay, Step::Fault(Fault::Restart(host)));
        }
        world
    }

    fn at(&mut self, delay: Duration, step: Step) {
        self.seq += 1;
        self.heap.push(Reverse((self.now + delay, self.seq)));
        self.steps.insert(self.seq, step);
    }

    fn local(&self, host: usize) -> Duration {
        self.hosts[host].offset + self.now.mul_f64(self.hosts[host].rate)
    }

    fn true_delay(&self, host: usize, local: Duration) -> Duration {
        local.saturating_sub(self.local(host)).div_f64(self.hosts[host].rate)
    }

    fn note(&mut self, text: String) {
        self.log.push(format!("{:9.3} {text}", self.now.as_secs_f64()));
    }

    fn launch(&mut self, host: usize) {
        let seed = self.random.next();
        let local = self.local(host);
        let endpoints: Vec<String> = (0..self.hosts.len().min(3)).map(address).collect();
        let mut service = new_service(host, seed);
        let node = Node {
            id: NodeId(seed.max(1)),
            host: format!("h{host}"),
            pid: 1,
            address: address(host),
            workers: Some(1),
            command: Some(0),
            pin: None,
            preferred_rank: None,
            topology: Vec::new(),
        };
        let client = Client::new(node, self.settings.clone(), endpoints.clone());
        service.add_node("job", client, endpoints, local);
        let h = &mut self.hosts[host];
        h.service = service;
        h.inc += 1;
        (h.is_running, h.is_powered, h.is_paused) = (true, true, false);
        h.backlog.clear();
        (h.workers, h.stopping, h.deadline, h.done) = (None, false, None, None);
        self.note(format!("h{host} starts with id {seed}"));
        self.hosts[host].service.with_client("job", local, |p| p.join(local));
        self.drain(host);
    }

    /// Carries out the outputs of a service.
    fn drain(&mut self, host: usize) {
        while let Some(action) = self.hosts[host].service.poll_action() {
            match action {
                Action::Connect(link, to) => self.connect(host, Peer::Link(link), &to),
                Action::Send(peer, message) => self.send(host, peer, Payload::Message(message)),
                Action::Close(peer) => self.close(host, peer),
                Action::Event(event) => self.handle_event(host, event),
            }
        }
        let local = self.local(host);
        let next = self.hosts[host].service.next_timeout(local).unwrap_or(local + Duration::from_secs(1));
        let next = next.max(local + Duration::from_millis(1));
        let delay = self.true_delay(host, next);
        let at = self.now + delay;
        if self.hosts[host].timer <= self.now || at < self.hosts[host].timer {
            self.hosts[host].timer = at;
            let inc = self.hosts[host].inc;
            self.at(delay, Step::Timer { host, inc });
        }
    }

    fn handle_event(&mut self, host: usize, event: Event) {
        let inc = self.hosts[host].inc;
        match event {
            Event::Started(assignment) => {
                let world = (assignment.master.clone(), assignment.world_size);
                let round = (assignment.group, assignment.round);
                let known = self.worlds.entry(round).or_insert_with(|| world.clone()).clone();
                if known != world {
                    self.errors
                        .push(format!("round {} has two worlds: {known:?} {world:?}", assignment.round));
                }
                let other = self.ranks.insert((round.0, round.1, assignment.rank), host);
                if other.is_some_and(|other| other != host) || assignment.rank >= assignment.world_size {
                    self.errors.push(format!("round {} rank {} is wrong", assignment.round, assignment.rank));
                }
                self.note(format!(
                    "h{host} is in round {} as {}/{}",
                    assignment.round, assignment.rank, assignment.world_size
                ));
                let delay = self.random.ms(0, 20);
                self.at(delay, Step::Start { host, inc, round: assignment.round });
            }
            Event::Ended { round, cause } => {
                self.note(format!("h{host}: round {round} ended: {cause}"));
                self.stop(host);
            }
            Event::Lease { deadline } => {
                self.hosts[host].deadline = Some(deadline);
                let delay = self.true_delay(host, deadline);
                self.at(delay, Step::Fence { host, inc, deadline });
            }
            Event::LeaseOver { round } => {
                self.note(format!("h{host}: lease over in round {round}"));
                self.stop(host);
            }
            Event::Closed(closing) => self.hosts[host].done = Some(closing.to_string()),
            Event::Refused(refusal) => self.hosts[host].done = Some(refusal.to_string()),
            Event::NotServed { .. }
            | Event::Served { .. }
            | Event::Idle
            | Event::Waiting(_)
            | Event::Warning(_)
            | Event::Drained
            | Event::Left => {}
        }
    }

    fn stop(&mut self, host: usize) {
        let inc = self.hosts[host].inc;
        match self.hosts[host].workers {
            Some(round) if !self.hosts[host].stopping => {
                self.hosts[host].stopping = true;
                let delay = self.random.ms(0, 2000);
                self.at(delay, Step::Stopped { host, inc, round });
            }
            Some(_) => {}
            // A start that is pending must not come first.
            None => self.at(Duration::ZERO, Step::Rejoin { host, inc }),
        }
    }

    // ---- network ----

    fn latency(&mut self) -> Duration {
        self.random.ms(1, 15)
    }

    fn connect(&mut self, host: usize, conn: Peer, to: &str) {
        let Some(target) = (0..self.hosts.len()).find(|other| address(*other) == to) else { return };
        let inbound = Peer::Client(ConnectionId::from_bits(self.next_inbound));
        self.next_inbound += 1;
        let link = self.links.len();
        let (inc, target_inc) = (self.hosts[host].inc, self.hosts[target].inc);
        self.links.push(Link {
            a: (host, inc, conn),
            b: (target, target_inc, inbound),
            is_open: true,
            last: [self.now; 2],
            held: Vec::new(),
        });
        self.index.insert((host, inc, conn), link);
        let is_cut = self.cut.contains(&(host, target)) || self.cut.contains(&(target, host));
        let delay = self.latency() + self.latency();
        if is_cut || !self.hosts[target].is_powered {
            self.links[link].is_open = false;
            let delay = Duration::from_secs(5);
            self.at(
                delay,
                Step::Deliver { conn: link, to_b: false, payload: Payload::Closed { refused: false } },
            );
        } else if !self.hosts[target].is_running {
            self.links[link].is_open = false;
            self.at(
                delay,
                Step::Deliver { conn: link, to_b: false, payload: Payload::Closed { refused: true } },
            );
        } else {
            self.index.insert((target, target_inc, inbound), link);
            self.links[link].last = [self.now + delay; 2];
            self.at(delay, Step::Deliver { conn: link, to_b: false, payload: Payload::Open });
        }
    }

    fn send(&mut self, host: usize, conn: Peer, payload: Payload) {
        let inc = self.hosts[host].inc;
        let Some(link) = self.index.get(&(host, inc, conn)).copied() else { return };
        if !self.links[link].is_open {
            return;
        }
        let to_b = self.links[link].a.0 == host && self.links[link].a.2 == conn;
        self.transmit(link, to_b, payload);
    }

    fn transmit(&mut self, link: usize, to_b: bool, payload: Payload) {
        let (a, b) = (self.links[link].a.0, self.links[link].b.0);
        let (from, to) = if to_b { (a, b) } else { (b, a) };
        if self.cut.contains(&(from, to)) || self.cut.contains(&(to, from)) {
            return self.links[link].held.push((to_b, payload));
        }
        let arrival = (self.now + self.latency()).max(self.links[link].last[usize::from(to_b)]);
        self.links[link].last[usize::from(to_b)] = arrival;
        let delay = arrival - self.now;
        self.at(delay, Step::Deliver { conn: link, to_b, payload });
    }

    fn close(&mut self, host: usize, conn: Peer) {
        let inc = self.hosts[host].inc;
        let Some(link) = self.index.remove(&(host, inc, conn)) else { return };
        if std::mem::replace(&mut self.links[link].is_open, false) {
            let to_b = self.links[link].a.0 == host && self.links[link].a.2 == conn;
            self.transmit(link, to_b, Payload::Closed { refused: false });
        }
    }

    fn deliver(&mut self, link: usize, to_b: bool, payload: Payload) {
        let (host, inc, conn) = if to_b { self.links[link].b } else { self.links[link].a };
        let h = &self.hosts[host];
        if !h.is_powered
            || self.cut.contains(&(self.links[link].a.0, self.links[link].b.0))
                && !matches!(payload, Payload::Closed { .. })
        {
            if h.is_powered {
                self.links[link].held.push((to_b, payload));
            }
            return;
        }
        if !h.is_running || h.inc != inc {
            // The process is gone: its host resets the connection.
            if std::mem::replace(&mut self.links[link].is_open, false) {
                self.transmit(link, !to_b, Payload::Closed { refused: false });
            }
            return;
        }
        if h.is_paused {
            self.hosts[host].backlog.push(Step::Deliver { conn: link, to_b, payload });
            return;
        }
        if !self.index.contains_key(&(host, inc, conn)) {
            return;
        }
        let now = self.local(host);
        let service = &mut self.hosts[host].service;
        match payload {
            Payload::Open => {
                if let Peer::Link(link) = conn {
                    service.handle_open(link, now);
                }
            }
            Payload::Closed { refused } => {
                self.index.remove(&(host, inc, conn));
                self.links[link].is_open = false;
                service.handle_close(conn, if refused { LinkEnd::Refused } else { LinkEnd::Closed }, now);
            }
            Payload::Message(message) => {
                if std::env::var("TRACE").is_ok() {
                    println!(
                        "{:.4} h{host} {conn:?} {}",
                        self.now.as_secs_f64(),
                        String::from_utf8_lossy(&message)
                    );
                }
                if let Err(error) = service.handle_message(conn, &message, now) {
                    self.errors.push(format!("h{host}: {error}: {}", String::from_utf8_lossy(&message)));
                }
            }
        }
        self.drain(host);
    }

    // ---- steps ----

    fn run_until(&mut self, until: Duration) {
        while let Some(Reverse((time, seq))) = self.heap.peek().copied() {
            if time > until {
                break;
            }
            self.heap.pop();
            self.now = time;
            let step = self.steps.remove(&seq).unwrap();
            self.step(step);
            if !self.errors.is_empty() {
                return;
            }
        }
        self.now = until;
    }

    fn step(&mut self, step: Step) {
        if let Step::Timer { host, inc }
        | Step::Start { host, inc, .. }
        | Step::Stopped { host, inc, .. }
        | Step::Rejoin { host, inc } = step
        {
            if !self.hosts[host].is_running || self.hosts[host].inc != inc {
                return;
            }
            if self.hosts[host].is_paused {
                return self.hosts[host].backlog.push(step);
            }
        }
        match step {
            Step::Deliver { conn, to_b, payload } => self.deliver(conn, to_b, payload),
            Step::Timer { host, .. } => {
                let now = self.local(host);
                self.hosts[host].timer = Duration::MAX;
                // As in the hub.
                if self.hosts[host].service.next_timeout(now).is_some_and(|time| time <= now) {
                    self.hosts[host].service.handle_timeout(now);
                }
                self.drain(host);
            }
            Step::Start { host, inc, round } => {
                let local = self.local(host);
                // The helper checks the deadline between fork and exec.
                if self.hosts[host].deadline.is_none_or(|deadline| deadline <= local)
                    || self.hosts[host].stopping
                {
                    return self.at(Duration::ZERO, Step::Rejoin { host, inc });
                }
                let mut is_current = false;
                self.hosts[host].service.with_client("job", local, |client| {
                    let activity = client.activity();
                    is_current = activity.last_round == Some(round) && activity.phase == Phase::Working;
                });
                if !is_current {
                    return;
                }
                for (other, h) in self.hosts.iter().enumerate() {
                    if let Some(running) = h.workers.filter(|running| *running != round) {
                        self.errors.push(format!(
                            "{:.3}: h{host} starts round {round} while h{other} runs round {running}",
                            self.now.as_secs_f64()
                        ));
                    }
                }
                self.hosts[host].workers = Some(round);
                self.starts += 1;
            }
            Step::Stopped { host, round, .. } => {
                if self.hosts[host].workers == Some(round) || self.hosts[host].stopping {
                    self.hosts[host].workers = None;
                    self.hosts[host].stopping = false;
                    let now = self.local(host);
                    self.hosts[host].service.with_client("job", now, |p| p.stay_outside("stopped", now));
                    self.drain(host);
                    let inc = self.hosts[host].inc;
                    let delay = self.random.ms(0, 100);
                    self.at(delay, Step::Rejoin { host, inc });
                }
            }
            Step::Rejoin { host, .. } => {
                if self.hosts[host].workers.is_none() && self.hosts[host].done.is_none() {
                    let now = self.local(host);
                    self.hosts[host].service.with_client("job", now, |p| p.join(now));
                    self.drain(host);
                }
            }
            Step::Fence { host, inc, deadline } => {
                let h = &mut self.hosts[host];
                // The guard is another process, so it works while the agent is paused. Killing takes up to 50 ms, for which
                // the margin of the deadline allows.
                if h.inc == inc && h.is_powered && h.deadline == Some(deadline) && h.workers.is_some() {
                    let round = h.workers.take().unwrap();
                    h.stopping = false;
                    self.note(format!("h{host} is fenced in round {round}"));
                    let (delay, inc) = (self.random.ms(0, 50), inc);
                    self.hosts[host].stopping = true;
                    self.at(delay, Step::Stopped { host, inc, round });
                }
            }
            Step::Fault(fault) => self.inject(fault),
        }
    }

    fn inject(&mut self, fault: Fault) {
        if !matches!(fault, Fault::Restart(_)) {
            self.note(format!("fault: {fault:?}"));
        }
        match fault {
            Fault::Kill(host) => {
                let h = &mut self.hosts[host];
                if !h.is_running {
                    return;
                }
                (h.is_running, h.workers) = (false, None);
                let inc = h.inc;
                let open: Vec<(usize, bool)> = (0..self.links.len())
                    .filter(|link| self.links[*link].is_open)
                    .filter_map(|link| {
                        let Link { a, b, .. } = &self.links[link];
                        match (*a, *b) {
                            ((h, i, _), _) if (h, i) == (host, inc) => Some((link, true)),
                            (_, (h, i, _)) if (h, i) == (host, inc) => Some((link, false)),
                            _ => None,
                        }
                    })
                    .collect();
                for (link, to_b) in open {
                    self.links[link].is_open = false;
                    self.transmit(link, to_b, Payload::Closed { refused: false });
                }
            }
            Fault::PowerOff(host) => {
                let h = &mut self.hosts[host];
                (h.is_running, h.is_powered, h.workers) = (false, false, None);
            }
            Fault::Restart(host) => {
                if !self.hosts[host].is_running {
                    self.hosts[host].is_powered = true;
                    self.launch(host);
                }
            }
            Fault::Cut(side, one_way) => {
                for a in 0..self.hosts.len() {
                    for b in 0..self.hosts.len() {
                        let crosses = side.contains(&a) && !side.contains(&b);
                        if crosses {
                            self.cut.insert((a, b));
                            if !one_way {
                                self.cut.insert((b, a));
                            }
                        }
                    }
                }
            }
            Fault::Heal => {
                self.cut.clear();
                for link in 0..self.links.len() {
                    let held = std::mem::take(&mut self.links[link].held);
                    let delay = self.random.ms(0, 500);
                    let base = (self.now + delay).max(self.links[link].last[0]).max(self.links[link].last[1]);
                    for (to_b, payload) in held {
                        self.links[link].last[usize::from(to_b)] = base;
                        let delay = base - self.now;
                        self.at(delay, Step::Deliver { conn: link, to_b, payload });
                    }
                }
            }
            Fault::Pause(host, time) => {
                self.hosts[host].is_paused = true;
                self.at(time, Step::Fault(Fault::Resume(host)));
            }
            Fault::Resume(host) => {
                self.hosts[host].is_paused = false;
                for step in std::mem::take(&mut self.hosts[host].backlog) {
                    let delay = Duration::from_micros(10);
                    self.at(delay, step);
                }
            }
            Fault::Reset => {
                let open: Vec<usize> =
                    (0..self.links.len()).filter(|link| self.links[*link].is_open).collect();
                if open.is_empty() {
                    return;
                }
                let link = open[self.random.below(open.len() as u64) as usize];
                self.links[link].is_open = false;
                self.transmit(link, true, Payload::Closed { refused: false });
                self.transmit(link, false, Payload::Closed { refused: false });
            }
            Fault::FailWorker(host) => {
                if self.hosts[host].workers.is_some()
                    && !self.hosts[host].stopping
                    && !self.hosts[host].is_paused
                {
                    let now = self.local(host);
                    self.hosts[host].service.with_client("job", now, |p| p.worker_failed(0, "exit code 1"));
                    self.drain(host);
                    self.stop(host);
                }
            }
        }
    }

    fn running(&self) -> BTreeMap<u64, Vec<usize>> {
        let mut rounds: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (host, h) in self.hosts.iter().enumerate() {
            if let Some(round) = h.workers.filter(|_| !h.stopping) {
                rounds.entry(round).or_default().push(host);
            }
        }
        rounds
    }

    /// Returns whether a majority of the voters of some group is alive.
    /// Returns whether a majority of the voters is left, by the latest configuration that a replica has applied.
    fn has_quorum(&self) -> bool {
        let ids: BTreeSet<NodeId> =
            self.hosts.iter().filter_map(|host| Some(host.service.client("job")?.node().id)).collect();
        let replicas = self.hosts.iter().filter_map(|host| host.service.coordinator("job"));
        let latest =
            replicas.map(|coordinator| coordinator.replica()).max_by_key(|replica| replica.applied());
        latest.is_some_and(|replica| {
            let has_majority = |voters: BTreeSet<NodeId>| {
                2 * voters.intersection(&ids).count() > voters.len() || voters.is_empty()
            };
            has_majority(replica.voters()) && has_majority(replica.outgoing_voters())
        })
    }

    fn expect_all_running(&mut self, what: &str) {
        let rounds = self.running();
        let alive = self.hosts.iter().filter(|h| h.is_running).count().min(self.settings.max_nodes as usize);
        if rounds.len() != 1 || rounds.values().next().unwrap().len() != alive {
            self.errors.push(format!("{what}: {alive} hosts are alive, but these rounds run: {rounds:?}"));
        }
    }
}

fn terms(min: u32, max: u32) -> JobSettings {
    JobSettings {
        last_call_timeout: Duration::from_secs(1),
        scale_up: ScaleUp::After(Duration::from_secs(1)),
        exclude_after: 0,
        ..JobSettings::new(min, max)
    }
}

fn new_service(host: usize, seed: u64) -> Service {
    let options = ServiceOptions {
        host: format!("h{host}"),
        address: address(host),
        is_founder: host == 0,
        is_server: false,
        seed,
    };
    Service::new(options)
}

fn report(world: &World, seed: u64) {
    if !world.errors.is_empty() {
        for line in world.log.iter().rev().take(120).collect::<Vec<_>>().into_iter().rev() {
            println!("{line}");
        }
        for (host, h) in world.hosts.iter().enumerate() {
            let c = h.service.coordinator("job").map(|c| {
                let r = c.replica();
                format!(
                    "{:?} term {} leads {} follows {:?} voters {:?} learners {:?} replicas {:?} ROUND {:?}",
                    c.group(),
                    r.term(),
                    c.is_leader(),
                    r.leader(),
                    r.voters(),
                    r.learners(),
                    c.job().replicas,
                    c.job().round
                )
            });
            println!(
                "h{host} {:?} client {:?} group {:?} leader {:?}: {c:?}",
                h.service.client("job").map(|c| c.node().id),
                h.service.client("job").map(|c| c.activity().clone()),
                h.service.client("job").map(|c| c.group()),
                h.service.client("job").map(|c| c.leader().map(str::to_owned))
            );
        }
        panic!("seed {seed}: {:?}", world.errors);
    }
}

#[test]
fn a_job_forms_and_re_forms() {
    let mut world = World::new(1, 3, terms(2, 3));
    world.run_until(Duration::from_secs(10));
    world.expect_all_running("start");
    report(&world, 1);
    let before = world.now;
    world.step(Step::Fault(Fault::Kill(2)));
    world.run_until(before + Duration::from_secs(5));
    world.expect_all_running("after the kill");
    report(&world, 1);
    world.step(Step::Fault(Fault::Kill(0)));
    world.step(Step::Fault(Fault::Restart(2)));
    world.run_until(before + Duration::from_secs(20));
    world.note("end".into());
    for line in &world.log {
        println!("{line}");
    }
}

fn scenario(seed: u64) -> World {
    let mut random = Random(seed ^ 0xabcdef);
    let hosts = 1 + random.below(6) as usize;
    let min = 1 + random.below(hosts as u64) as u32;
    let mut world = World::new(seed, hosts, terms(min, hosts as u32));
    world.run_until(Duration::from_secs(8));
    world.expect_all_running("start");
    if !world.errors.is_empty() {
        return world;
    }
    for _ in 0..random.below(6) {
        let host = random.below(hosts as u64) as usize;
        let fault = match random.below(8) {
            0 => Fault::Kill(host),
            1 => Fault::PowerOff(host),
            2 => Fault::Restart(host),
            3 | 4 => {
                let side = (0..hosts).filter(|_| random.below(2) == 0).collect();
                Fault::Cut(side, random.below(2) == 0)
            }
            5 => Fault::Pause(host, random.ms(100, 20_000)),
            6 => Fault::Reset,
            _ => Fault::FailWorker(host),
        };
        let delay = random.ms(0, 9000);
        let until = world.now + delay;
        world.step(Step::Fault(fault));
        world.run_until(until);
        if random.below(3) == 0 {
            world.step(Step::Fault(Fault::Heal));
        }
        if !world.errors.is_empty() {
            return world;
        }
    }
    world.step(Step::Fault(Fault::Heal));
    for host in 0..hosts {
        if world.hosts[host].is_paused {
            world.step(Step::Fault(Fault::Resume(host)));
        }
        world.step(Step::Fault(Fault::Restart(host)));
    }
    let until = world.now + Duration::from_secs(30);
    world.run_until(until);
    if world.errors.is_empty() && world.has_quorum() {
        world.expect_all_running("after healing");
    }
    world
}

#[test]
fn random_faults_never_give_two_worlds() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let first: u64 = std::env::var("FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut starts = 0;
    for seed in first..first + seeds {
        let world = scenario(seed);
        report(&world, seed);
        starts += world.starts;
    }
    println!("{seeds} seeds, {starts} starts of workers");
}
