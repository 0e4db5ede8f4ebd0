//! One node of a native rendezvous, for Python.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use rallypoint_rendezvous::{
    Config, ConfigValue, NATIVE_BACKEND, NativeNode as Launcher, NativeRendezvousHandler, RendezvousError,
    RendezvousHandler, RendezvousParameters,
};

use super::call_lock::CallLock;
use super::exceptions::to_exception;
use super::{Round, check_owner, to_round};
use crate::calls::{detached, signal_cancellation};
use crate::logging::{forward, start_capture};
use crate::process::Owner;
use crate::stores;

/// One node of a native rendezvous.
#[pyclass(frozen, weakref, module = "rallypoint._rallypoint")]
pub(super) struct NativeNode {
    /// `None` only after `drop` has taken it.
    handler: Option<NativeRendezvousHandler>,
    call_lock: CallLock,
    owner: Owner,
}

#[pymethods]
impl NativeNode {
    /// Creates a node and starts its server.
    #[new]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        run_id: &str,
        min_nodes: u64,
        max_nodes: u64,
        local_addr: Option<String>,
        config: BTreeMap<String, Option<String>>,
    ) -> PyResult<NativeNode> {
        start_capture(py)?;
        let config = config.into_iter().filter_map(|(name, text)| Some((name, ConfigValue::Text(text?))));
        let config: Config = config.collect();
        let create = || -> Result<NativeRendezvousHandler, RendezvousError> {
            let parameters =
                RendezvousParameters::new(NATIVE_BACKEND, endpoint, run_id, min_nodes, max_nodes)?
                    .with_config(config)?
                    .with_local_addr(local_addr);
            NativeRendezvousHandler::create(&parameters, Launcher::default(), None, None)
        };
        let created = detached(py, create)?;
        forward(py)?;
        let handler = created.map_err(|error| to_exception(py, error))?;
        Ok(NativeNode {
            handler: Some(handler.with_cancellation(signal_cancellation())),
            call_lock: CallLock::default(),
            owner: Owner::current(),
        })
    }

    /// The node's name: host name and process id.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.handler()?.node().to_string())
    }

    /// Waits until this node is in a round. Also returns the number of the round.
    fn next_rendezvous<'py>(&self, py: Python<'py>) -> PyResult<(Round<'py>, u64)> {
        let handler = self.handler()?;
        let _guard = detached(py, || self.call_lock.lock())?;
        let joined = detached(py, || handler.next_rendezvous()).and_then(|joined| {
            // Run Python's signal handler now if a signal arrived while the call above returned. If the signal handler
            // raised its exception only after this method returned, the node would stay in the round.
            forward(py).and_then(|()| py.check_signals()).map(|()| joined)
        });
        let round = match joined {
            Ok(joined) => joined.map_err(|error| to_exception(py, error))?,
            Err(interrupt) => {
                handler.withdraw();
                return Err(interrupt);
            }
        };
        // Wrap a Python object and not `round.store`, because the object reconnects in a forked child.
        let store = handler.round_store().expect("a round that was joined has a store");
        let store = stores::wrap_tcp_store(py, store, round.bootstrap_store_info.master_addr.clone(), true)?;
        let prefixed = stores::prefix_store_for(&store, round.store.prefix().to_owned())?;
        let number = round.round;
        Ok((to_round(round, prefixed), number))
    }

    /// Returns whether the rendezvous is closed.
    fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |handler| Ok(handler.membership()?.is_closed))
    }

    /// Closes the rendezvous for all nodes.
    fn set_closed(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |handler| handler.set_closed())
    }

    /// Returns the number of nodes that wait for the next round.
    fn num_nodes_waiting(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |handler| Ok(handler.membership()?.num_nodes_waiting()))
    }

    /// Closes the rendezvous for all nodes, and waits up to 5 s until they don't need this node any more.
    fn shut_down(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, NativeRendezvousHandler::shut_down)
    }
}

impl NativeNode {
    fn handler(&self) -> PyResult<&NativeRendezvousHandler> {
        check_owner(&self.owner)?;
        Ok(self.handler.as_ref().expect("only `drop` takes the handler"))
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&NativeRendezvousHandler) -> Result<T, RendezvousError> + Send,
    ) -> PyResult<T> {
        let handler = self.handler()?;
        let outcome = detached(py, || body(handler))?;
        forward(py)?;
        outcome.map_err(|error| to_exception(py, error))
    }
}

impl Drop for NativeNode {
    fn drop(&mut self) {
        let Some(handler) = self.handler.take() else { return };
        if !self.owner.is_current() {
            // Leak the copy: the handler's threads do not exist in a forked child, and cannot be joined.
            std::mem::forget(handler);
            return;
        }
        // Release the GIL, because the drop may wait for other nodes.
        let _ = Python::try_attach(|py| py.detach(|| drop(handler)));
    }
}
