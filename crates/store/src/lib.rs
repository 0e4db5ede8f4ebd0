//! Torch's c10d stores in Rust, compatible with torch on the wire and on disk.
//!
//! A *store* is a shared map of keys to values, with counters, waits, queues and barriers. The processes of a training
//! job use a store to find each other and to exchange small amounts of data. All stores implement one blocking trait,
//! [`Store`]:
//!
//! | store | shared by | torch's name |
//! |---|---|---|
//! | [`TcpStore`] | the clients of one server ([`TcpStoreServer`], or torch's) | `TCPStore` |
//! | [`FileStore`] | the processes that open one file | `FileStore` |
//! | [`HashStore`] | the threads of one process | `HashStore` |
//! | [`PrefixStore`] | the users of another store; a `PrefixStore` adds a prefix to every key | `PrefixStore` |
//!
//! In this example, `host` starts a server and `worker` connects to it. In a real job they are different processes, and
//! each of them can use this crate or torch.
//!
//! ```
//! use rallypoint_store::{Store, TcpStore};
//!
//! // Port 0 selects a free port.
//! let host = TcpStore::serve("127.0.0.1", 0)?;
//! let worker = TcpStore::connect("127.0.0.1", host.port())?;
//!
//! worker.set("greeting", b"hello")?;
//! assert_eq!(host.get("greeting")?, b"hello");
//!
//! // `add` returns the new value of a counter.
//! assert_eq!(host.add("ready", 1)?, 1);
//! assert_eq!(worker.add("ready", 1)?, 2);
//! # Ok::<(), rallypoint_store::StoreError>(())
//! ```
//!
//! The crate `rallypoint-rendezvous` contains torch's helpers around a store. They create the store of a job, exchange
//! data between its ranks, and find free ports.
//!
//! # Sharing a queue
//!
//! [`TcpStoreServer`] is a server without a client. In this example, three workers share a queue of tasks on such a
//! server. The workers are threads, but they could be processes on other machines, or Python programs with torch's
//! `TCPStore`.
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
//!     // Dropping the server stops it.
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
//! A failed operation returns a [`StoreError`], which contains the operation, its keys, and the server or file.
//! [`StoreError::retry`] returns whether the call may be repeated.

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
pub use server::{
    Listen, ServerOptions, ServerStats, ServiceHandle, SharedServers, TcpStoreServer, boot_time,
    raise_file_limit,
};
pub use store::{DEFAULT_TIMEOUT, Store, arrive_at_barrier};
pub use tcp::{TcpStore, TcpStoreOptions};
