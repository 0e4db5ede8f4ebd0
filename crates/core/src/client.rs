//! A client of a TCP store server.
//!
//! The client decides which requests to send, which of them to repeat, when a call fails, and whether the server is
//! still the same one. It does no IO and reads no clock itself. An [`Io`] provides both.
//!
//! The functions are `async`, so the client does not depend on whether its `Io` blocks. Both existing implementations
//! block: the sockets of the crate `rallypoint-store`, and the simulated network of the tests, which has virtual time.
//! With a blocking `Io`, the first poll completes a call. [`ready`] polls a call once and returns its result.

mod call;
mod connection;
mod deadline;
mod fault;
mod io;
mod operations;
mod server;
mod waits;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use deadline::{Backoff, Cancellation, Deadline};
pub use fault::{Awaited, ConnectionFault, Failure, Oversized, Retry};
pub use io::{Io, ready};
pub use operations::Exchange;
pub use server::{OnReset, Server};

use crate::limits::Limits;
use connection::Connection;

/// The maximum number of idle connections that a client keeps.
const MAX_IDLE_CONNECTIONS: usize = 8;

/// A client of one server, shared by any number of threads.
///
/// Each call has a connection of its own while it runs. The client keeps up to 8 idle connections for later calls, and
/// opens a new one when none is usable.
#[derive(Debug)]
pub struct Client<I: Io> {
    io: Arc<I>,
    limits: Arc<Limits>,
    idle: Mutex<Vec<Connection<I>>>,
    server: Mutex<Server>,
}

impl<I: Io> Client<I> {
    /// Creates a client that is not connected yet.
    pub fn new(io: I, limits: Limits, on_reset: OnReset) -> Client<I> {
        Client {
            io: Arc::new(io),
            limits: Arc::new(limits),
            idle: Mutex::default(),
            server: Mutex::new(Server::new(on_reset)),
        }
    }

    /// Returns the driver of this client.
    pub fn io(&self) -> &I {
        &self.io
    }

    /// Returns the limits that the client enforces.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns what the client knows about its server. Other calls block until the returned guard is dropped.
    pub fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `inspect` with the stream of an idle connection. Returns `None` if no connection is idle.
    pub fn inspect_idle<T>(&self, inspect: impl FnOnce(&I::Stream) -> T) -> Option<T> {
        self.idle().first().map(|connection| inspect(&connection.stream))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection<I>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns an idle connection that can still be used. Drops the unusable ones that it finds first.
    fn take_idle(&self) -> Option<Connection<I>> {
        loop {
            // `is_usable` makes a system call, so the lock is released before it.
            let connection = self.idle().pop()?;
            if connection.is_usable() {
                return Some(connection);
            }
            self.server().connection_lost();
        }
    }

    /// Keeps the connection of a finished call for later calls, or drops it if [`MAX_IDLE_CONNECTIONS`] are idle.
    fn put_back(&self, connection: Connection<I>) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(connection);
        }
    }
}

/// Returns a key as text for messages, without the slash that torch's clients prepend.
pub fn printable_key(key: &[u8]) -> String {
    crate::error::printable(key.strip_prefix(b"/").unwrap_or(key))
}
