//! One call on its way: a connection for it, its attempts, and what becomes of it when they fail.

use std::time::Duration;

use super::connection::{Ack, Broken, Connection};
use super::deadline::{Backoff, Deadline};
use super::fault::{ConnectionFault, Failure, Oversized, Violation};
use super::io::Io;
use super::{Client, operations};
use crate::error::WireError;
use crate::wire::{KeyList, Op, Reply, ReplyKind, Request};

/// Called with the reason why there is no connection yet.
pub(super) type Report<'a> = &'a mut dyn FnMut(ConnectionFault);

/// What to do when no process listens at any address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnRefused {
    Wait,
    Fail,
}

/// Why no address gave a connection.
struct Missed {
    failure: Failure,
    /// Whether another attempt can't do better.
    is_final: bool,
}

impl Missed {
    /// Whether every address refused the connection.
    fn is_refused(&self) -> bool {
        let is_refused = |(_, fault): &(String, ConnectionFault)| *fault == ConnectionFault::Refused;
        matches!(&self.failure, Failure::Unreachable(tried) if tried.iter().all(is_refused))
    }
}

/// Pauses between attempts.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// An attempt that the deadline ends after less than this does not show why there is no connection.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an address that is not the last has if the call has no deadline.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that closes the connection on a request this often refuses it. Only connections that are closed within
/// [`EARLY_CLOSE_TIMEOUT`] count: a firewall or a relay may close later ones because nothing passes over them.
const MAX_CLOSES: u32 = 5;
const EARLY_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl<I: Io> Client<I> {
    /// Makes a first connection, waiting for the server to appear. The client sends what torch's client sends at connect and
    /// nothing more. The first operation identifies the server.
    ///
    /// `report` is called after each failed attempt, and once per second while the server or the name server is silent.
    pub async fn connect(
        &self,
        deadline: &Deadline,
        report: &mut dyn FnMut(ConnectionFault),
    ) -> Result<(), Failure> {
        let connection = self.checkout(None, deadline, OnRefused::Wait, report).await?;
        self.put_back(connection);
        Ok(())
    }

    /// Whether the server can be reached, without waiting for one to appear.
    pub(super) async fn is_reachable(&self, deadline: &Deadline) -> bool {
        let connection = self.checkout(None, deadline, OnRefused::Fail, &mut |_| {}).await;
        connection.map(|connection| self.put_back(connection)).is_ok()
    }

    /// Identifies the server if no operation has done so yet.
    pub async fn identify(&self, op: Op, deadline: &Deadline) -> Result<(), Failure> {
        if self.server().is_met {
            return Ok(());
        }
        self.call_repeatable(op, true, deadline, async |_, _| Ok(())).await
    }

    /// Carries out one call: `attempt` on a connection, and again on another if that breaks and the operation may be
    /// repeated.
    pub(super) async fn call<T>(
        &self,
        op: Op,
        deadline: &Deadline,
        attempt: impl AsyncFnMut(&mut Connection<I>, &Deadline) -> Result<T, Broken>,
    ) -> Result<T, Failure> {
        self.call_repeatable(op, op.is_repeatable(), deadline, attempt).await
    }

    /// As [`Client::call`], for steps of an operation that may be repeated although the operation may not.
    pub(super) async fn call_repeatable<T>(
        &self,
        op: Op,
        is_repeatable: bool,
        deadline: &Deadline,
        mut attempt: impl AsyncFnMut(&mut Connection<I>, &Deadline) -> Result<T, Broken>,
    ) -> Result<T, Failure> {
        let now = || self.io.now();
        let waits = matches!(op, Op::Wait | Op::Get | Op::MultiGet | Op::QueuePop);
        let mut backoff = Backoff::new(MIN_PAUSE, MAX_PAUSE);
        let mut closes = 0;
        let mut lost: Option<ConnectionFault> = None;
        loop {
            // A wait whose server is gone has lost what it waited for, and fails as soon as the connection is refused.
            let on_refused = if waits && lost.is_some() { OnRefused::Fail } else { OnRefused::Wait };
            // A wait whose time is up before there is a connection has its grace to ask a server that answers.
            let patience = if waits && lost.is_none() { deadline.grace(now()) } else { deadline.clone() };
            let checked_out = self.checkout(Some(op), &patience, on_refused, &mut |_| {}).await;
            let mut connection = match (checked_out, lost.take()) {
                (Ok(connection), _) => connection,
                (Err(Failure::Unreachable(tried)), Some(lost)) => {
                    let last = tried.last().map_or("no address".into(), |(_, fault)| fault.to_string());
                    return Err(Failure::ConnectionLost(format!("{lost}; then {last}")));
                }
                (Err(failure), _) => return Err(failure),
            };
            connection.is_repeatable = is_repeatable;
            let started = now();
            let mut recognized = Ok(());
            if !connection.is_recognized {
                recognized = self.recognize(&mut connection, &patience).await;
                self.check_reset()?;
            }
            let outcome = match recognized {
                Ok(()) => attempt(&mut connection, deadline).await,
                Err(broken) => Err(broken.with_sent(false)),
            };
            let broken = match outcome {
                Ok(value) => {
                    self.put_back(connection);
                    return Ok(value);
                }
                Err(broken) => broken,
            };
            drop(connection);
            self.server().connection_lost();
            if let (Some(since), Broken::Lost { fault: ConnectionFault::Closed, sent: true }) =
                (operations::torch_release_with(op), &broken)
                && self.is_unknown(op, deadline).await
            {
                return Err(Failure::Unsupported(Some(since)));
            }
            let fault = match broken {
                Broken::Violation(violation) => return Err(violated(None, violation)),
                Broken::Silent { sent: true } if !is_repeatable => {
                    let waited = deadline.waited(now()).as_millis();
                    let reason = format!("no answer within {waited} ms (stopped, frozen, or cut off)");
                    return Err(Failure::Indeterminate(reason));
                }
                Broken::Silent { .. } => return Err(Failure::NoAnswer),
                Broken::Lost { fault, sent: true } if !is_repeatable => {
                    return Err(Failure::Indeterminate(fault.to_string()));
                }
                Broken::Lost { fault, .. } => fault,
            };
            if fault != ConnectionFault::Closed {
                // The other connections to that server are likely as dead, which only closed ones show.
                self.idle().clear();
            } else if now() - started < EARLY_CLOSE_TIMEOUT {
                closes += 1;
            }
            if closes == MAX_CLOSES {
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

    /// Whether the server is one of torch's that doesn't have this operation.
    async fn is_unknown(&self, op: Op, deadline: &Deadline) -> bool {
        if self.server().identity().is_some() {
            return false;
        }
        // The probe gets the whole timeout: torch's server may spend seconds on the stack trace of its first error.
        match self.checkout(Some(op), deadline, OnRefused::Fail, &mut |_| {}).await {
            Ok(mut connection) => operations::is_unknown(&mut connection, op, deadline).await,
            Err(_) => false,
        }
    }

    /// An idle connection that can be used, or a new one, tried for until the deadline. `op` is `None` if the store is being
    /// made.
    async fn checkout(
        &self,
        op: Option<Op>,
        deadline: &Deadline,
        on_refused: OnRefused,
        report: Report<'_>,
    ) -> Result<Connection<I>, Failure> {
        self.check_reset()?;
        if let Some(connection) = self.take_idle() {
            return Ok(connection);
        }
        let mut backoff = Backoff::new(MIN_PAUSE, MAX_PAUSE);
        let mut previous = None;
        loop {
            let started = self.io.now();
            let missed = match self.try_addresses(op.is_some(), deadline, report).await {
                Ok(connection) => return Ok(connection),
                Err(missed) => missed,
            };
            if missed.is_final || (on_refused == OnRefused::Fail && missed.is_refused()) {
                return Err(missed.failure);
            }
            if !deadline.has_passed(self.io.now()) {
                if let Some(fault) = missed.failure.connection_fault() {
                    report(fault);
                }
                self.pause(&mut backoff, deadline).await;
            } else if self.io.now() - started < MIN_ATTEMPT_TIMEOUT {
                // The deadline cut this attempt short, so the failure of the attempt before it is more telling.
                return Err(previous.unwrap_or(missed.failure));
            }
            if deadline.has_passed(self.io.now()) {
                return Err(missed.failure);
            }
            previous = Some(missed.failure);
        }
    }

    /// One attempt at each address.
    async fn try_addresses(
        &self,
        identify: bool,
        deadline: &Deadline,
        report: Report<'_>,
    ) -> Result<Connection<I>, Missed> {
        let addresses = match self.io.resolve(deadline, report).await {
            Ok(addresses) => addresses,
            Err(fault) => {
                let failure = Failure::Unreachable(vec![(String::new(), fault)]);
                return Err(Missed { failure, is_final: false });
            }
        };
        let mut tried = Vec::new();
        let mut stranger = None;
        for (n, address) in addresses.iter().enumerate() {
            // Each address has its share of the time, so that a dead one doesn't use up that of the next.
            let now = self.io.now();
            let share = match (addresses.len() - n, deadline.left(now)) {
                (1, _) => deadline.clone(),
                (others, Some(left)) => deadline.or_after(now, left / others as u32),
                (_, None) => deadline.or_after(now, ADDRESS_TIMEOUT),
            };
            match self.try_address(address, identify, &share, report).await {
                Ok(connection) => {
                    self.check_reset().map_err(|failure| Missed { failure, is_final: true })?;
                    return Ok(connection);
                }
                Err(Broken::Lost { fault, .. }) => tried.push((address.to_string(), fault)),
                Err(Broken::Silent { .. }) => tried.push((address.to_string(), ConnectionFault::Silent)),
                // Not a store, it seems. Another address may have one.
                Err(Broken::Violation(violation)) => {
                    stranger.get_or_insert(violated(Some(address.to_string()), violation));
                }
            }
        }
        match stranger {
            // A store may yet appear at the other addresses.
            Some(failure) => Err(Missed { failure, is_final: tried.is_empty() }),
            None => Err(Missed { failure: Failure::Unreachable(tried), is_final: false }),
        }
    }

    /// Connects to one address. With `identify`, also compares the server with the one that was known.
    async fn try_address(
        &self,
        address: &I::Address,
        identify: bool,
        deadline: &Deadline,
        report: Report<'_>,
    ) -> Result<Connection<I>, Broken> {
        let ack = self.server().ack;
        let open = async |ack, report: Report<'_>| {
            Connection::open(&self.io, &self.limits, address, (ack, identify), deadline, report).await
        };
        let (mut connection, identity) = match open(ack, report).await {
            Err(broken) if broken.is_closed() && ack == Ack::Ping => {
                let opened = open(Ack::Check, report).await?;
                self.server().ack = Ack::Check;
                opened
            }
            opened => opened?,
        };
        if identify {
            self.compare(&mut connection, identity, deadline).await?;
        }
        Ok(connection)
    }

    /// Compares the server behind a connection, on which only the handshake was done, with the one that was known.
    async fn recognize(&self, connection: &mut Connection<I>, deadline: &Deadline) -> Result<(), Broken> {
        let identity = connection.identify(deadline).await?;
        self.compare(connection, identity, deadline).await
    }

    /// Compares the server behind a connection, which has this identity, with the one that was known.
    async fn compare(
        &self,
        connection: &mut Connection<I>,
        identity: Option<String>,
        deadline: &Deadline,
    ) -> Result<(), Broken> {
        let keys = self.server().keys_to_check(identity.as_deref());
        for key in &keys {
            connection.queue(&Request::Check { keys: KeyList::new(&[key]) });
        }
        connection.send(deadline).await?;
        let checked = keys.len();
        let mut missing = Vec::new();
        for key in keys {
            if connection.receive(ReplyKind::Checked, deadline).await? != Reply::Checked(true) {
                missing.push(key);
            }
        }
        self.server().meet(identity, checked, &missing);
        connection.is_recognized = true;
        Ok(())
    }

    fn check_reset(&self) -> Result<(), Failure> {
        match self.server().reset() {
            None => Ok(()),
            Some(evidence) => Err(Failure::Reset(evidence.into())),
        }
    }
}

/// What a violation means for the call. In a reply there is one limit for all lengths.
fn violated(peer: Option<String>, violation: Violation) -> Failure {
    match violation {
        Violation::Malformed(
            WireError::ValueTooLong { len, limit, .. }
            | WireError::KeyTooLong { len, limit }
            | WireError::FrameTooLong { len, limit },
        ) if peer.is_none() => Failure::TooLarge { what: Oversized::Reply, len, limit },
        violation => Failure::Protocol(peer, violation),
    }
}
