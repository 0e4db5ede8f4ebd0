//! Tests with wrong clocks. With torch's nodes, an offset of 20 s is enough to get two conflicting worlds in one round,
//! as the interop tests show.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::RendezvousHandler;
use rallypoint_testkit::eventually_within;

use crate::nodes::{Job, assert_agree, join, join_all};

const HOUR_SECONDS: i64 = 3600;

fn offset(seconds: i64) -> Arc<AtomicI64> {
    Arc::new(AtomicI64::new(seconds))
}

#[test]
fn nodes_with_clocks_an_hour_apart_agree_round_after_round() {
    let job = Job::new(3, 3);
    let nodes: Vec<_> =
        [-HOUR_SECONDS, 0, HOUR_SECONDS].map(|seconds| job.node_with_clock_offset(offset(seconds))).into();
    for round in 0..3 {
        let joined = join_all(&nodes);
        assert_agree(&joined);
        assert_eq!(joined[0].round, round);
    }
}

#[test]
fn a_clock_that_jumps_during_a_round_drops_no_node() {
    let mut job = Job::new(2, 2);
    // Torch would remove a node as dead after 1.2 s of wall-clock time.
    job.settings.keep_alive_interval = Duration::from_millis(400);
    let clocks = [offset(0), offset(0)];
    let nodes: Vec<_> = clocks.iter().map(|clock| job.node_with_clock_offset(Arc::clone(clock))).collect();
    let before = join_all(&nodes);
    for jump in [20, -HOUR_SECONDS, HOUR_SECONDS, -20] {
        clocks[0].store(jump, Ordering::Relaxed);
        clocks[1].store(-jump, Ordering::Relaxed);
        // Wait for four heartbeats with the new time, about two of each node.
        let writes = job.writes();
        eventually_within(Duration::from_secs(20), "both nodes have sent heartbeats", || {
            job.writes() >= writes + 4
        });
        assert!(nodes.iter().all(|node| node.membership().unwrap().num_nodes_waiting() == 0));
    }
    let first = join(&nodes[0]);
    eventually_within(Duration::from_secs(5), "the second node sees that the first one waits", || {
        nodes[1].membership().unwrap().num_nodes_waiting() > 0
    });
    let after = [nodes[1].next_rendezvous().unwrap(), first.join().unwrap().unwrap()];
    assert_agree(&after);
    assert_eq!(after[0].round, before[0].round + 1);
}

/// Clock offsets with which torch's nodes fail. One torch node computes the end of the last call with its own clock,
/// and another torch node compares that end with a different clock. A node whose clock is behind seems dead to torch's
/// nodes.
const OFFSETS: [i64; 6] = [-HOUR_SECONDS, -60, -20, 20, 60, HOUR_SECONDS];

const LAST_CALL_TIMEOUT: Duration = Duration::from_secs(3);

fn job_with_last_call(max_nodes: u64) -> Job {
    let mut job = Job::new(1, max_nodes);
    job.settings.last_call_timeout = LAST_CALL_TIMEOUT;
    job
}

#[test]
fn a_node_that_joins_during_the_last_call_is_accepted_whichever_clock_is_wrong() {
    for seconds in OFFSETS {
        for clocks in [[seconds, 0], [0, seconds]] {
            let job = job_with_last_call(2);
            let [first, second] = clocks.map(|seconds| job.node_with_clock_offset(offset(seconds)));
            let joining = join(&first);
            eventually_within(Duration::from_secs(10), "the last call has begun", || {
                job.state().deadline.is_some()
            });
            let joined = [second.next_rendezvous().unwrap(), joining.join().unwrap().unwrap()];
            assert_agree(&joined);
            assert_eq!((joined[0].round, joined[0].world_size), (0, 2), "{clocks:?}");
        }
    }
}

#[test]
fn the_last_call_ends_on_time_whichever_clock_is_wrong() {
    std::thread::scope(|scope| {
        for seconds in OFFSETS {
            scope.spawn(move || {
                let job = job_with_last_call(3);
                let nodes = [seconds, 0].map(|seconds| job.node_with_clock_offset(offset(seconds)));
                let start = Instant::now();
                let joined = join_all(&nodes);
                let took = start.elapsed();
                assert_agree(&joined);
                assert_eq!((joined[0].round, joined[0].world_size), (0, 2), "{seconds} s");
                // Allow 4 s more, because the nodes may be delayed on a busy machine.
                let expected = LAST_CALL_TIMEOUT - Duration::from_millis(100)
                    ..LAST_CALL_TIMEOUT + Duration::from_secs(4);
                assert!(expected.contains(&took), "{seconds} s: {took:?}");
            });
        }
    });
}
