//! Where the workers of a round find each other: at a store that the agent of rank 0 serves.
//!
//! Rank 0 says so in every round, and the others ask in every round. Torch's nodes do so in their first round only, which
//! is why a node that comes later waits for an answer in vain; where rank 0 is one of those, what it said before is
//! still true.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{CALL_TIMEOUT, NodeDesc};
use rallypoint_store::{Store, StoreError, TcpStore, TcpStoreServer};

use crate::error::{RendezvousError, Result};
use crate::machine::{is_this_machine, place_to_listen};
use crate::patience::PatientWait;
use crate::store_info::RendezvousStoreInfo;

/// How long a rank 0 that has said it before may take to say it again.
const AGAIN: Duration = Duration::from_secs(2);
/// How long, if it did not do so last time.
const HARDLY: Duration = Duration::from_millis(200);

/// So long rank 0 may take before anybody asks what has become of it: of a thousand nodes all would, and that takes longer.
const USUAL: Duration = Duration::from_secs(1);

/// How long a node waits for rank 0 before it looks at the state.
const SLICE: Duration = Duration::from_millis(200);

/// What a node remembers from round to round.
#[derive(Default)]
pub(super) struct Bootstrap {
    /// The server of this node, from the first time it is rank 0 on.
    server: Option<Arc<TcpStoreServer>>,
    /// What the last rank 0 said, and which node that is.
    said: Option<(NodeDesc, RendezvousStoreInfo)>,
    /// It did not say so again.
    silent: bool,
}

/// What has become of a round while one waits for its rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing: the others may still say what they have to.
    Stands,
    /// It has lost rank 0, or this node, or is over: nothing will be said any more.
    Void,
    /// Somebody wants this node to stop waiting.
    Interrupted,
}

/// What a node that waits for rank 0 wants to know now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looks {
    /// Whether somebody wants it to stop.
    Up,
    /// And what has become of the round.
    AtTheState,
}

/// The round of a node that waits for its rank 0.
pub(super) trait RoundWatch {
    /// What has become of the round.
    fn standing(&self, looks: Looks) -> Standing;

    /// Tolerates a failed call to the store, begun at `began`. Fails if the outage lasts too long.
    fn tolerate(&self, error: StoreError, began: Instant) -> Result<()>;
}

impl Bootstrap {
    /// Publishes, as rank 0, where the workers meet, or reads what rank 0 publishes. Returns `None` if the round ends first.
    /// With `serve`, rank 0 runs a server there.
    pub(super) fn build(
        &mut self,
        run_id: &str,
        rank: u64,
        rank_0: &NodeDesc,
        store: &dyn Store,
        serve: bool,
        round: &impl RoundWatch,
    ) -> Result<Option<RendezvousStoreInfo>> {
        match rank {
            0 => self.publish(run_id, &rank_0.addr, store, serve, round),
            _ => self.read(run_id, rank_0, store, round),
        }
    }

    fn publish(
        &mut self,
        run_id: &str,
        addr: &str,
        store: &dyn Store,
        serve: bool,
        round: &impl RoundWatch,
    ) -> Result<Option<RendezvousStoreInfo>> {
        let failed = |source| RendezvousError::Connection { run_id: run_id.into(), source };
        let port = match serve {
            true => Some(self.serve(addr).map_err(failed)?),
            false => None,
        };
        self.said = None;
        loop {
            let began = Instant::now();
            match RendezvousStoreInfo::build(0, store, addr, port) {
                Ok(info) => return Ok(Some(info)),
                Err(error) => round.tolerate(error, began)?,
            }
            match round.standing(Looks::AtTheState) {
                Standing::Stands => {}
                Standing::Void => return Ok(None),
                Standing::Interrupted => return Err(interrupted(run_id)),
            }
        }
    }

    /// Reads what rank 0 publishes. A rank 0 that published in an earlier round and now publishes nothing is one of torch's,
    /// so what it published before holds.
    fn read(
        &mut self,
        run_id: &str,
        rank_0: &NodeDesc,
        store: &dyn Store,
        round: &impl RoundWatch,
    ) -> Result<Option<RendezvousStoreInfo>> {
        let before = self.said.as_ref().filter(|(node, _)| node == rank_0).map(|(_, info)| info.clone());
        let patience = match (&before, self.silent) {
            (None, _) => store.timeout().unwrap_or(Duration::MAX),
            (Some(_), false) => AGAIN,
            (Some(_), true) => HARDLY,
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
            let looks = if start.elapsed() < USUAL { Looks::Up } else { Looks::AtTheState };
            match round.standing(looks) {
                _ if published => {}
                Standing::Stands => {}
                // Rank 0 may have published, finished and left.
                Standing::Void if store.check(&keys).is_ok_and(|all| all) => published = true,
                Standing::Void => return Ok(None),
                Standing::Interrupted => return Err(interrupted(run_id)),
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
                let (run_id, rank_0) = (run_id.into(), rank_0.to_string());
                return Err(RendezvousError::NoMaster { run_id, rank_0, waited: start.elapsed() });
            }
        };
        self.silent = !published;
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

fn interrupted(run_id: &str) -> RendezvousError {
    RendezvousError::Interrupted { run_id: run_id.into() }
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
