//! Accepts connections, and refuses them when the process has no file descriptor left.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use rustix::io::Errno;

/// The maximum number of connections that a listener accepts before the open connections are served.
const ACCEPT_BATCH: usize = 128;
/// How long to wait before accepting again after file descriptors or memory ran out.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The listeners of a server.
pub(super) struct Acceptor {
    listeners: Vec<Listener>,
    /// The listener whose connections are accepted next, and how many it has accepted in this pass.
    next: (usize, usize),
    /// An open file that is closed when the process runs out of file descriptors. With the released descriptor, a
    /// connection can be accepted and refused.
    spare_file: Option<File>,
    /// The time at which accepting failed, for example because memory ran out. No connection is accepted for
    /// [`ACCEPT_RETRY_INTERVAL`] after that time. `None` means that accepting is not blocked.
    blocked_at: Option<Duration>,
    out_of_files: bool,
}

struct Listener {
    socket: TcpListener,
    /// Whether connections may be pending. The poll is edge-triggered, so it reports no further event for them.
    is_ready: bool,
}

/// A connection that was accepted.
pub(super) enum Accepted {
    Open(TcpStream, SocketAddr),
    /// The connection was closed because the process has no file descriptor left.
    Refused(SocketAddr, io::Error),
}

impl Acceptor {
    /// Registers the listeners. The events of the first one have this token, and those of the others the next tokens.
    pub(super) fn new(
        registry: &Registry,
        listeners: Vec<TcpListener>,
        Token(first): Token,
    ) -> io::Result<Acceptor> {
        let mut registered = Vec::new();
        for (index, mut socket) in listeners.into_iter().enumerate() {
            registry.register(&mut socket, Token(first + index), Interest::READABLE)?;
            registered.push(Listener { socket, is_ready: false });
        }
        let spare_file = File::open("/dev/null").ok();
        Ok(Acceptor {
            listeners: registered,
            next: (0, 0),
            spare_file,
            blocked_at: None,
            out_of_files: false,
        })
    }

    /// Records that connections may be pending. Returns `false` if there is no listener with this index.
    pub(super) fn set_ready(&mut self, index: usize) -> bool {
        let listener = self.listeners.get_mut(index);
        listener.map(|listener| listener.is_ready = true).is_some()
    }

    /// Returns how long the next poll may block.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match self.blocked_at {
            Some(_) => Some(ACCEPT_RETRY_INTERVAL),
            None => self.listeners.iter().any(|listener| listener.is_ready).then_some(Duration::ZERO),
        }
    }

    /// Returns whether the process has no file descriptor left.
    pub(super) fn is_out_of_files(&self) -> bool {
        self.out_of_files
    }

    /// Records that a connection was closed, which has released a file descriptor and memory.
    pub(super) fn handle_close(&mut self) {
        (self.out_of_files, self.blocked_at) = (false, None);
    }

    /// Starts a pass, in which each listener accepts up to [`ACCEPT_BATCH`] connections.
    pub(super) fn start_pass(&mut self, now: Duration) {
        let is_blocked = |since: &Duration| now.saturating_sub(*since) < ACCEPT_RETRY_INTERVAL;
        self.blocked_at = self.blocked_at.filter(is_blocked);
        if self.spare_file.is_none() {
            self.spare_file = File::open("/dev/null").ok();
        }
        self.next = (0, 0);
    }

    /// Returns the next connection of this pass.
    pub(super) fn accept(&mut self, now: Duration) -> Option<Accepted> {
        while self.blocked_at.is_none() {
            let (index, count) = self.next;
            if count == ACCEPT_BATCH || !self.listeners.get(index)?.is_ready {
                self.next = (index + 1, 0);
                continue;
            }
            self.next.1 += 1;
            let accepted = self.accept_from(index, now);
            if accepted.is_some() {
                return accepted;
            }
        }
        None
    }

    fn accept_from(&mut self, index: usize, now: Duration) -> Option<Accepted> {
        let listener = &mut self.listeners[index];
        match listener.socket.accept() {
            Ok((socket, peer)) => {
                self.out_of_files = false;
                return Some(Accepted::Open(socket, peer));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => listener.is_ready = false,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::MFILE | Errno::NFILE) => {
                    self.out_of_files = true;
                    // With the descriptor of the spare file, one connection can be accepted and refused. `accept`
                    // returns this error even if no connection is pending.
                    self.spare_file = None;
                    let accepted = listener.socket.accept();
                    let refused = match accepted {
                        Ok((socket, peer)) => {
                            drop(socket);
                            Some(Accepted::Refused(peer, error))
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            listener.is_ready = false;
                            None
                        }
                        Err(_) => {
                            self.blocked_at = Some(now);
                            None
                        }
                    };
                    self.spare_file = File::open("/dev/null").ok();
                    return refused;
                }
                _ => self.blocked_at = Some(now),
            },
        }
        None
    }
}
