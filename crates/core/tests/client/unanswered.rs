//! Answers that are lost: what may be repeated is repeated, what may not is sent once.

use std::time::Duration;

use rallypoint_core::client::{Awaited, Failure, Oversized, ready};
use rallypoint_core::wire::{Op, Request};

use crate::operations::{all, connected, waiting};
use crate::server::{Act, Model};

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn a_lost_answer_makes_one_more_request_or_none() {
    for act in [Act::Close, Act::Refuse, Act::Cut(1)] {
        for operation in all() {
            let (net, client) = connected(Model::ours("a"));
            let before = net.model(|model| model.count(operation.op));
            net.model(|model| model.trap(operation.op, act.clone()));
            let result = operation.run(&client, TIMEOUT);
            let sent = net.model(|model| model.count(operation.op)) - before;
            match (operation.is_repeatable, &result) {
                (false, Err(Failure::Indeterminate(_))) => assert_eq!(sent, 1, "{:?}", operation.op),
                // The key is gone, and which of the two requests deleted it is unknown.
                (true, Err(Failure::Indeterminate(_))) => assert_eq!(operation.op, Op::DeleteKey),
                // Nothing is lost of an answer of one byte.
                (_, Ok(())) if matches!(act, Act::Cut(1)) => {}
                // CHECK, GET and PING are also part of the handshake.
                (true, Ok(())) => {
                    assert!(sent == 2 || [Op::Check, Op::Get, Op::Ping].contains(&operation.op));
                }
                other => panic!("{:?} {act:?}: {other:?}", operation.op),
            }
        }
    }
}

#[test]
fn a_request_that_was_never_sent_is_not_indeterminate() {
    for operation in all() {
        let (net, client) = connected(Model::ours("a"));
        net.change(|world| world.kill());
        net.pass(Duration::from_secs(1));
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert!(matches!(failure, Failure::Unreachable(_)), "{:?}: {failure:?}", operation.op);
    }
}

#[test]
fn a_wait_on_a_server_that_is_killed_fails_at_once() {
    for operation in waiting() {
        for model in [Model::ours("a"), Model::torchs()] {
            let (net, client) = connected(model);
            net.after(Duration::from_secs(1), |world| world.kill());
            let start = net.now();
            let failure = operation.run(&client, Duration::from_secs(300)).unwrap_err();
            assert!(net.now() - start < Duration::from_millis(1_050), "{:?}", operation.op);
            match failure {
                Failure::ConnectionLost(reason) => {
                    assert_ne!(operation.op, Op::Barrier);
                    assert!(reason.contains("closed the connection; then connection refused"), "{reason}");
                }
                // Whether the arrival was counted is unknown.
                Failure::Indeterminate(_) => assert_eq!(operation.op, Op::Barrier),
                other => panic!("{:?}: {other:?}", operation.op),
            }
        }
    }
}

#[test]
fn a_wait_whose_connection_is_closed_goes_on_over_another() {
    for operation in waiting().into_iter().filter(|operation| operation.op != Op::Barrier) {
        let (net, client) = connected(Model::ours("a"));
        for seconds in [2, 4, 6, 8] {
            net.after(Duration::from_secs(seconds), |world| world.close_all());
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
fn later_calls_try_again_until_their_time_is_up_and_find_a_server_that_comes_back() {
    let (net, client) = connected(Model::torchs());
    net.change(|world| world.kill());
    net.pass(Duration::from_secs(1));
    net.after(Duration::from_secs(5), |world| {
        world.restart(Model::torchs().with("/there", "again"));
    });
    let start = net.now();
    let failure = ready(client.ping(&net.deadline(Duration::from_secs(3)))).unwrap_err();
    assert!(matches!(failure, Failure::Unreachable(_)), "{failure:?}");
    assert_eq!(net.now() - start, Duration::from_secs(3));
    ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    assert!(net.now() - start < Duration::from_millis(5_600));
}

#[test]
fn a_request_on_which_the_server_closes_each_time_is_refused_before_the_time_is_up() {
    let (net, client) = connected(Model::ours("a"));
    net.model(|model| model.always.push((Op::NumKeys, Act::Refuse)));
    let start = net.now();
    let failure = ready(client.exchange(Request::NumKeys, &net.deadline(TIMEOUT))).unwrap_err();
    assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
    assert!(net.now() - start < Duration::from_secs(1));
    ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
}

#[test]
fn an_addition_to_something_else_than_a_number_is_explained() {
    let (net, client) = connected(Model::torchs());
    let failure = ready(client.add(b"/there", 1, &net.deadline(TIMEOUT))).unwrap_err();
    assert!(matches!(&failure, Failure::NotANumber { delta: 1, held } if **held == *b"value"), "{failure:?}");
}

#[test]
fn an_append_that_the_server_refuses_is_explained() {
    let (net, client) = connected(Model::ours("a"));
    let failure = ready(client.append(b"/list", &[0; 100], &net.deadline(TIMEOUT))).unwrap_err();
    let what = Oversized::Append { held: 1 };
    assert_eq!(failure, Failure::TooLarge { what, len: 100, limit: 100 });
}
