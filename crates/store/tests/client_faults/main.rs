//! The client end to end: real servers that are stopped, killed, restarted or cut off. What the client does about every
//! fault is tested in virtual time, in `crates/core/tests/client`.

mod child;
mod dns;
mod end_to_end;
mod memory;
mod network;
mod operations;
mod pool;

use std::time::Duration;

use rallypoint_store::{Endpoint, Result, Store, TcpStore, TcpStoreOptions};
use rallypoint_testkit::{SOON, goes_on_for};

/// A client of the server on that port of this machine, which has identified the server. Its timeout is that of the calls
/// that follow: connecting may take its time.
fn client(port: u16, timeout: Duration) -> TcpStore {
    let store = open("127.0.0.1", port, SOON).unwrap();
    store.server_identity();
    store.set_timeout(Some(timeout));
    store
}

fn open(host: &str, port: u16, timeout: Duration) -> Result<TcpStore> {
    TcpStore::open(TcpStoreOptions::new(Endpoint::new(host, port)).timeout(timeout))
}
