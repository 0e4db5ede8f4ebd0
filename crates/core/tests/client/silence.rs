//! Tests of calls that time out or are canceled, and of calls to a server that is stopped or cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rallypoint_core::client::{Awaited, Failure, ready};
use rallypoint_core::wire::{Op, Request};

use crate::net::Net;
use crate::operations::{all_operations, connected, prepared, waiting_operations};
use crate::server::{Behavior, Model};

const TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum time by which a call may exceed its timeout.
const LATE_GRACE: Duration = Duration::from_millis(150);

/// Runs a call and returns its result and how long it took.
fn timed<T>(net: &Net, call: impl FnOnce() -> T) -> (T, Duration) {
    let start = net.now();
    let result = call();
    (result, net.now() - start)
}

#[test]
fn every_operation_times_out_on_a_stopped_server_and_a_ping_works_after_it_resumes() {
    for model in [Model::ours, |_: &str| Model::torch()] {
        for operation in all_operations().into_iter().chain(waiting_operations()) {
            let (net, client) = connected(model("a"));
            net.change(|state| state.is_stopped = true);
            let (result, took) = timed(&net, || operation.run(&client, TIMEOUT));
            let failure = result.expect_err("a stopped server sends no reply");
            assert!(took >= TIMEOUT && took <= TIMEOUT + LATE_GRACE, "{:?} took {took:?}", operation.op);
            match failure {
                Failure::NoReply | Failure::Timeout(Awaited::Keys(None)) => {
                    assert!(operation.is_repeatable || operation.op == Op::QueuePop, "{:?}", operation.op);
                }
                Failure::Indeterminate(reason) => {
                    assert!(!operation.is_repeatable, "{:?}", operation.op);
                    assert!(reason.starts_with("no answer within 3"), "{reason}");
                }
                other => panic!("{:?}: {other:?}", operation.op),
            }
            net.change(|state| state.resume());
            ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
        }
    }
}

#[test]
fn a_server_that_resumes_within_the_timeout_replies_over_the_same_connection() {
    for operation in all_operations() {
        let (net, client) = connected(Model::ours("a"));
        net.change(|state| state.is_stopped = true);
        net.after(Duration::from_secs(60), |state| state.resume());
        let (result, took) = timed(&net, || operation.run(&client, Duration::from_secs(300)));
        assert_eq!(result, Ok(()), "{:?}", operation.op);
        assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(61), "{took:?}");
        assert_eq!(net.change(|state| state.connections.len()), 1);
    }
}

#[test]
fn a_wait_ends_within_5_percent_or_100_ms_of_any_timeout() {
    for millis in [0, 1, 10, 100, 1_000, 10_000, 300_000] {
        let timeout = Duration::from_millis(millis);
        for operation in waiting_operations() {
            let (net, client) = connected(Model::ours("a"));
            let (result, took) = timed(&net, || operation.run(&client, timeout));
            assert!(result.is_err());
            let max_late = (timeout / 20).max(Duration::from_millis(100));
            assert!(took >= timeout && took <= timeout + max_late, "{:?} took {took:?}", operation.op);
        }
    }
}

#[test]
fn a_timed_out_wait_reports_which_keys_are_present_and_its_connection_is_reused() {
    let (net, client) = connected(Model::ours("a"));
    let keys: [&[u8]; 3] = [b"/present", b"/missing", b"/number"];
    let failure = ready(client.wait_then(Op::Wait, &keys, None, &net.deadline(TIMEOUT))).unwrap_err();
    assert_eq!(failure, Failure::Timeout(Awaited::Keys(Some(vec![true, false, true]))));
    ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    assert_eq!(net.change(|state| state.connections.len()), 1);
}

#[test]
fn a_timed_out_wait_for_20000_keys_reports_which_are_present() {
    let names: Vec<_> = (0..20_000).map(|n| format!("/{n}")).collect();
    let present: Vec<_> = (0..names.len()).map(|n| ![0, 300, 8_191, 16_384, 19_999].contains(&n)).collect();
    let present_names = names.iter().zip(&present).filter(|(_, is_present)| **is_present);
    let (net, client) =
        connected(present_names.fold(Model::ours("a"), |model, (name, _)| model.with(name, "v")));
    let keys: Vec<_> = names.iter().map(String::as_bytes).collect();
    let failure = ready(client.wait_then(Op::Wait, &keys, None, &net.deadline(TIMEOUT))).unwrap_err();
    assert!(failure == Failure::Timeout(Awaited::Keys(Some(present))));
}

#[test]
fn a_timeout_of_1_ns_suffices_for_a_present_key() {
    let (net, client) = connected(Model::ours("a"));
    let deadline = net.deadline(Duration::from_nanos(1));
    ready(client.wait_then(Op::Wait, &[b"/present"], None, &deadline)).unwrap();
    let failure =
        ready(client.wait_then(Op::Wait, &[b"/present", b"/missing"], None, &deadline)).unwrap_err();
    assert_eq!(failure, Failure::Timeout(Awaited::Keys(Some(vec![true, false]))));
}

#[test]
fn an_incomplete_report_of_present_keys_is_discarded() {
    let (net, client) = connected(Model::ours("a"));
    let names: Vec<_> = (0..10_000).map(|n| format!("/{n}").into_bytes()).collect();
    let keys: Vec<_> = names.iter().map(Vec::as_slice).collect();
    net.model(|model| model.checks_left = Some(9_000));
    let failure = ready(client.wait_then(Op::Wait, &keys, None, &net.deadline(TIMEOUT))).unwrap_err();
    assert_eq!(failure, Failure::Timeout(Awaited::Keys(None)));
    net.model(|model| model.checks_left = None);
    ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
}

#[test]
fn a_get_returns_a_value_that_is_set_just_before_its_wait_is_canceled() {
    let (net, client) = connected(Model::ours("a"));
    net.change(|state| state.latency = Duration::from_millis(10));
    // The reply to the WAIT is in flight when the client cancels the WAIT.
    net.after(TIMEOUT - Duration::from_millis(5), |state| state.set("/k", "v"));
    assert_eq!(&*ready(client.get(b"/k", &net.deadline(TIMEOUT))).unwrap(), b"v");
    ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    assert_eq!(net.change(|state| state.connections.len()), 1);
}

#[test]
fn a_repeatable_call_completes_within_5_s_after_a_30_s_network_cut() {
    for operation in all_operations() {
        let (net, client) = connected(Model::ours("a"));
        net.change(|state| state.is_cut = true);
        net.after(Duration::from_secs(30), |state| state.is_cut = false);
        let (result, took) = timed(&net, || operation.run(&client, Duration::from_secs(300)));
        match operation.is_repeatable {
            true => {
                assert_eq!(result, Ok(()), "{:?}", operation.op);
                assert!(took < Duration::from_secs(35), "{:?} took {took:?}", operation.op);
            }
            // The user timeout breaks the connection after 120 s, and the client does not repeat the request. A pop may
            // succeed: its first request is a WAIT, which the client repeats.
            false if operation.op == Op::QueuePop => {}
            false => assert!(matches!(result, Err(Failure::Indeterminate(_))), "{result:?}"),
        }
        ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    }
}

#[test]
fn every_operation_times_out_while_the_network_is_cut() {
    for operation in all_operations().into_iter().chain(waiting_operations()) {
        let (net, client) = connected(Model::torch());
        net.change(|state| state.is_cut = true);
        for timeout in [Duration::from_secs(3), Duration::from_secs(40)] {
            let (result, took) = timed(&net, || operation.run(&client, timeout));
            assert!(result.is_err(), "{:?}", operation.op);
            let max_late = (timeout / 20).max(LATE_GRACE);
            assert!(took <= timeout + max_late, "{:?} took {took:?}", operation.op);
        }
        net.change(|state| state.is_cut = false);
        ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    }
}

#[test]
fn small_repeatable_requests_use_the_short_user_timeout() {
    let (net, client) = connected(Model::ours("a"));
    let (short, long) = (Duration::from_secs(10), Duration::from_secs(120));
    let last = |net: &Net| net.change(|state| state.user_timeouts.last().copied().unwrap());
    let set = |value: &[u8]| {
        let request = Request::Set { key: b"/k", value: value.into() };
        ready(client.send_acknowledged(None, request, &net.deadline(TIMEOUT))).unwrap();
    };
    set(b"v");
    assert_eq!(last(&net), short);
    set(&vec![0; 100_000]);
    assert_eq!(last(&net), long);
    set(b"v");
    ready(client.add(b"/number", 1, &net.deadline(TIMEOUT))).unwrap();
    assert_eq!(last(&net), long);
}

#[test]
fn a_late_reply_is_never_taken_for_the_reply_to_the_next_request() {
    let (net, client) = connected(Model::ours("a"));
    net.model(|model| model.on_next(Op::Get, Behavior::SplitBytes(Duration::from_secs(1))));
    let failure = ready(client.get(b"/present", &net.deadline(TIMEOUT))).unwrap_err();
    assert_eq!(failure, Failure::Timeout(Awaited::Keys(None)));
    net.advance_clock(Duration::from_secs(60));
    assert_eq!(&*ready(client.get(b"/number", &net.deadline(TIMEOUT))).unwrap(), b"1");
}

#[test]
fn a_canceled_call_fails_like_a_call_that_times_out() {
    for operation in waiting_operations() {
        let net = Net::store(prepared(Model::ours("a")));
        let client = net.client();
        let flag = Arc::new(AtomicBool::new(false));
        let deadline = net.deadline(TIMEOUT).or_canceled(Some(flag.clone()));
        net.after(Duration::from_secs(1), move |_| flag.store(true, Ordering::Relaxed));
        let (result, took) = timed(&net, || (operation.call)(&client, &deadline));
        assert!(matches!(
            result,
            Err(Failure::Timeout(Awaited::Keys(None)) | Failure::Indeterminate(_) | Failure::NoReply)
        ));
        assert!(took <= Duration::from_millis(1_001), "{:?} took {took:?}", operation.op);
    }
}
