//! WAIT and BARRIER, whose reply the server delays until the keys are present or all clients have arrived. The client
//! cancels them at the deadline of the call.

use super::Client;
use super::connection::{Connection, RequestError};
use super::deadline::Deadline;
use super::fault::{Awaited, ConnectionFault, Failure};
use super::io::Io;
use crate::error::WireError;
use crate::wire::{KeyList, Op, Reply, ReplyKind, Request};

/// The outcome of a wait. `Err` means that the wait timed out, and contains for each key whether it is present.
type WaitOutcome<T> = Result<T, Vec<bool>>;

impl<I: Io> Client<I> {
    /// Waits until all keys are present. Then sends the request `then`, if there is one, and returns its reply.
    ///
    /// If the server has the capability `in-order`, the client sends both requests together, which saves a round trip.
    /// `op` is the operation of the whole call, and determines whether the call may be repeated.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Timeout`] if a key is absent at the deadline, and otherwise like [`Client::request`].
    pub async fn wait_then(
        &self,
        op: Op,
        keys: &[&[u8]],
        then: Option<Request<'_>>,
        deadline: &Deadline,
    ) -> Result<Option<Reply>, Failure> {
        let waited = self.call(op, deadline, async |connection| {
            let is_pipelined = self.server().has_capability("in-order");
            wait_then(connection, keys, then, is_pipelined, deadline).await
        });
        into_result(waited.await)
    }

    /// Waits until a queue has an item, and removes and returns the first one.
    ///
    /// Returns `None` if the queue is empty but `key` has a value, which also ends the wait.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Timeout`] if the queue is empty at the deadline, and otherwise like [`Client::request`].
    pub async fn wait_then_pop(&self, key: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>, Failure> {
        // On a server without queues, the WAIT before the pop would never end. Such a server refuses QUEUE_LEN.
        if !self.server().has_queues() {
            self.request(Request::QueueLen { key }, deadline).await?;
            self.server().has_answered_queue = true;
        }
        let popped = self
            .call(Op::QueuePop, deadline, async |connection| wait_then_pop(connection, key, deadline).await);
        into_result(popped.await)
    }

    /// Waits at a barrier until `world_size` clients have arrived.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Timeout`] if fewer clients have arrived at the deadline, and otherwise like
    /// [`Client::request`].
    pub async fn barrier(&self, key: &[u8], world_size: i64, deadline: &Deadline) -> Result<(), Failure> {
        let arrived = self.call(Op::Barrier, deadline, async |connection| {
            connection.queue(&Request::Barrier { key, world_size });
            wait_or_cancel(connection, Op::Barrier, None, deadline).await
        });
        match arrived.await? {
            (true, _) => Ok(()),
            (false, _) => Err(Failure::Timeout(Awaited::Arrivals(world_size as u64))),
        }
    }
}

/// Converts the outcome of a wait to a result. After a timeout without a reply, it is unknown which keys are present.
fn into_result<T>(waited: Result<WaitOutcome<T>, Failure>) -> Result<T, Failure> {
    match waited {
        Ok(waited) => waited.map_err(|present| Failure::Timeout(Awaited::Keys(Some(present)))),
        Err(Failure::NoReply) => Err(Failure::Timeout(Awaited::Keys(None))),
        Err(failure) => Err(failure),
    }
}

async fn wait_then<I: Io>(
    connection: &mut Connection<I>,
    keys: &[&[u8]],
    then: Option<Request<'_>>,
    is_pipelined: bool,
    deadline: &Deadline,
) -> Result<WaitOutcome<Option<Reply>>, RequestError> {
    connection.queue(&Request::Wait { keys: KeyList::new(keys) });
    let pipelined = then.filter(|_| is_pipelined);
    pipelined.iter().for_each(|request| connection.queue(request));
    let pipelined = pipelined.and_then(|request| request.reply_kind());
    match (wait_or_cancel(connection, Op::Wait, pipelined, deadline).await?, then) {
        ((false, _), _) => Ok(Err(connection.check_each(keys).await?)),
        ((true, None), Some(request)) => Ok(Ok(Some(connection.request(&request).await?))),
        ((true, reply), _) => Ok(Ok(reply)),
    }
}

/// Waits and pops over one connection, because our servers reserve an item for the connection that was woken for it.
///
/// Waits again if another client took the item first. Returns `None` if the queue is empty but `key` has a value, which
/// also ends the wait.
async fn wait_then_pop<I: Io>(
    connection: &mut Connection<I>,
    key: &[u8],
    deadline: &Deadline,
) -> Result<WaitOutcome<Option<Vec<u8>>>, RequestError> {
    loop {
        let waited = wait_then(connection, &[key], None, false, deadline).await;
        if let Err(present) = waited.map_err(|error| error.with_sent(false))? {
            return Ok(Err(present));
        }
        // The QUEUE_POP and the CHECK are sent together, so that no push of another client comes between them. After
        // such a push, CHECK would find the queue, and this client would conclude that the key has a value.
        connection.queue(&Request::QueuePop { key });
        connection.queue(&Request::Check { keys: KeyList::new(&[key]) });
        connection.send().await?;
        let popped = connection.receive(ReplyKind::Popped).await?;
        let has_value = connection.receive(ReplyKind::Checked).await? == Reply::Checked(true);
        match popped {
            Reply::Popped { item: Some(item), .. } => return Ok(Ok(Some(item.to_vec()))),
            _ if has_value => return Ok(Ok(None)),
            _ if deadline.has_passed(connection.io.now()) => return Ok(Err(vec![false])),
            _ => {}
        }
    }
}

/// Sends the queued requests and waits until the WAIT or BARRIER among them completes. Cancels it at the deadline.
///
/// Returns whether the wait completed. Extends the deadline of the connection by the grace of `deadline`, for the
/// requests that follow.
///
/// `pipelined` is the reply kind of a request that was sent together with the wait. The server replies to it in either
/// case, but the reply is returned only if the wait completed.
async fn wait_or_cancel<I: Io>(
    connection: &mut Connection<I>,
    op: Op,
    pipelined: Option<ReplyKind>,
    deadline: &Deadline,
) -> Result<(bool, Option<Reply>), RequestError> {
    // The wait is sent even after the deadline: the reply shows whether all keys are present.
    connection.deadline = deadline.grace(connection.io.now());
    connection.send().await?;
    connection.deadline = deadline.clone();
    let mut end = connection.receive(ReplyKind::Waited(op)).await;
    connection.deadline = deadline.grace(connection.io.now());
    let is_canceled = matches!(&end, Err(error) if error.is(ConnectionFault::Silent));
    if is_canceled {
        connection.queue(&Request::CancelWait);
        connection.send().await.map_err(|error| error.with_sent(true))?;
        end = connection.receive(ReplyKind::Waited(op)).await;
    }
    let done = end? == Reply::Stop;
    if !done && !is_canceled {
        return Err(RequestError::Violation(WireError::BadReply { op, found: 1 }));
    }
    let reply = match pipelined {
        Some(kind) => Some(connection.receive(kind).await?),
        None => None,
    };
    // If the wait completed while the cancel was in flight, the server also replies to the cancel.
    if done && is_canceled && connection.receive(ReplyKind::Waited(Op::CancelWait)).await? != Reply::Canceled
    {
        return Err(RequestError::Violation(WireError::BadReply { op: Op::CancelWait, found: 0 }));
    }
    Ok((done, reply.filter(|_| done)))
}
