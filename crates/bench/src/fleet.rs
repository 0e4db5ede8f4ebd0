//! Many connections on one thread: tells a script what each has finished, and does what the script says next.
//!
//! It decides nothing about the load. A connection that breaks is counted, and the others go on.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use mio::{Events, Poll, Token};

use crate::connection::{Answer, Connection};
use crate::error::{BenchError, Trouble};
use crate::exchange::Exchange;
use crate::latencies::Latencies;
use crate::watch::{Done, Watch};

/// Room for replies; one that fills it is read in several goes.
const SCRATCH: usize = 256 * 1024;

/// What a load consists of.
pub(crate) trait Script {
    /// What this connection does next; `None`: it is done. `answer` is what it has just got, `None` at the start.
    fn next(&mut self, who: usize, answer: Option<&Answer>) -> Option<Rc<Exchange>>;

    /// How far it has come.
    fn done(&self) -> Done;
}

/// Connections to one server.
pub(crate) struct Fleet {
    poll: Poll,
    events: Events,
    connections: Vec<Option<Connection>>,
    scratch: Vec<u8>,
    lost: u64,
    first_trouble: Option<Trouble>,
}

impl Fleet {
    /// Opens so many connections, at most `at_once` of them on their way at a time, and notes how long each took from
    /// the first packet to the answered PING.
    pub(crate) fn open(
        address: SocketAddr,
        count: usize,
        at_once: usize,
        watch: &mut Watch,
        ready: &mut Latencies,
    ) -> Result<Fleet, BenchError> {
        let mut fleet = Fleet {
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            connections: Vec::with_capacity(count),
            scratch: vec![0; SCRATCH],
            lost: 0,
            first_trouble: None,
        };
        let handshake = Rc::new(Exchange::handshake());
        let mut opening = Opening { ready, total: count as u64 };
        let mut under_way = 0;
        while fleet.connections.len() < count || under_way > 0 {
            while fleet.connections.len() < count && under_way < at_once {
                let who = fleet.connections.len();
                let opened = Connection::open(address, fleet.poll.registry(), Token(who), &handshake);
                fleet.connections.push(None);
                match opened {
                    Err(source) => fleet.lose(who, Trouble::Failed { during: "connect", source }),
                    Ok(connection) => {
                        fleet.connections[who] = Some(connection);
                        under_way += 1;
                        // On one machine it is connected by now; elsewhere this finds out that it isn't.
                        under_way -= fleet.step(who, false, &mut opening);
                    }
                }
            }
            under_way -= fleet.wait_once(watch, &mut opening)?;
        }
        fleet.without_trouble(watch)?;
        Ok(fleet)
    }

    /// Runs a script on all connections until it has nothing more for any of them.
    pub(crate) fn run(&mut self, script: &mut impl Script, watch: &mut Watch) -> Result<(), BenchError> {
        let mut busy = 0;
        for who in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[who] else { continue };
            if let Some(exchange) = script.next(who, None) {
                connection.start(exchange, Instant::now());
                busy += 1;
                busy -= self.step(who, false, script);
            }
        }
        while busy > 0 {
            busy -= self.wait_once(watch, script)?;
        }
        self.without_trouble(watch)
    }

    /// Waits for sockets and serves them; how many connections were done with that.
    fn wait_once(&mut self, watch: &mut Watch, script: &mut impl Script) -> Result<usize, BenchError> {
        match self.poll.poll(&mut self.events, Some(watch.patience())) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        // Taken out so that the connections can be changed while walking through them.
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let mut finished = 0;
        for event in &events {
            let readable = event.is_readable() || event.is_read_closed() || event.is_error();
            finished += self.step(event.token().0, readable, script);
        }
        self.events = events;
        watch.look(|| script.done())?;
        Ok(finished)
    }

    /// Moves one connection on as far as it goes; 1 if it was busy and is no more.
    fn step(&mut self, who: usize, mut readable: bool, script: &mut impl Script) -> usize {
        let Some(connection) = &mut self.connections[who] else { return 0 };
        let was_busy = connection.is_busy();
        loop {
            let moved = match connection.send() {
                Ok(None) if readable => {
                    readable = false;
                    connection.receive(&mut self.scratch)
                }
                other => other,
            };
            match moved {
                Ok(None) => return 0,
                Ok(Some(answer)) => match script.next(who, Some(&answer)) {
                    Some(exchange) => connection.start(exchange, answer.at),
                    None => return 1,
                },
                Err(trouble) => {
                    self.lose(who, trouble);
                    return usize::from(was_busy);
                }
            }
        }
    }

    fn lose(&mut self, who: usize, trouble: Trouble) {
        self.connections[who] = None;
        self.lost += 1;
        self.first_trouble.get_or_insert(trouble);
    }

    /// Connections lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn without_trouble(&mut self, watch: &Watch) -> Result<(), BenchError> {
        match self.first_trouble.take() {
            None => Ok(()),
            Some(trouble) => Err(BenchError::Lost {
                during: watch.name().to_owned(),
                trouble,
                lost: self.lost,
                connections: self.connections.len(),
            }),
        }
    }
}

/// The script of connections that only come.
struct Opening<'a> {
    ready: &'a mut Latencies,
    total: u64,
}

impl Script for Opening<'_> {
    fn next(&mut self, _: usize, answer: Option<&Answer>) -> Option<Rc<Exchange>> {
        if let Some(answer) = answer {
            self.ready.note(answer.took, 1);
        }
        None
    }

    fn done(&self) -> Done {
        Done { done: self.ready.total(), total: self.total, unit: "connections" }
    }
}
