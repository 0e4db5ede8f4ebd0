//! The c10d store family in Rust: interchangeable with torch's, on the wire and on disk.
//!
//! A *store* is what the processes of a training job meet at: keys with values, counters, queues and barriers that all of
//! them see. All stores are used through one blocking trait, [`Store`]:
//!
//! | store | shared by | torch's name |
//! |---|---|---|
//! | [`TcpStore`] | everybody who can reach its server ([`TcpStoreServer`], or torch's) | `TCPStore` |
//! | [`FileStore`] | everybody who can reach a file | `FileStore` |
//! | [`HashStore`] | the threads of one process | `HashStore` |
//! | [`PrefixStore`] | a part of any of these | `PrefixStore` |
//!
//! ```
//! use rallypoint_store::{Store, TcpStore};
//!
//! // One process serves …
//! let host = TcpStore::serve("127.0.0.1", 0)?;
//! // … and the others, written in Rust or in Python with torch, connect.
//! let worker = TcpStore::connect("127.0.0.1", host.port())?;
//! worker.set("greeting", b"hello")?;
//! assert_eq!(host.get("greeting")?, b"hello");
//! assert_eq!(host.add("ready", 1)? + worker.add("ready", 1)?, 3);
//! # Ok::<(), rallypoint_store::StoreError>(())
//! ```
//!
//! Around a store: [`create_c10d_store`] makes the one of a job, [`synchronize`] and [`get_all`] exchange data between ranks,
//! [`barrier()`] waits for all and says who is missing, [`reserve_port`] holds a port until a server takes it over.
//!
//! Errors ([`StoreError`]) say who must act, and carry what is needed for it: the peer, the keys, how many of how many.

mod create;
mod deadline;
mod endpoint;
mod error;
mod fault;
mod file;
mod gather;
mod hash;
mod interrupt;
mod port;
mod prefix;
mod server;
mod store;
mod tcp;

pub use create::{C10dStoreOptions, create_c10d_store};
pub use endpoint::{Endpoint, is_loopback};
pub use error::{
    Awaited, Context, FileFault, FileObstacle, KeyStates, LimitMismatch, ListenFault, Oversize, Result,
    Retry, ServerMismatch, StoreError, StoreKind, Violation,
};
pub use fault::{ConnectionFault, PeerProtocol};
pub use file::{FileStore, FileStoreOptions};
pub use gather::{Barrier, barrier, get_all, synchronize};
pub use hash::HashStore;
pub use interrupt::interruptible;
pub use port::{ReservedPort, free_port, reserve_port};
pub use prefix::PrefixStore;
pub use rallypoint_core::Limits;
pub use server::{Listen, ServerOptions, ServerStats, TcpStoreServer};
pub use store::{DEFAULT_TIMEOUT, Exchange, Store};
pub use tcp::{OnReset, TcpStore, TcpStoreOptions};
