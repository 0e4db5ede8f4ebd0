//! One call on its way: a connection for it, its attempts, and what becomes of it when they fail.

use std::time::Duration;

use super::connection::{Ack, Broken, Connection};
use super::deadline::{Backoff, Deadline};
use super::fault::{ConnectionFault, Failure, Oversized, Violation};
use super::io::Io;
use super::{Client, operations, waiting};
use crate::error::WireError;
use crate::wire::Op;

/// Called with the reason why there is no connection yet.
pub(super) type Report<'a> = &'a mut dyn FnMut(ConnectionFault);

/// What to do when no process listens at any address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnRefused {
    Wait,
    Fail,
}

/// Pauses between attempts.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);
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
        let connection = self.checkout(false, deadline, OnRefused::Wait, report).await?;
        self.put_back(connection);
        Ok(())
    }

    /// Identifies the server if no operation has done so yet.
    pub async fn identify(&self, deadline: &Deadline) -> Result<(), Failure> {
        if !self.server().is_met {
            let connection = self.checkout(true, deadline, OnRefused::Wait, &mut |_| {}).await?;
            self.put_back(connection);
        }
        Ok(())
    }

    /// Carries out one call: `attempt` on a connection, and again on another if that breaks and the operation may be
    /// repeated.
    pub(super) async fn call<T>(
        &self,
        op: Op,
        deadline: &Deadline,
        mut attempt: impl AsyncFnMut(&mut Connection<I>) -> Result<T, Broken>,
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
            let checked_out = self.checkout(true, &patience, on_refused, &mut |_| {}).await;
            let mut connection = match (checked_out, lost.take()) {
                (Ok(connection), _) => connection,
                (Err(Failure::Unreachable(tried)), Some(lost)) => {
                    let last = tried.last().map_or("no address".into(), |(_, fault)| fault.to_string());
                    return Err(Failure::ConnectionLost(format!("{lost}; then {last}")));
                }
                (Err(failure), _) => return Err(failure),
            };
            (connection.deadline, connection.is_repeatable) = (deadline.clone(), op.is_repeatable());
            let started = now();
            let broken = match attempt(&mut connection).await {
                Ok(value) => {
                    self.put_back(connection);
                    return Ok(value);
                }
                Err(broken) => broken,
            };
            drop(connection);
            self.server().connection_lost();
            let fault = match broken {
                Broken::Violation(violation) => return Err(violated(violation)),
                Broken::Silent { sent: true } if !op.is_repeatable() => {
                    let waited = deadline.waited(now()).as_millis();
                    let reason = format!("no answer within {waited} ms (stopped, frozen, or cut off)");
                    return Err(Failure::Indeterminate(reason));
                }
                Broken::Silent { .. } => return Err(Failure::NoAnswer),
                Broken::Lost { fault: ConnectionFault::Closed, sent: true }
                    if self.is_unknown(op, deadline).await =>
                {
                    return Err(Failure::Unsupported(operations::torch_release_with(op)));
                }
                Broken::Lost { fault, sent: true } if !op.is_repeatable() => {
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

    /// An idle connection that can be used, or a new one, tried for until the deadline. With `identify`, the server behind it
    /// is the one that is known.
    async fn checkout(
        &self,
        identify: bool,
        deadline: &Deadline,
        on_refused: OnRefused,
        report: Report<'_>,
    ) -> Result<Connection<I>, Failure> {
        self.check_reset()?;
        while let Some(mut connection) = self.take_idle() {
            if identify && !connection.is_recognized {
                connection.deadline = deadline.clone();
                match self.recognize(&mut connection, report).await {
                    Ok(()) => self.check_reset()?,
                    Err(Broken::Silent { .. }) => return Err(Failure::NoAnswer),
                    Err(_) => {
                        self.server().connection_lost();
                        continue;
                    }
                }
            }
            return Ok(connection);
        }
        let mut backoff = Backoff::new(MIN_PAUSE, MAX_PAUSE);
        loop {
            let tried = match self.try_addresses(identify, deadline, report).await {
                Err(Failure::Unreachable(tried)) => tried,
                other => return other,
            };
            let is_refused = tried.iter().all(|(_, fault)| *fault == ConnectionFault::Refused);
            let failure = Failure::Unreachable(tried);
            if is_refused && on_refused == OnRefused::Fail {
                return Err(failure);
            }
            failure.connection_fault().into_iter().for_each(&mut *report);
            self.pause(&mut backoff, deadline).await;
            if deadline.has_passed(self.io.now()) {
                return Err(failure);
            }
        }
    }

    /// One attempt at each address.
    pub(super) async fn try_addresses(
        &self,
        identify: bool,
        deadline: &Deadline,
        report: Report<'_>,
    ) -> Result<Connection<I>, Failure> {
        let addresses = match self.io.resolve(deadline, report).await {
            Ok(addresses) => addresses,
            Err(fault) => return Err(Failure::Unreachable(vec![(String::new(), fault)])),
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
                Ok(connection) => return self.check_reset().map(|()| connection),
                Err(Broken::Lost { fault, .. }) => tried.push((address.to_string(), fault)),
                Err(Broken::Silent { .. }) => tried.push((address.to_string(), ConnectionFault::Silent)),
                // Not a store, it seems. Another address may have one.
                Err(Broken::Violation(violation)) => {
                    stranger.get_or_insert((address.to_string(), violation));
                }
            }
        }
        match stranger {
            Some((address, violation)) if tried.is_empty() => {
                Err(Failure::Protocol(Some(address), violation))
            }
            // A store may yet appear at the other addresses.
            Some((address, violation)) => {
                let fault = violation.peer_protocol().map(ConnectionFault::NotAStore);
                tried.extend(fault.map(|fault| (address, fault)));
                Err(Failure::Unreachable(tried))
            }
            None => Err(Failure::Unreachable(tried)),
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
        let open = async |ack, report: Report<'_>| {
            let connected = Connection::connect(&self.io, &self.limits, address, ack, deadline).await;
            let mut connection = connected?;
            match identify {
                true => self.recognize(&mut connection, report).await?,
                false => connection.greet(report).await?,
            }
            Ok::<_, Broken>(connection)
        };
        let ack = self.server().ack;
        match open(ack, report).await {
            Err(broken) if broken.is_closed() && ack == Ack::Ping => {
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
    async fn recognize(&self, connection: &mut Connection<I>, report: Report<'_>) -> Result<(), Broken> {
        let is_ours = self.server().identity().is_some();
        let identity = connection.identify(is_ours, report).await?;
        let keys = self.server().keys_to_check(identity.as_deref());
        let present = waiting::check_each(connection, &keys).await?;
        let checked = keys.len();
        let missing: Vec<_> =
            keys.into_iter().zip(present).filter(|(_, there)| !there).map(|(key, _)| key).collect();
        self.server().meet(identity, checked, &missing);
        connection.is_recognized = true;
        Ok(())
    }

    fn check_reset(&self) -> Result<(), Failure> {
        self.server().reset().map_or(Ok(()), |evidence| Err(Failure::Reset(evidence.into())))
    }
}

/// What a violation in a reply means for the call. In a reply there is one limit for all lengths.
fn violated(violation: Violation) -> Failure {
    match violation {
        Violation::Malformed(
            WireError::ValueTooLong { len, limit, .. }
            | WireError::KeyTooLong { len, limit }
            | WireError::FrameTooLong { len, limit },
        ) => Failure::TooLarge { what: Oversized::Reply, len, limit },
        violation => Failure::Protocol(None, violation),
    }
}
