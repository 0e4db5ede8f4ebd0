//! Tests which nodes one node counts as dead, and how long a last call has lasted for it.

use super::super::tests::{at, node, nodes, open, wall};
use super::*;

const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(15);

fn settings() -> Settings {
    Settings::new("job", 1, 9)
}

fn dead(watch: &Watch) -> Vec<NodeDesc> {
    watch.dead(KEEP_ALIVE_TIMEOUT, &node("me"))
}

/// Returns a state in which `a` has a heartbeat at `wall(seconds)`.
fn state_with_heartbeat(seconds: i64) -> Arc<State> {
    let mut state = open(&["a"]);
    state.last_heartbeats.insert(node("a"), wall(seconds));
    Arc::new(state)
}

#[test]
fn a_node_is_dead_after_three_intervals_without_a_change_and_not_before() {
    let mut watch = Watch::default();
    for second in 0..15 {
        watch.observe(&state_with_heartbeat(0), at(second), &settings());
        assert_eq!(dead(&watch), [], "after {second} s");
    }
    watch.observe(&state_with_heartbeat(0), at(15), &settings());
    assert_eq!(dead(&watch), nodes(["a"]));
    assert_eq!(watch.heartbeat_age(&node("a")), KEEP_ALIVE_TIMEOUT);
}

#[test]
fn a_node_is_alive_while_its_heartbeat_changes_even_to_earlier_times() {
    let mut watch = Watch::default();
    for second in 0..60 {
        let heartbeat = -3_600 * (second as i64 / 10);
        watch.observe(&state_with_heartbeat(heartbeat), at(second), &settings());
        assert_eq!(dead(&watch), [], "after {second} s");
    }
}

#[test]
fn a_wrong_wall_clock_makes_no_node_dead() {
    let mut watch = Watch::default();
    watch.observe(&state_with_heartbeat(-86_400), at(0), &settings());
    watch.observe(&state_with_heartbeat(-86_400), at(1), &settings());
    assert_eq!(dead(&watch), []);
}

#[test]
fn time_without_observations_counts_as_at_most_one_interval() {
    let mut watch = Watch::default();
    watch.observe(&state_with_heartbeat(0), at(0), &settings());
    watch.observe(&state_with_heartbeat(0), at(3_600), &settings());
    assert_eq!(watch.heartbeat_age(&node("a")), Duration::from_secs(5));
    assert_eq!(dead(&watch), []);
}

#[test]
fn a_node_never_counts_itself_as_dead() {
    let mut watch = Watch::default();
    for second in 0..60 {
        watch.observe(&Arc::new(open(&["a", "me"])), at(second), &settings());
    }
    assert_eq!(dead(&watch), nodes(["a"]));
}

/// This differs from torch, whose nodes never remove a node without a heartbeat.
#[test]
fn a_node_without_a_heartbeat_is_dead_after_the_same_time() {
    let mut state = open(&["a"]);
    state.last_heartbeats.clear();
    let mut watch = Watch::default();
    for second in 0..=15 {
        watch.observe(&Arc::new(state.clone()), at(second), &settings());
    }
    assert_eq!(dead(&watch), nodes(["a"]));
}

#[test]
fn the_heartbeat_age_of_a_node_that_rejoins_starts_at_zero_again() {
    let mut watch = Watch::default();
    for second in 0..20 {
        let state = if second == 10 { Arc::new(open(&[])) } else { state_with_heartbeat(0) };
        watch.observe(&state, at(second), &settings());
    }
    assert_eq!(dead(&watch), []);
    assert_eq!(watch.heartbeat_age(&node("a")), Duration::from_secs(8));
}

#[test]
fn of_many_states_only_the_last_is_kept_and_deaths_are_still_noticed_in_time() {
    let mut watch = Watch::default();
    let mut state = open(&["a", "b"]);
    let (mut died, mut seen) = (None, Vec::new());
    for number in 0..2_000u64 {
        // `b` is alive, so each observation shows another state.
        state.last_heartbeats.insert(node("b"), wall(number as i64));
        let now = MonoTime::from_start(Duration::from_millis(10 * number));
        let shown = Arc::new(state.clone());
        seen.push(Arc::downgrade(&shown));
        watch.observe(&shown, now, &settings());
        drop(shown);
        let kept = seen.iter().filter(|state| state.strong_count() > 0).count();
        assert_eq!(kept, 1, "only the newest state stays in memory");
        if died.is_none() && !dead(&watch).is_empty() {
            died = Some(now);
            assert_eq!(dead(&watch), nodes(["a"]));
        }
    }
    let late = died.unwrap().since(at(15));
    assert!(late <= KEEP_ALIVE_TIMEOUT / MAX_RECORDED_STATES, "late by {late:?}");
}

#[test]
fn the_age_of_a_heartbeat_starts_when_its_node_joins() {
    let mut watch = Watch::default();
    for second in 0..=20 {
        let names: &[&str] = if second < 10 { &["b"] } else { &["a", "b", "c"] };
        watch.observe(&Arc::new(open(names)), at(second), &settings());
    }
    assert_eq!(dead(&watch), nodes(["b"]));
    let ages = ["a", "b", "c", "d"].map(|name| watch.heartbeat_age(&node(name)).as_secs());
    assert_eq!(ages, [10, 20, 10, 0]);
}

#[test]
fn a_last_call_runs_from_its_first_observation() {
    let call = |seconds| Arc::new(State { deadline: Some(wall(seconds)), ..open(&["a"]) });
    let mut watch = Watch::default();
    watch.observe(&Arc::new(open(&["a"])), at(0), &settings());
    assert_eq!(watch.last_call(), None);
    watch.observe(&call(30), at(1), &settings());
    watch.observe(&call(30), at(4), &settings());
    assert_eq!(watch.last_call(), Some(Duration::from_secs(3)));
    watch.observe(&call(40), at(5), &settings());
    assert_eq!(watch.last_call(), Some(Duration::ZERO), "another deadline is another last call");
    watch.observe(&Arc::new(State { complete: true, ..(*call(40)).clone() }), at(6), &settings());
    assert_eq!(watch.last_call(), None);
}

#[test]
fn unchecked_settings_cause_no_overflow() {
    let mut settings = settings();
    (settings.keep_alive_interval, settings.keep_alive_max_attempt) = (Duration::MAX, u32::MAX);
    let mut watch = Watch::default();
    for second in [0, 1, u64::MAX / 2, u64::MAX] {
        watch.observe(&state_with_heartbeat((second % 7) as i64), at(second), &settings);
        assert_eq!(watch.dead(settings.keep_alive_limit(), &node("me")), []);
    }
}
