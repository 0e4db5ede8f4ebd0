//! The operations of a client. Each sends requests and converts their replies to a result.

use std::time::Duration;

use super::Client;
use super::connection::RequestError;
use super::deadline::{Backoff, Deadline};
use super::fault::{Awaited, Failure, Oversized};
use super::io::Io;
use crate::number::parse_prefix;
use crate::store::STORED_KEY;
use crate::value::Value;
use crate::wire::{KeyList, Op, Reply, ReplyKind, Request};

/// The key of torch's counter of joined workers. Unlike users' keys, it does not start with a slash.
const INIT_KEY: &[u8] = b"init/";
/// How long the client may take to find out why the server closed the connection on a request.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(1);

/// The outcome of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// The desired value was stored.
    Stored,
    /// The value of the key is not the expected one. Nothing was stored. Contains the value.
    Mismatch(Vec<u8>),
    /// The key is absent although a value was expected. Nothing was stored.
    Absent,
}

impl<I: Io> Client<I> {
    /// Sends one request and returns its reply.
    ///
    /// # Errors
    ///
    /// Like all operations, fails with a [`Failure`]. [`Failure::retry`] returns whether the call may be repeated.
    pub async fn request(&self, request: Request<'_>, deadline: &Deadline) -> Result<Reply, Failure> {
        self.call(request.op(), deadline, async |connection| connection.request(&request).await).await
    }

    /// Sends one request whose reply is a number.
    ///
    /// # Errors
    ///
    /// Fails like [`Client::request`].
    pub async fn request_number(&self, request: Request<'_>, deadline: &Deadline) -> Result<i64, Failure> {
        self.request(request, deadline).await.map(number)
    }

    /// Sends a request that has no reply and waits until the server has handled it.
    ///
    /// `key` is the first key of the request. The client remembers it to detect a reset. It must be `None` for a queue,
    /// whose key disappears when the queue is emptied.
    ///
    /// # Errors
    ///
    /// Fails like [`Client::request`].
    pub async fn send_acknowledged(
        &self,
        key: Option<&[u8]>,
        request: Request<'_>,
        deadline: &Deadline,
    ) -> Result<(), Failure> {
        let acknowledged = self.call(request.op(), deadline, async |connection| {
            connection.queue(&request);
            connection.send_acknowledged().await
        });
        acknowledged.await?;
        key.into_iter().for_each(|key| self.server().remember(key));
        Ok(())
    }

    /// Queries the identity of the server, unless an earlier call did.
    ///
    /// # Errors
    ///
    /// Fails like [`Client::request`].
    pub async fn identify(&self, deadline: &Deadline) -> Result<(), Failure> {
        // Every call identifies the server first, so an empty call suffices.
        let is_identified = self.server().is_identified;
        if is_identified { Ok(()) } else { self.call(Op::Ping, deadline, async |_| Ok(())).await }
    }

    /// Sends a PING, or the request that replaces it on older servers, and waits for the reply.
    ///
    /// # Errors
    ///
    /// Fails like [`Client::request`].
    pub async fn ping(&self, deadline: &Deadline) -> Result<(), Failure> {
        self.call(Op::Ping, deadline, async |connection| connection.send_acknowledged().await).await
    }

    /// Waits until a key is present and returns its value.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Timeout`] if the key is absent at the deadline, and otherwise like [`Client::request`].
    pub async fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Value, Failure> {
        let reply = self.wait_then(Op::Get, &[key], Some(Request::Get { key }), deadline).await?;
        let value = value(reply.unwrap_or(Reply::Stop));
        self.remember_value(key, &value);
        Ok(value)
    }

    /// Waits until all keys are present and returns their values.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Timeout`] if a key is absent at the deadline, and otherwise like [`Client::request`].
    pub async fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Value>, Failure> {
        let then = Request::MultiGet { keys: KeyList::new(keys) };
        match self.wait_then(Op::MultiGet, keys, Some(then), deadline).await? {
            Some(Reply::Values(values)) => {
                if let (Some(key), Some(value)) = (keys.first(), values.first()) {
                    self.remember_value(key, value);
                }
                Ok(values)
            }
            other => unreachable!("the decoder returns the requested kind, not {other:?}"),
        }
    }

    /// Remembers a key that was read, to detect a reset. Skips a key with an empty value, because it may be a queue,
    /// whose key disappears when the queue is emptied.
    fn remember_value(&self, key: &[u8], value: &[u8]) {
        if !value.is_empty() {
            self.server().remember(key);
        }
    }

    /// Adds `delta` to the number under a key and returns the sum.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::NotANumber`] if the value is not a number or the sum overflows, and otherwise like
    /// [`Client::request`].
    pub async fn add(&self, key: &[u8], delta: i64, deadline: &Deadline) -> Result<i64, Failure> {
        match self.request(Request::Add { key, delta }, deadline).await {
            Ok(reply) => {
                self.server().remember(key);
                Ok(number(reply))
            }
            // The protocol has no error reply. A server closes the connection if the value is not a number, so read the
            // value to find out.
            Err(failure @ Failure::Indeterminate(_)) => match self.inspect_key(key, deadline).await {
                Some(Some(value))
                    if parse_prefix(&value).and_then(|number| number.checked_add(delta)).is_none() =>
                {
                    Err(Failure::NotANumber { delta, value })
                }
                _ => Err(failure),
            },
            Err(failure) => Err(failure),
        }
    }

    /// Appends to the value of a key.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::TooLarge`] if the value would exceed the server's limit, and otherwise like
    /// [`Client::request`].
    pub async fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<(), Failure> {
        let request = Request::Append { key, value: value.into() };
        let failure = match self.send_acknowledged(Some(key), request, deadline).await {
            Err(failure @ Failure::Indeterminate(_)) => failure,
            other => return other,
        };
        // The protocol has no error reply. Our servers close the connection if the value would be too long, so read its
        // length to find out.
        let Some(limit) = self.server().value_len() else { return Err(failure) };
        let stored = self.inspect_key(key, deadline).await;
        match stored.map(|stored| stored.map_or(0, |stored| stored.len())) {
            // If the stored value already exceeds the limit, the server does not enforce it, and the append failed for
            // another reason.
            Some(current_len) if current_len <= limit && current_len + value.len() > limit => {
                let what = Oversized::Append { current_len };
                Err(Failure::TooLarge { what, len: value.len() as u64, limit })
            }
            _ => Err(failure),
        }
    }

    /// Reads a key to diagnose a failure. Returns `Some(None)` if the key is absent, and `None` if the server does not
    /// reply within [`DIAGNOSIS_TIMEOUT`].
    async fn inspect_key(&self, key: &[u8], deadline: &Deadline) -> Option<Option<Value>> {
        let diagnosis_deadline = deadline.or_after(self.io.now(), DIAGNOSIS_TIMEOUT);
        let mut connection = self.try_addresses(&diagnosis_deadline, &mut |_| {}).await.ok()?;
        let stored = match connection.check_each(&[key]).await.ok()?[..] {
            [true] => Some(value(connection.request(&Request::Get { key }).await.ok()?)),
            _ => None,
        };
        self.put_back(connection);
        Some(stored)
    }

    /// Stores `desired` if the key has the value `expected`, or if the key is absent and `expected` is empty.
    ///
    /// Returns the value of the key after the operation. If the key is absent and nothing was stored, returns
    /// `expected`, as torch's server does.
    ///
    /// # Errors
    ///
    /// Fails like [`Client::request`].
    pub async fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Value, Failure> {
        let request = Request::CompareSet { key, expected: expected.into(), desired: desired.into() };
        let stored = value(self.request(request, deadline).await?);
        // Only a key that exists is remembered. A reply that equals a non-empty `expected` may mean that the key is
        // absent.
        if *stored != *expected || expected.is_empty() {
            self.server().remember(key);
        }
        Ok(stored)
    }

    /// Does the same as [`Client::compare_set`] and returns the exact outcome.
    ///
    /// Returns `None` and stores nothing if the server cannot report the exact outcome. Only our servers can.
    ///
    /// # Errors
    ///
    /// Fails like [`Client::request`].
    pub async fn compare_exchange(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Option<Exchange>, Failure> {
        let request = Request::CompareSet { key, expected: expected.into(), desired: desired.into() };
        self.call(Op::CompareSet, deadline, async |connection| {
            if !self.server().has_capability("stored") {
                return Ok(None);
            }
            connection.queue(&request);
            connection.queue(&Request::Check { keys: KeyList::new(&[STORED_KEY]) });
            connection.send().await?;
            let value = value(connection.receive(ReplyKind::Value).await?);
            let stored_reply = connection.receive(ReplyKind::Checked).await?;
            Ok(Some(match stored_reply {
                Reply::Checked(true) => Exchange::Stored,
                // A stored value that equals `expected` would have been replaced, so the key is absent.
                _ if *value == *expected => Exchange::Absent,
                _ => Exchange::Mismatch(value.to_vec()),
            }))
        })
        .await
    }

    /// Deletes a key and returns whether it was present.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Indeterminate`] if a reply was lost and the repeated request found no key, and otherwise
    /// like [`Client::request`].
    pub async fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool, Failure> {
        self.server().forget(key);
        let mut has_lost_reply = false;
        let deleted = self
            .call(Op::DeleteKey, deadline, async |connection| {
                let reply = connection.request(&Request::DeleteKey { key }).await;
                has_lost_reply |= matches!(reply, Err(RequestError::Lost { sent: true, .. }));
                reply
            })
            .await?;
        // Another thread may have read and remembered the key just before it was deleted.
        self.server().forget(key);
        match number(deleted) {
            0 if has_lost_reply => Err(Failure::Indeterminate(
                "an attempt got no answer, and a later one found no such key".into(),
            )),
            deleted => Ok(deleted == 1),
        }
    }

    /// Counts this process as a joined worker and returns the number of joined workers.
    ///
    /// # Errors
    ///
    /// Fails like [`Client::add`].
    pub async fn count_worker(&self, deadline: &Deadline) -> Result<i64, Failure> {
        self.add(INIT_KEY, 1, deadline).await
    }

    /// Returns the number of workers that have joined.
    ///
    /// # Errors
    ///
    /// Fails like [`Client::request`].
    pub async fn workers(&self, deadline: &Deadline) -> Result<i64, Failure> {
        let reply = self.request(Request::Get { key: INIT_KEY }, deadline).await?;
        Ok(parse_prefix(&value(reply)).unwrap_or(0))
    }

    /// Waits until `world_size` workers have joined. `joined` is the number of workers that the caller knows to have
    /// joined.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Timeout`] if fewer workers have joined at the deadline, and otherwise like
    /// [`Client::request`].
    pub async fn wait_for_workers(
        &self,
        mut joined: i64,
        world_size: u64,
        deadline: &Deadline,
    ) -> Result<(), Failure> {
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        while joined < world_size as i64 {
            if deadline.has_passed(self.io.now()) {
                return Err(Failure::Timeout(Awaited::Workers { joined, expected: world_size }));
            }
            self.pause(&mut backoff, deadline).await;
            joined = match self.workers(&deadline.grace(self.io.now())).await {
                // The deadline passed during the request, so the timeout reports the last known number.
                Err(_) if deadline.has_passed(self.io.now()) => joined,
                joined => joined?,
            };
        }
        Ok(())
    }
}

fn value(reply: Reply) -> Value {
    match reply {
        Reply::Value(value) => value,
        other => unreachable!("the decoder returns the requested kind, not {other:?}"),
    }
}

fn number(reply: Reply) -> i64 {
    match reply {
        Reply::Number(number) => number,
        other => unreachable!("the decoder returns the requested kind, not {other:?}"),
    }
}
