//! One node of a static rendezvous, for Python.

use pyo3::prelude::*;
use rallypoint_rendezvous::{
    Config, RendezvousError, RendezvousHandler, RendezvousParameters, StaticRendezvousHandler,
};

use super::call_lock::CallLock;
use super::exceptions::{static_exception, to_exception};
use super::{Round, check_owner, to_round};
use crate::calls::{detached, signal_cancellation};
use crate::logging::{forward, start_capture};
use crate::process::Owner;
use crate::stores;

/// One node of a static rendezvous.
#[pyclass(frozen, module = "rallypoint._rallypoint")]
pub(super) struct StaticNode {
    handler: StaticRendezvousHandler,
    master_addr: String,
    call_lock: CallLock,
    owner: Owner,
}

#[pymethods]
impl StaticNode {
    /// Creates the node with this rank. Rank 0 hosts the store.
    #[new]
    fn new(
        py: Python<'_>,
        master_addr: &str,
        master_port: i64,
        rank: i64,
        world_size: i64,
        run_id: &str,
        timeout: i64,
    ) -> PyResult<StaticNode> {
        start_capture(py)?;
        let create = || -> Result<StaticRendezvousHandler, RendezvousError> {
            let host = match master_addr.contains(':') {
                true => format!("[{master_addr}]"),
                false => master_addr.to_owned(),
            };
            let nodes = u64::try_from(world_size).unwrap_or(0);
            let config = Config::from([("rank".into(), rank.into()), ("timeout".into(), timeout.into())]);
            let endpoint = format!("{host}:{master_port}");
            let parameters = RendezvousParameters::new("static", &endpoint, run_id, nodes, nodes)?;
            StaticRendezvousHandler::create(&parameters.with_config(config)?)
        };
        let handler =
            create().map_err(|error| to_exception(py, error))?.with_cancellation(signal_cancellation());
        Ok(StaticNode {
            handler,
            master_addr: master_addr.to_owned(),
            call_lock: CallLock::default(),
            owner: Owner::current(),
        })
    }

    /// Waits until all nodes have joined.
    fn next_rendezvous<'py>(&self, py: Python<'py>) -> PyResult<Round<'py>> {
        check_owner(&self.owner)?;
        let _guard = detached(py, || self.call_lock.lock())?;
        let round = detached(py, || self.handler.next_rendezvous())?;
        forward(py)?;
        let round = round.map_err(|error| static_exception(py, error))?;
        let store = self.handler.store().expect("a round that was joined has a store");
        let store = stores::wrap_tcp_store(py, store, self.master_addr.clone(), true)?;
        // The prefix is added to the Python object and not to `round.store`, because the object reconnects in a forked
        // child.
        let prefixed = stores::prefix_store_for(&store, round.store.prefix().to_owned())?;
        Ok(to_round(round, prefixed))
    }
}
