//! A network that swallows everything: K06. Once with a cable that is pulled, where the machine allows it, and once with
//! a relay that stops passing on.

use std::time::{Duration, Instant};

use rallypoint_store::{Store, StoreError, TcpStore, TcpStoreServer};

use crate::child::Server;
use crate::clock::{SOON, fails_after, goes_on_for, open};
use crate::network::Machine;
use crate::operations::{Operation, all, prepare, waiting};
use crate::relay::Relay;

const TIMEOUT: Duration = Duration::from_millis(800);
/// How soon all must be well after the network is.
const RECOVERY: Duration = Duration::from_secs(5);

/// Everything returns in time while nothing passes, and works soon after it does again. One client for each operation.
fn survives(connect: impl Fn(Duration) -> TcpStore, cut: impl Fn(), heal: impl Fn()) {
    let operations: Vec<Operation> = all().into_iter().chain(waiting()).collect();
    let stores: Vec<_> = operations.iter().map(|_| connect(TIMEOUT)).collect();
    prepare(&stores[0]);
    cut();
    std::thread::scope(|scope| {
        for (operation, store) in operations.iter().zip(&stores) {
            scope.spawn(move || {
                let error = fails_after(TIMEOUT, operation.name, || (operation.call)(store));
                assert!(
                    matches!(
                        error,
                        StoreError::Timeout { .. }
                            | StoreError::NoAnswer { .. }
                            | StoreError::Indeterminate { .. }
                            | StoreError::Unreachable { .. }
                    ),
                    "{}: {error:?}",
                    operation.name
                );
            });
        }
    });
    heal();
    let healed = Instant::now();
    for (operation, store) in all().iter().zip(&stores) {
        store.set_timeout(SOON);
        (operation.call)(store).expect(operation.name);
    }
    assert!(healed.elapsed() < RECOVERY, "it took {:?} after healing", healed.elapsed());
}

/// Calls that are under way when the network goes, and still are when it comes back.
fn goes_on(connect: impl Fn(Duration) -> TcpStore, cut: impl Fn(), heal: impl Fn()) {
    let (waiter, asker, other) = (connect(SOON), connect(SOON), connect(SOON));
    other.set("there", b"value").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.get("late"));
        goes_on_for(Duration::from_millis(50), &waiting);
        cut();
        let asking = scope.spawn(|| asker.get("there"));
        goes_on_for(Duration::from_secs(2), &asking);
        heal();
        let healed = Instant::now();
        assert_eq!(asking.join().unwrap().unwrap(), b"value");
        other.set("late", b"value").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), b"value");
        assert!(healed.elapsed() < RECOVERY, "it took {:?} after healing", healed.elapsed());
    });
}

/// A server on another machine, if there can be one.
fn other_machine() -> Option<(Machine, Server)> {
    let machine = Machine::new()?;
    let server = Server::at(&machine.enter(), &machine.address);
    Some((machine, server))
}

#[test]
fn every_operation_returns_in_time_when_the_cable_is_pulled_and_works_when_it_is_back() {
    let Some((machine, server)) = other_machine() else {
        return println!("skipped: no network of its own here (it takes root, iproute2 and util-linux)");
    };
    survives(
        |timeout| open(&machine.address, server.port(), timeout).unwrap(),
        || machine.unplug(),
        || machine.plug_in(),
    );
}

#[test]
fn a_call_under_way_goes_on_when_the_cable_is_back() {
    let Some((machine, server)) = other_machine() else {
        return println!("skipped: no network of its own here (it takes root, iproute2 and util-linux)");
    };
    goes_on(
        |timeout| open(&machine.address, server.port(), timeout).unwrap(),
        || machine.unplug(),
        || machine.plug_in(),
    );
}

#[test]
fn a_machine_that_cannot_be_reached_is_given_its_time_and_no_more() {
    let Some((machine, server)) = other_machine() else {
        return println!("skipped: no network of its own here (it takes root, iproute2 and util-linux)");
    };
    machine.unplug();
    let error = fails_after(TIMEOUT, "connect", || open(&machine.address, server.port(), TIMEOUT));
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
}

#[test]
fn every_operation_returns_in_time_when_nothing_passes_and_works_when_it_does() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let relay = Relay::to(server.port());
    survives(
        |timeout| open("127.0.0.1", relay.port(), timeout).unwrap(),
        || relay.block(),
        || relay.unblock(),
    );
}

#[test]
fn a_call_under_way_goes_on_when_everything_passes_again() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let relay = Relay::to(server.port());
    goes_on(
        |timeout| open("127.0.0.1", relay.port(), timeout).unwrap(),
        || relay.block(),
        || relay.unblock(),
    );
}
