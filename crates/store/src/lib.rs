//! The c10d store family in Rust: interchangeable with torch's, on the wire and on disk.

mod endpoint;
mod error;
mod port;
mod server;
mod store;

pub use endpoint::Endpoint;
pub use error::{KeyStates, Result, StoreError};
pub use port::{ReservedPort, free_port, reserve_port};
pub use rallypoint_core::Limits;
pub use server::{Listen, ServerOptions, ServerStats, TcpStoreServer};
pub use store::{DEFAULT_TIMEOUT, Exchange, NO_TIMEOUT, Store};
