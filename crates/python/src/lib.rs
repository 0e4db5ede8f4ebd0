//! The extension module of the Python package, `rallypoint._rallypoint`.
//!
//! It translates between Python and the Rust crates and decides nothing itself. Code that needs no translation is
//! written in Python, in `python/rallypoint`.

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

/// The extension module of the package. Import `rallypoint` instead.
#[pymodule]
fn _rallypoint(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    process::add_fork_hooks(module)?;
    stores::register(module)?;
    rendezvous::register(module)?;
    // PyO3 creates `__all__` as it adds members. The public names are those of the package, not of this module.
    module.delattr("__all__")
}
