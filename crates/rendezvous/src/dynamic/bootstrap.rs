//! The address of the workers' store, which the node with group rank 0 usually serves. In this file, that node is
//! called rank 0.
//!
//! Rank 0 publishes the address in every round, and the other nodes read it in every round. Torch's nodes do both in
//! their first round only, so a node that joins a later round of torch's nodes waits until its timeout. If rank 0 runs
//! torch, the address that it published in an earlier round is still valid.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{CALL_TIMEOUT, NodeDesc};
use rallypoint_store::{Store, StoreError, TcpStore, TcpStoreServer};

use super::DynamicRendezvousHandler;
use crate::error::{RendezvousError, Result};
use crate::handler::RendezvousHandler;
use crate::key_wait::KeyWait;
use crate::machine::{is_this_machine, listen_host};
use crate::observer::describe_node;
use crate::store_info::RendezvousStoreInfo;

/// How long a rank 0 that has published in an earlier round may take to publish again.
const REPUBLISH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long nodes wait for rank 0 before they read the state to check whether rank 0 was lost. Without this grace,
/// every node of a large round would read the state.
const STATE_CHECK_GRACE: Duration = Duration::from_secs(1);
/// Interval for checking whether this node was interrupted and, after `STATE_CHECK_GRACE`, whether the round is intact.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What a node remembers about the workers' store from round to round.
#[derive(Default)]
pub(super) struct Bootstrap {
    /// The server that this node has run since its first round as rank 0.
    server: Option<Arc<TcpStoreServer>>,
    /// The address that this node read last, and the node that published it. `None` after a round in which this node
    /// was rank 0.
    last_read: Option<(NodeDesc, RendezvousStoreInfo)>,
}

/// A round that this node has joined, while the address of the workers' store is unknown.
pub(super) struct NewRound<'a> {
    pub(super) handler: &'a DynamicRendezvousHandler,
    pub(super) round: u64,
    pub(super) rank_0: &'a NodeDesc,
    /// The store of the round.
    pub(super) store: &'a dyn Store,
}

impl NewRound<'_> {
    fn is_intact(&self) -> Result<bool> {
        self.handler.is_round_intact(self.round, self.rank_0)
    }

    /// Tolerates a failed call to the store that started at `call_start`. Fails if the outage has lasted for
    /// `store_outage_timeout`.
    fn tolerate(&self, source: StoreError, call_start: Instant) -> Result<()> {
        let driver = &self.handler.driver;
        let error = RendezvousError::Connection { run_id: driver.settings.run_id.clone(), source };
        driver.tolerate(error, driver.at(call_start))
    }
}

impl Bootstrap {
    /// Publishes the address of the workers' store if this node is rank 0, and reads it otherwise. Returns `None` if
    /// the round ends first.
    ///
    /// If `serve` is set, rank 0 also runs the server of the workers' store.
    pub(super) fn build(
        &mut self,
        round: &NewRound<'_>,
        rank: u64,
        serve: bool,
    ) -> Result<Option<RendezvousStoreInfo>> {
        match rank {
            0 => self.publish(round, serve),
            _ => self.read(round),
        }
    }

    fn publish(&mut self, round: &NewRound<'_>, serve: bool) -> Result<Option<RendezvousStoreInfo>> {
        let addr = &round.rank_0.addr;
        let run_id = || round.handler.run_id().into();
        let port = match serve {
            true => {
                let port = self.serve(addr);
                Some(port.map_err(|source| RendezvousError::Connection { run_id: run_id(), source })?)
            }
            false => None,
        };
        self.last_read = None;
        loop {
            let call_start = Instant::now();
            match RendezvousStoreInfo::build(0, round.store, addr, port) {
                Ok(info) => return Ok(Some(info)),
                Err(error) => round.tolerate(error, call_start)?,
            }
            if !round.is_intact()? {
                return Ok(None);
            }
        }
    }

    /// Reads what rank 0 publishes. If rank 0 has published in an earlier round and publishes nothing now, it runs
    /// torch, and the earlier address is still valid.
    fn read(&mut self, round: &NewRound<'_>) -> Result<Option<RendezvousStoreInfo>> {
        let NewRound { rank_0, store, handler, .. } = *round;
        let previous =
            self.last_read.as_ref().filter(|(node, _)| node == rank_0).map(|(_, info)| info.clone());
        let timeout = match previous {
            None => store.timeout().unwrap_or(Duration::MAX),
            Some(_) => REPUBLISH_TIMEOUT,
        };
        let keys = [RendezvousStoreInfo::MASTER_ADDR_KEY, RendezvousStoreInfo::MASTER_PORT_KEY];
        let mut wait = KeyWait::new(store, &keys, POLL_INTERVAL);
        let (mut start, mut published) = (Instant::now(), false);
        while !published && start.elapsed() < timeout {
            let call_start = Instant::now();
            match wait.poll(timeout.saturating_sub(start.elapsed())) {
                Ok(is_published) => published = is_published,
                Err(error) => {
                    round.tolerate(error, call_start)?;
                    // The timeout starts again, because the outage does not count.
                    start = Instant::now();
                }
            }
            if start.elapsed() < STATE_CHECK_GRACE {
                handler.driver.check_interrupted()?;
            } else if !published && !round.is_intact()? {
                // Rank 0 may have published the address, finished and left since the last poll.
                published = store.check(&keys).is_ok_and(|is_published| is_published);
                if !published {
                    return Ok(None);
                }
            }
        }
        let info = match previous {
            _ if published => loop {
                let call_start = Instant::now();
                match RendezvousStoreInfo::read(store, CALL_TIMEOUT) {
                    Ok(info) => break info,
                    Err(error) => round.tolerate(error, call_start)?,
                }
            },
            Some(info) => {
                tracing::debug!(
                    "the node with group rank 0, {rank_0}, has not published the address of the workers' store in this \
                     round; using the address that it published in an earlier round: {info:?}"
                );
                // Publish the address again for nodes that were not in the earlier round.
                let _ = info.publish(store);
                info
            }
            None => {
                let (run_id, rank_0) = (handler.run_id().into(), describe_node(rank_0));
                return Err(RendezvousError::NoMaster { run_id, rank_0, waited: start.elapsed() });
            }
        };
        self.last_read = Some((rank_0.clone(), info.clone()));
        Ok(Some(info))
    }

    /// Returns the port of this node's server. Starts the server if it does not run, and otherwise deletes all its
    /// keys.
    fn serve(&mut self, addr: &str) -> Result<u16, StoreError> {
        if let Some(server) = &self.server {
            delete_all_keys(server)?;
            return Ok(server.port());
        }
        // The external address of a machine behind NAT can't be bound, so the server listens on all addresses.
        let host = if is_this_machine(addr) { listen_host(addr) } else { String::new() };
        let server = TcpStoreServer::bind(&host, 0)?;
        let port = server.port();
        self.server = Some(Arc::new(server));
        Ok(port)
    }
}

/// Deletes all keys that the workers of an earlier round have set, because the workers of the next round use the same
/// keys. The server keeps running, because torch's nodes read its address only once.
fn delete_all_keys(server: &TcpStoreServer) -> Result<(), StoreError> {
    let address = server.addresses()[0];
    let host = match address.ip() {
        ip if ip.is_unspecified() => "localhost".to_owned(),
        ip => ip.to_string(),
    };
    let store = TcpStore::connect(&host, address.port())?;
    store.list_keys()?.iter().try_for_each(|key| store.delete_key(key).map(drop))
}
