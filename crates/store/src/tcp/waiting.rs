//! Requests that wait on the server: sent, waited for, and taken back when the time is up.

use std::time::Duration;

use rallypoint_core::wire::{KeyList, Op, Reply, ReplyKind, Request};

use super::TcpStore;
use super::connection::{Broken, Connection};
use super::link::user_key;
use crate::deadline::Deadline;
use crate::error::{KeyStates, Result, StoreError};

/// How a wait ended.
enum Waited<T> {
    /// All came.
    Came(T),
    /// The time ran out; which keys are there, if the server said.
    TimedOut(Option<Vec<bool>>),
}

/// Keys whose state is asked for after a time-out.
const STATES: usize = 16 * 1024;

impl TcpStore {
    /// Waits for keys, then asks for what they hold. On a server that answers in order both travel together.
    pub(super) fn wait_then(
        &self,
        op: Op,
        keys: &[&[u8]],
        then: Option<(Request<'_>, ReplyKind)>,
        timeout: Duration,
    ) -> Result<Option<Reply>> {
        let deadline = Deadline::after(timeout);
        let together = self.link.answers_in_order();
        let waited = self.link.call(op, keys, true, &deadline, |connection, deadline| {
            wait_then(connection, keys, then, together, deadline)
        })?;
        match waited {
            Waited::Came(reply) => Ok(reply),
            Waited::TimedOut(present) => Err(StoreError::Timeout {
                op,
                store: self.describe(),
                waited: deadline.waited(),
                keys: KeyStates { keys: keys.iter().map(|key| user_key(key)).collect(), present },
            }),
        }
    }
}

fn wait_then(
    connection: &mut Connection,
    keys: &[&[u8]],
    then: Option<(Request<'_>, ReplyKind)>,
    together: bool,
    deadline: &Deadline,
) -> Result<Waited<Option<Reply>>, Broken> {
    connection.queue(&Request::Wait { keys: KeyList::new(keys) });
    let behind = then.filter(|_| together);
    if let Some((request, _)) = &behind {
        connection.queue(request);
    }
    connection.send(deadline)?;
    match connection.receive(ReplyKind::Waited(Op::Wait), deadline) {
        Ok(_) => {}
        Err(Broken::Silent) => {
            return Ok(match connection.cancel(Op::Wait, behind.map(|(_, kind)| kind), &deadline.grace()) {
                Ok((true, reply)) if behind.is_some() || then.is_none() => Waited::Came(reply),
                Ok(_) => Waited::TimedOut(states(connection, keys, &deadline.grace())),
                // No time is left to find out more; the connection is dropped, and with it the wait.
                Err(_) => {
                    connection.spoil();
                    Waited::TimedOut(None)
                }
            });
        }
        Err(broken) => return Err(broken),
    }
    match then {
        None => Ok(Waited::Came(None)),
        Some((request, kind)) => {
            if behind.is_none() {
                connection.queue(&request);
                connection.send(deadline)?;
            }
            connection.receive(kind, deadline).map(|reply| Waited::Came(Some(reply)))
        }
    }
}

/// Which of the keys are there now.
fn states(connection: &mut Connection, keys: &[&[u8]], deadline: &Deadline) -> Option<Vec<bool>> {
    if keys.len() > STATES {
        return None;
    }
    for key in keys {
        connection.queue(&Request::Check { keys: KeyList::new(&[key]) });
    }
    let mut ask = || {
        connection.send(deadline)?;
        keys.iter()
            .map(|_| Ok(connection.receive(ReplyKind::Checked, deadline)? == Reply::Checked(true)))
            .collect::<Result<Vec<_>, Broken>>()
    };
    let states = ask();
    if states.is_err() {
        connection.spoil();
    }
    states.ok()
}
