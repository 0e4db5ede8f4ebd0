//! Where the workers of a round find each other: at a store that the agent of rank 0 serves.
//!
//! Rank 0 says so in every round, and the others ask in every round. Torch's nodes do so in their first round only, which
//! is why a node that comes later waits for an answer in vain; where rank 0 is one of those, what it said before is
//! still true.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{CALL_TIMEOUT, NodeDesc};
use rallypoint_store::{Store, StoreError, TcpStore, TcpStoreServer};

use super::DynamicRendezvousHandler;
use crate::error::{RendezvousError, Result};
use crate::handler::RendezvousHandler;
use crate::machine::{is_this_machine, place_to_listen};
use crate::patience::PatientWait;
use crate::store_info::RendezvousStoreInfo;

/// How long a rank 0 that has said it before may take to say it again.
const AGAIN: Duration = Duration::from_secs(2);
/// How long rank 0 may take before the nodes look at the state for what has become of it: of 1,000 nodes each would.
const USUAL: Duration = Duration::from_secs(1);
/// How long a node waits for rank 0 before it checks whether it was interrupted and, after `USUAL`, looks at the state.
const SLICE: Duration = Duration::from_millis(200);

/// What a node remembers from round to round.
#[derive(Default)]
pub(super) struct Bootstrap {
    /// The server of this node, from the first time it is rank 0 on.
    server: Option<Arc<TcpStoreServer>>,
    /// What the last rank 0 said, and which node that is.
    said: Option<(NodeDesc, RendezvousStoreInfo)>,
}

/// The round that a node has joined, and of which it does not know yet where the workers meet.
pub(super) struct InRound<'a> {
    pub(super) handler: &'a DynamicRendezvousHandler,
    pub(super) round: u64,
    pub(super) rank_0: &'a NodeDesc,
    /// The store of the round.
    pub(super) store: &'a dyn Store,
}

impl InRound<'_> {
    fn stands(&self) -> Result<bool> {
        self.handler.stands(self.round, self.rank_0)
    }

    /// Tolerates a failed call to the store, begun at `began`. Fails if the outage lasts too long.
    fn tolerate(&self, source: StoreError, began: Instant) -> Result<()> {
        let driver = &self.handler.driver;
        let error = RendezvousError::Connection { run_id: driver.settings.run_id.clone(), source };
        driver.tolerate(error, driver.at(began))
    }
}

impl Bootstrap {
    /// Publishes, as rank 0, where the workers meet, or reads what rank 0 publishes. Returns `None` if the round ends first.
    /// With `serve`, rank 0 runs a server there.
    pub(super) fn build(
        &mut self,
        round: &InRound<'_>,
        rank: u64,
        serve: bool,
    ) -> Result<Option<RendezvousStoreInfo>> {
        match rank {
            0 => self.publish(round, serve),
            _ => self.read(round),
        }
    }

    fn publish(&mut self, round: &InRound<'_>, serve: bool) -> Result<Option<RendezvousStoreInfo>> {
        let addr = &round.rank_0.addr;
        let run_id = || round.handler.run_id().into();
        let port = match serve {
            true => {
                let port = self.serve(addr);
                Some(port.map_err(|source| RendezvousError::Connection { run_id: run_id(), source })?)
            }
            false => None,
        };
        self.said = None;
        loop {
            let began = Instant::now();
            match RendezvousStoreInfo::build(0, round.store, addr, port) {
                Ok(info) => return Ok(Some(info)),
                Err(error) => round.tolerate(error, began)?,
            }
            if !round.stands()? {
                return Ok(None);
            }
        }
    }

    /// Reads what rank 0 publishes. A rank 0 that published in an earlier round and now publishes nothing is one of torch's,
    /// so what it published before holds.
    fn read(&mut self, round: &InRound<'_>) -> Result<Option<RendezvousStoreInfo>> {
        let InRound { rank_0, store, handler, .. } = *round;
        let before = self.said.as_ref().filter(|(node, _)| node == rank_0).map(|(_, info)| info.clone());
        let patience = match before {
            None => store.timeout().unwrap_or(Duration::MAX),
            Some(_) => AGAIN,
        };
        let keys = [RendezvousStoreInfo::MASTER_ADDR_KEY, RendezvousStoreInfo::MASTER_PORT_KEY];
        let mut wait = PatientWait::new(store, &keys, SLICE);
        let (mut start, mut published) = (Instant::now(), false);
        while !published && start.elapsed() < patience {
            let began = Instant::now();
            match wait.poll(patience.saturating_sub(start.elapsed())) {
                Ok(all) => published = all,
                Err(error) => {
                    round.tolerate(error, began)?;
                    // The outage of the store does not count against rank 0.
                    start = Instant::now();
                }
            }
            if start.elapsed() < USUAL {
                handler.driver.check_interrupted()?;
            } else if !published && !round.stands()? {
                // Rank 0 may have published, finished and left.
                published = store.check(&keys).is_ok_and(|all| all);
                if !published {
                    return Ok(None);
                }
            }
        }
        let info = match before {
            _ if published => loop {
                let began = Instant::now();
                match RendezvousStoreInfo::read(store, CALL_TIMEOUT) {
                    Ok(info) => break info,
                    Err(error) => round.tolerate(error, began)?,
                }
            },
            Some(info) => {
                tracing::debug!("rank 0, {rank_0}, has not published again where the workers meet: {info:?}");
                // For nodes that were not in the round in which rank 0 published it.
                let _ = info.publish(store);
                info
            }
            None => {
                let (run_id, rank_0) = (handler.run_id().into(), rank_0.to_string());
                return Err(RendezvousError::NoMaster { run_id, rank_0, waited: start.elapsed() });
            }
        };
        self.said = Some((rank_0.clone(), info.clone()));
        Ok(Some(info))
    }

    /// The port of this node's server, started if there is none.
    fn serve(&mut self, addr: &str) -> Result<u16, StoreError> {
        if let Some(server) = &self.server {
            empty(server)?;
            return Ok(server.port());
        }
        // An address that is ours only seen from outside, behind a translator say, can't be bound.
        let host = if is_this_machine(addr) { place_to_listen(addr) } else { String::new() };
        let server = TcpStoreServer::bind(&host, 0)?;
        let port = server.port();
        self.server = Some(Arc::new(server));
        Ok(port)
    }
}

/// Removes what the workers of an earlier round have left: those of the next look under the same names. The server stays
/// where it is, because torch's nodes don't ask again where that is.
fn empty(server: &TcpStoreServer) -> Result<(), StoreError> {
    let address = server.addresses()[0];
    let host = match address.ip() {
        ip if ip.is_unspecified() => "localhost".to_owned(),
        ip => ip.to_string(),
    };
    let store = TcpStore::connect(&host, address.port())?;
    store.list_keys()?.iter().try_for_each(|key| store.delete_key(key).map(drop))
}
