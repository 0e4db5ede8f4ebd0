//! The stores as Python classes, with torch's names and arguments.

mod file;
mod hash;
mod listener;
mod prefix;
mod store;
mod tcp;

use pyo3::prelude::*;

pub(crate) use prefix::prefix_store_for;
pub(crate) use store::{PyStore, has_native, overrides, source, to_timedelta};
pub(crate) use tcp::wrap_tcp_store;

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyStore>()?;
    module.add_class::<tcp::PyTcpStore>()?;
    module.add_class::<file::PyFileStore>()?;
    module.add_class::<hash::PyHashStore>()?;
    module.add_class::<prefix::PyPrefixStore>()
}
