//! A network that swallows everything: K06. Once with a cable that is pulled, where the machine allows it, and once with
//! a relay that stops passing on.

use std::time::{Duration, Instant};

use rallypoint_store::{Result, Store, StoreError, TcpStore, TcpStoreServer};

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
    let stores: Vec<_> = operations.iter().map(|_| connect(SOON)).collect();
    prepare(&stores[0]);
    stores.iter().for_each(|store| store.set_timeout(Some(TIMEOUT)));
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
        store.set_timeout(Some(SOON));
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

/// A cut that is so long that TCP by itself would try again much later: it does 12.6 s and 25.4 s after the first loss.
const LONG: Duration = Duration::from_secs(17);

/// Calls that are under way when the network goes for long: each is answered soon after it comes back, over a connection
/// that was made anew, and none ends before. One client for each.
fn goes_on_after_long(connect: impl Fn(Duration) -> TcpStore, cut: impl Fn(), heal: impl Fn()) {
    type Call = fn(&TcpStore) -> Result<Vec<u8>>;
    let calls: [(&str, Call); 6] = [
        ("wait", |store| store.wait(&["late"]).map(|()| b"value".to_vec())),
        ("get of what is missing", |store| store.get("late")),
        ("get", |store| store.get("there")),
        ("check", |store| {
            store.check(&["there"]).map(|there| if there { b"value".to_vec() } else { vec![] })
        }),
        ("set", |store| store.set("new", b"value").map(|()| b"value".to_vec())),
        ("multi_get", |store| Ok(store.multi_get(&["there", "late"])?.swap_remove(0))),
    ];
    let timeout = LONG + 2 * SOON;
    let stores: Vec<_> = calls.iter().map(|_| connect(timeout)).collect();
    stores[0].set("there", b"value").unwrap();
    std::thread::scope(|scope| {
        let stores = &stores;
        let begin = |n: usize| scope.spawn(move || (calls[n].1)(&stores[n]));
        let mut under_way: Vec<_> = [0, 1].map(begin).into();
        goes_on_for(Duration::from_millis(50), &under_way[1]);
        cut();
        under_way.extend([2, 3, 4, 5].map(begin));
        goes_on_for(LONG, &under_way[0]);
        assert!(under_way.iter().all(|call| !call.is_finished()), "one has ended early");
        heal();
        let healed = Instant::now();
        connect(SOON).set("late", b"value").unwrap();
        for ((name, _), call) in calls.iter().zip(under_way) {
            assert_eq!(call.join().unwrap().expect(name), b"value", "{name}");
            println!("{name}: {:?} after healing", healed.elapsed());
        }
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
fn a_call_under_way_goes_on_soon_after_the_cable_was_out_for_long() {
    let Some((machine, server)) = other_machine() else {
        return println!("skipped: no network of its own here (it takes root, iproute2 and util-linux)");
    };
    goes_on_after_long(
        |timeout| open(&machine.address, server.port(), timeout).unwrap(),
        || machine.unplug(),
        || machine.plug_in(),
    );
}

/// Their connections are given up before their time is, and no other can be made.
#[test]
fn a_call_that_may_be_repeated_has_all_its_time_while_nothing_passes() {
    let Some((machine, server)) = other_machine() else {
        return println!("skipped: no network of its own here (it takes root, iproute2 and util-linux)");
    };
    let timeout = Duration::from_secs(14);
    let stores = [(); 4].map(|()| open(&machine.address, server.port(), timeout).unwrap());
    type Call = fn(&TcpStore) -> Result<()>;
    let calls: [(&str, Call); 4] = [
        ("wait", |store| store.wait(&["late"])),
        ("get", |store| store.get("late").map(drop)),
        ("check", |store| store.check(&["there"]).map(drop)),
        ("set", |store| store.set("there", b"value")),
    ];
    machine.unplug();
    std::thread::scope(|scope| {
        for ((name, call), store) in calls.into_iter().zip(&stores) {
            scope.spawn(move || {
                let error = fails_after(timeout, name, || call(store));
                assert!(
                    matches!(error, StoreError::ConnectionLost { .. } | StoreError::Unreachable { .. }),
                    "{name}: {error:?}"
                );
            });
        }
    });
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
