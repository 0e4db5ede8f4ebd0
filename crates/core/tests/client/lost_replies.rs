//! Tests of lost replies: the client repeats a request only if the operation is repeatable.

use std::time::Duration;

use rallypoint_core::client::{Awaited, Failure, Oversized, ready};
use rallypoint_core::wire::{Op, Request};

use crate::operations::{all_operations, connected, waiting_operations};
use crate::server::{Behavior, Model};

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn only_a_repeatable_request_is_repeated_after_a_lost_reply() {
    for behavior in [Behavior::Close, Behavior::Refuse, Behavior::Truncate(1)] {
        for operation in all_operations() {
            let (net, client) = connected(Model::ours("a"));
            let before = net.model(|model| model.count(operation.op));
            net.model(|model| model.on_next(operation.op, behavior.clone()));
            let result = operation.run(&client, TIMEOUT);
            let sent = net.model(|model| model.count(operation.op)) - before;
            match (operation.is_repeatable, &result) {
                (false, Err(Failure::Indeterminate(_))) => assert_eq!(sent, 1, "{:?}", operation.op),
                // The repeated request found no key, so it is unknown whether the first request deleted it.
                (true, Err(Failure::Indeterminate(_))) => assert_eq!(operation.op, Op::DeleteKey),
                // `Truncate(1)` sends a reply of 1 byte completely.
                (_, Ok(())) if matches!(behavior, Behavior::Truncate(1)) => {}
                // The client also sends CHECK, GET and PING on every new connection.
                (true, Ok(())) => {
                    assert!(sent == 2 || [Op::Check, Op::Get, Op::Ping].contains(&operation.op));
                }
                other => panic!("{:?} {behavior:?}: {other:?}", operation.op),
            }
        }
    }
}

#[test]
fn a_request_that_was_never_sent_is_not_indeterminate() {
    for operation in all_operations() {
        let (net, client) = connected(Model::ours("a"));
        net.change(|state| state.kill());
        net.advance_clock(Duration::from_secs(1));
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert!(matches!(failure, Failure::Unreachable(_)), "{:?}: {failure:?}", operation.op);
    }
}

#[test]
fn a_wait_fails_within_50_ms_after_its_server_is_killed() {
    for operation in waiting_operations() {
        for model in [Model::ours("a"), Model::torch()] {
            let (net, client) = connected(model);
            net.after(Duration::from_secs(1), |state| state.kill());
            let start = net.now();
            let failure = operation.run(&client, Duration::from_secs(300)).unwrap_err();
            assert!(net.now() - start < Duration::from_millis(1_050), "{:?}", operation.op);
            match failure {
                Failure::ConnectionLost(reason) => {
                    assert_ne!(operation.op, Op::Barrier);
                    assert!(reason.contains("closed the connection; then connection refused"), "{reason}");
                }
                // It is unknown whether the server counted the arrival at the barrier.
                Failure::Indeterminate(_) => assert_eq!(operation.op, Op::Barrier),
                other => panic!("{:?}: {other:?}", operation.op),
            }
        }
    }
}

#[test]
fn a_wait_continues_over_a_new_connection() {
    for operation in waiting_operations().into_iter().filter(|operation| operation.op != Op::Barrier) {
        let (net, client) = connected(Model::ours("a"));
        for seconds in [2, 4, 6, 8] {
            net.after(Duration::from_secs(seconds), |state| state.close_all());
        }
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert!(
            matches!(failure, Failure::Timeout(Awaited::Keys(Some(_)))),
            "{:?}: {failure:?}",
            operation.op
        );
    }
}

#[test]
fn calls_after_a_server_was_killed_retry_until_their_timeout_and_find_a_restarted_server() {
    let (net, client) = connected(Model::torch());
    net.change(|state| state.kill());
    net.advance_clock(Duration::from_secs(1));
    net.after(Duration::from_secs(5), |state| {
        state.restart(Model::torch().with("/present", "again"));
    });
    let start = net.now();
    let failure = ready(client.ping(&net.deadline(Duration::from_secs(3)))).unwrap_err();
    assert!(matches!(failure, Failure::Unreachable(_)), "{failure:?}");
    assert_eq!(net.now() - start, Duration::from_secs(3));
    ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    assert!(net.now() - start < Duration::from_millis(5_600));
}

#[test]
fn a_request_on_which_the_server_always_closes_the_connection_is_reported_as_refused_within_1_s() {
    let (net, client) = connected(Model::ours("a"));
    net.model(|model| model.permanent_behaviors.push((Op::NumKeys, Behavior::Refuse)));
    let start = net.now();
    let failure = ready(client.request(Request::NumKeys, &net.deadline(TIMEOUT))).unwrap_err();
    assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
    assert!(net.now() - start < Duration::from_secs(1));
    ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
}

#[test]
fn a_failed_add_reports_the_value_that_is_not_a_number() {
    let (net, client) = connected(Model::torch());
    let failure = ready(client.add(b"/present", 1, &net.deadline(TIMEOUT))).unwrap_err();
    assert!(
        matches!(&failure, Failure::NotANumber { delta: 1, value } if **value == *b"value"),
        "{failure:?}"
    );
}

#[test]
fn a_refused_append_reports_the_limit() {
    let (net, client) = connected(Model::ours("a"));
    let failure = ready(client.append(b"/list", &[0; 100], &net.deadline(TIMEOUT))).unwrap_err();
    let what = Oversized::Append { current_len: 1 };
    assert_eq!(failure, Failure::TooLarge { what, len: 100, limit: 100 });
}
