//! Elastic rendezvous: the nodes of a training job agree on members and ranks, and re-form when a node joins or leaves.
//!
//! Nodes of this crate and nodes that run torch's own `torch.distributed.elastic.rendezvous` can be in the same job.
//!
//! ```
//! use rallypoint_rendezvous::{RendezvousHandler, RendezvousParameters, rendezvous_handler_registry};
//!
//! // A job of one node. The endpoint is an address of this machine, so this node hosts the store.
//! let parameters = RendezvousParameters::new("c10d", "localhost:0", "my-job", 1, 1)?;
//! let handler = rendezvous_handler_registry().create_handler(&parameters)?;
//! let round = handler.next_rendezvous()?;
//! assert_eq!((round.rank, round.world_size), (0, 1));
//! assert!(handler.membership()?.is_intact());
//! handler.set_closed()?;
//! # Ok::<(), rallypoint_rendezvous::RendezvousError>(())
//! ```
//!
//! # Handlers
//!
//! A [`RendezvousHandler`] represents one node. [`RendezvousHandlerRegistry::create_handler`] creates it from
//! [`RendezvousParameters`]. There are three backends:
//!
//! | backend | nodes | ranks |
//! |---|---|---|
//! | `c10d` ([`DynamicRendezvousHandler`]) | between a minimum and a maximum; nodes join and leave | assigned in each round |
//! | `rallypoint` ([`NativeRendezvousHandler`]) | between a minimum and a maximum; nodes join and leave | stable, or chosen by the user |
//! | `static` ([`StaticRendezvousHandler`]) | a fixed number | chosen by the user |
//!
//! Errors ([`RendezvousError`]) have torch's kinds and add details: which nodes joined, how many are required, which
//! node closed the rendezvous, and which setting bounds the wait.
//!
//! # Helpers for a store
//!
//! Torch's elastic helpers work without a rendezvous: [`create_c10d_store`] creates the store of a job, [`synchronize`]
//! and [`get_all`] exchange data between ranks, [`barrier()`] waits for all ranks and reports the missing ones, and
//! [`reserve_port`] reserves a free port.
//!
//! In this example, three processes exchange their addresses. Rank 0 serves the store.
//!
//! ```
//! use std::time::Duration;
//!
//! use rallypoint_rendezvous::{C10dStoreOptions, create_c10d_store, free_port, synchronize};
//! use rallypoint_store::Result;
//!
//! const WORLD_SIZE: u64 = 3;
//!
//! fn join(rank: u64, port: u16) -> Result<()> {
//!     let timeout = Duration::from_secs(60);
//!     let options = C10dStoreOptions::new("127.0.0.1", port).is_server(rank == 0).world_size(WORLD_SIZE);
//!     let store = create_c10d_store(&options)?;
//!     let address = format!("node{rank}:{}", 5000 + rank);
//!     // Rank 0 returns only after every rank has read the values, so its server runs until then. If a rank is
//!     // missing, the error names it.
//!     let addresses = synchronize(&store, address.as_bytes(), rank, WORLD_SIZE, "addresses", timeout)?;
//!     let addresses: Vec<_> = addresses.iter().map(|address| String::from_utf8_lossy(address)).collect();
//!     assert_eq!(addresses, ["node0:5000", "node1:5001", "node2:5002"]);
//!     Ok(())
//! }
//!
//! fn main() -> Result<()> {
//!     let port = free_port()?;
//!     let ranks: Vec<_> = (0..WORLD_SIZE).map(|rank| std::thread::spawn(move || join(rank, port))).collect();
//!     ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))
//! }
//! ```

mod backend;
mod c10d;
mod collectives;
mod departure;
mod dynamic;
mod endpoint;
mod error;
mod exit_barrier;
mod fixed;
mod handler;
mod hosts;
mod job_store;
mod key_wait;
mod machine;
mod native;
mod observer;
mod options;
mod parameters;
mod port;
mod ranks;
mod registry;
mod settings;
mod store_info;

pub use backend::{RendezvousBackend, Token, Written};
pub use c10d::{C10dBackend, C10dStore, TcpC10dStore, create_store, create_tcp_store};
pub use collectives::{Barrier, barrier, get_all, synchronize};
pub use departure::Departure;
pub use dynamic::{DynamicRendezvousHandler, WallClock, create_dynamic_handler};
pub use endpoint::{parse_rendezvous_endpoint, split_rendezvous_endpoint};
pub use error::{RendezvousError, Result};
pub use exit_barrier::{
    ExitBarrier, RoundEnd, count_as_idle, count_reported_ended, has_reported_ended, report_ended,
};
pub use fixed::{StaticRendezvousHandler, create_static_handler};
pub use handler::{RendezvousHandler, RendezvousInfo, Report};
pub use hosts::MissingHosts;
pub use job_store::{C10dStoreOptions, create_c10d_store};
pub use key_wait::KeyWait;
pub use machine::{is_loopback, is_remote_address, is_this_machine};
pub use native::{
    DeadlineObserver, NATIVE_BACKEND, NATIVE_OPTIONS, NativeFault, NativeNode, NativeRendezvousHandler,
    OperatorCommand, OperatorError, OperatorReply, Roster, create_native_handler, send_command,
    start_coordinator_server,
};
pub use observer::{Connecting, NativeWaiting, Observer, StaticWaiting, Waiting, describe_node};
pub use options::{C10D_OPTIONS, RendezvousOption, STATIC_OPTIONS};
pub use parameters::{
    Config, ConfigValue, RendezvousParameters, parse_rendezvous_config, read_rendezvous_config,
    unknown_c10d_options,
};
pub use port::{ReservedPort, free_port, reserve_port};
pub use rallypoint_core::rendezvous::{
    EndCause, Launch, LossCause, Lost, Membership, NodeDesc, Phase, Reason, Settings, Signal, State,
    StateError, WallTime,
};
pub use ranks::{AssignedRanks, RoleInfo, assign_ranks, role_infos};
pub use registry::{RendezvousHandlerCreator, RendezvousHandlerRegistry, rendezvous_handler_registry};
pub use store_info::RendezvousStoreInfo;
