//! Letting connections in: as many as there are files for, none from addresses that misbehave.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Token};
use rallypoint_core::store::ClientId;

use super::{EventLoop, FIRST_CONNECTION};
use crate::server::connection::Connection;
use crate::server::stats::count;

/// Connections accepted before the others have their turn.
const ACCEPTS_A_TURN: usize = 128;

impl EventLoop {
    pub(super) fn accept(&mut self, listener: usize) {
        if self.queued_listeners[listener] {
            return;
        }
        let now = Instant::now();
        for _ in 0..ACCEPTS_A_TURN {
            match self.listeners[listener].accept() {
                Ok((stream, peer)) => {
                    self.counters.out_of_files.store(0, Ordering::Relaxed);
                    self.admit(stream, peer, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_out_of_files(&error) => {
                    self.counters.out_of_files.store(1, Ordering::Relaxed);
                    if !self.accept_to_close(listener, now, &error) {
                        self.starved = true;
                        return;
                    }
                }
                Err(error) if is_out_of_memory(&error) => {
                    self.starved = true;
                    return;
                }
                // The peer went away while it waited to be accepted, or the like: its matter.
                Err(_) => {}
            }
            self.settle_some();
        }
        self.queued_listeners[listener] = true;
        self.ready.push_back(listener);
    }

    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, now: Instant) {
        count(&self.counters.accepted);
        if self.connections.len() >= self.most_connections {
            count(&self.counters.refused);
            return self.log(
                now,
                peer,
                &format_args!("refused, {} connections are open", self.connections.len()),
            );
        }
        if self.offences.is_refused(peer.ip(), now) {
            return count(&self.counters.refused);
        }
        self.generation = self.generation.wrapping_add(1);
        let slot = self.connections.vacant_entry();
        let index = slot.key();
        let client = ClientId::new(index as u32, self.generation);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(FIRST_CONNECTION + index), interest).is_err() {
            return count(&self.counters.refused);
        }
        slot.insert(Connection::new(stream, peer, client, self.recycler.clone(), now)).unread = true;
        self.unvalidated.push_back(client);
        self.counters.connections.store(self.connections.len() as u64, Ordering::Relaxed);
        // The handshake is usually there already.
        self.turn(index);
    }

    /// A file or some memory may have become free, and no event will tell of those who wait.
    pub(super) fn accept_again(&mut self) {
        self.starved = false;
        if self.spare_file.is_none() {
            self.spare_file = File::open("/dev/null").ok();
        }
        for listener in 0..self.listeners.len() {
            if !std::mem::replace(&mut self.queued_listeners[listener], true) {
                self.ready.push_back(listener);
            }
        }
    }

    /// Without a file to spare nothing can be accepted, not even to refuse it: gives one up for the moment.
    fn accept_to_close(&mut self, listener: usize, now: Instant, error: &io::Error) -> bool {
        if self.spare_file.take().is_none() {
            return false;
        }
        let accepted = self.listeners[listener].accept();
        let peer = accepted.as_ref().ok().map(|(_, peer)| *peer);
        drop(accepted);
        self.spare_file = File::open("/dev/null").ok();
        let Some(peer) = peer else { return false };
        count(&self.counters.refused);
        self.log(now, peer, &format_args!("refused, no file left: {error}"));
        true
    }
}

fn is_out_of_files(error: &io::Error) -> bool {
    use rustix::io::Errno;
    error.raw_os_error() == Some(Errno::MFILE.raw_os_error())
        || error.raw_os_error() == Some(Errno::NFILE.raw_os_error())
}

fn is_out_of_memory(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOBUFS, Errno::NOMEM].iter().any(|short| error.raw_os_error() == Some(short.raw_os_error()))
}

/// Lets this process open as many files as it may; how many that is.
pub(super) fn raise_file_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    now.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}
