//! The way to one server: connections kept for reuse, and made again when they break. It knows requests only as something
//! that may or may not be repeated, and that may or may not wait.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_core::number::parse_prefix;
use rallypoint_core::wire::{KeyList, Op, Reply, ReplyKind, Request};
use rallypoint_core::{Limits, WireError};

use super::broken::Broken;
use super::connection::{Ack, Connection};
use super::known::{Known, OnReset};
use super::newer;
use super::pool::Pool;
use crate::deadline::{Backoff, Deadline};
use crate::endpoint::Endpoint;
use crate::error::{Context, Oversize, Result, StoreError, StoreKind, Violation};
use crate::fault::ConnectionFault;

/// An attempt that the deadline ends after less than this does not show why there is no connection.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// What an address that is not the last has of a time without end.
const SHARE_OF_FOREVER: Duration = Duration::from_secs(10);
/// A server that closes the connection on a request this often refuses it.
const REFUSALS: u32 = 3;
/// The same for a request that waits, counting only connections closed soon after it was sent: those that are closed
/// later, with nothing passing over them, are a firewall's or a relay's doing.
const REFUSALS_OF_A_WAIT: u32 = 10;
const SOON_AFTER: Duration = Duration::from_secs(1);
/// How long a server that is in doubt has to answer over a connection from before.
const TO_VOUCH: Duration = Duration::from_secs(1);

/// The way to a server.
#[derive(Debug)]
pub(super) struct Link {
    endpoint: Endpoint,
    limits: Limits,
    pool: Pool,
    known: Mutex<Known>,
}

/// What a connection is for, as errors tell it.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    /// `None` if the store is being made.
    op: Option<Op>,
    keys: &'a [&'a [u8]],
}

impl Call<'_> {
    const NONE: Call<'static> = Call { op: None, keys: &[] };

    fn context(&self, peer: impl ToString) -> Box<Context> {
        let context = Context::new(StoreKind::Tcp, peer.to_string());
        match self.op {
            Some(op) => context.during(op, self.keys.iter().map(|key| user_key(key)).collect()),
            None => Box::new(context),
        }
    }
}

/// Called with the reason why there is no connection yet.
type Report<'a> = &'a mut dyn FnMut(&ConnectionFault);

/// What to do when nobody listens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nobody {
    /// Somebody may yet.
    WaitFor,
    GiveUp,
}

impl Link {
    pub(super) fn new(endpoint: Endpoint, limits: Limits, on_reset: OnReset) -> Link {
        Link { endpoint, limits, pool: Pool::default(), known: Mutex::new(Known::new(on_reset)) }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The store, as errors describe it.
    pub(super) fn context(&self) -> Context {
        Context::new(StoreKind::Tcp, self.endpoint.to_string())
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// This machine's address on an idle connection, if there is one.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.pool.look(Connection::local_address)
    }

    /// The socket of an idle connection, if there is one.
    pub(super) fn socket(&self) -> Option<(RawFd, SocketAddr, SocketAddr)> {
        self.pool.look(Connection::socket)
    }

    /// What is known of the server.
    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is known of the server, and identifies the server first if no operation has done so yet.
    pub(super) fn server(
        &self,
        op: Op,
        keys: &[&[u8]],
        deadline: &Deadline,
    ) -> Result<MutexGuard<'_, Known>> {
        let known = self.known();
        if known.is_met() {
            return Ok(known);
        }
        drop(known);
        self.call(op, keys, true, deadline, |_, _| Ok(()))?;
        Ok(self.known())
    }

    /// Makes a first connection, waiting for the server to appear. The client sends what torch's client sends at connect and
    /// nothing more. The first operation identifies the server.
    pub(super) fn connect(&self, deadline: &Deadline, report: Report<'_>) -> Result<()> {
        let connection = self.checkout(Call::NONE, deadline, Nobody::WaitFor, report)?;
        self.pool.put_back(connection);
        Ok(())
    }

    /// Whether the server can be reached, without waiting for one to appear.
    pub(super) fn is_reachable(&self, deadline: &Deadline) -> bool {
        self.checkout(Call::NONE, deadline, Nobody::GiveUp, &mut |_| {})
            .map(|connection| self.pool.put_back(connection))
            .is_ok()
    }

    /// Carries out one request: `attempt` on a connection, again on another if that breaks and `repeatable` allows it.
    pub(super) fn call<T>(
        &self,
        op: Op,
        keys: &[&[u8]],
        repeatable: bool,
        deadline: &Deadline,
        mut attempt: impl FnMut(&mut Connection, &Deadline) -> Result<T, Broken>,
    ) -> Result<T> {
        let call = Call { op: Some(op), keys };
        let context = || call.context(&self.endpoint);
        let waits = matches!(op, Op::Wait | Op::Get | Op::MultiGet | Op::QueuePop);
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let mut refusals = 0;
        let mut lost: Option<String> = None;
        loop {
            // A wait whose server is gone has lost what it waited on, and says so at once.
            let nobody = if waits && lost.is_some() { Nobody::GiveUp } else { Nobody::WaitFor };
            // A wait that is over before there is a connection has its grace to say so of a server that is there.
            let patience = if waits && lost.is_none() { deadline.grace() } else { *deadline };
            let checked_out = self.checkout(call, &patience, nobody, &mut |_| {});
            let mut connection = match (checked_out, lost.take()) {
                (Ok(connection), _) => connection,
                (Err(StoreError::Unreachable { tried, .. }), Some(lost)) => {
                    let last = tried.last().map_or("no address".into(), |(_, fault)| fault.to_string());
                    let reason = format!("{lost}; then {last}");
                    return Err(StoreError::ConnectionLost { context: context(), reason });
                }
                (Err(error), _) => return Err(error),
            };
            connection.set_repeatable(repeatable);
            let started = Instant::now();
            let mut recognized = Ok(());
            if !connection.is_recognized() {
                recognized = self.recognize(&mut connection, &patience).map_err(Broken::before_sending);
                self.not_reset(call)?;
            }
            let broken = match recognized.and_then(|()| attempt(&mut connection, deadline)) {
                Ok(value) => {
                    connection.beat();
                    self.pool.put_back(connection);
                    return Ok(value);
                }
                Err(broken) => broken,
            };
            drop(connection);
            if let (Some(since), Broken::Lost { ended: true, sent: true, .. }) = (newer::since(op), &broken)
                && self.is_unknown(op, call, deadline)
            {
                return Err(StoreError::Unsupported { context: context(), since: Some(since) });
            }
            let (reason, ended) = match broken {
                // In a reply there is one limit for all of them.
                Broken::Violation(
                    WireError::ValueTooLong { len, limit, .. }
                    | WireError::KeyTooLong { len, limit }
                    | WireError::FrameTooLong { len, limit },
                ) => {
                    return Err(StoreError::TooLarge(Oversize::Reply { context: context(), len, limit }));
                }
                Broken::Violation(violation) => {
                    return Err(StoreError::Protocol {
                        context: context(),
                        violation: Violation::Malformed(violation),
                    });
                }
                Broken::WrongNonce { sent, found } => {
                    return Err(StoreError::Protocol {
                        context: context(),
                        violation: Violation::WrongNonce { sent, found },
                    });
                }
                Broken::Silent { sent: true } if !repeatable => {
                    let waited = deadline.waited().as_millis();
                    let reason = format!("no answer within {waited} ms (stopped, frozen, or cut off)");
                    return Err(StoreError::Indeterminate { context: context(), reason });
                }
                Broken::Silent { .. } => {
                    let waited = deadline.waited();
                    return Err(StoreError::NoAnswer { context: context(), waited });
                }
                Broken::Lost { reason, sent: true, .. } if !repeatable => {
                    let reason = reason.to_string();
                    return Err(StoreError::Indeterminate { context: context(), reason });
                }
                Broken::Lost { reason, ended, .. } => (reason.to_string(), ended),
            };
            // All other connections to that server are likely as dead. Of those that were closed it can be seen.
            if !ended {
                self.pool.clear();
            }
            refusals += u32::from(ended && (!waits || started.elapsed() < SOON_AFTER));
            if refusals == if waits { REFUSALS_OF_A_WAIT } else { REFUSALS } {
                let reason = "the server is there but closes the connection on this request each time; its log says why";
                return Err(StoreError::Refused { context: context(), reason: reason.into() });
            }
            if deadline.has_passed() {
                return Err(StoreError::ConnectionLost { context: context(), reason });
            }
            lost = Some(reason);
            deadline.sleep(backoff.pause());
        }
    }

    /// Whether the server is one of torch's that doesn't have this operation.
    fn is_unknown(&self, op: Op, call: Call<'_>, deadline: &Deadline) -> bool {
        if self.known().identity().is_some() {
            return false;
        }
        // The probe gets the whole timeout: torch's server may spend seconds on the stack trace of its first error.
        self.checkout(call, deadline, Nobody::GiveUp, &mut |_| {})
            .is_ok_and(|mut connection| newer::is_unknown(&mut connection, op, deadline))
    }

    /// An idle connection that is still good, or a new one, tried for until the deadline.
    fn checkout(
        &self,
        call: Call<'_>,
        deadline: &Deadline,
        nobody: Nobody,
        report: Report<'_>,
    ) -> Result<Connection> {
        self.not_reset(call)?;
        if let Some(connection) = self.pool.take() {
            return Ok(connection);
        }
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let mut previous = None;
        loop {
            let started = Instant::now();
            let missed = match self.try_addresses(call, deadline, report) {
                Ok(connection) => return Ok(connection),
                Err(missed) => missed,
            };
            if missed.is_final || (missed.is_refused && nobody == Nobody::GiveUp) {
                return Err(missed.error);
            }
            let mut error = missed.error;
            if !deadline.has_passed() {
                if let Some(fault) = error.connection_fault() {
                    report(&fault);
                }
                deadline.sleep(backoff.pause());
            } else if started.elapsed() < MIN_ATTEMPT_TIMEOUT {
                // The deadline cut this attempt short, so the failure of the attempt before it is more telling.
                error = previous.take().unwrap_or(error);
            }
            if deadline.has_passed() {
                if let StoreError::Unreachable { waited, .. } = &mut error {
                    *waited = deadline.waited();
                }
                return Err(error);
            }
            previous = Some(error);
        }
    }

    /// One try at each address.
    fn try_addresses(
        &self,
        call: Call<'_>,
        deadline: &Deadline,
        report: Report<'_>,
    ) -> Result<Connection, Missed> {
        let addresses = self.resolve(deadline, report).map_err(|error| Missed {
            error,
            is_final: false,
            is_refused: false,
        })?;
        let mut tried = Vec::new();
        let mut stranger = None;
        for (n, address) in addresses.iter().enumerate() {
            // Each address has its share of the time, so that a dead one doesn't use up that of the next.
            let share = match (addresses.len() - n, deadline.left()) {
                (1, _) => *deadline,
                (others, Some(left)) => deadline.or_after(left / others as u32),
                (_, None) => deadline.or_after(SHARE_OF_FOREVER),
            };
            let broken = match self.try_address(*address, call.op.is_some(), &share, report) {
                Ok(connection) => {
                    self.not_reset(call).map_err(Missed::finally)?;
                    return Ok(connection);
                }
                Err(broken) => broken,
            };
            let peer = || address.to_string();
            match broken {
                Broken::Lost { reason, .. } => tried.push((peer(), reason)),
                Broken::Silent { .. } => tried.push((peer(), ConnectionFault::Silent)),
                // Not a store, it seems; but another address may have one.
                Broken::Violation(violation) => {
                    let (context, violation) = (call.context(address), Violation::Malformed(violation));
                    stranger.get_or_insert(StoreError::Protocol { context, violation });
                }
                Broken::WrongNonce { sent, found } => {
                    let (context, violation) = (call.context(address), Violation::WrongNonce { sent, found });
                    stranger.get_or_insert(StoreError::Protocol { context, violation });
                }
            }
        }
        if let Some(error) = stranger {
            // The others may be where the store will be.
            return Err(Missed { error, is_final: tried.is_empty(), is_refused: false });
        }
        let is_refused = tried.iter().all(|(_, fault)| *fault == ConnectionFault::Refused);
        let (context, waited) = (call.context(&self.endpoint), deadline.waited());
        let error = StoreError::Unreachable { context, waited, tried };
        Err(Missed { error, is_final: false, is_refused })
    }

    /// Connects to one address. With `identify`, also compares the server with the one that was known.
    fn try_address(
        &self,
        address: SocketAddr,
        identify: bool,
        deadline: &Deadline,
        report: Report<'_>,
    ) -> Result<Connection, Broken> {
        let mut open = |ack| {
            let on_silence = &mut || report(&ConnectionFault::Silent);
            Connection::open(address, ack, identify, &self.limits, deadline, on_silence)
        };
        let ack = self.known().ack();
        let (mut connection, identity) = match open(ack) {
            Err(Broken::Lost { ended: true, .. }) if ack == Ack::Ping => {
                let opened = open(Ack::Check)?;
                self.known().set_ack(Ack::Check);
                opened
            }
            opened => opened?,
        };
        if identify {
            self.compare(&mut connection, identity, deadline)?;
        }
        Ok(connection)
    }

    /// Compares the server behind a connection, on which only the handshake was done, with the one that was known.
    fn recognize(&self, connection: &mut Connection, deadline: &Deadline) -> Result<(), Broken> {
        let identity = connection.identify(deadline)?;
        self.compare(connection, identity, deadline)
    }

    /// Compares the server behind a connection, which has this identity, with the one that was known.
    fn compare(
        &self,
        connection: &mut Connection,
        identity: Option<String>,
        deadline: &Deadline,
    ) -> Result<(), Broken> {
        let looked_for = self.known().witnesses(identity.as_deref());
        for key in &looked_for {
            connection.queue(&Request::Check { keys: KeyList::new(&[key]) });
        }
        connection.send(deadline)?;
        let count = looked_for.len();
        let mut missing = Vec::new();
        let mut there = Vec::new();
        for key in looked_for {
            match connection.receive(ReplyKind::Checked, deadline)? {
                Reply::Checked(true) => there.push(key),
                _ => missing.push(key),
            }
        }
        for key in there {
            let Some(least) = self.known().at_least(&key) else { continue };
            connection.queue(&Request::Get { key: &key });
            connection.send(deadline)?;
            let value = connection.receive(ReplyKind::Value, deadline)?;
            let is_less = |value: &[u8]| parse_prefix(value).is_some_and(|number| number < least);
            if matches!(&value, Reply::Value(value) if is_less(value)) {
                missing.push(key);
            }
        }
        let all_missing = missing.len() == count;
        let missing = self.known().meet(identity, missing, all_missing);
        if let Some(missing) = missing {
            let beside = self.pool.beside(connection.life().0, &deadline.or_after(TO_VOUCH));
            // Who had no time to answer has said nothing. The next connection is looked at again.
            if deadline.has_passed() {
                return Err(Broken::Silent { sent: false });
            }
            self.known().judge(missing, beside);
        }
        connection.set_recognized();
        self.pool.admit(connection);
        Ok(())
    }

    fn not_reset(&self, call: Call<'_>) -> Result<()> {
        match self.known().reset() {
            None => Ok(()),
            Some(evidence) => Err(StoreError::StoreReset {
                context: call.context(&self.endpoint),
                evidence: evidence.into(),
            }),
        }
    }

    /// The addresses, looked up in another thread where a name server is involved: it has its own idea of time.
    fn resolve(&self, deadline: &Deadline, report: Report<'_>) -> Result<Vec<SocketAddr>> {
        self.endpoint.resolve_reporting(deadline.left(), &mut || {
            let reason = "the name server has not answered yet".into();
            report(&ConnectionFault::Unresolvable { host: self.endpoint.host.clone(), reason });
        })
    }
}

/// Why no address gave a connection.
struct Missed {
    error: StoreError,
    /// No other try will do better.
    is_final: bool,
    /// The machine is there, but nobody listens.
    is_refused: bool,
}

impl Missed {
    fn finally(error: StoreError) -> Missed {
        Missed { error, is_final: true, is_refused: false }
    }
}

/// A key as the user knows it: without the slash that torch's clients put before it.
pub(super) fn user_key(key: &[u8]) -> String {
    rallypoint_core::printable(key.strip_prefix(b"/").unwrap_or(key))
}
