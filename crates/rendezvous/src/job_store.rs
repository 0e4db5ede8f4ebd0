//! Making the store of a job in one call: one process serves, the others find it, all have come when it returns.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::client::{Backoff, Deadline};
use rallypoint_store::{
    Awaited, Cancellation, Context, Endpoint, Failure, Result, Store, StoreError, StoreKind, TcpStore,
    TcpStoreOptions, arrive, now, pause, setters,
};

use crate::collectives::LAST_MEMBER;
use crate::machine::is_loopback;

/// How to make a job's store: torch's `create_c10d_store(...)` arguments.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct C10dStoreOptions {
    server_addr: String,
    server_port: Option<u16>,
    is_server: bool,
    world_size: u64,
    timeout: Option<Duration>,
    wait_for_workers: bool,
    retries: u32,
    cancellation: Option<Arc<dyn Cancellation>>,
}

impl C10dStoreOptions {
    /// A client of the server at this host and port, with torch's defaults. Without a port, the server takes any free port, which
    /// only a world of one can find.
    pub fn new(server_addr: impl Into<String>, server_port: impl Into<Option<u16>>) -> C10dStoreOptions {
        C10dStoreOptions {
            server_addr: server_addr.into(),
            server_port: server_port.into(),
            is_server: false,
            world_size: 1,
            timeout: Some(Duration::from_secs(600)),
            wait_for_workers: true,
            retries: 3,
            cancellation: None,
        }
    }

    setters! {
        /// Sets whether this process serves. The server listens on all addresses of its machine, as torch's does, or on a
        /// loopback address alone if the host is one.
        is_server: bool;
        /// Sets how many processes use the store.
        world_size: u64;
        /// Sets how long everything together may take; `None` for without end.
        timeout: Option<Duration>;
        /// Sets whether to wait until all processes have arrived.
        wait_for_workers: bool;
        /// Sets how often to try a port that is taken.
        retries: u32;
        /// Sets what ends calls early, from opening the store on.
        cancellation: Option<Arc<dyn Cancellation>>;
    }
}

/// The meeting of torch's own `create_c10d_store`; the last part is not a slip of ours.
const BARRIER_PREFIX: &str = "_tcp_store/num_members";

/// Makes the store of a job: serves or connects, and waits until all processes have come.
pub fn create_c10d_store(options: &C10dStoreOptions) -> Result<TcpStore> {
    if options.server_port.is_none() && options.world_size > 1 {
        return Err(StoreError::InvalidArgument(format!(
            "server_port must be specified when world_size > 1, got world_size={}: the others could not find it",
            options.world_size
        )));
    }
    if options.server_port.is_none() && !options.is_server {
        return Err(StoreError::InvalidArgument("server_port must be specified for a client".into()));
    }
    let deadline = Deadline::after(now(), options.timeout).or_cancelled(options.cancellation.clone());
    let store = open(options, &deadline)?;
    // What was left of the time was for opening it; from now on each call has all of it.
    store.set_timeout(options.timeout);
    if options.wait_for_workers {
        wait_for_workers(&store, options, &deadline)?;
    }
    Ok(store)
}

fn open(options: &C10dStoreOptions, deadline: &Deadline) -> Result<TcpStore> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let mut tries = 1;
    loop {
        let is_on_all_addresses = options.is_server && !is_loopback(&options.server_addr);
        let host = if is_on_all_addresses { "" } else { &*options.server_addr };
        let opening = TcpStoreOptions::new(Endpoint::new(host, options.server_port.unwrap_or(0)))
            .world_size(options.world_size)
            .is_master(options.is_server)
            .timeout(deadline.left(now()))
            .wait_for_workers(options.wait_for_workers)
            .cancellation(options.cancellation.clone());
        match TcpStore::open(opening) {
            Err(error)
                if error.is_address_in_use() && tries < options.retries && !deadline.has_passed(now()) =>
            {
                tries += 1;
                pause(&mut backoff, deadline);
            }
            other => return other,
        }
    }
}

/// Waits until all have come, so that the server may go when the first to leave is done.
fn wait_for_workers(store: &TcpStore, options: &C10dStoreOptions, deadline: &Deadline) -> Result<()> {
    let last = arrive(store, options.world_size, BARRIER_PREFIX, LAST_MEMBER, deadline)?;
    let error = match store.wait_for(&[&last], deadline.left(now())) {
        Err(error) if error.awaited().is_some() => error,
        other => return other,
    };
    let counter = format!("{BARRIER_PREFIX}/num_members");
    // Adding nothing reads the number. If even that fails, the time-out is what there is to tell.
    match store.with_timeout(deadline.grace(now()).left(now())).add(&counter, 0) {
        Ok(joined) => {
            let awaited = Awaited::Workers { joined, expected: options.world_size };
            let endpoint = Endpoint::new(store.host(), store.port()).to_string();
            let context = Context::new(StoreKind::Tcp, endpoint).after(deadline.waited(now()));
            Err(context.failed(Failure::Timeout(awaited)))
        }
        Err(_) => Err(error),
    }
}
