//! The c10d store family in Rust: interchangeable with torch's, on the wire and on disk.

mod error;
mod store;

pub use error::{KeyStates, Result, StoreError};
pub use store::{DEFAULT_TIMEOUT, Exchange, NO_TIMEOUT, Store};
