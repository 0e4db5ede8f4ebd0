//! Tests of free and reserved ports.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};

use rallypoint_rendezvous::{free_port, reserve_port};
use rallypoint_store::TcpStoreServer;

#[test]
fn a_free_port_can_be_bound() {
    // Another process may bind some of these ports first, but not most of them.
    let available = (0..20).filter(|_| {
        let port = free_port().unwrap();
        assert_ne!(port, 0);
        TcpStoreServer::bind("", port).is_ok()
    });
    assert!(available.count() > 10);
}

#[test]
fn reserved_ports_are_all_different_and_no_process_can_take_them() {
    let reserved: Vec<_> = (0..50).map(|_| reserve_port().unwrap()).collect();
    assert_eq!(reserved.iter().map(|port| port.port()).collect::<BTreeSet<_>>().len(), 50);
    for port in &reserved {
        for host in ["127.0.0.1", "0.0.0.0", "::1", "::"] {
            assert!(TcpListener::bind((host, port.port())).is_err(), "{host}");
        }
        for host in ["", "127.0.0.1"] {
            let error = TcpStoreServer::bind(host, port.port()).unwrap_err();
            assert!(error.is_address_in_use(), "{error:?}");
        }
        // The port is bound but does not listen, so connections are refused.
        assert!(TcpStream::connect(("127.0.0.1", port.port())).is_err());
    }
}

#[test]
fn a_released_port_is_free_again() {
    // Another process may bind some of these ports first, but not most of them.
    let available = (0..20).filter(|_| {
        let reserved = reserve_port().unwrap();
        let port = reserved.port();
        drop(reserved);
        TcpStoreServer::bind("127.0.0.1", port).is_ok()
    });
    assert!(available.count() > 10);
}
