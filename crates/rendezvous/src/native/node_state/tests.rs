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
