//! The connections of a store and its clones: those that nobody uses just now are kept for the next call, and the others
//! can be looked at. It makes none.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::connection::{Connection, is_ended};
use super::known::Beside;
use super::pulse::{Pulse, Watched};
use crate::deadline::Deadline;

/// Idle connections kept: enough for a few threads, not for every thread that ever was.
const IDLE: usize = 8;

/// All connections to one server.
#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Connection>,
    /// Those in use, too; and some that are gone.
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    address: SocketAddr,
    stream: Weak<TcpStream>,
    pulse: Arc<Pulse>,
}

impl Pool {
    /// Takes in a connection that was just recognized and is in use.
    pub(super) fn admit(&self, connection: &Connection) {
        let (address, stream, pulse) = connection.life();
        let open = &mut self.lock().open;
        open.retain(|open| open.stream.strong_count() > 0);
        open.push(Open { address, stream, pulse });
    }

    /// An idle connection that is still good.
    pub(super) fn take(&self) -> Option<Connection> {
        loop {
            // Not in the condition, where the lock would be held while the connection is looked at.
            let idle = self.lock().idle.pop();
            if idle.as_ref().is_none_or(Connection::is_alive) {
                return idle;
            }
        }
    }

    /// Takes back a connection over which a call came to its end.
    pub(super) fn put_back(&self, connection: Connection) {
        let mut state = self.lock();
        if connection.is_clean() && state.idle.len() < IDLE {
            state.idle.push(connection);
        }
    }

    /// Drops those that are idle.
    pub(super) fn clear(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    /// What an idle connection says of itself, if there is one.
    pub(super) fn look<T>(&self, look: impl Fn(&Connection) -> Option<T>) -> Option<T> {
        self.lock().idle.first().and_then(look)
    }

    /// What the connections to that address tell of the server they were made to: an idle one is asked, and what those in
    /// use will hear is to be watched.
    pub(super) fn beside(&self, address: SocketAddr, deadline: &Deadline) -> Beside {
        loop {
            let mut state = self.lock();
            let Some(mut connection) = state.idle.pop() else {
                // Still under the lock: what is answered from now on is seen.
                let open = state.open.iter().filter(|open| open.address == address && open.is_open());
                return Beside::Unheard(open.map(|open| Watched::from_now(&open.pulse)).collect());
            };
            drop(state);
            // A connection that is not recognized may itself lead to the server in doubt.
            let is_from_before = connection.is_recognized() && connection.life().0 == address;
            if is_from_before && connection.is_alive() && connection.acknowledge(deadline).is_ok() {
                connection.beat();
                self.put_back(connection);
                return Beside::Answers;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Whether the other side has not ended it, as far as this machine knows.
    fn is_open(&self) -> bool {
        self.stream.upgrade().is_some_and(|stream| !is_ended(&stream))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rallypoint_core::Limits;

    use super::*;
    use crate::TcpStoreServer;
    use crate::tcp::connection::Ack;
    use crate::tcp::pulse::Sign;

    const SOON: Duration = Duration::from_secs(30);

    fn connect(pool: &Pool, server: &TcpStoreServer) -> Connection {
        let address = server.addresses()[0];
        let (ack, deadline) = (Ack::Ping, Deadline::after(Some(SOON)));
        let (mut connection, _) =
            Connection::open(address, ack, false, &Limits::default(), &deadline, &mut || {}).unwrap();
        connection.set_recognized();
        pool.admit(&connection);
        connection
    }

    #[test]
    fn an_idle_connection_is_asked_and_one_in_use_is_watched() {
        let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
        let (address, deadline) = (server.addresses()[0], Deadline::after(Some(SOON)));
        let pool = Pool::default();
        let watched = |beside| match beside {
            Beside::Unheard(watched) => watched,
            Beside::Answers => panic!("nobody was asked"),
        };
        assert!(watched(pool.beside(address, &deadline)).is_empty());
        let busy = connect(&pool, &server);
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(watched(pool.beside(elsewhere, &deadline)).is_empty());
        let seen = watched(pool.beside(address, &deadline));
        assert_eq!(seen.iter().map(Watched::sign).collect::<Vec<_>>(), [Sign::None]);
        busy.beat();
        pool.put_back(busy);
        assert_eq!(seen[0].sign(), Sign::Answered);
        assert!(matches!(pool.beside(address, &deadline), Beside::Answers));
        let busy = pool.take().unwrap();
        let seen = watched(pool.beside(address, &deadline));
        drop(busy);
        assert_eq!(seen[0].sign(), Sign::Ended);
    }

    #[test]
    fn connections_of_a_server_that_is_gone_tell_nothing() {
        let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
        let address = server.addresses()[0];
        let pool = Pool::default();
        let (_busy, idle) = (connect(&pool, &server), connect(&pool, &server));
        pool.put_back(idle);
        drop(server);
        let beside = pool.beside(address, &Deadline::after(Some(SOON)));
        assert!(matches!(&beside, Beside::Unheard(watched) if watched.is_empty()), "{beside:?}");
    }
}
