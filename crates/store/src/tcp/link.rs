//! The way to one server: connections kept for reuse, made again when they break, and the question whether the server
//! is still the same. It knows requests only as something that may or may not be repeated.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::wire::{KeyList, Op, Reply, ReplyKind, Request};

use super::connection::{Broken, Connection};
use crate::deadline::{Backoff, Deadline};
use crate::endpoint::Endpoint;
use crate::error::{Result, StoreError};

/// Idle connections kept: enough for a few threads, not for every thread that ever was.
const IDLE: usize = 8;
/// Keys remembered as a sign that a server without a name is still the same.
const WITNESSES: usize = 8;
/// A connection that takes longer to open is a lost packet or a dead machine: a new try is better than the system's
/// ever longer pauses. One that is open and silent is waited for.
const ONE_TRY: Duration = Duration::from_secs(2);

/// The way to a server.
#[derive(Debug)]
pub(super) struct Link {
    endpoint: Endpoint,
    limits: Limits,
    idle: Mutex<Vec<Connection>>,
    known: Mutex<Known>,
}

/// What is known of the server.
#[derive(Debug, Default)]
struct Known {
    /// Whether it was ever reached.
    met: bool,
    /// What it says of itself, if it is one of ours.
    identity: Option<String>,
    /// Keys that were there. Torch's servers have no name, but one that came back has none of these.
    witnesses: VecDeque<Vec<u8>>,
    /// Set once it was found replaced: nothing works from then on.
    reset: Option<String>,
}

impl Link {
    pub(super) fn new(endpoint: Endpoint, limits: Limits) -> Link {
        Link { endpoint, limits, idle: Mutex::default(), known: Mutex::default() }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn identity(&self) -> Option<String> {
        self.known().identity.clone()
    }

    /// Whether the server is known to answer one connection's requests strictly in order, waits included.
    pub(super) fn answers_in_order(&self) -> bool {
        self.is_capable_of("in-order")
    }

    /// Whether the server is known to tell whether a compare-and-set stored.
    pub(super) fn tells_stored(&self) -> bool {
        self.is_capable_of("stored")
    }

    fn is_capable_of(&self, capability: &str) -> bool {
        let known = self.known();
        let all = known.identity.as_deref().and_then(|identity| part(identity, "capabilities="));
        all.is_some_and(|all| all.split(',').any(|one| one == capability))
    }

    /// Remembers that this key was there.
    pub(super) fn witness(&self, key: &[u8]) {
        let mut known = self.known();
        if known.identity.is_none() && !known.witnesses.iter().any(|witness| witness == key) {
            known.witnesses.truncate(WITNESSES - 1);
            known.witnesses.push_front(key.to_vec());
        }
    }

    /// Remembers that this key may be gone for a good reason.
    pub(super) fn forget(&self, key: &[u8]) {
        self.known().witnesses.retain(|witness| witness != key);
    }

    /// Makes a first connection, waiting for the server to appear.
    pub(super) fn connect(&self, deadline: &Deadline) -> Result<()> {
        let connection = self.checkout(deadline)?;
        self.put_back(connection);
        Ok(())
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
        let peer = || self.endpoint.to_string();
        let names = || keys.iter().map(|key| user_key(key)).collect::<Vec<_>>();
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let mut closed = 0;
        let mut lost: Option<String> = None;
        loop {
            let mut connection = match self.checkout(deadline) {
                Ok(connection) => connection,
                Err(StoreError::Unreachable { tried, .. }) if lost.is_some() => {
                    let last = tried.last().map(|(_, why)| why.as_str()).unwrap_or("no address");
                    let reason = format!("{}; then {last}", lost.unwrap_or_default());
                    return Err(StoreError::ConnectionLost { peer: peer(), op, keys: names(), reason });
                }
                Err(error) => return Err(error),
            };
            let broken = match attempt(&mut connection, deadline) {
                Ok(value) => {
                    self.put_back(connection);
                    return Ok(value);
                }
                Err(broken) => broken,
            };
            drop(connection);
            match broken {
                Broken::Silent => {
                    let waited = deadline.waited();
                    return Err(StoreError::NoAnswer { peer: peer(), op, keys: names(), waited });
                }
                Broken::Violation(violation) => {
                    return Err(StoreError::Protocol { peer: peer(), op, violation });
                }
                Broken::WrongNonce { sent, found } => {
                    return Err(StoreError::WrongNonce { peer: peer(), sent, found });
                }
                Broken::Lost { reason, sent, .. } if sent && !repeatable => {
                    return Err(StoreError::Indeterminate { peer: peer(), op, keys: names(), reason });
                }
                Broken::Lost { reason, ended, .. } => {
                    // All other connections to that server are likely as dead.
                    self.idle().clear();
                    closed += u32::from(ended);
                    if closed == 3 {
                        let reason =
                            "the server is there but closes the connection on this request each time; \
                                      its log says why"
                                .into();
                        return Err(StoreError::Refused { op, keys: names(), reason });
                    }
                    if deadline.has_passed() {
                        return Err(StoreError::ConnectionLost { peer: peer(), op, keys: names(), reason });
                    }
                    // A wait that breaks with nobody there to ask again has lost what it waited on: say so at once.
                    if matches!(op, Op::Wait | Op::Get | Op::MultiGet | Op::QueuePop)
                        && ended
                        && self.is_refused(deadline)
                    {
                        let reason = format!("{reason}, and nothing listens there any more");
                        return Err(StoreError::ConnectionLost { peer: peer(), op, keys: names(), reason });
                    }
                    lost = Some(reason);
                    deadline.sleep(backoff.pause());
                }
            }
        }
    }

    /// Whether the machine is there but no server is.
    fn is_refused(&self, deadline: &Deadline) -> bool {
        let Ok(addresses) = self.resolve(deadline) else { return false };
        let brief = deadline.or_after(Duration::from_millis(40));
        !addresses.is_empty()
            && addresses.iter().all(|address| {
                brief.left().is_some_and(|left| {
                    !left.is_zero()
                        && std::net::TcpStream::connect_timeout(address, left)
                            .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
                })
            })
    }

    /// An idle connection that is still good, or a new one, tried for until the deadline.
    fn checkout(&self, deadline: &Deadline) -> Result<Connection> {
        self.not_reset()?;
        loop {
            let idle = self.idle().pop();
            match idle {
                Some(connection) if connection.is_usable() => return Ok(connection),
                Some(_) => {}
                None => break,
            }
        }
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        loop {
            let error = match self.try_addresses(deadline) {
                Ok(connection) => return Ok(connection),
                Err(error @ (StoreError::Unreachable { .. } | StoreError::Unresolvable { .. })) => error,
                Err(error) => return Err(error),
            };
            if deadline.has_passed() {
                return Err(error);
            }
            let pause = backoff.pause();
            deadline.sleep(pause);
            if deadline.has_passed() {
                return Err(match error {
                    StoreError::Unreachable { endpoint, tried, .. } => {
                        StoreError::Unreachable { endpoint, tried, waited: deadline.waited() }
                    }
                    other => other,
                });
            }
        }
    }

    /// One try at each address.
    fn try_addresses(&self, deadline: &Deadline) -> Result<Connection> {
        let mut tried = Vec::new();
        for address in self.resolve(deadline)? {
            match self.try_address(address, deadline) {
                Ok(connection) => return Ok(connection),
                Err(Tried::Final(error)) => return Err(error),
                Err(Tried::Failed(why)) => tried.push((address.to_string(), why)),
            }
        }
        Err(StoreError::Unreachable { endpoint: self.endpoint.to_string(), waited: deadline.waited(), tried })
    }

    fn try_address(&self, address: SocketAddr, deadline: &Deadline) -> Result<Connection, Tried> {
        match Connection::open(address, &self.limits, ONE_TRY, deadline) {
            Ok((mut connection, identity)) => {
                self.recognise(&mut connection, identity, deadline).map_err(Tried::Final)?;
                Ok(connection)
            }
            Err(Broken::Lost { reason, .. }) => Err(Tried::Failed(reason)),
            Err(Broken::Silent) => Err(Tried::Failed("accepts connections but does not answer".into())),
            Err(Broken::Violation(violation)) => Err(Tried::Final(StoreError::Protocol {
                peer: address.to_string(),
                op: Op::Validate,
                violation,
            })),
            Err(Broken::WrongNonce { sent, found }) => {
                Err(Tried::Final(StoreError::WrongNonce { peer: address.to_string(), sent, found }))
            }
        }
    }

    /// Is the server we have reached the one we knew?
    fn recognise(
        &self,
        connection: &mut Connection,
        identity: Option<String>,
        deadline: &Deadline,
    ) -> Result<()> {
        let (met, before, witnesses) = {
            let known = self.known();
            (known.met, known.identity.clone(), known.witnesses.clone())
        };
        let instance = |identity: &str| part(identity, "instance=").unwrap_or(identity).to_owned();
        let evidence = match (met, &before, &identity) {
            (false, ..) => None,
            (true, Some(before), Some(now)) if instance(before) == instance(now) => None,
            (true, Some(before), Some(now)) => {
                Some(format!("it was instance {}, now it is {}", instance(before), instance(now)))
            }
            (true, None, None) => self.all_gone(connection, &witnesses, deadline)?,
            (true, Some(_), None) => Some("it was a rallypoint server and is none now".into()),
            (true, None, Some(_)) => Some("it was not a rallypoint server and is one now".into()),
        };
        let mut known = self.known();
        match evidence {
            None => {
                known.met = true;
                known.identity = identity;
                Ok(())
            }
            Some(evidence) => {
                known.reset = Some(evidence);
                drop(known);
                self.not_reset()
            }
        }
    }

    /// For a server without a name: whether none of what was there is there any more.
    fn all_gone(
        &self,
        connection: &mut Connection,
        witnesses: &VecDeque<Vec<u8>>,
        deadline: &Deadline,
    ) -> Result<Option<String>> {
        let mut ask = || {
            for witness in witnesses {
                connection.queue(&Request::Check { keys: KeyList::new(&[witness]) });
            }
            connection.send(deadline)?;
            let mut there = 0;
            for _ in witnesses {
                there +=
                    usize::from(connection.receive(ReplyKind::Checked, deadline)? == Reply::Checked(true));
            }
            Ok(there)
        };
        match ask() {
            Ok(0) if !witnesses.is_empty() => {
                let names = witnesses.iter().map(|key| user_key(key)).collect::<Vec<_>>().join(", ");
                Ok(Some(format!("none of the keys seen before is there: {names}")))
            }
            Ok(_) => Ok(None),
            Err::<_, Broken>(_) => Err(self.unreachable("it broke the connection again", deadline)),
        }
    }

    fn unreachable(&self, why: &str, deadline: &Deadline) -> StoreError {
        let endpoint = self.endpoint.to_string();
        StoreError::Unreachable {
            tried: vec![(endpoint.clone(), why.into())],
            endpoint,
            waited: deadline.waited(),
        }
    }

    fn not_reset(&self) -> Result<()> {
        match &self.known().reset {
            None => Ok(()),
            Some(evidence) => {
                Err(StoreError::StoreReset { peer: self.endpoint.to_string(), evidence: evidence.clone() })
            }
        }
    }

    /// The addresses, looked up in another thread where a name server is involved: it has its own idea of time.
    fn resolve(&self, deadline: &Deadline) -> Result<Vec<SocketAddr>> {
        let endpoint = self.endpoint.clone();
        if endpoint.host.is_empty() || endpoint.host.parse::<std::net::IpAddr>().is_ok() {
            return endpoint.resolve();
        }
        let host = endpoint.host.clone();
        let (answer, answered) = mpsc::channel();
        std::thread::spawn(move || answer.send(endpoint.resolve()));
        let answer = match deadline.left() {
            Some(left) => answered.recv_timeout(left).ok(),
            None => answered.recv().ok(),
        };
        answer.unwrap_or_else(|| {
            Err(StoreError::Unresolvable { host, reason: "the name server did not answer in time".into() })
        })
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if connection.is_usable() && idle.len() < IDLE {
            idle.push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a try at one address failed.
enum Tried {
    /// Another address or another try may do.
    Failed(String),
    /// No other try will.
    Final(StoreError),
}

/// A key as the user knows it: without the slash that torch's clients put before it.
pub(super) fn user_key(key: &[u8]) -> String {
    rallypoint_core::printable(key.strip_prefix(b"/").unwrap_or(key))
}

/// One part of what a server says of itself.
fn part<'a>(identity: &'a str, name: &str) -> Option<&'a str> {
    identity.split(' ').find_map(|part| part.strip_prefix(name))
}
