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
//! The crate `rallypoint-rendezvous` has torch's helpers around a store: making the store of a job, exchanging data between its ranks,
//! and finding free ports.
//!
//! # Examples
//!
//! A server inside a program, and workers that share a queue of tasks over it. The workers are threads here. They could be
//! other processes, other machines, or Python with torch's `TCPStore`.
//!
//! ```
//! use rallypoint_store::{Result, Store, StoreError, TcpStore, TcpStoreServer};
//!
//! fn work(port: u16) -> Result<()> {
//!     let store = TcpStore::connect("127.0.0.1", port)?;
//!     store.add("workers", 1)?;
//!     loop {
//!         match store.try_queue_pop("tasks") {
//!             Ok(task) => store.append("log", &[&task[..], b" done\n"].concat())?,
//!             Err(StoreError::QueueEmpty { .. }) => return store.barrier("finished", 4),
//!             Err(error) => return Err(error),
//!         }
//!         store.add("done", 1)?;
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     // Port 0 is any free one. Dropping the server stops it.
//!     let server = TcpStoreServer::bind("127.0.0.1", 0)?;
//!     let store = TcpStore::connect("127.0.0.1", server.port())?;
//!     let port = server.port();
//!     for task in 1..=6 {
//!         store.queue_push("tasks", format!("task {task}").as_bytes())?;
//!     }
//!     let workers: Vec<_> = (0..3).map(|_| std::thread::spawn(move || work(port))).collect();
//!     store.barrier("finished", 4)?;
//!     for worker in workers {
//!         worker.join().expect("a worker panicked")?;
//!     }
//!     assert_eq!((store.add("workers", 0)?, store.add("done", 0)?), (3, 6));
//!     Ok(())
//! }
//! ```
//!
//! # Errors
//!
//! Errors ([`StoreError`]) say who must act, and carry what is needed for it: the peer, the keys, how many of how many.

mod deadline;
mod endpoint;
mod error;
mod file;
mod hash;
mod options;
mod prefix;
mod server;
mod store;
mod tcp;

pub use deadline::{now, pause, sleep};
pub use endpoint::Endpoint;
pub use error::{Context, FileFault, Result, StoreError, StoreKind};
pub use file::{FileStore, FileStoreOptions};
pub use hash::HashStore;
pub use prefix::PrefixStore;
pub use rallypoint_core::Limits;
pub use rallypoint_core::client::{
    Awaited, Cancellation, ConnectionFault, Exchange, Failure, OnReset, Oversized, Retry,
};
pub use server::{Listen, ServerOptions, ServerStats, SharedServers, TcpStoreServer, raise_file_limit};
pub use store::{DEFAULT_TIMEOUT, Store, arrive};
pub use tcp::{TcpStore, TcpStoreOptions};
