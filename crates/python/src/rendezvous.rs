//! The native part of the Python rendezvous: nodes, the cell (one key of a store) that contains their shared state, and
//! functions that use a store.
//!
//! The public API is written in Python, in `python/rallypoint/elastic`, and calls this module.

mod backend;
mod call_lock;
mod cell;
mod exceptions;
mod exchange;
mod native_node;
mod node;
mod static_node;
mod stores;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rallypoint_rendezvous::RendezvousInfo;

use crate::process::Owner;

/// A round, as a Python tuple: store, rank, world size, and the address and port of the workers' store.
type Round<'py> = (Bound<'py, PyAny>, u64, u64, (String, u16));

fn to_round(info: RendezvousInfo, store: Bound<'_, PyAny>) -> Round<'_> {
    let workers = info.bootstrap_store_info;
    (store, info.rank, info.world_size, (workers.master_addr, workers.master_port))
}

/// Fails with `RuntimeError` in a process that was forked from the owner, because the handler's threads do not exist
/// there.
fn check_owner(owner: &Owner) -> PyResult<()> {
    if owner.is_current() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "this rendezvous handler was created by process {}, from which process {} was forked; create another one here",
        owner.pid,
        std::process::id()
    )))
}

/// Adds the classes and functions of the rendezvous to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<node::RendezvousNode>()?;
    module.add_class::<cell::RendezvousCell>()?;
    module.add_class::<static_node::StaticNode>()?;
    module.add_class::<native_node::NativeNode>()?;
    module.add_function(wrap_pyfunction!(node::await_leaving, module)?)?;
    module.add_function(wrap_pyfunction!(stores::parse_rendezvous_endpoint, module)?)?;
    module.add_function(wrap_pyfunction!(stores::check_rendezvous_options, module)?)?;
    module.add_function(wrap_pyfunction!(stores::create_rendezvous_store, module)?)?;
    module.add_function(wrap_pyfunction!(stores::create_c10d_store, module)?)?;
    module.add_function(wrap_pyfunction!(stores::reserve_port, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::exchange_store_info, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::get_all, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::synchronize, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::barrier, module)?)
}
