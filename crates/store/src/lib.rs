//! The c10d store family in Rust: interchangeable with torch's, on the wire and on disk.

mod create;
mod deadline;
mod endpoint;
mod error;
mod file;
mod gather;
mod hash;
mod port;
mod prefix;
mod server;
mod store;
mod tcp;

pub use create::{C10dStoreOptions, create_c10d_store};
pub use endpoint::Endpoint;
pub use error::{FileObstacle, KeyStates, Result, StoreError};
pub use file::{FileStore, FileStoreOptions};
pub use gather::{Barrier, barrier, get_all, synchronize};
pub use hash::HashStore;
pub use port::{ReservedPort, free_port, reserve_port};
pub use prefix::PrefixStore;
pub use rallypoint_core::Limits;
pub use server::{Listen, ServerOptions, ServerStats, TcpStoreServer};
pub use store::{DEFAULT_TIMEOUT, Exchange, NO_TIMEOUT, Store};
pub use tcp::{TcpStore, TcpStoreOptions};
