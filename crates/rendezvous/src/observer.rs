//! Who wants to know what a node waits for, and what it is told: of dynamic rounds and of static ones.

use std::time::Duration;

use rallypoint_core::rendezvous::{Reason, Settings, State};
use rallypoint_store::Endpoint;

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
pub struct Gathering<'a> {
    /// Where rank 0 is.
    pub endpoint: &'a Endpoint,
    /// How many nodes are here; `None` as long as rank 0 has not been reached.
    pub joined: Option<i64>,
    /// How many must be.
    pub world_size: u64,
    /// When this node gives up.
    pub left: Duration,
}

/// Somebody who wants to know what a node waits for. Called each time it looks, which is about once a second, or oftener.
pub trait Observer: Send + Sync {
    /// The node goes on waiting.
    fn waiting(&self, waiting: &Waiting<'_>);

    /// A node of a static rendezvous goes on waiting.
    fn gathering(&self, gathering: &Gathering<'_>) {
        let _ = gathering;
    }
}
