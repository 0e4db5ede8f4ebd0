//! Lets another process remove a node from its rendezvous after the node's own process was killed.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{Member, NodeDesc, keys};
use rallypoint_store::{Store, StoreError, TcpStore, TcpStoreOptions};
use serde::{Deserialize, Serialize};

use crate::c10d::{C10dBackend, DEFAULT_PORT, create_file_store};
use crate::dynamic::DynamicRendezvousHandler;
use crate::endpoint::parse_rendezvous_endpoint;
use crate::error::{RendezvousError, Result};
use crate::parameters::RendezvousParameters;
use crate::settings::{StoreType, settings, store_type};

/// The timeout for connecting to a TCP store and for each call to it.
const TCP_STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// The data with which another process can remove a node from a `c10d` rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    endpoint: String,
    store_type: String,
    run_id: String,
    min_nodes: u64,
    max_nodes: u64,
    addr: String,
    pid: i64,
    local_id: i64,
}

impl Departure {
    /// Creates the data for removing `node` from the rendezvous of `parameters`.
    pub fn new(parameters: &RendezvousParameters, node: &NodeDesc) -> Departure {
        Departure {
            endpoint: parameters.endpoint.clone(),
            store_type: parameters.get("store_type").map_or_else(|| "tcp".into(), ToString::to_string),
            run_id: parameters.run_id.clone(),
            min_nodes: parameters.min_nodes,
            max_nodes: parameters.max_nodes,
            addr: node.addr.to_string(),
            pid: node.pid,
            local_id: node.local_id,
        }
    }

    /// Removes the node from the rendezvous. Otherwise the other nodes would remove it only after `keep_alive_interval`
    /// × `keep_alive_max_attempt` without a heartbeat.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used, or if a TCP store can't be reached within 5 s, for example because the node
    /// itself hosted it.
    pub fn leave(&self) -> Result<()> {
        let Departure { endpoint, run_id, min_nodes, max_nodes, .. } = self;
        let parameters = RendezvousParameters::new("c10d", endpoint, run_id, *min_nodes, *max_nodes)?;
        let parameters =
            parameters.with_config([("store_type".into(), self.store_type.as_str().into())].into())?;
        let failed = |source: StoreError| RendezvousError::Connection { run_id: run_id.clone(), source };
        let store: Arc<dyn Store> = match store_type(&parameters)? {
            StoreType::Tcp => {
                let endpoint = parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)?;
                let options = TcpStoreOptions::new(endpoint).timeout(TCP_STORE_TIMEOUT);
                Arc::new(TcpStore::open(options).map_err(failed)?)
            }
            StoreType::File => create_file_store(&parameters)?.store,
        };
        // Without a state there is nothing to leave, and creating the backend would write a state.
        if !store.check(&[&keys::state(run_id)]).map_err(failed)? {
            return Ok(());
        }
        let node = NodeDesc::new(self.addr.as_str(), self.pid, self.local_id);
        let backend = Arc::new(C10dBackend::new(Arc::clone(&store), run_id)?);
        let member = Member::new(node, settings(&parameters)?);
        DynamicRendezvousHandler::for_member(backend, store, member).leave_from_another_process()
    }
}
