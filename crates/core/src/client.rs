//! A client of a TCP store server: what to send, what may be repeated, when to give up, and whether the server is still
//! the same one.
//!
//! The client does no IO and reads no clock. Both come from an [`Io`], and every decision about time is made with
//! [`Io::now`]. The functions are `async` so that one source serves every driver: the `Io` of the blocking client returns
//! only when it has a result, so that [`ready`] polls a call once; the `Io` of a simulation has virtual time.

mod call;
mod connection;
mod deadline;
mod fault;
mod io;
mod operations;
mod server;
mod waiting;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use deadline::{Backoff, Cancellation, Deadline};
pub use fault::{Awaited, ConnectionFault, Failure, Oversized, Retry};
pub use io::{Io, ready};
pub use operations::Exchange;
pub use server::{OnReset, Server};

use crate::limits::Limits;
use connection::Connection;

/// Idle connections kept: enough for a few threads, not for every thread that ever called.
const MAX_IDLE_CONNECTIONS: usize = 8;

/// A client of one server, to be shared by many threads.
///
/// Each call has a connection for itself. Idle connections are kept for the next call, and made again when they break.
#[derive(Debug)]
pub struct Client<I: Io> {
    io: Arc<I>,
    limits: Arc<Limits>,
    idle: Mutex<Vec<Connection<I>>>,
    server: Mutex<Server>,
}

impl<I: Io> Client<I> {
    /// A client that has not connected yet.
    pub fn new(io: I, limits: Limits, on_reset: OnReset) -> Client<I> {
        Client {
            io: Arc::new(io),
            limits: Arc::new(limits),
            idle: Mutex::default(),
            server: Mutex::new(Server::new(on_reset)),
        }
    }

    /// The driver.
    pub fn io(&self) -> &I {
        &self.io
    }

    /// The limits that the client keeps.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the client knows of its server.
    pub fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `look` with the stream of an idle connection, if there is one.
    pub fn inspect_idle<T>(&self, inspect: impl FnOnce(&I::Stream) -> T) -> Option<T> {
        self.idle().first().map(|connection| inspect(&connection.stream))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection<I>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection that can still be used.
    fn take_idle(&self) -> Option<Connection<I>> {
        loop {
            // The lock must not be held while the driver looks at the connection.
            let connection = self.idle().pop()?;
            if connection.is_usable() {
                return Some(connection);
            }
            self.server().connection_lost();
        }
    }

    /// Takes back a connection on which a call has ended.
    fn put_back(&self, connection: Connection<I>) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(connection);
        }
    }
}

/// A key as the user knows it: without the slash that torch's clients put before it.
pub fn user_key(key: &[u8]) -> String {
    crate::error::printable(key.strip_prefix(b"/").unwrap_or(key))
}
