//! One call on its way: a connection for it, its attempts, and what becomes of it when they fail.

use std::time::Duration;

use super::Client;
use super::connection::{Ack, Connection, RequestError};
use super::deadline::{Backoff, Deadline};
use super::fault::{ConnectionFault, Failure, Oversized};
use super::io::Io;
use crate::error::WireError;
use crate::wire::{Op, Request};

/// Called with the reason why there is no connection yet.
pub(super) type Report<'a> = &'a mut dyn FnMut(&ConnectionFault);

/// Pauses between attempts.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(10);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How long an address that is not the last has if the call has no deadline.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that closes the connection on a request this often refuses it. Only connections that are closed within
/// [`EARLY_CLOSE_TIMEOUT`] count: a firewall or a relay may close later ones because nothing passes over them.
const MAX_EARLY_CLOSES: u32 = 5;
const EARLY_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// A key that no user can name, because user keys start with a slash.
const PROBE_KEY: &[u8] = b"rallypoint/probe";

impl<I: Io> Client<I> {
    /// Makes a first connection, waiting for the server to appear.
    ///
    /// `report` is called after each failed attempt, and once per second while the server is silent.
    pub async fn connect(
        &self,
        deadline: &Deadline,
        report: &mut dyn FnMut(&ConnectionFault),
    ) -> Result<(), Failure> {
        let connection = self.checkout(deadline, false, report).await?;
        self.put_back(connection);
        Ok(())
    }

    /// Carries out one call: `attempt` on a connection, and again on another if that breaks and the operation may be
    /// repeated.
    pub(super) async fn call<T>(
        &self,
        op: Op,
        deadline: &Deadline,
        mut attempt: impl AsyncFnMut(&mut Connection<I>) -> Result<T, RequestError>,
    ) -> Result<T, Failure> {
        let now = || self.io.now();
        let waits = matches!(op, Op::Wait | Op::Get | Op::MultiGet | Op::QueuePop);
        let mut backoff = Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let mut early_closes = 0;
        let mut lost: Option<ConnectionFault> = None;
        loop {
            // A wait whose server is gone has lost what it waited for, and fails as soon as the connection is refused.
            let fail_if_refused = waits && lost.is_some();
            // A wait whose time is up before there is a connection has its grace to ask a server that answers.
            let connect_by = if waits && lost.is_none() { deadline.grace(now()) } else { deadline.clone() };
            let checked_out = self.checkout(&connect_by, fail_if_refused, &mut |_| {}).await;
            let mut connection = match (checked_out, lost.take()) {
                (Ok(connection), _) => connection,
                (Err(Failure::Unreachable(faults)), Some(lost)) => {
                    let last = faults.last().map_or("no address".into(), |(_, fault)| fault.to_string());
                    return Err(Failure::ConnectionLost(format!("{lost}; then {last}")));
                }
                (Err(failure), _) => return Err(failure),
            };
            let started = now();
            connection.deadline = connect_by;
            let verified = match connection.is_verified {
                true => Ok(()),
                false => self.verify(&mut connection, &mut |_| {}).await,
            };
            self.check_reset()?;
            (connection.deadline, connection.is_repeatable) = (deadline.clone(), op.is_repeatable());
            let attempted = match verified {
                Ok(()) => attempt(&mut connection).await,
                Err(error) => Err(error.with_sent(false)),
            };
            let error = match attempted {
                Ok(value) => {
                    self.put_back(connection);
                    return Ok(value);
                }
                Err(error) => error,
            };
            drop(connection);
            self.server().connection_lost();
            let (fault, sent) = match error {
                RequestError::Lost { fault, sent } => (fault, sent),
                // In a reply there is one limit for all lengths.
                RequestError::Violation(WireError::TooLong { len, limit, .. }) => {
                    return Err(Failure::TooLarge { what: Oversized::Reply, len, limit });
                }
                RequestError::Violation(error) => return Err(Failure::Protocol(None, error)),
            };
            let is_silent = fault == ConnectionFault::Silent;
            if sent
                && fault == ConnectionFault::Closed
                && let Some(release) = self.required_release(op, deadline).await
            {
                return Err(Failure::Unsupported(Some(release)));
            }
            if sent && !op.is_repeatable() {
                let waited = deadline.waited(now()).as_millis();
                return Err(Failure::Indeterminate(match is_silent {
                    true => format!("no answer within {waited} ms (stopped, frozen, or cut off)"),
                    false => fault.to_string(),
                }));
            }
            if is_silent {
                return Err(Failure::NoAnswer);
            }
            if fault != ConnectionFault::Closed {
                // The other connections to that server are likely as dead, which only closed ones show.
                self.idle().clear();
            } else if now() - started < EARLY_CLOSE_TIMEOUT {
                early_closes += 1;
            }
            if early_closes == MAX_EARLY_CLOSES {
                let reason = "the server is there but closes the connection on this request each time; its log says why";
                return Err(Failure::Refused(reason.into()));
            }
            if deadline.has_passed(now()) {
                return Err(Failure::ConnectionLost(fault.to_string()));
            }
            lost = Some(fault);
            self.pause(&mut backoff, deadline).await;
        }
    }

    /// Sleeps for the next pause, at most until the deadline.
    pub(super) async fn pause(&self, backoff: &mut Backoff, deadline: &Deadline) {
        let pause = backoff.pause(self.io.random());
        self.io.sleep(&deadline.or_after(self.io.now(), pause)).await;
    }

    /// An idle connection that can be used, or a new one, tried for until the deadline, or until no process listens at any
    /// address if `fail_if_refused`.
    async fn checkout(
        &self,
        deadline: &Deadline,
        fail_if_refused: bool,
        report: Report<'_>,
    ) -> Result<Connection<I>, Failure> {
        self.check_reset()?;
        if let Some(connection) = self.take_idle() {
            return Ok(connection);
        }
        let mut backoff = Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let mut previous: Option<Failure> = None;
        loop {
            let faults = match self.try_addresses(deadline, report).await {
                Err(Failure::Unreachable(faults)) => faults,
                other => return other,
            };
            let is_refused = faults.iter().all(|(_, fault)| *fault == ConnectionFault::Refused);
            let mut failure = Failure::Unreachable(faults);
            if is_refused && fail_if_refused {
                return Err(failure);
            }
            if let Some(previous) = previous
                && deadline.has_passed(self.io.now())
                && previous.connection_fault() > failure.connection_fault()
            {
                // The deadline cut this attempt short. The one before it says more.
                failure = previous;
            }
            failure.connection_fault().iter().for_each(&mut *report);
            self.pause(&mut backoff, deadline).await;
            if deadline.has_passed(self.io.now()) {
                return Err(failure);
            }
            previous = Some(failure);
        }
    }

    /// One attempt at each address.
    pub(super) async fn try_addresses(
        &self,
        deadline: &Deadline,
        report: Report<'_>,
    ) -> Result<Connection<I>, Failure> {
        let addresses = match self.io.resolve(deadline).await {
            Ok(addresses) => addresses,
            Err(fault) => return Err(Failure::Unreachable(vec![(String::new(), fault)])),
        };
        let mut faults = Vec::new();
        let mut other = None;
        for (n, address) in addresses.iter().enumerate() {
            // Each address has its share of the time, so that a dead one doesn't use up that of the next.
            let now = self.io.now();
            let address_deadline = match (addresses.len() - n, deadline.left(now)) {
                (1, _) => deadline.clone(),
                (addresses_left, Some(left)) => deadline.or_after(now, left / addresses_left as u32),
                (_, None) => deadline.or_after(now, ADDRESS_TIMEOUT),
            };
            match self.try_address(address, &address_deadline, report).await {
                Ok(connection) => return self.check_reset().map(|()| connection),
                Err(RequestError::Lost { fault, .. }) => faults.push((address.to_string(), fault)),
                // Not a store, it seems. Another address may have one.
                Err(RequestError::Violation(error)) => other = other.or(Some((address.to_string(), error))),
            }
        }
        match other {
            Some((address, error)) if faults.is_empty() => Err(Failure::Protocol(Some(address), error)),
            // A store may yet appear at the other addresses.
            other => {
                let fault = other.map(|(at, error)| (at, ConnectionFault::NotAStore(error.to_string())));
                faults.extend(fault);
                Err(Failure::Unreachable(faults))
            }
        }
    }

    /// Connects to one address, and compares the server there with the one that was known.
    ///
    /// The client's first connection sends what torch's client sends and nothing more. The first call identifies the server.
    async fn try_address(
        &self,
        address: &I::Address,
        deadline: &Deadline,
        report: Report<'_>,
    ) -> Result<Connection<I>, RequestError> {
        let is_first = !self.server().is_identified;
        let open = async |ack, report: Report<'_>| {
            let connected = Connection::connect(&self.io, &self.limits, address, ack, deadline).await;
            let mut connection = connected?;
            match is_first {
                true => connection.handshake(report).await?,
                false => self.verify(&mut connection, report).await?,
            }
            Ok::<_, RequestError>(connection)
        };
        let ack = self.server().ack;
        match open(ack, report).await {
            Err(error) if error.is(ConnectionFault::Closed) && ack == Ack::Ping => {
                let connection = open(Ack::Check, report).await?;
                // One of our servers has PING, and closed the connection for another reason.
                if self.server().identity().is_none() {
                    self.server().ack = Ack::Check;
                }
                Ok(connection)
            }
            opened => opened,
        }
    }

    /// Compares the server behind a connection with the one that was known. No other function does.
    async fn verify(&self, connection: &mut Connection<I>, report: Report<'_>) -> Result<(), RequestError> {
        let was_ours = self.server().identity().is_some();
        let identity = connection.identify(was_ours, report).await?;
        let mut missing = self.server().keys_to_check(identity.as_deref());
        let mut present = connection.check_each(&missing).await?.into_iter();
        missing.retain(|_| present.next() == Some(false));
        self.server().verify(identity, &missing);
        connection.is_verified = true;
        Ok(())
    }

    /// The release of torch whose server was the first with this operation, if the server is an older one. Such a server closes
    /// the connection on a request of the same kind that leaves nothing behind.
    async fn required_release(&self, op: Op, deadline: &Deadline) -> Option<&'static str> {
        const QUEUE_LEN: Request<'_> = Request::QueueLen { key: PROBE_KEY };
        let (release, requests) = match op {
            Op::QueuePush | Op::QueuePop | Op::QueueLen => ("2.8 on (with `use_libuv`)", &[QUEUE_LEN][..]),
            Op::ListKeys => ("2.10 on", &[Request::ListKeys][..]),
            // A barrier of one passes immediately. Torch's server counts the arrival in a key.
            Op::Barrier => (
                "2.12 on",
                &[Request::Barrier { key: PROBE_KEY, world_size: 1 }, Request::DeleteKey { key: PROBE_KEY }]
                    [..],
            ),
            _ => return None,
        };
        if self.server().identity().is_some() {
            return None;
        }
        // The probe gets the whole timeout: torch's server may spend seconds on the stack trace of its first error.
        let mut connection = self.try_addresses(deadline, &mut |_| {}).await.ok()?;
        for request in requests {
            if let Err(error) = connection.request(request).await {
                return error.is(ConnectionFault::Closed).then_some(release);
            }
        }
        None
    }

    fn check_reset(&self) -> Result<(), Failure> {
        self.server().reset().map_or(Ok(()), |evidence| Err(Failure::Reset(evidence.into())))
    }
}
