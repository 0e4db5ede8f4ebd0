//! The kinds of stores, each with what may be expected of it beyond the trait. No behaviour is tested here.

use std::sync::Arc;

use rallypoint_store::{
    Endpoint, FileStoreOptions, HashStore, PrefixStore, Store, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use rallypoint_testkit::SOON;

/// One store, and a way to its clients.
pub(crate) struct World {
    make: Box<dyn Fn() -> Box<dyn Store> + Send + Sync>,
    pub(crate) kind: &'static str,
    /// Whether its clients ask a server, which may answer late on a busy machine.
    pub(crate) has_server: bool,
    /// Whether it has queues.
    pub(crate) queues: bool,
    /// Whether its barrier is its own, with rounds, rather than the generic one that serves once.
    pub(crate) own_barrier: bool,
    /// Whether `delete_key` says if the key was there.
    pub(crate) tells_deleted: bool,
    /// Whether a change that is undone at once is seen by those who wait.
    pub(crate) sees_every_change: bool,
    /// Whether several clients share one time-out.
    pub(crate) shares_timeout: bool,
    /// Whether `add` takes an empty value for 0, as torch's FileStore does.
    pub(crate) empty_is_zero: bool,
    /// What `has_extended_api` says.
    pub(crate) extended: bool,
}

impl World {
    /// A new client of the store, as independent of the others as its kind allows.
    pub(crate) fn client(&self) -> Box<dyn Store> {
        (self.make)()
    }
}

pub(crate) fn hash() -> World {
    let store = HashStore::new();
    store.set_timeout(Some(SOON));
    World {
        make: Box::new(move || Box::new(store.clone())),
        kind: "HashStore",
        has_server: false,
        queues: true,
        own_barrier: true,
        tells_deleted: true,
        sees_every_change: false,
        shares_timeout: true,
        empty_is_zero: false,
        extended: true,
    }
}

/// A server of our own, and a connection for each client.
pub(crate) fn tcp() -> World {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    World {
        make: Box::new(move || {
            let endpoint = Endpoint::new("127.0.0.1", server.port());
            let options = TcpStoreOptions::new(endpoint).timeout(SOON);
            Box::new(TcpStore::open(options).unwrap())
        }),
        kind: "TcpStore",
        has_server: true,
        queues: true,
        own_barrier: true,
        tells_deleted: true,
        sees_every_change: true,
        shares_timeout: false,
        empty_is_zero: false,
        extended: true,
    }
}

pub(crate) fn file() -> World {
    let folder = tempfile::tempdir().unwrap();
    World {
        make: Box::new(move || {
            Box::new(FileStoreOptions::new(folder.path().join("store")).timeout(SOON).open().unwrap())
        }),
        kind: "FileStore",
        has_server: false,
        queues: false,
        own_barrier: false,
        tells_deleted: false,
        sees_every_change: false,
        shares_timeout: false,
        empty_is_zero: true,
        extended: false,
    }
}

/// A part of another store that holds keys of others, too.
fn prefixed(prefix: &'static str, world: World) -> World {
    let outside = world.client();
    outside.set("outside", b"1").unwrap();
    outside.set(&format!("{prefix}2/k"), b"2").unwrap();
    let World { make, .. } = world;
    World {
        make: Box::new(move || Box::new(PrefixStore::new(prefix, Arc::from(make())))),
        kind: "PrefixStore",
        own_barrier: false,
        ..world
    }
}

pub(crate) fn prefix_over_hash() -> World {
    prefixed("part", hash())
}

pub(crate) fn prefix_over_tcp() -> World {
    prefixed("part", tcp())
}

pub(crate) fn prefix_over_file() -> World {
    prefixed("part", file())
}

pub(crate) fn prefix_over_prefix_over_tcp() -> World {
    prefixed("inner", prefixed("outer", tcp()))
}
