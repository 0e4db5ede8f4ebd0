//! Clients with a time-out, and calls of theirs that must fail in time.

use std::fmt::Debug;
use std::time::Duration;

use rallypoint_store::{Endpoint, Result, Store, StoreError, TcpStore, TcpStoreOptions};

pub(crate) use crate::timing::{SOON, TRIES, eventually, goes_on_for, latest};

/// A client of the server on that port of this machine, which has identified the server. Its timeout is that of what
/// follows: connecting may take its time.
pub(crate) fn client(port: u16, timeout: Duration) -> TcpStore {
    let store = open("127.0.0.1", port, SOON).unwrap();
    store.server_identity();
    store.set_timeout(Some(timeout));
    store
}

pub(crate) fn open(host: &str, port: u16, timeout: Duration) -> Result<TcpStore> {
    TcpStore::open(TcpStoreOptions::new(Endpoint::new(host, port)).timeout(timeout))
}

/// Calls something that must fail when its time is up, not before, and hardly after.
#[track_caller]
pub(crate) fn fails_after<T: Debug>(
    timeout: Duration,
    name: &str,
    call: impl Fn() -> Result<T>,
) -> StoreError {
    crate::timing::fails_in_time(timeout, name, |_| true, call)
}
