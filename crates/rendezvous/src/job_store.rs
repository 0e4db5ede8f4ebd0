//! Creates the store of a job in one call: one process serves, the other processes connect, and the call returns when
//! all processes have arrived.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::client::{Backoff, Deadline};
use rallypoint_store::{
    Awaited, Cancellation, Context, Endpoint, Failure, Result, Store, StoreError, StoreKind, TcpStore,
    TcpStoreOptions, arrive_at_barrier, now, pause, setters,
};

use crate::collectives::LAST_MEMBER_VALUE;
use crate::machine::is_loopback;

/// Options for [`create_c10d_store`]: the arguments of torch's function of that name.
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
    /// Creates options with torch's defaults for a client that connects to this host and port.
    ///
    /// Without a port, the server chooses a free one. That is only possible in a world of one process.
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
        /// Sets whether this process serves. The server listens on all addresses of its machine, as torch's does. If
        /// the host is a loopback address, the server listens there only.
        is_server: bool;
        /// Sets the number of processes that use the store.
        world_size: u64;
        /// Sets the timeout of the whole call. `None` means no timeout.
        timeout: Option<Duration>;
        /// Sets whether to wait until all processes have arrived.
        wait_for_workers: bool;
        /// Sets how many times to try to bind a port that is in use.
        retries: u32;
        /// Sets the cancellation that ends calls early, including the call that opens the store.
        cancellation: Option<Arc<dyn Cancellation>>;
    }
}

/// The key prefix of the barrier in torch's `create_c10d_store`. The barrier appends another `/num_members`, as torch's
/// does.
const BARRIER_PREFIX: &str = "_tcp_store/num_members";

/// Creates the store of a job: serves it or connects to it, and waits until all processes have arrived.
///
/// # Errors
///
/// Fails with `StoreError::InvalidArgument` if a required port is missing, with `StoreError::Listen` if the port stays
/// in use, and with a timeout that reports how many processes have joined.
pub fn create_c10d_store(options: &C10dStoreOptions) -> Result<TcpStore> {
    if options.server_port.is_none() && options.world_size > 1 {
        return Err(StoreError::InvalidArgument(format!(
            "server_port must be specified when world_size > 1, got world_size={}: the other processes could not find the server",
            options.world_size
        )));
    }
    if options.server_port.is_none() && !options.is_server {
        return Err(StoreError::InvalidArgument("server_port must be specified for a client".into()));
    }
    let deadline = Deadline::after(now(), options.timeout).or_canceled(options.cancellation.clone());
    let store = open(options, &deadline)?;
    // The store was opened with the time that was left before the deadline. From now on, each call has the whole
    // timeout.
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

/// Waits until all processes have arrived, so that the server process can't exit before the other processes have
/// connected.
fn wait_for_workers(store: &TcpStore, options: &C10dStoreOptions, deadline: &Deadline) -> Result<()> {
    let last = arrive_at_barrier(store, options.world_size, BARRIER_PREFIX, LAST_MEMBER_VALUE, deadline)?;
    let error = match store.wait_for(&[&last], deadline.left(now())) {
        Err(error) if error.awaited().is_some() => error,
        other => return other,
    };
    let counter = format!("{BARRIER_PREFIX}/num_members");
    // Adding 0 reads the counter. If that fails as well, return the timeout without the count.
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
