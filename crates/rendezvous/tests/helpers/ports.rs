//! Ports: found, and held.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};

use rallypoint_rendezvous::{free_port, reserve_port};
use rallypoint_store::TcpStoreServer;

#[test]
fn a_free_port_can_be_had() {
    // Another process may take the port first, but not each time.
    let had = (0..20).filter(|_| {
        let port = free_port().unwrap();
        assert_ne!(port, 0);
        TcpStoreServer::bind("", port).is_ok()
    });
    assert!(had.count() > 10);
}

#[test]
fn reserved_ports_are_all_different_and_no_process_can_take_them() {
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
        // The port is held and does not listen: a client that connects now is refused, and tries again.
        assert!(TcpStream::connect(("127.0.0.1", held.port())).is_err());
    }
}

#[test]
fn a_reserved_port_that_is_let_go_is_free_again() {
    // Another process may take the port first, but not each time.
    let had = (0..20).filter(|_| {
        let held = reserve_port().unwrap();
        let port = held.port();
        drop(held);
        TcpStoreServer::bind("127.0.0.1", port).is_ok()
    });
    assert!(had.count() > 10);
}
