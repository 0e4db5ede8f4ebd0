//! Operations as requests: what each sends, what it reads, and what it learns about the server.

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

/// The counter of workers that have joined. Torch's own name for it, without the slash that users' keys have.
const INIT_KEY: &[u8] = b"init/";
/// How long the client may take to find out why a request failed.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(1);

/// What became of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// The desired value was stored.
    Stored,
    /// Another value is held, and was left alone.
    Held(Vec<u8>),
    /// The key is absent although a value was expected; nothing was stored.
    Absent,
}

impl<I: Io> Client<I> {
    /// One request and its reply.
    pub async fn request(&self, request: Request<'_>, deadline: &Deadline) -> Result<Reply, Failure> {
        self.call(request.op(), deadline, async |connection| connection.request(&request).await).await
    }

    /// One request whose reply is a number.
    pub async fn request_number(&self, request: Request<'_>, deadline: &Deadline) -> Result<i64, Failure> {
        self.request(request, deadline).await.map(number)
    }

    /// Sends a request that has no reply, and waits until the server has handled it. `key` is its first key; `None` if that is a
    /// queue, which comes and goes.
    pub async fn send_acknowledged(
        &self,
        key: Option<&[u8]>,
        request: Request<'_>,
        deadline: &Deadline,
    ) -> Result<(), Failure> {
        let acknowledged = self.call(request.op(), deadline, async |connection| {
            connection.queue(&request);
            connection.acknowledge().await
        });
        acknowledged.await?;
        key.into_iter().for_each(|key| self.server().remember(key));
        Ok(())
    }

    /// Identifies the server if no operation has done so yet.
    pub async fn identify(&self, deadline: &Deadline) -> Result<(), Failure> {
        // Every call identifies the server first.
        let is_identified = self.server().is_identified;
        if is_identified { Ok(()) } else { self.call(Op::Ping, deadline, async |_| Ok(())).await }
    }

    /// Asks the server for a sign of life.
    pub async fn ping(&self, deadline: &Deadline) -> Result<(), Failure> {
        self.call(Op::Ping, deadline, async |connection| connection.acknowledge().await).await
    }

    /// The value of a key, waiting until there is one.
    pub async fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Value, Failure> {
        let reply = self.wait_then(Op::Get, &[key], Some(Request::Get { key }), deadline).await?;
        let value = value(reply.unwrap_or(Reply::Stop));
        self.remember_value(key, &value);
        Ok(value)
    }

    /// The values of keys, waiting until all are there.
    pub async fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Value>, Failure> {
        let then = Request::MultiGet { keys: KeyList::new(keys) };
        match self.wait_then(Op::MultiGet, keys, Some(then), deadline).await? {
            Some(Reply::Values(values)) => {
                if let (Some(key), Some(value)) = (keys.first(), values.first()) {
                    self.remember_value(key, value);
                }
                Ok(values)
            }
            other => unreachable!("the decoder returns the kind asked for, not {other:?}"),
        }
    }

    /// Remembers a key that was read. An empty value may be a queue's, which comes and goes.
    fn remember_value(&self, key: &[u8], value: &[u8]) {
        if !value.is_empty() {
            self.server().remember(key);
        }
    }

    /// Adds to the number that a key holds; the sum.
    pub async fn add(&self, key: &[u8], delta: i64, deadline: &Deadline) -> Result<i64, Failure> {
        match self.request(Request::Add { key, delta }, deadline).await {
            Ok(reply) => {
                self.server().remember(key);
                Ok(number(reply))
            }
            // Servers close the connection when the value is not a number, and can't say so.
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
    pub async fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<(), Failure> {
        let request = Request::Append { key, value: value.into() };
        let failure = match self.send_acknowledged(Some(key), request, deadline).await {
            Err(failure @ Failure::Indeterminate(_)) => failure,
            other => return other,
        };
        // Our servers close the connection when the value would be too long, and can't say so.
        let Some(limit) = self.server().value_len() else { return Err(failure) };
        let stored = self.inspect_key(key, deadline).await;
        match stored.map(|stored| stored.map_or(0, |stored| stored.len())) {
            // A server that holds more than its limit has another one.
            Some(current_len) if current_len <= limit && current_len + value.len() > limit => {
                let what = Oversized::Append { current_len };
                Err(Failure::TooLarge { what, len: value.len() as u64, limit })
            }
            _ => Err(failure),
        }
    }

    /// What a key holds after a failure, if anything; `None` if that can't be learned within a second.
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

    /// Stores a value if the key holds the expected one; what torch's server answers.
    pub async fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Value, Failure> {
        let request = Request::CompareSet { key, expected: expected.into(), desired: desired.into() };
        let stored = value(self.request(request, deadline).await?);
        // An answer that is what was expected may mean that nothing is there.
        if *stored != *expected || expected.is_empty() {
            self.server().remember(key);
        }
        Ok(stored)
    }

    /// Stores a value if the key holds the expected one, and tells the outcomes apart. If the server can't, returns `None` and
    /// stores nothing.
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
                // The one answer that is not what is held: an equal value that was held would have been replaced.
                _ if *value == *expected => Exchange::Absent,
                _ => Exchange::Held(value.to_vec()),
            }))
        })
        .await
    }

    /// Deletes a key; whether it was there.
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
        // Again: another thread may have seen the key just before it was deleted.
        self.server().forget(key);
        match number(deleted) {
            0 if has_lost_reply => Err(Failure::Indeterminate(
                "the first try got no answer, the second found no such key".into(),
            )),
            deleted => Ok(deleted == 1),
        }
    }

    /// Counts this process among the workers that have joined; how many have.
    pub async fn count_worker(&self, deadline: &Deadline) -> Result<i64, Failure> {
        self.add(INIT_KEY, 1, deadline).await
    }

    /// How many workers have joined.
    pub async fn workers(&self, deadline: &Deadline) -> Result<i64, Failure> {
        let reply = self.request(Request::Get { key: INIT_KEY }, deadline).await?;
        Ok(parse_prefix(&value(reply)).unwrap_or(0))
    }

    /// Waits until `world_size` workers have joined, of which `joined` have so far.
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
                // The time is up, and none was left to ask once more.
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
        other => unreachable!("the decoder returns the kind asked for, not {other:?}"),
    }
}

fn number(reply: Reply) -> i64 {
    match reply {
        Reply::Number(number) => number,
        other => unreachable!("the decoder returns the kind asked for, not {other:?}"),
    }
}
