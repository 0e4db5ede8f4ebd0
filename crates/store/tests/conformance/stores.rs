//! The kinds of stores, each with what may be expected of it beyond the trait. No behavior is tested here.

use std::sync::Arc;

use rallypoint_store::{
    Endpoint, FileStoreOptions, HashStore, PrefixStore, Store, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use rallypoint_testkit::SOON;

/// One store, and a way to its clients.
pub(crate) struct Fixture {
    new_client: Box<dyn Fn() -> Box<dyn Store> + Send + Sync>,
    pub(crate) kind: &'static str,
    /// Whether its clients ask a server, which may answer late on a busy machine.
    pub(crate) has_server: bool,
    /// Whether it has queues.
    pub(crate) has_queues: bool,
    /// Whether its barrier is its own, with rounds, rather than the generic one that serves once.
    pub(crate) has_native_barrier: bool,
    /// Whether `delete_key` says if the key was there.
    pub(crate) reports_deleted: bool,
    /// Whether a change that is undone at once is seen by those who wait.
    pub(crate) wakes_on_every_change: bool,
    /// Whether several clients share one time-out.
    pub(crate) shares_timeout: bool,
    /// Whether `add` takes an empty value for 0, as torch's FileStore does.
    pub(crate) empty_is_zero: bool,
    /// What `has_extended_api` says.
    pub(crate) has_extended_api: bool,
}

impl Fixture {
    /// A new client of the store, as independent of the others as its kind allows.
    pub(crate) fn client(&self) -> Box<dyn Store> {
        (self.new_client)()
    }
}

pub(crate) fn hash() -> Fixture {
    let store = HashStore::new();
    store.set_timeout(Some(SOON));
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

/// A server of our own, and a connection for each client.
pub(crate) fn tcp() -> Fixture {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    Fixture {
        new_client: Box::new(move || {
            let endpoint = Endpoint::new("127.0.0.1", server.port());
            let options = TcpStoreOptions::new(endpoint).timeout(SOON);
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
    let folder = tempfile::tempdir().unwrap();
    Fixture {
        new_client: Box::new(move || {
            Box::new(FileStoreOptions::new(folder.path().join("store")).timeout(SOON).open().unwrap())
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

/// A part of another store that holds keys of others, too.
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
