//! The Python package's native half: `rallypoint._rallypoint`. It translates between Python and the crates below and
//! decides nothing itself; what needs no translation is Python, in `python/rallypoint`.

mod arguments;
mod calls;
mod error;
mod logging;
mod process;
mod python_store;
mod rendezvous;
mod shutdown;
mod stores;

use pyo3::prelude::*;

/// The native half of the package. Import `rallypoint` instead.
#[pymodule]
fn _rallypoint(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    process::add_fork_hooks(module)?;
    stores::register(module)?;
    rendezvous::register(module)?;
    // Made on the way; what is offered is for the package to say.
    module.delattr("__all__")
}
