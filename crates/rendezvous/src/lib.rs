//! Elastic rendezvous: the nodes of a training job find each other, get ranks, and re-form when some come or go, in one
//! job with nodes that run torch's own `torch.distributed.elastic.rendezvous`.
//!
//! A [`RendezvousHandler`] is one node's part in it. [`RendezvousHandlerRegistry::create_handler`] makes one from
//! [`RendezvousParameters`]; there are two kinds:
//!
//! | backend | nodes | ranks |
//! |---|---|---|
//! | `c10d` ([`DynamicRendezvousHandler`]) | between a minimum and a maximum, coming and going | given by each round |
//! | `static` ([`StaticRendezvousHandler`]) | a fixed number | given by the user |
//!
//! ```
//! use rallypoint_rendezvous::{RendezvousHandler, RendezvousParameters, rendezvous_handler_registry};
//!
//! // One node, so it need not wait for others. The endpoint is this machine's, so this node hosts the store.
//! let parameters = RendezvousParameters::new("c10d", "localhost:0", "my-job", 1, 1)?;
//! let handler = rendezvous_handler_registry().create_handler(&parameters)?;
//! let round = handler.next_rendezvous()?;
//! assert_eq!((round.rank, round.world_size), (0, 1));
//! assert!(handler.membership()?.is_intact());
//! handler.set_closed()?;
//! # Ok::<(), rallypoint_rendezvous::RendezvousError>(())
//! ```
//!
//! Errors ([`RendezvousError`]) have torch's kinds and say what torch leaves out: who joined, how many were needed, who
//! closed it, which setting bounds it.
//!
//! # Without a rendezvous
//!
//! Torch's elastic helpers around a store: [`create_c10d_store`] makes the store of a job, [`synchronize`] and [`get_all`] exchange
//! data between ranks, [`barrier()`] waits for all ranks and says which are missing, [`reserve_port`] holds a free port.
//!
//! The processes of a job exchange their addresses: one serves the store, each sets its address, all read those of the others.
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
//!     let own = format!("node{rank}:{}", 5000 + rank);
//!     // Rank 0 returns last, so the server outlives every read. A timeout would name the missing ranks.
//!     let all = synchronize(&store, own.as_bytes(), rank, WORLD_SIZE, "addresses", timeout)?;
//!     let all: Vec<_> = all.iter().map(|address| String::from_utf8_lossy(address)).collect();
//!     assert_eq!(all, ["node0:5000", "node1:5001", "node2:5002"]);
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
mod create;
mod departure;
mod dynamic;
mod endpoint;
mod error;
mod exit_barrier;
mod fixed;
mod gather;
mod handler;
mod hosts;
mod machine;
mod observer;
mod options;
mod parameters;
mod patience;
mod port;
mod ranks;
mod registry;
mod settings;
mod store_info;

pub use backend::{RendezvousBackend, Token, Written};
pub use c10d::{C10dBackend, C10dStore, TcpC10dStore, create_store, create_tcp_store};
pub use create::{C10dStoreOptions, create_c10d_store};
pub use departure::Departure;
pub use dynamic::{DynamicRendezvousHandler, WallClock, create_dynamic_handler};
pub use endpoint::{parse_rendezvous_endpoint, split_rendezvous_endpoint};
pub use error::{RendezvousError, Result};
pub use exit_barrier::{
    ExitBarrier, RoundEnd, count_as_idle, has_said_that_it_ended, ours_that_ended, say_that_it_ended,
};
pub use fixed::{StaticRendezvousHandler, create_static_handler};
pub use gather::{Barrier, barrier, get_all, synchronize};
pub use handler::{RendezvousHandler, RendezvousInfo};
pub use hosts::MissingHosts;
pub use machine::{is_address_of_another, is_loopback, is_this_machine};
pub use observer::{Connecting, Gathering, Observer, Waiting};
pub use options::{C10D_OPTIONS, RendezvousOption, STATIC_OPTIONS};
pub use parameters::{
    Config, ConfigValue, RendezvousParameters, parse_rendezvous_config, read_rendezvous_config,
    unknown_c10d_options,
};
pub use patience::PatientWait;
pub use port::{ReservedPort, free_port, reserve_port};
pub use rallypoint_core::rendezvous::{
    Launch, LossCause, Lost, Membership, NodeDesc, Phase, Reason, Settings, Signal, State, StateError,
    WallTime,
};
pub use ranks::{AssignedRanks, RoleInfo, assign_ranks, role_infos};
pub use registry::{RendezvousHandlerCreator, RendezvousHandlerRegistry, rendezvous_handler_registry};
pub use store_info::RendezvousStoreInfo;
