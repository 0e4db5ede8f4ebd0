//! The store of a round, and the address of the workers' store. The node with group rank 0 serves both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_coordinator::message::Assignment;
use rallypoint_core::rendezvous::keys;
use rallypoint_store::{
    Cancellation, Endpoint, OnReset, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};

use super::NativeRendezvousHandler;
use super::node_state::RoundCancellation;
use crate::dynamic::DynamicRendezvousHandler;
use crate::error::{RendezvousError, Result};
use crate::handler::RendezvousInfo;
use crate::key_wait::KeyWait;
use crate::machine::{is_this_machine, listen_host};
use crate::store_info::RendezvousStoreInfo;

/// Interval for checking whether the round has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

impl NativeRendezvousHandler {
    /// Enters a round that has started: opens its store, and publishes or reads the address of the workers' store.
    /// Returns `None` if the round ends first.
    pub(super) fn enter(&self, assignment: &Assignment) -> Result<Option<RendezvousInfo>> {
        match self.open(assignment) {
            Ok(info) => Ok(Some(info)),
            Err(_) if self.has_ended() => Ok(None),
            Err(source) => {
                self.check_fault()?;
                Err(RendezvousError::Connection { run_id: self.run_id.clone(), source })
            }
        }
    }

    /// Returns whether the round of this node has ended.
    fn has_ended(&self) -> bool {
        self.shared.lock().has_ended()
    }

    fn open(&self, assignment: &Assignment) -> Result<RendezvousInfo, StoreError> {
        let endpoint: Endpoint = assignment.master.parse()?;
        let cancellation = Arc::new(RoundCancellation {
            shared: Arc::clone(&self.shared),
            round: assignment.round,
            has_entered: AtomicBool::new(false),
            caller: self.cancellation.clone(),
        });
        let options = TcpStoreOptions::new(endpoint.clone())
            .timeout(self.settings.read_timeout)
            .on_reset(OnReset::Fail)
            .cancellation(Some(Arc::clone(&cancellation) as Arc<dyn Cancellation>));
        let store = TcpStore::open(options)?;
        let prefix = keys::round_prefix(&self.run_id, assignment.round);
        if assignment.rank == 0 {
            self.delete_earlier_rounds(&store, assignment.round)?;
        }
        *self.round_store.lock().unwrap_or_else(PoisonError::into_inner) = Some(store.clone());
        let store = Arc::new(PrefixStore::new(prefix, Arc::new(store)));
        let use_agent_store = DynamicRendezvousHandler::use_agent_store();
        let bootstrap_store_info = match assignment.rank {
            0 => {
                let port = use_agent_store.then(|| self.serve_workers(&endpoint.host)).transpose()?;
                RendezvousStoreInfo::build(0, &*store, &endpoint.host, port)?
            }
            _ => read_store_info(&*store)?,
        };
        cancellation.has_entered.store(true, Ordering::Relaxed);
        Ok(RendezvousInfo {
            store,
            rank: u64::from(assignment.rank),
            world_size: u64::from(assignment.world_size),
            bootstrap_store_info,
            use_agent_store,
            round: assignment.round,
            lost: u64::from(assignment.lost),
            participants: match self.wants_participants {
                true => self.participants(assignment.round),
                false => Vec::new(),
            },
        })
    }

    /// Starts the server of the workers' store, and returns its port. Each round has a new server, so workers never
    /// find keys of an earlier round.
    fn serve_workers(&self, address: &str) -> Result<u16, StoreError> {
        let host = if is_this_machine(address) { listen_host(address) } else { String::new() };
        let server = TcpStoreServer::bind(&host, 0)?;
        let port = server.port();
        *self.workers_server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(port)
    }

    /// Deletes the keys of earlier rounds, in which this node also had group rank 0.
    fn delete_earlier_rounds(&self, store: &TcpStore, current: u64) -> Result<(), StoreError> {
        let is_old = |key: &&String| keys::round_of(&self.run_id, key).is_some_and(|round| round < current);
        store.list_keys()?.iter().filter(is_old).try_for_each(|key| store.delete_key(key).map(drop))
    }
}

/// How long the node with group rank 0 waits until the other nodes have shut down.
const SHUT_DOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of nodes that have shut down, apart from the one with group rank 0.
const SHUT_DOWN_COUNT: &str = "rallypoint/shut_down/count";
/// Set by the last of them.
const SHUT_DOWN: &str = "rallypoint/shut_down/all";

impl NativeRendezvousHandler {
    /// Tells the node with group rank 0 that this node does not need the store of the round any more. If this node has
    /// that rank, waits until all other nodes have said so, at most for [`SHUT_DOWN_TIMEOUT`].
    pub(super) fn await_shut_downs(&self) -> Result<(), StoreError> {
        let round = self.shared.lock().round.clone();
        let Some((round, store)) = round.zip(self.round_store()) else { return Ok(()) };
        let others = i64::from(round.world_size) - 1;
        let prefix = keys::round_prefix(&self.run_id, round.round);
        let store = PrefixStore::new(prefix, Arc::new(store)).with_timeout(Some(SHUT_DOWN_TIMEOUT));
        match round.rank {
            _ if others == 0 => Ok(()),
            0 => store.wait(&[SHUT_DOWN]),
            _ if store.add(SHUT_DOWN_COUNT, 1)? == others => store.set(SHUT_DOWN, b"1"),
            _ => Ok(()),
        }
    }
}

/// Waits for the node with group rank 0 to publish the address of the workers' store. A canceled call ends the wait.
fn read_store_info(store: &dyn Store) -> Result<RendezvousStoreInfo, StoreError> {
    let keys = [RendezvousStoreInfo::MASTER_ADDR_KEY, RendezvousStoreInfo::MASTER_PORT_KEY];
    let (start, timeout) = (Instant::now(), store.timeout().unwrap_or(Duration::MAX));
    let mut wait = KeyWait::new(store, &keys, CHECK_INTERVAL);
    while !wait.poll(timeout.saturating_sub(start.elapsed()))? {
        if start.elapsed() >= timeout {
            break;
        }
    }
    RendezvousStoreInfo::read(store, timeout.saturating_sub(start.elapsed()).max(CHECK_INTERVAL))
}
