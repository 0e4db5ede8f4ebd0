//! Puts the load of many agents on a coordinator, and measures how long its decisions take.
//!
//! `many_agents HOST:PORT AGENTS LOST SECONDS PID` runs AGENTS agents in this process. Each has its own connection to
//! `rallypoint serve` at HOST:PORT, whose process id is PID, and the client that the launcher has. The agents run no
//! workers. The program does these steps, and prints one line of JSON:
//!
//! 1. All agents join. The step ends when each of them knows its rank.
//! 2. The agents renew their leases for SECONDS.
//! 3. The connections of LOST agents are closed. The step ends when the coordinator serves these agents again.
//! 4. LOST agents end. The step ends when each of the other agents knows its rank in the next round.
//!
//! The separate server is the only voter, so all decisions are its own.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use rallypoint_coordinator::JobSettings;
use rallypoint_coordinator::client::{Client, Event, Link, Output};
use rallypoint_coordinator::message::{
    Hello, Open, PROTOCOL_VERSION, Purpose, Reply, Request as NodeRequest,
};
use rallypoint_coordinator::node::{Node, NodeId};
use rallypoint_core::hub::{SERVICE_CAPABILITY, has_service};
use rallypoint_core::store::SERVER_KEY;
use rallypoint_core::wire::{MAGIC, Reply as StoreReply, Request, RequestDecoder};
use rallypoint_core::{Limits, Value};
use rallypoint_rendezvous::free_port;
use rallypoint_store::{Endpoint, boot_time, raise_file_limit};
use rustix::io::Errno;
use slab::Slab;
use socket2::{Domain, Socket, Type};

/// The run id of the job.
const RUN_ID: &str = "many-agents";
/// How long each step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two checks of all agents for work that is due.
const TIMER_INTERVAL: Duration = Duration::from_millis(20);
/// The number of joins after which the program handles the events of its sockets, so that all connections make progress.
const JOIN_BATCH: usize = 64;
const LISTENER: Token = Token(usize::MAX);

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let usage = "usage: many_agents HOST:PORT AGENTS LOST SECONDS PID";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, agents, lost, seconds, pid] = &arguments[..] else { return Err(usage.into()) };
    let (agents, lost): (usize, usize) = (agents.parse()?, lost.parse()?);
    let seconds = Duration::try_from_secs_f64(seconds.parse()?)?;
    if 2 * lost >= agents {
        return Err("LOST must be less than half of AGENTS".into());
    }
    raise_file_limit();
    let mut load = Load::new(endpoint, agents, lost)?;
    let server = Server { pid: pid.clone() };

    let start = boot_time();
    load.join_all()?;
    load.run("join", |load| load.started == agents)?;
    let joined = boot_time() - start;
    load.check_ranks(agents)?;
    let bytes = (load.sent, load.received);

    let (start, cpu) = (boot_time(), server.cpu_time()?);
    load.run_for(seconds)?;
    let steady = (server.cpu_time()? - cpu).as_secs_f64() / (boot_time() - start).as_secs_f64().max(1e-9);

    let start = boot_time();
    let served = load.served;
    (0..lost).for_each(|index| load.reset(index, start));
    load.run("resume", |load| load.served >= served + lost)?;
    let resumed = boot_time() - start;
    // A node that was declared lost would end the round.
    load.run_for(Duration::from_secs(1))?;
    if load.ended > 0 {
        return Err(format!("{} agents were told that their round has ended", load.ended).into());
    }

    let start = boot_time();
    let started = load.started;
    (agents - lost..agents).for_each(|index| load.end(index));
    load.run("re-form", |load| load.started >= started + agents - lost)?;
    let re_formed = boot_time() - start;
    load.check_ranks(agents - lost)?;

    println!(
        "{{\"agents\": {agents}, \"lost\": {lost}, \"joined\": {:.4}, \"sent\": {}, \"received\": {}, \
         \"cpu\": {steady:.4}, \"resumed\": {:.4}, \"re_formed\": {:.4}, \"peak_mib\": {:.1}}}",
        joined.as_secs_f64(),
        bytes.0,
        bytes.1,
        resumed.as_secs_f64(),
        re_formed.as_secs_f64(),
        server.peak_mib()?,
    );
    Ok(())
}

/// The process of the server.
struct Server {
    pid: String,
}

impl Server {
    /// Returns the processor time that the server has used.
    fn cpu_time(&self) -> Result<Duration, Error> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Returns the largest amount of memory that the server has used, in MiB.
    fn peak_mib(&self) -> Result<f64, Error> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }
}

/// An agent, with its connections by the links of its client.
struct Agent {
    client: Client,
    connections: Vec<(Link, usize)>,
    rank: Option<u32>,
    has_ended: bool,
}

/// A connection.
struct Connection {
    stream: TcpStream,
    side: Side,
    output: Vec<u8>,
}

/// What a connection is for.
enum Side {
    /// A connection that an agent opened.
    Agent { index: usize, link: Link, stage: Stage, input: Vec<u8> },
    /// A connection that the coordinator opened to find out which agent runs at an address.
    Probe { index: usize, decoder: RequestDecoder },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    /// The server has not identified itself yet.
    Connected,
    Identified,
}

/// All agents and their connections.
struct Load {
    poll: Poll,
    listener: TcpListener,
    connections: Slab<Connection>,
    agents: Vec<Agent>,
    buffer: Vec<u8>,
    next_check: Duration,
    /// The numbers of events of all agents.
    started: usize,
    served: usize,
    ended: usize,
    /// The numbers of bytes on the connections that agents opened.
    sent: u64,
    received: u64,
    failure: Option<String>,
}

impl Load {
    fn new(endpoint: &str, agents: usize, lost: usize) -> Result<Load, Error> {
        let endpoint: Endpoint = endpoint.parse()?;
        let [server, ..] = endpoint.resolve_within(Duration::from_secs(5))?[..] else {
            return Err("the endpoint has no address".into());
        };
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let open_port = listener.local_addr()?.port();
        // The agents that end have an address that refuses connections, as that of a killed process.
        let closed_port = free_port()?;
        let mut settings = JobSettings::new((agents - lost) as u32, agents as u32);
        settings.max_voters = 1;
        let agent = |index: usize| {
            // All addresses in 127.0.0.0/8 are addresses of this machine, so each agent has one.
            let port = if index < agents - lost { open_port } else { closed_port };
            let node = Node {
                // A multiple of an odd number is different for each agent, and as long as a random number.
                id: NodeId((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                host: format!("gpu-node-{index:05}"),
                pid: 1_000_000 + index as i64,
                address: SocketAddr::from((address_of(index), port)).to_string(),
                workers: Some(8),
                command: Some(0x5bd1_e995_97f4_a7c1),
                pin: None,
                preferred_rank: None,
                topology: Vec::new(),
            };
            let client = Client::new(node, settings.clone(), vec![server.to_string()]);
            Agent { client, connections: Vec::new(), rank: None, has_ended: false }
        };
        Ok(Load {
            poll,
            listener,
            connections: Slab::new(),
            agents: (0..agents).map(agent).collect(),
            buffer: vec![0; 256 * 1024],
            next_check: boot_time(),
            started: 0,
            served: 0,
            ended: 0,
            sent: 0,
            received: 0,
            failure: None,
        })
    }

    // ---- steps ----

    /// Lets all agents join.
    fn join_all(&mut self) -> Result<(), Error> {
        for index in 0..self.agents.len() {
            let now = boot_time();
            self.agents[index].client.join(now);
            self.run_agent(index, now);
            if index % JOIN_BATCH == 0 {
                self.poll_once(Duration::ZERO)?;
            }
        }
        Ok(())
    }

    /// Runs until `is_done`.
    fn run(&mut self, step: &str, is_done: impl Fn(&Load) -> bool) -> Result<(), Error> {
        let deadline = boot_time() + STEP_TIMEOUT;
        while !is_done(self) {
            if boot_time() > deadline {
                let Load { started, served, ended, .. } = self;
                return Err(format!(
                    "step {step:?} did not end within {} s: {started} starts, {ended} ends and {served} connections \
                     so far",
                    STEP_TIMEOUT.as_secs()
                )
                .into());
            }
            self.poll_once(TIMER_INTERVAL)?;
        }
        Ok(())
    }

    /// Runs for this time.
    fn run_for(&mut self, time: Duration) -> Result<(), Error> {
        let end = boot_time() + time;
        while boot_time() < end {
            self.poll_once(TIMER_INTERVAL)?;
        }
        Ok(())
    }

    /// Closes the connections of an agent, which goes on.
    fn reset(&mut self, index: usize, now: Duration) {
        for (link, connection) in std::mem::take(&mut self.agents[index].connections) {
            self.connections.try_remove(connection);
            self.agents[index].client.handle_close(link, now);
        }
        self.run_agent(index, now);
    }

    /// Ends an agent, as if its process had been killed.
    fn end(&mut self, index: usize) {
        self.agents[index].has_ended = true;
        for (_, connection) in std::mem::take(&mut self.agents[index].connections) {
            self.connections.try_remove(connection);
        }
    }

    /// Fails unless the agents that have not ended have all ranks from 0 on.
    fn check_ranks(&self, expected: usize) -> Result<(), Error> {
        let agents = self.agents.iter().filter(|agent| !agent.has_ended);
        let ranks: BTreeSet<u32> = agents.filter_map(|agent| agent.rank).collect();
        match ranks.iter().copied().eq(0..expected as u32) {
            true => Ok(()),
            false => Err(format!("{expected} agents have {} different ranks", ranks.len()).into()),
        }
    }

    // ---- agents ----

    /// Carries out what the client of an agent wants.
    fn run_agent(&mut self, index: usize, now: Duration) {
        while let Some(output) = self.agents[index].client.poll_output() {
            match output {
                Output::Connect(link, address) => {
                    if self.connect(index, link, &address).is_err() {
                        self.agents[index].client.handle_close(link, now);
                    }
                }
                Output::Send(link, request) => self.send_request(index, link, &request),
                Output::Close(link) => {
                    if let Some(connection) = self.agents[index].take_connection(link) {
                        self.connections.try_remove(connection);
                    }
                }
                Output::Event(event) => self.handle_event(index, event, now),
            }
        }
    }

    fn handle_event(&mut self, index: usize, event: Event, now: Duration) {
        let agent = &mut self.agents[index];
        match event {
            Event::Served { .. } => self.served += 1,
            Event::Started(assignment) => {
                self.started += 1;
                agent.rank = Some(assignment.rank);
            }
            Event::Ended { .. } => {
                self.ended += 1;
                agent.rank = None;
                agent.client.join(now);
            }
            Event::LeaseOver { .. } | Event::Closed(_) | Event::Refused(_) => {
                self.failure.get_or_insert_with(|| format!("agent {index}: {event:?}"));
            }
            Event::Waiting(_)
            | Event::NotServed { .. }
            | Event::Lease { .. }
            | Event::Drained
            | Event::Idle
            | Event::Left
            | Event::Warning(_) => {}
        }
    }

    fn connect(&mut self, index: usize, link: Link, address: &str) -> Result<(), Error> {
        // Each agent connects from its own address, as in a real job.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((address_of(index), 0)).into())?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.parse::<SocketAddr>()?.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                return Err(error.into());
            }
            _ => {}
        }
        let stream = TcpStream::from_std(socket.into());
        let side = Side::Agent { index, link, stage: Stage::Connecting, input: Vec::new() };
        let connection = self.insert(stream, side)?;
        self.agents[index].connections.push((link, connection));
        Ok(())
    }

    fn insert(&mut self, mut stream: TcpStream, side: Side) -> io::Result<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        self.poll.registry().register(&mut stream, Token(key), Interest::READABLE | Interest::WRITABLE)?;
        entry.insert(Connection { stream, side, output: Vec::new() });
        Ok(key)
    }

    fn send_open(&mut self, index: usize, link: Link, hello: Hello) {
        let host = hello.node.host.clone();
        let (run_id, purpose) = (RUN_ID.to_owned(), Purpose::Node(Box::new(hello)));
        let open = Open { version: PROTOCOL_VERSION, host, run_id, purpose };
        self.send(index, link, &serde_json::to_vec(&open).expect("a message can be encoded"));
    }

    fn send_request(&mut self, index: usize, link: Link, request: &NodeRequest) {
        self.send(index, link, &serde_json::to_vec(request).expect("a message can be encoded"));
    }

    fn send(&mut self, index: usize, link: Link, message: &[u8]) {
        let Some(key) = self.agents[index].connection(link) else { return };
        let Some(connection) = self.connections.get_mut(key) else { return };
        let before = connection.output.len();
        Request::Message { message: message.into() }.encode(&mut connection.output);
        self.sent += (connection.output.len() - before) as u64;
        // A failure is reported by the next read.
        let _ = connection.flush();
    }

    // ---- sockets ----

    fn poll_once(&mut self, timeout: Duration) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        match self.poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for event in &events {
            match event.token() {
                LISTENER => self.accept()?,
                Token(key) => self.handle_socket(key),
            }
        }
        let now = boot_time();
        if now >= self.next_check {
            self.next_check = now + TIMER_INTERVAL;
            for index in 0..self.agents.len() {
                let agent = &mut self.agents[index];
                if !agent.has_ended && agent.client.next_timeout().is_some_and(|time| time <= now) {
                    agent.client.handle_timeout(now);
                    self.run_agent(index, now);
                }
            }
        }
        match self.failure.take() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    fn accept(&mut self) -> Result<(), Error> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let index = match stream.local_addr()? {
                        SocketAddr::V4(address) => index_of(*address.ip()),
                        SocketAddr::V6(_) => return Err("an IPv4 socket has an IPv6 address".into()),
                    };
                    self.insert(stream, Side::Probe { index, decoder: RequestDecoder::default() })?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Handles an event of a socket.
    fn handle_socket(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Side::Agent { stage: stage @ Stage::Connecting, .. } = &mut connection.side {
            match connection.stream.take_error().and_then(|error| error.map_or(Ok(()), Err)) {
                Ok(()) if connection.stream.peer_addr().is_err() => return,
                Ok(()) => {
                    *stage = Stage::Connected;
                    Request::Validate { magic: MAGIC }.encode(&mut connection.output);
                    Request::Get { key: SERVER_KEY }.encode(&mut connection.output);
                    self.sent += connection.output.len() as u64;
                }
                Err(_) => return self.close(key),
            }
        }
        if connection.flush().is_err() {
            return self.close(key);
        }
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return };
            match connection.stream.read(&mut self.buffer) {
                Ok(0) => return self.close(key),
                Ok(len) => {
                    if self.handle_bytes(key, len).is_err() {
                        return self.close(key);
                    }
                    if len < self.buffer.len() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.close(key),
            }
        }
    }

    /// Handles the first `len` bytes of the buffer.
    fn handle_bytes(&mut self, key: usize, len: usize) -> Result<(), Error> {
        let Connection { side, output, .. } = &mut self.connections[key];
        let mut bytes = &self.buffer[..len];
        match side {
            Side::Probe { index, decoder } => {
                let limits = Limits::default();
                while let Some(decoded) = decoder.next(&mut bytes, &limits)? {
                    let reply = match decoded.request() {
                        Request::Validate { .. } => continue,
                        Request::Get { key: SERVER_KEY } => format!("capabilities={SERVICE_CAPABILITY}"),
                        _ => {
                            let agent = self.agents.get(*index).filter(|agent| !agent.has_ended);
                            let id = agent.map(|agent| agent.client.node().id);
                            serde_json::to_string(&Reply::Identity(id))?
                        }
                    };
                    StoreReply::Value(Value::copied(reply.as_bytes())).encode(output);
                }
                Ok(self.connections[key].flush()?)
            }
            Side::Agent { index, link, stage, input } => {
                self.received += len as u64;
                input.extend_from_slice(bytes);
                let (index, link) = (*index, *link);
                let (values, rest) = split_values(input);
                let replies: Vec<Option<Reply>> = values
                    .into_iter()
                    .map(|value| match std::mem::replace(stage, Stage::Identified) {
                        Stage::Identified => serde_json::from_slice(value).map(Some).map_err(Error::from),
                        _ if has_service(value) => Ok(None),
                        _ => Err("the server has no coordinator".into()),
                    })
                    .collect::<Result<_, Error>>()?;
                input.drain(..rest);
                let now = boot_time();
                for reply in replies {
                    let client = &mut self.agents[index].client;
                    match reply {
                        None => {
                            if let Some(hello) = client.handle_open(link, now) {
                                self.send_open(index, link, hello);
                            }
                        }
                        Some(reply) => client.handle_reply(link, reply, now),
                    }
                    self.run_agent(index, now);
                }
                Ok(())
            }
        }
    }

    /// Closes a connection that has failed.
    fn close(&mut self, key: usize) {
        let Some(connection) = self.connections.try_remove(key) else { return };
        if let Side::Agent { index, link, .. } = connection.side {
            let now = boot_time();
            self.agents[index].take_connection(link);
            self.agents[index].client.handle_close(link, now);
            self.run_agent(index, now);
        }
    }
}

impl Agent {
    fn connection(&self, link: Link) -> Option<usize> {
        self.connections.iter().find(|(other, _)| *other == link).map(|(_, key)| *key)
    }

    fn take_connection(&mut self, link: Link) -> Option<usize> {
        let position = self.connections.iter().position(|(other, _)| *other == link)?;
        Some(self.connections.swap_remove(position).1)
    }
}

impl Connection {
    /// Sends as much of the output as the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(sent) => _ = self.output.drain(..sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the complete values at the start of `input`, and their length.
fn split_values(input: &[u8]) -> (Vec<&[u8]>, usize) {
    let (mut values, mut at) = (Vec::new(), 0);
    while let Some((len, rest)) = input[at..].split_first_chunk::<8>()
        && let Some(value) = rest.get(..u64::from_le_bytes(*len) as usize)
    {
        values.push(value);
        at += 8 + value.len();
    }
    (values, at)
}

/// The address of the first agent.
const FIRST_ADDRESS: u32 = 0x7f01_0000;

fn address_of(index: usize) -> Ipv4Addr {
    Ipv4Addr::from(FIRST_ADDRESS + index as u32)
}

fn index_of(address: Ipv4Addr) -> usize {
    u32::from(address).wrapping_sub(FIRST_ADDRESS) as usize
}
