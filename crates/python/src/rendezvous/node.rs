//! One node of a dynamic rendezvous, for Python.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rallypoint_core::rendezvous::keys;
use rallypoint_rendezvous::{
    DynamicRendezvousHandler, RendezvousBackend, RendezvousError, RendezvousHandler, RendezvousInfo, Settings,
};

use super::backend::PythonBackend;
use super::calls::{Maker, interruptible};
use super::cell::RendezvousCell;
use super::exceptions::raised;
use super::logging::listen;
use super::{Round, to_round};
use crate::stores;

/// One node of a dynamic rendezvous.
#[pyclass(frozen, weakref, module = "rallypoint._rallypoint")]
pub(super) struct RendezvousNode {
    /// There until it is dropped.
    handler: Option<Arc<DynamicRendezvousHandler>>,
    /// Whoever joins, or leaves because joining was interrupted, holds this.
    turn: Arc<Mutex<()>>,
    /// How often it was asked to join.
    calls: Arc<AtomicU64>,
    maker: Maker,
    /// The store in which the nodes of a round meet.
    store: Py<PyAny>,
}

#[pymethods]
impl RendezvousNode {
    /// A node whose state lies in `backend` and whose rounds meet in `store`.
    #[new]
    #[pyo3(signature = (store, backend, addr, *, run_id, min_nodes, max_nodes, join, last_call, close, heartbeat,
                        keep_alive_interval, keep_alive_max_attempt, expected_hosts=None, reform_last_call=None,
                        store_outage=None))]
    #[allow(clippy::too_many_arguments, reason = "all of them have names where it is called")]
    fn new(
        py: Python<'_>,
        store: &Bound<'_, PyAny>,
        backend: &Bound<'_, PyAny>,
        addr: &str,
        run_id: String,
        min_nodes: i64,
        max_nodes: i64,
        join: Duration,
        last_call: Duration,
        close: Duration,
        heartbeat: Duration,
        keep_alive_interval: Duration,
        keep_alive_max_attempt: i64,
        expected_hosts: Option<String>,
        reform_last_call: Option<Duration>,
        store_outage: Option<Duration>,
    ) -> PyResult<RendezvousNode> {
        listen(py)?;
        check_nodes(&run_id, min_nodes, max_nodes)?;
        let defaults = Settings::new(run_id, min_nodes as u64, max_nodes as u64);
        let settings = Settings {
            reform_last_call_timeout: reform_last_call.unwrap_or(defaults.reform_last_call_timeout),
            store_outage_timeout: store_outage.unwrap_or(defaults.store_outage_timeout),
            join_timeout: join,
            last_call_timeout: last_call,
            close_timeout: close,
            heartbeat_timeout: heartbeat,
            keep_alive_interval,
            keep_alive_max_attempt: keep_alive_max_attempt.clamp(0, i64::from(u32::MAX)) as u32,
            ..defaults
        };
        let below = stores::to_rust(store)?;
        let backend: Arc<dyn RendezvousBackend> = match backend.cast::<RendezvousCell>() {
            Ok(cell) => cell.get().backend(),
            Err(_) => Arc::new(PythonBackend::new(backend)?),
        };
        let made = DynamicRendezvousHandler::new(backend, below, addr, settings)
            .and_then(|handler| handler.expecting(expected_hosts.as_deref()));
        let handler = made.map_err(|error| raised(py, error))?;
        Ok(RendezvousNode {
            handler: Some(Arc::new(handler)),
            turn: Arc::default(),
            calls: Arc::default(),
            maker: Maker::here(),
            store: store.clone().unbind(),
        })
    }

    /// Who this is, as torch writes it: address, process and number.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.handler()?.node().to_string())
    }

    /// Waits until this node is in a round.
    fn next_rendezvous<'py>(&self, py: Python<'py>) -> PyResult<Round<'py>> {
        let handler = Arc::clone(self.handler()?);
        let (joining, turn) = (Arc::clone(&handler), Arc::clone(&self.turn));
        let (leaving, leaving_turn, calls) =
            (Arc::clone(&handler), Arc::clone(&self.turn), Arc::clone(&self.calls));
        let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let round = interruptible(
            py,
            || {
                // In this order: whoever lets the handler wait again looks at the flag after that.
                stop.store(true, Ordering::SeqCst);
                handler.interrupt();
            },
            move |joined: Result<RendezvousInfo, RendezvousError>| {
                let _turn = leaving_turn.lock().unwrap_or_else(PoisonError::into_inner);
                // Whoever joins again begins with leaving.
                if joined.is_ok()
                    && calls.load(Ordering::SeqCst) == call
                    && let Err(error) = leaving.leave()
                {
                    tracing::warn!("The node '{}' could not leave: {error}", leaving.node());
                }
            },
            move || {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                joining.resume();
                match stopped.load(Ordering::SeqCst) {
                    true => Err(RendezvousError::Interrupted { run_id: joining.run_id().into() }),
                    false => joining.next_rendezvous(),
                }
            },
        )?
        .map_err(|error| raised(py, error))?;
        let prefix = keys::round_prefix(handler.run_id(), round.round);
        let store = stores::adopt_part(self.store.bind(py), prefix, Arc::clone(&round.store))?;
        Ok(to_round(round, store))
    }

    /// Whether the rendezvous has ended for good.
    fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |handler| Ok(handler.membership()?.is_closed))
    }

    /// Ends the rendezvous for everybody.
    fn set_closed(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |handler| handler.set_closed())
    }

    /// How many nodes wait for the next round.
    fn num_nodes_waiting(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |handler| Ok(handler.membership()?.num_nodes_waiting()))
    }

    /// Ends the heartbeats. Does nothing in a process that was forked: there are none.
    fn stop_heartbeats(&self, py: Python<'_>) -> PyResult<()> {
        if !self.maker.is_here() {
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
        self.maker.check()?;
        Ok(self.handler.as_ref().expect("it is there until it is dropped"))
    }

    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&DynamicRendezvousHandler) -> Result<T, RendezvousError> + Send + 'static,
    ) -> PyResult<T> {
        let handler = Arc::clone(self.handler()?);
        interruptible(py, || {}, drop, move || body(&handler))?.map_err(|error| raised(py, error))
    }
}

impl Drop for RendezvousNode {
    fn drop(&mut self) {
        let Some(handler) = self.handler.take() else { return };
        if !self.maker.is_here() {
            // Its threads were not copied, and can't be waited for.
            std::mem::forget(handler);
            return;
        }
        // Its heartbeat may be asking a backend written in Python just now, so the interpreter must not be held.
        let _ = Python::try_attach(|py| py.detach(|| drop(handler)));
    }
}

/// Torch's checks of what can be below zero in Python.
fn check_nodes(run_id: &str, min_nodes: i64, max_nodes: i64) -> PyResult<()> {
    let wrong = if run_id.is_empty() {
        "The run id must be a non-empty string.".to_owned()
    } else if min_nodes < 1 {
        format!("The minimum number of nodes ({min_nodes}) must be greater than zero.")
    } else if max_nodes < min_nodes {
        format!(
            "The maximum number of nodes ({max_nodes}) must be greater than or equal to the minimum number of nodes \
             ({min_nodes})."
        )
    } else {
        return Ok(());
    };
    Err(PyValueError::new_err(wrong))
}
