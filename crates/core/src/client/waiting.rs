//! Requests that wait on the server: sent, waited for, and cancelled when the time is up.

use super::Client;
use super::connection::{Broken, Connection, bad_reply};
use super::deadline::Deadline;
use super::fault::{Awaited, Failure};
use super::io::Io;
use crate::wire::{KeyList, Op, Reply, ReplyKind, Request};

/// How a wait ended.
enum Waited<T> {
    /// All keys are there.
    Came(T),
    /// The time ran out. Which keys are there, if the server said.
    TimedOut(Option<Vec<bool>>),
}

/// What a pop found when its wait had ended.
enum Popped {
    Item(Vec<u8>),
    /// Another client was faster.
    Stolen,
    /// What ended the wait was a key of the queue's name.
    Key,
}

impl<I: Io> Client<I> {
    /// Waits for keys, then asks for what they hold. On a server that answers in order both requests travel together.
    pub async fn wait_then(
        &self,
        op: Op,
        keys: &[&[u8]],
        then: Option<Request<'_>>,
        deadline: &Deadline,
    ) -> Result<Option<Reply>, Failure> {
        let waited = self
            .call(op, deadline, async |connection, deadline| {
                let together = self.server().is_capable_of("in-order");
                wait_then(connection, keys, then, together, deadline).await
            })
            .await?;
        match waited {
            Waited::Came(reply) => Ok(reply),
            Waited::TimedOut(present) => Err(Failure::Timeout(Awaited::Keys(present))),
        }
    }

    /// Takes the item at the head of a queue, waiting until there is one; `None` if there is only a key of that name.
    pub async fn wait_then_pop(&self, key: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>, Failure> {
        self.require_queues(key, deadline).await?;
        loop {
            let waited = self
                .call(Op::QueuePop, deadline, async |connection, deadline| {
                    wait_then_pop(connection, key, deadline).await
                })
                .await?;
            match waited {
                Waited::Came(Popped::Item(item)) => return Ok(Some(item)),
                Waited::Came(Popped::Key) => return Ok(None),
                Waited::Came(Popped::Stolen) if deadline.has_passed(self.io.now()) => {
                    return Err(Failure::Timeout(Awaited::Keys(Some(vec![false]))));
                }
                Waited::Came(Popped::Stolen) => {}
                Waited::TimedOut(present) => return Err(Failure::Timeout(Awaited::Keys(present))),
            }
        }
    }

    /// Waits at a barrier until `world_size` clients have arrived.
    pub async fn barrier(&self, key: &[u8], world_size: i64, deadline: &Deadline) -> Result<(), Failure> {
        let came = self
            .call(Op::Barrier, deadline, async |connection, deadline| {
                connection.queue(&Request::Barrier { key, world_size });
                let now = connection.io().now();
                connection.send(&deadline.grace(now)).await?;
                match connection.receive(ReplyKind::Waited(Op::Barrier), deadline).await {
                    Err(Broken::Silent { .. }) => {
                        let grace = deadline.grace(connection.io().now());
                        let cancelled = connection.cancel(Op::Barrier, None, &grace).await;
                        // However the cancel failed, the arrival itself has been sent.
                        cancelled.map(|(came, _)| came).map_err(|broken| broken.with_sent(true))
                    }
                    reply => check_stop(Op::Barrier, reply?).map(|()| true),
                }
            })
            .await?;
        if came { Ok(()) } else { Err(Failure::Timeout(Awaited::Arrivals(world_size as u64))) }
    }
}

/// Only what was waited for ends a wait that was not cancelled.
fn check_stop(op: Op, reply: Reply) -> Result<(), Broken> {
    if reply == Reply::Stop { Ok(()) } else { Err(bad_reply(op, 1)) }
}

async fn wait_then<I: Io>(
    connection: &mut Connection<I>,
    keys: &[&[u8]],
    then: Option<Request<'_>>,
    together: bool,
    deadline: &Deadline,
) -> Result<Waited<Option<Reply>>, Broken> {
    connection.queue(&Request::Wait { keys: KeyList::new(keys) });
    let behind = then.filter(|_| together);
    if let Some(request) = &behind {
        connection.queue(request);
    }
    let mut grace = deadline.grace(connection.io().now());
    // The wait is sent even if the time is up: the cancel that follows tells whether all keys were there.
    connection.send(&grace).await?;
    match connection.receive(ReplyKind::Waited(Op::Wait), deadline).await {
        Ok(reply) => check_stop(Op::Wait, reply)?,
        Err(Broken::Silent { .. }) => {
            grace = deadline.grace(connection.io().now());
            let kind = behind.and_then(|request| request.reply_kind());
            match connection.cancel(Op::Wait, kind, &grace).await {
                Ok((true, reply)) if behind.is_some() => return Ok(Waited::Came(reply)),
                Ok((true, _)) => {}
                Ok((false, _)) => return Ok(Waited::TimedOut(states(connection, keys, &grace).await)),
                // No time is left to find out more. The connection is dropped, and with it the wait.
                Err(Broken::Silent { .. } | Broken::Lost { .. }) => {
                    connection.is_spoiled = true;
                    return Ok(Waited::TimedOut(None));
                }
                Err(broken) => return Err(broken),
            }
        }
        Err(broken) => return Err(broken),
    }
    let reply = match (then, behind) {
        (None, _) => None,
        (Some(request), None) => Some(connection.exchange(&request, &grace).await?),
        (Some(request), Some(_)) => {
            let kind = request.reply_kind().expect("only reads follow a wait");
            Some(connection.receive(kind, &grace).await?)
        }
    };
    Ok(Waited::Came(reply))
}

/// Waits and pops over one connection: our servers keep an item for the connection that was woken for it, until that
/// connection's next request.
async fn wait_then_pop<I: Io>(
    connection: &mut Connection<I>,
    key: &[u8],
    deadline: &Deadline,
) -> Result<Waited<Popped>, Broken> {
    let waited = wait_then(connection, &[key], None, false, deadline).await;
    if let Waited::TimedOut(present) = waited.map_err(|broken| broken.with_sent(false))? {
        return Ok(Waited::TimedOut(present));
    }
    let grace = deadline.grace(connection.io().now());
    let popped = connection.exchange(&Request::QueuePop { key }, &grace).await?;
    if let Reply::Popped { item: Some(item), .. } = popped {
        return Ok(Waited::Came(Popped::Item(item.to_vec())));
    }
    let is_key = is_key(connection, key, &grace).await.map_err(|broken| broken.with_sent(false))?;
    Ok(Waited::Came(if is_key { Popped::Key } else { Popped::Stolen }))
}

/// Whether what has this name is a key, which would end a wait each time. All is asked in one message, so that a queue that
/// fills and empties does not look like a key.
async fn is_key<I: Io>(
    connection: &mut Connection<I>,
    key: &[u8],
    deadline: &Deadline,
) -> Result<bool, Broken> {
    connection.queue(&Request::QueueLen { key });
    connection.queue(&Request::Check { keys: KeyList::new(&[key]) });
    connection.queue(&Request::QueueLen { key });
    connection.send(deadline).await?;
    let before = connection.receive(ReplyKind::Number, deadline).await?;
    let present = connection.receive(ReplyKind::Checked, deadline).await?;
    let after = connection.receive(ReplyKind::Number, deadline).await?;
    Ok([before, after] == [Reply::Number(0), Reply::Number(0)] && present == Reply::Checked(true))
}

/// Which of the keys are there now; `None` if the server does not say in time.
async fn states<I: Io>(
    connection: &mut Connection<I>,
    keys: &[&[u8]],
    deadline: &Deadline,
) -> Option<Vec<bool>> {
    let states = check_each(connection, keys, deadline).await;
    connection.is_spoiled |= states.is_err();
    states.ok()
}

/// Of each key, whether it is there.
pub(super) async fn check_each<I: Io>(
    connection: &mut Connection<I>,
    keys: &[impl AsRef<[u8]>],
    deadline: &Deadline,
) -> Result<Vec<bool>, Broken> {
    for key in keys {
        connection.queue(&Request::Check { keys: KeyList::new(&[key.as_ref()]) });
    }
    connection.send(deadline).await?;
    let mut states = Vec::with_capacity(keys.len());
    for _ in keys {
        states.push(connection.receive(ReplyKind::Checked, deadline).await? == Reply::Checked(true));
    }
    Ok(states)
}
