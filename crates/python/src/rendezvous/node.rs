//! One node of a dynamic rendezvous, for Python.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rallypoint_rendezvous::{
    DynamicRendezvousHandler, RendezvousBackend, RendezvousError, RendezvousHandler, Settings,
};

use super::backend::PythonBackend;
use super::call_lock::{CallLock, CallLockGuard};
use super::cell::RendezvousCell;
use super::exceptions::to_exception;
use super::{Round, check_owner, to_round};
use crate::calls::{detached, run};
use crate::logging::{forward, start_capture};
use crate::process::Owner;
use crate::stores;

/// One node of a dynamic rendezvous.
#[pyclass(frozen, weakref, module = "rallypoint._rallypoint")]
pub(super) struct RendezvousNode {
    /// `None` only after `drop` has taken it.
    handler: Option<Arc<DynamicRendezvousHandler>>,
    /// A call that joins takes this lock. If the call is interrupted, the lock is released after the node has left.
    call_lock: CallLock,
    owner: Owner,
    /// The store for the data of each round.
    store: Py<PyAny>,
}

#[pymethods]
impl RendezvousNode {
    /// Creates a node. `backend` keeps the rendezvous state, and `store` the data of each round.
    #[new]
    #[pyo3(signature = (store, backend, addr, *, run_id, min_nodes, max_nodes, join, last_call, close, heartbeat,
                        keep_alive_interval, keep_alive_max_attempt, expected_hosts=None, reform_last_call=None,
                        store_outage=None))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by keyword")]
    fn new(
        py: Python<'_>,
        store: &Bound<'_, PyAny>,
        backend: &Bound<'_, PyAny>,
        addr: &str,
        run_id: String,
        min_nodes: u64,
        max_nodes: u64,
        join: Duration,
        last_call: Duration,
        close: Duration,
        heartbeat: Duration,
        keep_alive_interval: Duration,
        keep_alive_max_attempt: u32,
        expected_hosts: Option<String>,
        reform_last_call: Option<Duration>,
        store_outage: Option<Duration>,
    ) -> PyResult<RendezvousNode> {
        start_capture(py)?;
        let defaults = Settings::new(run_id, min_nodes, max_nodes);
        let settings = Settings {
            reform_last_call_timeout: reform_last_call.unwrap_or(defaults.reform_last_call_timeout),
            store_outage_timeout: store_outage.unwrap_or(defaults.store_outage_timeout),
            join_timeout: join,
            last_call_timeout: last_call,
            close_timeout: close,
            heartbeat_timeout: heartbeat,
            keep_alive_interval,
            keep_alive_max_attempt,
            ..defaults
        };
        let source = stores::source(store)?;
        let native_store = run(py, || source.store())?;
        let backend: Arc<dyn RendezvousBackend> = match backend.cast::<RendezvousCell>() {
            Ok(cell) => Arc::clone(cell.get().backend()?) as Arc<dyn RendezvousBackend>,
            Err(_) => Arc::new(PythonBackend::new(backend)?),
        };
        let created = DynamicRendezvousHandler::new(backend, native_store, addr, settings)
            .and_then(|handler| handler.with_expected_hosts(expected_hosts.as_deref()));
        let handler = created.map_err(|error| to_exception(py, error))?;
        Ok(RendezvousNode {
            handler: Some(Arc::new(handler)),
            call_lock: CallLock::default(),
            owner: Owner::current(),
            store: store.clone().unbind(),
        })
    }

    /// The node's name in torch's format: address, process id and local id.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.handler()?.node().to_string())
    }

    /// Waits until this node is in a round.
    fn next_rendezvous<'py>(&self, py: Python<'py>) -> PyResult<Round<'py>> {
        let handler = self.handler()?;
        let guard = detached(py, || self.call_lock.lock())?;
        let joined = detached(py, || handler.next_rendezvous()).and_then(|joined| {
            // Run Python's signal handler now if a signal arrived while the call above returned. If the signal handler
            // raised its exception only after this method returned, the node would stay in the round.
            forward(py).and_then(|()| py.check_signals()).map(|()| joined)
        });
        let round = match joined {
            Ok(joined) => joined.map_err(|error| to_exception(py, error))?,
            Err(interrupt) => {
                leave_in_background(Arc::clone(handler), guard)?;
                return Err(interrupt);
            }
        };
        // Wrap the Python object and not the Rust store: the object reconnects in a forked child, and it may be one of
        // torch's stores.
        let store = stores::prefix_store_for(self.store.bind(py), round.store.prefix().to_owned())?;
        Ok(to_round(round, store))
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

    /// Stops the heartbeats. Does nothing in a forked process, which sends none.
    fn stop_heartbeats(&self, py: Python<'_>) -> PyResult<()> {
        if !self.owner.is_current() {
            return Ok(());
        }
        self.call(py, |handler| {
            handler.stop_heartbeats();
            Ok(())
        })
    }
}

impl RendezvousNode {
    fn handler(&self) -> PyResult<&Arc<DynamicRendezvousHandler>> {
        check_owner(&self.owner)?;
        Ok(self.handler.as_ref().expect("only `drop` takes the handler"))
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&DynamicRendezvousHandler) -> Result<T, RendezvousError> + Send,
    ) -> PyResult<T> {
        let handler = self.handler()?;
        let outcome = detached(py, || body(handler))?;
        forward(py)?;
        outcome.map_err(|error| to_exception(py, error))
    }
}

impl Drop for RendezvousNode {
    fn drop(&mut self) {
        let Some(handler) = self.handler.take() else { return };
        if !self.owner.is_current() {
            // Leak the copy: the handler's threads do not exist in a forked child, and cannot be joined.
            std::mem::forget(handler);
            return;
        }
        // Release the GIL, because the drop joins the heartbeat thread, which may be calling a backend written in
        // Python.
        let _ = Python::try_attach(|py| py.detach(|| drop(handler)));
    }
}

/// The number of threads that remove a node from a rendezvous after an interrupted call.
static LEAVING: AtomicUsize = AtomicUsize::new(0);

/// Removes the node from the rendezvous on another thread, so that an interrupted call does not wait for a slow store
/// or backend.
fn leave_in_background(handler: Arc<DynamicRendezvousHandler>, guard: Option<CallLockGuard>) -> PyResult<()> {
    LEAVING.fetch_add(1, Ordering::SeqCst);
    std::thread::Builder::new().name("rdzv-leave".into()).spawn(move || {
        if let Err(error) = handler.leave() {
            tracing::warn!("The node '{}' could not leave: {error}", handler.node());
        }
        drop(guard);
        LEAVING.fetch_sub(1, Ordering::SeqCst);
    })?;
    Ok(())
}

/// Waits up to `seconds` until the nodes whose calls were interrupted have left their rendezvous.
#[pyfunction]
pub(super) fn await_leaving(py: Python<'_>, seconds: f64) {
    let deadline = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 60.0));
    py.detach(|| {
        while LEAVING.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}
