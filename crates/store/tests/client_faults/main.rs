//! End-to-end tests of the client with real servers that are stopped, killed, restarted or cut off.
//!
//! The tests in `crates/core/tests/client` cover every fault in virtual time.

mod child;
mod dns;
mod end_to_end;
mod memory;
mod network;
mod operations;
mod pool;

use std::time::Duration;

use rallypoint_store::{Endpoint, Result, Store, TcpStore, TcpStoreOptions};
use rallypoint_testkit::{CALL_TIMEOUT, assert_blocked_for};

/// Returns a client of the server on a port of this machine, after the client has identified the server.
///
/// `timeout` applies to later calls and not to the connection.
fn client(port: u16, timeout: Duration) -> TcpStore {
    let store = open("127.0.0.1", port, CALL_TIMEOUT).unwrap();
    store.server_identity();
    store.set_timeout(Some(timeout));
    store
}

fn open(host: &str, port: u16, timeout: Duration) -> Result<TcpStore> {
    TcpStore::open(TcpStoreOptions::new(Endpoint::new(host, port)).timeout(timeout))
}
