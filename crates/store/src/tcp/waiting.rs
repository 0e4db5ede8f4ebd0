//! Requests that wait on the server: sent, waited for, and taken back when the time is up.

use std::time::{Duration, Instant};

use rallypoint_core::WireError;
use rallypoint_core::wire::{KeyList, Op, Reply, ReplyKind, Request};

use super::TcpStore;
use super::broken::Broken;
use super::connection::Connection;
use super::link::user_key;
use super::operations::one;
use crate::deadline::Deadline;
use crate::error::{Awaited, Result, StoreError};

/// How a wait ended.
enum Waited<T> {
    /// All came.
    Came(T),
    /// The time ran out; which keys are there, if the server said.
    TimedOut(Option<Vec<bool>>),
}

/// What a pop found when its wait had ended.
enum Popped {
    Item(Vec<u8>),
    /// Another was faster.
    Stolen,
    /// What ended the wait was a key of the queue's name.
    Key,
}

/// Keys whose states are asked for together after a time-out. What is known when no time is left is whole pieces.
const PIECE: usize = 8 * 1024;
/// Keys of which it is first asked whether all are there.
const GROUP: usize = 256;

impl TcpStore {
    /// Waits for keys, then asks for what they hold. On a server that answers in order both travel together.
    pub(super) fn wait_then(
        &self,
        op: Op,
        keys: &[&[u8]],
        then: Option<(Request<'_>, ReplyKind)>,
        timeout: Option<Duration>,
    ) -> Result<Option<Reply>> {
        let deadline = Deadline::after(timeout);
        let waited = self.link.call(op, keys, true, &deadline, |connection, deadline| {
            let together = self.link.known().is_capable_of("in-order");
            wait_then(connection, keys, then, together, deadline)
        })?;
        match waited {
            Waited::Came(reply) => Ok(reply),
            Waited::TimedOut(present) => Err(self.timed_out(op, keys, present, &deadline)),
        }
    }

    /// Takes the item at the head of a queue, waiting until there is one; `None` if there is only a key of that name.
    pub(super) fn wait_then_pop(&self, key: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        let keys = [key];
        loop {
            let waited = self.link.call(Op::QueuePop, &keys, false, deadline, |connection, deadline| {
                wait_then_pop(connection, key, deadline)
            })?;
            match waited {
                Waited::Came(Popped::Item(item)) => return Ok(Some(item)),
                Waited::Came(Popped::Key) => return Ok(None),
                Waited::Came(Popped::Stolen) if deadline.has_passed() => {
                    return Err(self.timed_out(Op::QueuePop, &keys, Some(vec![false]), deadline));
                }
                Waited::Came(Popped::Stolen) => {}
                Waited::TimedOut(present) => {
                    return Err(self.timed_out(Op::QueuePop, &keys, present, deadline));
                }
            }
        }
    }

    /// Waits at a barrier until so many have come.
    pub(super) fn meet(&self, name: &str, key: &[u8], world_size: i64, deadline: &Deadline) -> Result<()> {
        let came = self.link.call(Op::Barrier, &[key], false, deadline, |connection, deadline| {
            connection.queue(&Request::Barrier { key, world_size });
            connection.send(&deadline.grace())?;
            let begun = Instant::now();
            match connection.receive(ReplyKind::Waited(Op::Barrier), deadline) {
                Err(Broken::Silent { .. }) => {
                    let grace = deadline.grace_after(begun);
                    // However it fails: the arrival itself has been sent.
                    Ok(connection.cancel(Op::Barrier, None, &grace).map_err(Broken::after_sending)?.0)
                }
                other => other.and_then(|reply| came(Op::Barrier, &reply)).map(|()| true),
            }
        })?;
        match came {
            true => Ok(()),
            false => Err(StoreError::Timeout {
                context: self.link.context().during(Op::Barrier, vec![name.into()]),
                waited: deadline.waited(),
                awaited: Awaited::Arrivals(world_size as u64),
            }),
        }
    }

    fn timed_out(
        &self,
        op: Op,
        keys: &[&[u8]],
        present: Option<Vec<bool>>,
        deadline: &Deadline,
    ) -> StoreError {
        let keys: Vec<_> = keys.iter().map(|key| user_key(key)).collect();
        let context = self.link.context().during(op, keys.clone());
        StoreError::Timeout { context, waited: deadline.waited(), awaited: Awaited::keys(keys, present) }
    }
}

/// Only what was waited for ends a wait that nobody has cancelled.
fn came(op: Op, reply: &Reply) -> Result<(), Broken> {
    match reply {
        Reply::Stop => Ok(()),
        _ => Err(Broken::Violation(WireError::BadReplyByte { op, found: 1 })),
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
    let mut grace = deadline.grace();
    // It goes out even if the time is up by now: the cancel that follows then tells whether all keys were there.
    connection.send(&grace)?;
    let begun = Instant::now();
    match connection.receive(ReplyKind::Waited(Op::Wait), deadline) {
        Ok(reply) => came(Op::Wait, &reply)?,
        Err(Broken::Silent { .. }) => {
            grace = deadline.grace_after(begun);
            match connection.cancel(Op::Wait, behind.map(|(_, kind)| kind), &grace) {
                Ok((true, reply)) if behind.is_some() => return Ok(Waited::Came(reply)),
                Ok((true, _)) => {}
                Ok((false, _)) => return Ok(Waited::TimedOut(states(connection, keys, &grace))),
                // No time is left to find out more; the connection is dropped, and with it the wait.
                Err(Broken::Silent { .. } | Broken::Lost { .. }) => {
                    connection.spoil();
                    return Ok(Waited::TimedOut(None));
                }
                Err(broken) => return Err(broken),
            }
        }
        Err(broken) => return Err(broken),
    }
    match then {
        None => Ok(Waited::Came(None)),
        Some((request, kind)) => {
            if behind.is_none() {
                connection.queue(&request);
                connection.send(&grace)?;
            }
            connection.receive(kind, &grace).map(|reply| Waited::Came(Some(reply)))
        }
    }
}

/// Waits and pops over one connection: our servers keep an item for the connection that was woken for it, until that
/// connection's next request.
fn wait_then_pop(
    connection: &mut Connection,
    key: &[u8],
    deadline: &Deadline,
) -> Result<Waited<Popped>, Broken> {
    match wait_then(connection, &[key], None, false, deadline).map_err(Broken::before_sending)? {
        Waited::Came(_) => {}
        Waited::TimedOut(present) => return Ok(Waited::TimedOut(present)),
    }
    let grace = deadline.grace();
    if let Reply::Popped { item: Some(item), .. } = one(connection, &Request::QueuePop { key }, &grace)? {
        return Ok(Waited::Came(Popped::Item(item.to_vec())));
    }
    // A key of that name would end the wait each time. Asked in one message, so that nothing comes in between: a queue
    // that fills and empties must not look like a key.
    connection.queue(&Request::QueueLen { key });
    connection.queue(&Request::Check { keys: KeyList::new(&[key]) });
    connection.queue(&Request::QueueLen { key });
    let mut look = || {
        connection.send(&grace)?;
        let before = connection.receive(ReplyKind::Number, &grace)?;
        let present = connection.receive(ReplyKind::Checked, &grace)?;
        let after = connection.receive(ReplyKind::Number, &grace)?;
        Ok([before, after] == [Reply::Number(0), Reply::Number(0)] && present == Reply::Checked(true))
    };
    let is_key = look().map_err(Broken::before_sending)?;
    Ok(Waited::Came(if is_key { Popped::Key } else { Popped::Stolen }))
}

/// Which of the keys are there now: of all, or of the first so many as could be asked for in time.
fn states(connection: &mut Connection, keys: &[&[u8]], deadline: &Deadline) -> Option<Vec<bool>> {
    let mut states = Vec::with_capacity(keys.len());
    for piece in keys.chunks(PIECE) {
        match states_of_piece(connection, piece, deadline) {
            Ok(piece) => states.extend(piece),
            Err(_) => {
                connection.spoil();
                break;
            }
        }
    }
    (!states.is_empty()).then_some(states)
}

/// Who waits for many keys usually lacks few of them. So groups of keys are asked for first, and each key by itself only
/// where not all of a group are there.
fn states_of_piece(
    connection: &mut Connection,
    keys: &[&[u8]],
    deadline: &Deadline,
) -> Result<Vec<bool>, Broken> {
    let groups: Vec<_> = keys.chunks(GROUP).collect();
    let whole = match groups.len() {
        1 => vec![false],
        _ => check_each(connection, &groups, deadline)?,
    };
    let of_groups = || groups.iter().zip(&whole);
    let alone: Vec<_> =
        of_groups().filter(|(_, whole)| !**whole).flat_map(|(group, _)| group.chunks(1)).collect();
    let mut alone = check_each(connection, &alone, deadline)?.into_iter();
    let states = of_groups().flat_map(|(group, whole)| group.iter().map(move |_| *whole));
    Ok(states.map(|whole| whole || alone.next() == Some(true)).collect())
}

/// Of each of these lists, whether all its keys are there.
fn check_each(
    connection: &mut Connection,
    lists: &[&[&[u8]]],
    deadline: &Deadline,
) -> Result<Vec<bool>, Broken> {
    for keys in lists {
        connection.queue(&Request::Check { keys: KeyList::new(keys) });
    }
    connection.send(deadline)?;
    let all = Reply::Checked(true);
    lists.iter().map(|_| Ok(connection.receive(ReplyKind::Checked, deadline)? == all)).collect()
}
