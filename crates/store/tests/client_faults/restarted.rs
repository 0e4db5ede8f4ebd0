//! A server that was restarted and has lost everything: K04. One of ours is recognised by its name; how one of torch's
//! is, is in `witnesses`.

use std::time::Duration;

use rallypoint_store::{Store, StoreError, TcpStore};

use crate::child::Server;
use crate::clock::{SOON, client, goes_on_for};
use crate::operations::{all, prepare, waiting};

fn assert_reset(error: &StoreError, port: u16) {
    let StoreError::StoreReset { context, evidence } = error else { panic!("{error:?}") };
    let peer = &context.peer;
    assert_eq!(peer, &format!("127.0.0.1:{port}"));
    assert!(evidence.contains("it was instance"), "{evidence}");
    assert!(error.to_string().contains("make a new client"), "{error}");
}

#[test]
fn a_restarted_server_is_named_by_every_operation() {
    let mut server = Server::start();
    let port = server.port();
    for operation in all().into_iter().chain(waiting()) {
        let store = client(port, SOON);
        prepare(&store);
        server.restart();
        let error = (operation.call)(&store).expect_err(operation.name);
        assert_reset(&error, port);
    }
}

#[test]
fn once_named_it_stays_named_until_there_is_a_new_client() {
    let mut server = Server::start();
    let port = server.port();
    let store = client(port, SOON);
    store.set("k", b"v").unwrap();
    server.restart();
    for operation in all().into_iter().chain(waiting()) {
        assert_reset(&(operation.call)(&store).expect_err(operation.name), port);
    }
    let new = client(port, SOON);
    assert_eq!(new.num_keys().unwrap(), 0, "the old client wrote to the new server");
    new.set("k", b"new").unwrap();
    assert_reset(&store.get("k").unwrap_err(), port);
}

#[test]
fn a_clone_is_of_the_same_store_and_not_of_the_one_that_took_its_place() {
    let mut server = Server::start();
    let store = client(server.port(), SOON);
    store.set("k", b"v").unwrap();
    let clone = store.clone_store().unwrap();
    server.restart();
    assert_reset(&clone.get("k").unwrap_err(), server.port());
    assert_reset(&store.clone_store().err().unwrap(), server.port());
    assert_reset(&clone.clone_store().err().unwrap(), server.port());
}

/// The server is back before the client has noticed that it was gone.
#[test]
fn a_wait_across_a_restart_does_not_go_on_with_an_empty_store() {
    let mut server = Server::start();
    let port = server.port();
    let store = client(port, SOON);
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| store.get("missing"));
        goes_on_for(Duration::from_millis(30), &blocked);
        server.restart();
        let error = blocked.join().unwrap().unwrap_err();
        // Told that it was gone, or that it is another one; which of them is a matter of time.
        assert!(
            matches!(error, StoreError::ConnectionLost { .. } | StoreError::StoreReset { .. }),
            "{error:?}"
        );
    });
    assert_reset(&store.get("missing").unwrap_err(), port);
}

#[test]
fn a_server_that_was_never_gone_is_the_same_one() {
    let server = Server::start();
    let relay = crate::relay::Relay::to(server.port());
    let store: TcpStore = client(relay.port(), SOON);
    let identity = store.server_identity().unwrap();
    store.set("k", b"v").unwrap();
    for _ in 0..3 {
        relay.cut();
        assert_eq!(store.get("k").unwrap(), b"v");
        assert_eq!(store.server_identity().unwrap(), identity);
    }
}
