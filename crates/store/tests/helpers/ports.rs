//! Ports: found, and held until they are handed over.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rallypoint_store::{
    Failure, Listen, ServerOptions, Store, TcpStore, TcpStoreServer, free_port, reserve_port,
};
use rallypoint_testkit::eventually;

#[test]
fn a_free_port_can_be_had() {
    // Somebody else may be faster, but not each time.
    let had = (0..20).filter(|_| {
        let port = free_port().unwrap();
        assert_ne!(port, 0);
        TcpStoreServer::bind("", port).is_ok()
    });
    assert!(had.count() > 10);
}

#[test]
fn reserved_ports_are_all_different_and_nobody_can_take_them() {
    let held: Vec<_> = (0..50).map(|_| reserve_port().unwrap()).collect();
    assert_eq!(held.iter().map(|held| held.port()).collect::<BTreeSet<_>>().len(), 50);
    for held in &held {
        for host in ["127.0.0.1", "0.0.0.0", "::1", "::"] {
            assert!(TcpListener::bind((host, held.port())).is_err(), "{host}");
        }
        for host in ["", "127.0.0.1"] {
            let error = TcpStoreServer::bind(host, held.port()).unwrap_err();
            assert!(error.is_address_in_use(), "{error:?}");
        }
        // Held, not listening: whoever comes now is refused and comes again.
        assert!(TcpStream::connect(("127.0.0.1", held.port())).is_err());
    }
}

/// At no moment between holding and serving is the port free.
#[test]
fn a_reserved_port_is_handed_over_without_a_gap() {
    for _ in 0..20 {
        let held = reserve_port().unwrap();
        let port = held.port();
        let (stop, tries) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let thief = scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    assert!(TcpListener::bind(("127.0.0.1", port)).is_err(), "stolen");
                    tries.fetch_add(1, Ordering::SeqCst);
                }
            });
            eventually("the thief is at work", || tries.load(Ordering::SeqCst) > 0);
            let listen = vec![Listen::Socket(held.listen().unwrap())];
            let server = TcpStoreServer::start(ServerOptions::new(listen)).unwrap();
            assert_eq!(server.port(), port);
            TcpStore::connect("127.0.0.1", port).unwrap().set("k", b"v").unwrap();
            stop.store(true, Ordering::SeqCst);
            thief.join().unwrap();
        });
    }
}

#[test]
fn a_reserved_port_that_is_let_go_is_free_again() {
    // Somebody else may be faster, but not each time.
    let had = (0..20).filter(|_| {
        let held = reserve_port().unwrap();
        let port = held.port();
        drop(held);
        TcpStoreServer::bind("127.0.0.1", port).is_ok()
    });
    assert!(had.count() > 10);
}

/// Connections of the first server linger after it has closed them.
#[test]
fn a_server_on_a_reserved_port_can_be_followed_by_another_at_once() {
    let held = reserve_port().unwrap();
    let port = held.port();
    let first =
        TcpStoreServer::start(ServerOptions::new(vec![Listen::Socket(held.listen().unwrap())])).unwrap();
    let store = TcpStore::connect("127.0.0.1", port).unwrap();
    store.set("k", b"v").unwrap();
    drop(first);
    // Lingering takes a minute. Less than that is another test's process that had a copy of the socket for a moment.
    let second = Mutex::new(None);
    eventually("there is another server", || {
        *second.lock().unwrap() = TcpStoreServer::bind("", port).ok();
        second.lock().unwrap().is_some()
    });
    assert!(matches!(store.get("k").unwrap_err().failure(), Some(Failure::Reset(_))));
}
