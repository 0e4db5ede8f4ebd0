//! Making a connection: K07, K08, and what is tried meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rallypoint_core::wire::Op;
use rallypoint_store::reserve_port;
use rallypoint_store::{
    Awaited, ConnectionFault, Endpoint, Listen, ServerOptions, Store, StoreError, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};

use crate::child::Server;
use crate::clock::{SOON, client, eventually, fails_after, open};
use crate::fake::{Act, Fake, OURS, TORCHS};
use crate::operations::{all, at_once, prepare, waiting};
use crate::timing::fails_in_time;

const TIMEOUT: Duration = Duration::from_millis(500);

fn tried(error: &StoreError) -> &[(String, ConnectionFault)] {
    match error {
        StoreError::Unreachable { tried, .. } => tried,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_is_stopped_is_given_its_time_and_no_more() {
    let server = Server::start();
    server.freeze();
    let error = fails_after(TIMEOUT, "connect", || open("127.0.0.1", server.port(), TIMEOUT));
    assert_eq!(tried(&error)[0].1, ConnectionFault::Silent, "{error}");
}

#[test]
fn a_server_that_never_accepts_is_given_its_time_and_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = fails_after(TIMEOUT, "connect", || open("127.0.0.1", port, TIMEOUT));
    assert_eq!(tried(&error)[0].1, ConnectionFault::Silent, "{error}");
}

#[test]
fn a_server_that_answers_only_half_the_handshake_is_given_its_time_and_no_more() {
    for silent_at in [Op::Validate, Op::Ping] {
        let server =
            Fake::start(TORCHS, move |seen| if seen.op == silent_at { Act::Ignore } else { Act::Answer });
        let error = fails_after(TIMEOUT, "connect", || open("127.0.0.1", server.port(), TIMEOUT));
        assert_eq!(tried(&error)[0].1, ConnectionFault::Silent, "{error}");
    }
}

/// Torch's tests have a server that reads exactly this.
#[test]
fn a_client_sends_what_torch_sends_at_connect_and_nothing_more_until_its_first_operation() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::scope(|scope| {
        let opening = scope.spawn(move || open("127.0.0.1", port, SOON).unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        let mut handshake = [0; 10];
        stream.read_exact(&mut handshake).unwrap();
        let (requests, nonce) = handshake.split_at(6);
        assert_eq!((requests, nonce.len()), (&[0, 0xce, 0xf7, 0x85, 0x3c, 13][..], 4));
        stream.write_all(nonce).unwrap();
        let store = opening.join().unwrap();
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        assert!(read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
        drop(store);
        stream.set_nonblocking(false).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_server_that_stops_before_the_first_operation_is_given_its_time_and_no_more() {
    let operations = all().into_iter().chain(waiting()).collect();
    at_once(operations, |operation| {
        let server = Fake::start(OURS, |seen| if seen.op == Op::Check { Act::Ignore } else { Act::Answer });
        let store = open("127.0.0.1", server.port(), SOON).unwrap();
        store.set_timeout(Some(TIMEOUT));
        let error = fails_after(TIMEOUT, operation.name, || (operation.call)(&store));
        assert!(matches!(error, StoreError::NoAnswer { .. } | StoreError::Unreachable { .. }), "{error:?}");
    });
}

#[test]
fn a_server_that_closes_before_the_first_operation_is_connected_to_again() {
    for operation in all() {
        let server = Fake::honest(OURS);
        prepare(&client(server.port(), SOON));
        let store = open("127.0.0.1", server.port(), SOON).unwrap();
        server.at_next(Op::Check, Act::Refuse);
        (operation.call)(&store).expect(operation.name);
        assert_eq!(server.connections(), 3);
    }
}

#[test]
fn a_server_that_closes_during_the_handshake_is_tried_again_until_the_time_is_up() {
    let server = Fake::start(TORCHS, |_| Act::Refuse);
    // The last attempt may begin so late that its own time is up before it is closed.
    let is_fair = |error: &StoreError| tried(error)[0].1 == ConnectionFault::Closed;
    let error = fails_in_time(TIMEOUT, "connect", is_fair, || open("127.0.0.1", server.port(), TIMEOUT));
    assert_eq!(tried(&error)[0].1, ConnectionFault::Closed, "{error}");
    eventually("it was tried several times", || server.connections() > 3);
}

#[test]
fn nobody_who_listens_is_waited_for_to_the_end_and_named() {
    for timeout in [TIMEOUT, Duration::from_secs(3)] {
        let held = reserve_port().unwrap();
        let error = fails_after(timeout, "connect", || open("127.0.0.1", held.port(), timeout));
        assert_eq!(tried(&error)[0].0, format!("127.0.0.1:{}", held.port()));
        assert_eq!(tried(&error)[0].1, ConnectionFault::Refused, "{error}");
        assert!(error.to_string().contains("could not connect"), "{error}");
    }
}

#[test]
fn a_server_that_comes_later_is_found_soon() {
    let held = reserve_port().unwrap();
    let port = held.port();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| open("127.0.0.1", port, SOON).unwrap());
        crate::clock::goes_on_for(Duration::from_millis(200), &connecting);
        let listen = vec![Listen::from(held)];
        let _server = TcpStoreServer::start(ServerOptions { listen, ..ServerOptions::default() }).unwrap();
        let started = Instant::now();
        connecting.join().unwrap().set("k", b"v").unwrap();
        assert!(started.elapsed() < Duration::from_secs(5));
    });
}

/// The empty host is this machine, at two addresses; the server may be at the second.
#[test]
fn every_address_is_tried() {
    let addresses = Endpoint::new("", 0).resolve().unwrap();
    assert_eq!(addresses.len(), 2);
    for address in &addresses {
        let Ok(server) = TcpStoreServer::bind(&address.ip().to_string(), 0) else {
            println!("skipped: no {address} here");
            continue;
        };
        open("", server.port(), SOON).unwrap().set("k", b"v").unwrap();
    }
    let held = reserve_port().unwrap();
    let error = fails_after(TIMEOUT, "connect", || open("", held.port(), TIMEOUT));
    assert_eq!(tried(&error).len(), addresses.len(), "{error}");
}

/// Another program has the port at one of the addresses. The store is at the other.
#[test]
fn a_stranger_at_one_address_does_not_hide_the_store_at_another() {
    for stranger in ["answers", "is silent", "closes"] {
        let Ok(store) = TcpStoreServer::bind("::1", 0) else {
            return println!("skipped: no IPv6 here");
        };
        let Ok(listener) = TcpListener::bind(("127.0.0.1", store.port())) else {
            return println!("skipped: the port is taken");
        };
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let mut kept = Vec::new();
                while !ended.load(Ordering::SeqCst) {
                    let (mut stream, _) = listener.accept().unwrap();
                    match stranger {
                        "answers" => drop(stream.write_all(b"220 mail ready\r\n")),
                        "closes" => continue,
                        _ => {}
                    }
                    kept.push(stream);
                }
                kept.len()
            });
            let result = open("", store.port(), Duration::from_secs(3));
            ended.store(true, Ordering::SeqCst);
            // So that it sees that it has ended.
            TcpStream::connect(("127.0.0.1", store.port())).unwrap();
            serving.join().unwrap();
            result.expect(stranger).set("k", b"v").unwrap();
        });
    }
}

#[test]
fn the_master_of_a_world_that_does_not_come_says_how_many_did() {
    let open = |is_master, port| {
        TcpStore::open(
            TcpStoreOptions::new(Endpoint::new("127.0.0.1", port))
                .is_master(is_master)
                .world_size(Some(3))
                .timeout(TIMEOUT),
        )
    };
    let error = fails_after(TIMEOUT, "open", || open(true, 0));
    assert!(
        matches!(error, StoreError::Timeout { awaited: Awaited::Workers { joined: 1, expected: 3 }, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("1 of 3 joined"), "{error}");
}
