//! The kinds of stores under test, and the properties in which they differ.

use std::sync::Arc;

use rallypoint_store::{
    Endpoint, FileStoreOptions, HashStore, PrefixStore, Store, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use rallypoint_testkit::CALL_TIMEOUT;

/// One store under test.
pub(crate) struct Fixture {
    new_client: Box<dyn Fn() -> Box<dyn Store> + Send + Sync>,
    pub(crate) kind: &'static str,
    /// Whether the clients use a server, which may reply late on a busy machine.
    pub(crate) has_server: bool,
    /// Whether the store supports queues.
    pub(crate) has_queues: bool,
    /// Whether the store has a native barrier, which is reusable, instead of the generic one.
    pub(crate) has_native_barrier: bool,
    /// Whether `delete_key` reports if the key was present.
    pub(crate) reports_deleted: bool,
    /// Whether setting a key wakes its waiters even if the key is deleted immediately afterwards.
    pub(crate) wakes_on_every_change: bool,
    /// Whether all clients share one timeout.
    pub(crate) shares_timeout: bool,
    /// Whether an empty value counts as 0 for `add`, as in torch's FileStore.
    pub(crate) empty_is_zero: bool,
    /// The result of `has_extended_api`.
    pub(crate) has_extended_api: bool,
}

impl Fixture {
    /// Creates a client of the store. It shares as little with other clients as the kind of store allows.
    pub(crate) fn client(&self) -> Box<dyn Store> {
        (self.new_client)()
    }
}

pub(crate) fn hash() -> Fixture {
    let store = HashStore::new();
    store.set_timeout(Some(CALL_TIMEOUT));
    Fixture {
        new_client: Box::new(move || Box::new(store.clone())),
        kind: "HashStore",
        has_server: false,
        has_queues: true,
        has_native_barrier: true,
        reports_deleted: true,
        wakes_on_every_change: false,
        shares_timeout: true,
        empty_is_zero: false,
        has_extended_api: true,
    }
}

/// Starts a server. Each client has a connection of its own.
pub(crate) fn tcp() -> Fixture {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    Fixture {
        new_client: Box::new(move || {
            let endpoint = Endpoint::new("127.0.0.1", server.port());
            let options = TcpStoreOptions::new(endpoint).timeout(CALL_TIMEOUT);
            Box::new(TcpStore::open(options).unwrap())
        }),
        kind: "TcpStore",
        has_server: true,
        has_queues: true,
        has_native_barrier: true,
        reports_deleted: true,
        wakes_on_every_change: true,
        shares_timeout: false,
        empty_is_zero: false,
        has_extended_api: true,
    }
}

pub(crate) fn file() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    Fixture {
        new_client: Box::new(move || {
            Box::new(
                FileStoreOptions::new(directory.path().join("store")).timeout(CALL_TIMEOUT).open().unwrap(),
            )
        }),
        kind: "FileStore",
        has_server: false,
        has_queues: false,
        has_native_barrier: false,
        reports_deleted: false,
        wakes_on_every_change: false,
        shares_timeout: false,
        empty_is_zero: true,
        has_extended_api: false,
    }
}

/// Returns a prefix store over another store, and sets keys outside of the prefix in the other store.
fn prefixed(prefix: &'static str, fixture: Fixture) -> Fixture {
    let outside = fixture.client();
    outside.set("outside", b"1").unwrap();
    outside.set(&format!("{prefix}2/k"), b"2").unwrap();
    let Fixture { new_client, .. } = fixture;
    Fixture {
        new_client: Box::new(move || Box::new(PrefixStore::new(prefix, Arc::from(new_client())))),
        kind: "PrefixStore",
        has_native_barrier: false,
        ..fixture
    }
}

pub(crate) fn prefix_over_hash() -> Fixture {
    prefixed("part", hash())
}

pub(crate) fn prefix_over_tcp() -> Fixture {
    prefixed("part", tcp())
}

pub(crate) fn prefix_over_file() -> Fixture {
    prefixed("part", file())
}

pub(crate) fn prefix_over_prefix_over_tcp() -> Fixture {
    prefixed("inner", prefixed("outer", tcp()))
}
