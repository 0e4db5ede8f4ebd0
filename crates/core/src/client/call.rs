//! The execution of calls: connections, attempts, retries and failures.

use std::time::Duration;

use super::Client;
use super::connection::{Ack, Connection, RequestError};
use super::deadline::{Backoff, Deadline};
use super::fault::{ConnectionFault, Failure, Oversized};
use super::io::Io;
use crate::error::WireError;
use crate::wire::{Op, Request};

/// A callback that receives the reason why there is no connection yet.
pub(super) type Report<'a> = &'a mut dyn FnMut(&ConnectionFault);

/// The first retry interval. The interval doubles with each retry, up to [`MAX_RETRY_INTERVAL`].
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(10);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The time limit for each address but the last, if the call has no deadline.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of early closes after which the client concludes that the server refuses the request.
const MAX_EARLY_CLOSES: u32 = 5;
/// A close within this time after the attempt began is early. A later close does not count, because a firewall or a
/// relay may close an idle connection.
const EARLY_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The key of probe requests. It is not a user's key, because those start with a slash.
const PROBE_KEY: &[u8] = b"rallypoint/probe";

impl<I: Io> Client<I> {
    /// Opens a connection unless one is idle, and retries until the server is reachable.
    ///
    /// Calls `report` after each failed attempt, and once per second while a server that accepted the connection sends
    /// no reply.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Unreachable`] if the deadline passes first, and with [`Failure::Protocol`] if every
    /// address belongs to a server that is not a store. Fails with [`Failure::Reset`] if the server was restarted and
    /// lost its data.
    pub async fn connect(
        &self,
        deadline: &Deadline,
        report: &mut dyn FnMut(&ConnectionFault),
    ) -> Result<(), Failure> {
        let connection = self.checkout(deadline, false, report).await?;
        self.put_back(connection);
        Ok(())
    }

    /// Runs `attempt` on a connection. If the connection breaks, runs it again on another one, provided that `op` may
    /// be repeated or nothing was sent.
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
            // If the connection was lost and the server refuses a new one, the server has exited and its keys are lost.
            // A wait for these keys would not end, so the call fails immediately.
            let fail_if_refused = waits && lost.is_some();
            // A wait may still open its connection in the grace after its deadline. The server can then report which keys
            // are present, for the timeout error.
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
                // One limit bounds every length in a reply, so the error does not name the field that is too long.
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
                    true => {
                        format!("no answer within {waited} ms (the server is stopped, frozen, or cut off)")
                    }
                    false => fault.to_string(),
                }));
            }
            if is_silent {
                return Err(Failure::NoReply);
            }
            if fault != ConnectionFault::Closed {
                // The idle connections are probably broken as well. `is_usable` detects only closed ones.
                self.idle().clear();
            } else if now() - started < EARLY_CLOSE_TIMEOUT {
                early_closes += 1;
            }
            if early_closes == MAX_EARLY_CLOSES {
                let reason = "the server is reachable but always closes the connection on this request; its log has the reason";
                return Err(Failure::Refused(reason.into()));
            }
            if deadline.has_passed(now()) {
                return Err(Failure::ConnectionLost(fault.to_string()));
            }
            lost = Some(fault);
            self.pause(&mut backoff, deadline).await;
        }
    }

    /// Sleeps for the next pause of the backoff, at most until the deadline.
    pub(super) async fn pause(&self, backoff: &mut Backoff, deadline: &Deadline) {
        let pause = backoff.pause(self.io.random());
        self.io.sleep(&deadline.or_after(self.io.now(), pause)).await;
    }

    /// Returns an idle connection or opens a new one.
    ///
    /// Retries until the deadline. If `fail_if_refused`, fails as soon as every address refuses the connection.
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
                // The deadline cut this attempt short, so the previous attempt has the more specific fault.
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

    /// Tries each address once, in order, and returns the first connection that opens.
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
        // The address of the first server that replied in another protocol, and the error.
        let mut violation = None;
        for (n, address) in addresses.iter().enumerate() {
            // Each address gets an equal share of the remaining time, so a dead address leaves time for the next one.
            let now = self.io.now();
            let address_deadline = match (addresses.len() - n, deadline.left(now)) {
                (1, _) => deadline.clone(),
                (addresses_left, Some(left)) => deadline.or_after(now, left / addresses_left as u32),
                (_, None) => deadline.or_after(now, ADDRESS_TIMEOUT),
            };
            match self.try_address(address, &address_deadline, report).await {
                Ok(connection) => return self.check_reset().map(|()| connection),
                Err(RequestError::Lost { fault, .. }) => faults.push((address.to_string(), fault)),
                // Another address may still belong to a store.
                Err(RequestError::Violation(error)) => {
                    violation = violation.or(Some((address.to_string(), error)));
                }
            }
        }
        match violation {
            Some((address, error)) if faults.is_empty() => Err(Failure::Protocol(Some(address), error)),
            // A store may still start at an address that failed, so the caller must be able to retry.
            violation => {
                let fault = violation.map(|(at, error)| (at, ConnectionFault::NotAStore(error.to_string())));
                faults.extend(fault);
                Err(Failure::Unreachable(faults))
            }
        }
    }

    /// Connects to one address and verifies that the server is still the same one.
    ///
    /// Until the first call has identified the server, a new connection sends only torch's handshake. If the server
    /// closes the connection, connects again with [`Ack::Check`]: torch's servers before 2.5 close it on a PING.
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
                // All of our servers support PING. If this server has an identity, it closed the first connection for
                // another reason.
                if self.server().identity().is_none() {
                    self.server().ack = Ack::Check;
                }
                Ok(connection)
            }
            opened => opened,
        }
    }

    /// Verifies that a connection leads to the server that the client knows, and records a reset if it does not.
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

    /// Returns the releases of torch whose servers support `op`, such as `2.10 on`, if this server is older.
    ///
    /// An older server closes the connection on an operation that it does not support. The client sends a probe to
    /// exclude other reasons for the close. The probe uses an operation that torch introduced in the same release as
    /// `op`, and it leaves nothing in the store.
    async fn required_release(&self, op: Op, deadline: &Deadline) -> Option<&'static str> {
        const QUEUE_LEN: Request<'_> = Request::QueueLen { key: PROBE_KEY };
        let (release, requests) = match op {
            Op::QueuePush | Op::QueuePop | Op::QueueLen => ("2.8 on (with `use_libuv`)", &[QUEUE_LEN][..]),
            Op::ListKeys => ("2.10 on", &[Request::ListKeys][..]),
            // A barrier with world size 1 passes immediately. Torch's server leaves the count of the barrier under its
            // key, so the key is deleted.
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
        // The probe may take until the deadline of the call. Torch's server prints a stack trace before it closes the
        // connection, and printing the first one can take seconds.
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
