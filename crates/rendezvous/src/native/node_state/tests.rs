use rallypoint_coordinator::message::GroupId;

use super::*;

const DEADLINE: Duration = Duration::from_secs(100);

/// A node in a round, with workers that must be dead at `DEADLINE`.
fn working(has_fence: bool) -> Shared {
    let shared = Shared::new("job", has_fence, None);
    shared.handle_event(Event::Started(Assignment {
        group: GroupId(1),
        round: 3,
        rank: 0,
        world_size: 2,
        master: "node0:1".into(),
        lost: 0,
        restarts: Default::default(),
    }));
    shared.handle_event(Event::Lease { deadline: DEADLINE });
    shared
}

fn end(shared: &Shared, now: Duration) -> Option<EndCause> {
    shared.lock().membership(NodeDesc::new("node0", 1, 0), now).end
}

#[test]
fn a_node_is_fenced_at_its_deadline_even_if_its_client_has_not_said_so_yet() {
    let shared = working(true);
    assert_eq!(end(&shared, DEADLINE - Duration::from_millis(1)), None);
    assert_eq!(end(&shared, DEADLINE), Some(EndCause::Fenced));
}

#[test]
fn a_node_without_fence_or_with_finished_workers_is_not_fenced_at_its_deadline() {
    assert_eq!(end(&working(false), DEADLINE), None);
    let finished = working(true);
    finished.finish();
    assert_eq!(end(&finished, DEADLINE), None);
}

#[test]
fn the_end_of_the_job_cancels_calls_to_the_store_of_a_round_until_the_node_has_entered_it() {
    let shared = Arc::new(working(true));
    let cancellation = RoundCancellation {
        shared: Arc::clone(&shared),
        round: 3,
        has_entered: AtomicBool::new(false),
        caller: None,
    };
    assert!(!cancellation.is_canceled());
    shared.handle_event(Event::Closed(Closing {
        author: "node1".into(),
        time: String::new(),
        reason: "it failed".into(),
        has_finished: false,
    }));
    assert!(cancellation.is_canceled());
    cancellation.has_entered.store(true, Ordering::Relaxed);
    assert!(!cancellation.is_canceled());
    shared.start_joining();
    assert!(cancellation.is_canceled(), "the node joins the next round");
}
