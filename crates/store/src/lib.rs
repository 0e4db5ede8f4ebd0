//! The c10d store family in Rust: interchangeable with torch's, on the wire and on disk.

mod error;
mod file;
mod store;

pub use error::{FileObstacle, KeyStates, Result, StoreError};
pub use file::{FileStore, FileStoreOptions};
pub use store::{DEFAULT_TIMEOUT, Exchange, NO_TIMEOUT, Store};
