//! Who wants to know what a node waits for, and what it is told: of dynamic rounds and of static ones.

use std::fmt;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{Reason, Settings, State};
use rallypoint_store::{ConnectionFault, Endpoint};

use crate::hosts::MissingHosts;

/// What a node that waits can tell about it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Waiting<'a> {
    /// What for, and what ends it.
    pub reason: &'a Reason,
    /// The state it saw last, if there was any.
    pub state: Option<&'a State>,
    /// Its settings.
    pub settings: &'a Settings,
    /// How long it has waited.
    pub waited: Duration,
    /// How long until its time to join is up. A spare that is needed after all has it all again.
    pub left: Duration,
    /// Who was expected by name and is not here.
    pub missing: MissingHosts,
}

/// What a node of a static rendezvous that waits can tell about it.
#[derive(Debug)]
#[non_exhaustive]
pub struct StaticWaiting<'a> {
    /// Where rank 0 is.
    pub endpoint: &'a Endpoint,
    /// How many nodes are here.
    pub joined: i64,
    /// How many must be.
    pub world_size: u64,
    /// When this node gives up.
    pub left: Duration,
}

/// A node that has not reached the store of its rendezvous yet.
///
/// Its text says what is missing and why: `no answer yet from the store at node0:29400: connection refused (…)`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connecting<'a> {
    /// The peer that should answer: `the store`, or `rank 0` of a static rendezvous.
    pub peer: &'static str,
    /// Where the node tries to connect.
    pub endpoint: &'a Endpoint,
    /// Why the latest attempt failed.
    pub fault: &'a ConnectionFault,
    /// How long the node has tried.
    pub waited: Duration,
    /// How long until the node gives up.
    pub left: Duration,
    /// The setting that bounds the wait.
    pub setting: &'static str,
}

impl Connecting<'_> {
    /// How long a fault is not logged. Nodes that start together find each other within this time.
    pub const LOG_GRACE: Duration = Duration::from_secs(1);

    /// Returns when the node gives up, as the end of a log line.
    pub fn until(&self) -> String {
        format!("; gives up in {} s ({})", self.left.as_secs_f64().ceil(), self.setting)
    }
}

impl fmt::Display for Connecting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer yet from {} at {}: {}", self.peer, self.endpoint, self.fault)
    }
}

/// Passes connection faults on to the observer. Without an observer, it logs each fault that differs from the last one.
pub(crate) struct ConnectReporter<'a> {
    pub(crate) run_id: &'a str,
    pub(crate) peer: &'static str,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) setting: &'static str,
    pub(crate) start: Instant,
    pub(crate) timeout: Duration,
    pub(crate) observer: Option<&'a dyn Observer>,
    pub(crate) logged: Option<ConnectionFault>,
}

impl ConnectReporter<'_> {
    pub(crate) fn report(&mut self, fault: &ConnectionFault) {
        let waited = self.start.elapsed();
        let left = self.timeout.saturating_sub(waited);
        let (peer, endpoint, setting) = (self.peer, self.endpoint, self.setting);
        let connecting = Connecting { peer, endpoint, fault, waited, left, setting };
        match self.observer {
            Some(observer) => observer.connecting(&connecting),
            None if waited >= Connecting::LOG_GRACE && self.logged.as_ref() != Some(fault) => {
                let (run_id, until, hint) = (self.run_id, connecting.until(), fault.hint());
                tracing::info!("waiting in the rendezvous '{run_id}': {connecting}{until}; hint: {hint}");
                self.logged = Some(fault.clone());
            }
            None => {}
        }
    }
}

/// Somebody who wants to know what a node waits for. Called each time it looks, which is about once a second, or oftener.
pub trait Observer: Send + Sync {
    /// The node goes on waiting.
    fn waiting(&self, waiting: &Waiting<'_>);

    /// The node has not reached its store yet. Called after each failed attempt to connect, and once per second while a
    /// server that accepted the connection has not answered.
    fn connecting(&self, connecting: &Connecting<'_>) {
        let _ = connecting;
    }

    /// A node of a static rendezvous goes on waiting.
    fn static_waiting(&self, waiting: &StaticWaiting<'_>) {
        let _ = waiting;
    }
}
