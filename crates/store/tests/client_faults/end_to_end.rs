//! Tests with real processes, sockets and networks. They cover the rows K01, K03 to K06 and K08 of
//! docs/internals/robustness.md.

use std::time::{Duration, Instant};

use rallypoint_store::{
    Awaited, ConnectionFault, Failure, Oversized, Result, Store, StoreError, TcpStore, TcpStoreServer,
};
use rallypoint_testkit::{Port, eventually};

use crate::child::Server;
use crate::network::Machine;
use crate::operations::{Operation, all_operations, prepare, waiting_operations};
use crate::{CALL_TIMEOUT, assert_blocked_for, client, open};

const TIMEOUT: Duration = Duration::from_millis(400);

/// Calls all operations concurrently, each on a store of its own. Asserts that each fails, but not before its timeout.
fn all_fail(stores: &[TcpStore], operations: &[Operation]) {
    std::thread::scope(|scope| {
        for (operation, store) in operations.iter().zip(stores) {
            store.set_timeout(Some(TIMEOUT));
            scope.spawn(move || {
                let started = Instant::now();
                let error = (operation.call)(store).expect_err(operation.name);
                let took = started.elapsed();
                // The tests in virtual time check how late a call may fail.
                assert!(took >= TIMEOUT && took < CALL_TIMEOUT, "{} took {took:?}", operation.name);
                match error.failure() {
                    Some(Failure::Unreachable(_) | Failure::Timeout(Awaited::Keys(None))) => {}
                    Some(Failure::NoReply) => {
                        assert!(operation.repeatable || operation.name.starts_with("queue_pop"), "{error}");
                    }
                    Some(Failure::Indeterminate(_)) => assert!(!operation.repeatable, "{error}"),
                    other => panic!("{}: {other:?}", operation.name),
                }
            });
        }
    });
}

#[test]
fn every_operation_times_out_on_a_stopped_server_and_works_after_it_resumes() {
    let server = Server::start();
    let operations: Vec<_> = all_operations().into_iter().chain(waiting_operations()).collect();
    let stores: Vec<_> = operations.iter().map(|_| client(server.port(), CALL_TIMEOUT)).collect();
    prepare(&stores[0]);
    server.freeze();
    all_fail(&stores, &operations);
    server.thaw();
    for (operation, store) in all_operations().iter().zip(&stores) {
        eventually("the operation succeeds again", || (operation.call)(store).is_ok());
    }
}

#[test]
fn every_waiting_thread_fails_when_the_server_is_killed() {
    let mut server = Server::start();
    let store = client(server.port(), Duration::from_secs(300));
    std::thread::scope(|scope| {
        let blocked: Vec<_> = (0..8).map(|_| scope.spawn(|| store.get("missing"))).collect();
        assert_blocked_for(Duration::from_millis(100), &blocked[0]);
        server.kill();
        let killed = Instant::now();
        for thread in blocked {
            let error = thread.join().unwrap().unwrap_err();
            assert!(
                matches!(error.failure(), Some(Failure::ConnectionLost(_) | Failure::Unreachable(_))),
                "{error:?}"
            );
        }
        assert!(killed.elapsed() < CALL_TIMEOUT, "failed after {:?}", killed.elapsed());
    });
}

#[test]
fn every_operation_reports_a_restarted_server() {
    let mut server = Server::start();
    let port = server.port();
    let store = client(port, CALL_TIMEOUT);
    prepare(&store);
    server.restart();
    for operation in all_operations() {
        let error = (operation.call)(&store).expect_err(operation.name);
        let StoreError::Call { context, failure: Failure::Reset(evidence) } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((&context.peer, context.op), (&format!("127.0.0.1:{port}"), Some(operation.op())));
        assert!(evidence.contains("it was instance"), "{evidence}");
    }
    let text = store.clone_store().err().unwrap().to_string();
    assert!(text.starts_with(&format!("the store at 127.0.0.1:{port} was restarted")), "{text}");
    assert_eq!(client(port, CALL_TIMEOUT).num_keys().unwrap(), 0, "the old client wrote to the new server");
}

/// Starts a server on a simulated machine. Returns `None` if this process cannot create network namespaces.
fn other_machine() -> Option<(Machine, Server)> {
    let machine = Machine::new();
    if machine.is_none() {
        println!("skipped: network namespaces need root, iproute2 and util-linux");
    }
    let machine = machine?;
    let server = Server::at(&machine.enter(), &machine.address);
    Some((machine, server))
}

#[test]
fn every_operation_times_out_while_the_network_is_cut_and_works_afterwards() {
    let Some((machine, server)) = other_machine() else { return };
    let operations: Vec<_> = all_operations().into_iter().chain(waiting_operations()).collect();
    let connect = |_| {
        let store = open(&machine.address, server.port(), CALL_TIMEOUT).unwrap();
        store.server_identity();
        store
    };
    let stores: Vec<_> = operations.iter().map(connect).collect();
    prepare(&stores[0]);
    machine.cut();
    all_fail(&stores, &operations);
    let error = open(&machine.address, server.port(), TIMEOUT).unwrap_err();
    assert_eq!(error.connection_fault(), Some(ConnectionFault::ConnectTimeout));
    machine.reconnect();
    for (operation, store) in all_operations().iter().zip(&stores) {
        store.set_timeout(Some(CALL_TIMEOUT));
        (operation.call)(store).expect(operation.name);
    }
}

/// A call that starts during the cut completes in time only over a new connection. Over the old one, TCP retransmits
/// 12.6 s after the first loss, which is during the cut, and then 25.4 s after the first loss, which is 8.4 s after the
/// cut.
#[test]
fn calls_in_flight_complete_within_5_s_after_a_17_s_network_cut() {
    let Some((machine, server)) = other_machine() else { return };
    type Call = fn(&TcpStore) -> Result<()>;
    let calls: [(&str, Call); 4] = [
        ("wait", |store| store.wait(&["late"])),
        ("get", |store| store.get("present").map(drop)),
        ("set", |store| store.set("new", b"value")),
        ("multi_get", |store| store.multi_get(&["present", "late"]).map(drop)),
    ];
    let connect = || open(&machine.address, server.port(), 4 * CALL_TIMEOUT).unwrap();
    let stores: Vec<_> = calls.iter().map(|_| connect()).collect();
    stores[0].set("present", b"value").unwrap();
    std::thread::scope(|scope| {
        let stores = &stores;
        let start = |n: usize| scope.spawn(move || (calls[n].1)(&stores[n]));
        let mut in_flight = vec![start(0)];
        assert_blocked_for(Duration::from_millis(50), &in_flight[0]);
        machine.cut();
        in_flight.extend([1, 2, 3].map(start));
        assert_blocked_for(Duration::from_secs(17), &in_flight[0]);
        machine.reconnect();
        let reconnected = Instant::now();
        connect().set("late", b"value").unwrap();
        for ((name, _), call) in calls.iter().zip(in_flight) {
            call.join().unwrap().expect(name);
        }
        assert!(
            reconnected.elapsed() < Duration::from_secs(5),
            "it took {:?} after the network was reconnected",
            reconnected.elapsed()
        );
    });
}

#[test]
fn the_client_tries_every_address_of_a_name() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    // The first address of `localhost` may be ::1, on which no process listens.
    let store = open("localhost", server.port(), CALL_TIMEOUT).unwrap();
    store.set("k", b"v").unwrap();
}

#[test]
fn an_http_server_is_reported_as_not_a_store() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let error = open("127.0.0.1", port, CALL_TIMEOUT).unwrap_err();
    let text = error.to_string();
    assert_eq!(text, format!("127.0.0.1:{port} answered like an HTTP server: not a c10d store server"));
}

#[test]
fn a_port_without_a_listener_is_reported_at_the_timeout() {
    let port = Port::reserve();
    let started = Instant::now();
    let error = open("127.0.0.1", port.number, TIMEOUT).unwrap_err();
    assert!(started.elapsed() >= TIMEOUT);
    assert_eq!(error.connection_fault(), Some(ConnectionFault::Refused));
    let text = error.to_string();
    assert!(text.starts_with(&format!("could not connect to 127.0.0.1:{} within ", port.number)), "{text}");
}

#[test]
fn oversized_keys_values_and_requests_are_refused_before_they_are_sent() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let store = client(server.port(), CALL_TIMEOUT);
    let large = vec![0; (8 << 20) + 1];
    let long_key = "k".repeat(8192);
    for result in [
        store.set("k", &large),
        store.append("k", &large),
        store.queue_push("k", &large),
        store.compare_set("k", b"", &large).map(drop),
        store.compare_set("k", &large, b"").map(drop),
        store.multi_set(&[("a", b"1"), ("k", &large)]),
    ] {
        let error = result.unwrap_err();
        let too_large = Failure::TooLarge { what: Oversized::Value, len: (8 << 20) + 1, limit: 8 << 20 };
        assert_eq!(error.failure(), Some(&too_large));
        assert_eq!(error.context().unwrap().keys, ["k"]);
    }
    for result in [store.set(&long_key, b"v"), store.get(&long_key).map(drop), store.wait(&["k", &long_key])]
    {
        let error = result.unwrap_err();
        let too_large = Failure::TooLarge { what: Oversized::Key, len: 8193, limit: 8192 };
        assert_eq!(error.failure(), Some(&too_large));
    }
    let error = store.check(&vec!["k"; 131_073]).unwrap_err();
    let too_large = Failure::TooLarge { what: Oversized::Keys, len: 131_073, limit: 131_072 };
    assert_eq!(error.failure(), Some(&too_large));
    let pairs: Vec<(&str, &[u8])> = vec![("k", &large[..8 << 20]); 9];
    let error = store.multi_set(&pairs).unwrap_err();
    assert!(matches!(error.failure(), Some(Failure::TooLarge { what: Oversized::Request, .. })), "{error:?}");
    store.set("k", &large[1..]).unwrap();
    assert_eq!((store.get("k").unwrap().len(), server.stats().accepted), (8 << 20, 1));
}
