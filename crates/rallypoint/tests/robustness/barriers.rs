//! Rows W08 and W09 in docs/internals/robustness.md: only the arrival of all clients releases a barrier.

use std::time::Duration;

use rallypoint_core::wire::{Op, Reply, ReplyKind, Request};

use crate::harness::{Client, Server, eventually};

fn barrier(key: &str, world_size: i64) -> Request<'_> {
    Request::Barrier { key: key.as_bytes(), world_size }
}

fn assert_passed(client: &mut Client) {
    assert_eq!(client.reply(ReplyKind::Waited(Op::Barrier)), Reply::Stop);
}

#[test]
fn w08_a_barrier_does_not_count_clients_that_canceled() {
    let mut server = Server::start();
    let [mut a, mut b] = [(); 2].map(|()| server.connect());
    for _ in 0..3 {
        a.start_blocking(barrier("/bar", 2));
        a.cancel_wait();
    }
    // Client `a` is alone at the barrier, because its canceled waits do not count. So it does not pass.
    a.start_blocking(barrier("/bar", 2));
    a.cancel_wait();
    b.start_blocking(barrier("/bar", 2));
    a.send_request(barrier("/bar", 2));
    assert_passed(&mut a);
    assert_passed(&mut b);
    drop((a, b));
    server.assert_healthy();
}

#[test]
fn w08_a_barrier_does_not_count_dead_clients() {
    let mut server = Server::start();
    let mut b = server.connect();
    for is_reset in [false, true] {
        let mut a = server.connect();
        a.start_blocking(barrier("/bar", 2));
        if is_reset {
            a.reset()
        } else {
            drop(a)
        }
        eventually(Duration::from_secs(5), "the server closes the dead connection", || {
            server.connections() == 1
        });
        b.start_blocking(barrier("/bar", 2));
        b.cancel_wait();
    }
    drop(b);
    server.assert_healthy();
}

#[test]
fn w08_each_use_of_a_barrier_waits_for_all_clients() {
    let mut server = Server::start();
    let [mut a, mut b] = [(); 2].map(|()| server.connect());
    for _ in 0..5 {
        a.start_blocking(barrier("/bar", 2));
        b.start_blocking(barrier("/other", 2));
        b.cancel_wait();
        b.send_request(barrier("/bar", 2));
        assert_passed(&mut b);
        assert_passed(&mut a);
    }
    b.start_blocking(barrier("/bar", 2));
    b.cancel_wait();
    drop((a, b));
    server.assert_healthy();
}

#[test]
fn w09_a_barrier_with_a_world_size_below_1_is_refused_and_only_arrivals_release_waiters() {
    let mut server = Server::start();
    for world_size in [0, -1, i64::MIN] {
        let mut client = server.connect();
        client.send_request(barrier("/bar", world_size));
        assert_eq!(client.end().received, b"", "{world_size}");
    }
    let [mut waiter, mut other] = [(); 2].map(|()| server.connect());
    waiter.start_blocking(barrier("/bar", 2));
    other.set("/bar", "1");
    other.set("/bar/last_member", "1");
    other.send_request(Request::QueuePush { key: b"/bar", value: (&b"v"[..]).into() });
    assert_eq!(other.add("/bar", 1), 2);
    waiter.cancel_wait();
    drop((waiter, other));
    server.assert_healthy();
}
