//! The interface to observe a node that waits in a rendezvous: [`Observer`] and the values that it gets.

use std::fmt;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{NodeDesc, Reason, Settings, State};
use rallypoint_store::{ConnectionFault, Endpoint};

use crate::hosts::MissingHosts;

/// The state of a node that waits in a dynamic rendezvous.
#[derive(Debug)]
#[non_exhaustive]
pub struct Waiting<'a> {
    /// What the node waits for.
    pub reason: &'a Reason,
    /// The state that the node read last, if there is one.
    pub state: Option<&'a State>,
    /// The settings of the rendezvous on this node.
    pub settings: &'a Settings,
    /// The time since the node started to join.
    pub waited: Duration,
    /// The time until the join timeout. If this node is a spare and becomes needed, the timeout starts again.
    pub left: Duration,
    /// The expected hosts that have not joined.
    pub missing: MissingHosts,
}

/// The state of a node that waits in a static rendezvous.
#[derive(Debug)]
#[non_exhaustive]
pub struct StaticWaiting<'a> {
    /// The endpoint at which rank 0 hosts the store.
    pub endpoint: &'a Endpoint,
    /// The number of nodes that have joined.
    pub joined: i64,
    /// The number of nodes in the job.
    pub world_size: u64,
    /// The time until the node gives up.
    pub left: Duration,
}

/// The state of a node that waits in a native rendezvous.
#[derive(Debug)]
#[non_exhaustive]
pub struct NativeWaiting<'a> {
    /// What the node waits for.
    pub state: &'a str,
    /// The time after which that wait ends by itself, if it does.
    pub ends_in: Option<Duration>,
    /// The time since the node started to join.
    pub waited: Duration,
    /// The time until the join timeout, if it limits the wait.
    pub left: Option<Duration>,
}

/// The state of a node that has not reached the store of its rendezvous yet.
///
/// The `Display` text names the peer and the reason: `no reply yet from the store at node0:29400: connection refused
/// (…)`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connecting<'a> {
    /// The peer that should reply: `the store`, or `rank 0` of a static rendezvous.
    pub peer: &'static str,
    /// The endpoint that the node connects to.
    pub endpoint: &'a Endpoint,
    /// Why the latest attempt failed.
    pub fault: &'a ConnectionFault,
    /// The time since the first attempt to connect.
    pub waited: Duration,
    /// The time until the node gives up.
    pub left: Duration,
    /// The setting that bounds the wait.
    pub setting: &'static str,
}

impl Connecting<'_> {
    /// The time after the first attempt to connect during which faults are not logged. Nodes that start together
    /// usually connect within this time.
    pub const LOG_GRACE: Duration = Duration::from_secs(1);

    /// Returns the end of a log line, which says when the node gives up: `; gives up in 59 s (read_timeout)`.
    pub fn timeout_suffix(&self) -> String {
        format!("; gives up in {} s ({})", self.left.as_secs_f64().ceil(), self.setting)
    }
}

impl fmt::Display for Connecting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no reply yet from {} at {}: {}", self.peer, self.endpoint, self.fault)
    }
}

/// Passes connection faults to the observer. Without an observer, it logs the faults that occur after `LOG_GRACE`,
/// except a fault that equals the last one that was logged.
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
                let (run_id, suffix, hint) = (self.run_id, connecting.timeout_suffix(), fault.hint());
                tracing::info!("waiting in the rendezvous '{run_id}': {connecting}{suffix}\nhint: {hint}");
                self.logged = Some(fault.clone());
            }
            None => {}
        }
    }
}

/// Returns the name of a node for people to read: its address and its process id. The address comes from a peer, so it
/// is escaped.
pub fn describe_node(node: &NodeDesc) -> String {
    format!("{} (pid {})", node.addr.escape_debug(), node.pid)
}

/// Receives notifications while a node waits in a rendezvous. While the store replies, they arrive about once per
/// second or more often.
pub trait Observer: Send + Sync {
    /// Called before each pause of a node that waits in a dynamic rendezvous.
    fn waiting(&self, waiting: &Waiting<'_>);

    /// Called while the node has not reached its store: after each failed attempt to connect, and once per second while
    /// a server that accepted the connection has not replied.
    fn connecting(&self, connecting: &Connecting<'_>) {
        let _ = connecting;
    }

    /// Called when the node of a dynamic rendezvous has reached its TCP store. `is_host` is whether the node hosts the
    /// store itself. Not called for an endpoint with port 0.
    fn connected(&self, endpoint: &Endpoint, is_host: bool) {
        let _ = (endpoint, is_host);
    }

    /// Called each time a node that waits in a static rendezvous has counted the joined nodes.
    fn static_waiting(&self, waiting: &StaticWaiting<'_>) {
        let _ = waiting;
    }

    /// Called about once per second while a node waits in a native rendezvous.
    fn native_waiting(&self, waiting: &NativeWaiting<'_>) {
        let _ = waiting;
    }
}
