//! Decodes the state of a rendezvous into text for a terminal.

use std::fmt::Write;

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{NodeDesc, State, WallTime, cell};

const KEY_PREFIX: &str = "torch.rendezvous.";

/// Returns the value of a key as text, or `None` if it is not the state of a rendezvous. `now` is the current time of
/// this machine's clock.
pub(super) fn describe(key: &str, value: &[u8], now: WallTime) -> Option<String> {
    let run_id = key.strip_prefix(KEY_PREFIX)?;
    match cell::read(value, &Limits::default()).ok()? {
        None => Some(format!("rendezvous {run_id}: no node has joined yet\n")),
        Some(state) => Some(describe_state(run_id, &state, now)),
    }
}

fn describe_state(run_id: &str, state: &State, now: WallTime) -> String {
    let phase = if state.complete { "complete" } else { "open" };
    let closed = if state.closed { ", rendezvous closed" } else { "" };
    let mut text = format!("rendezvous {run_id}: round {}, {phase}{closed}\n", state.round);
    if let Some(deadline) = state.deadline {
        let _ = writeln!(text, "last call until {deadline} ({})", difference(deadline, now));
    }
    let heartbeat = |node: &NodeDesc| match state.last_heartbeats.get(node) {
        Some(time) => format!("heartbeat {time} ({})", difference(*time, now)),
        None => "no heartbeat".into(),
    };
    let mut list = |name: &str, nodes: &mut dyn Iterator<Item = (String, &NodeDesc)>| {
        let lines: Vec<_> = nodes
            .map(|(rank, node)| {
                let NodeDesc { addr, pid, local_id } = node;
                format!("  {rank}{addr} (pid {pid}, local id {local_id}), {}\n", heartbeat(node))
            })
            .collect();
        let _ = write!(text, "{name}: {}\n{}", lines.len(), lines.concat());
    };
    // Group ranks are final only if the round is complete.
    let rank = |rank: &i64| if state.complete { format!("group rank {rank}: ") } else { String::new() };
    let mut participants: Vec<_> = state.participants.iter().collect();
    participants.sort_by_key(|(_, rank)| **rank);
    list("participants", &mut participants.into_iter().map(|(node, number)| (rank(number), node)));
    list("wait list", &mut state.wait_list.iter().map(|node| (String::new(), node)));
    list("redundancy list", &mut state.redundancy_list.iter().map(|node| (String::new(), node)));
    text
}

/// Returns the difference between `time` and `now` as text. The clocks of other nodes may be ahead of ours, so a
/// heartbeat can be in the future.
fn difference(time: WallTime, now: WallTime) -> String {
    let seconds = (now.micros() - time.micros()) as f64 / 1e6;
    if seconds < 0.0 { format!("in {:.1} s", -seconds) } else { format!("{seconds:.1} s ago") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64) -> WallTime {
        WallTime::from_micros(seconds * 1_000_000).unwrap()
    }

    #[test]
    fn a_state_is_described_with_ranks_lists_heartbeats_and_deadline() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|addr| NodeDesc::new(addr, 7, 0));
        let mut state = State {
            round: 3,
            complete: true,
            participants: [(a.clone(), 1), (b.clone(), 0)].into(),
            wait_list: [c.clone()].into(),
            redundancy_list: [d].into(),
            last_heartbeats: [(a, time(8)), (b, time(11)), (c, time(10))].into(),
            ..State::default()
        };
        assert_eq!(
            describe_state("job", &state, time(10)),
            "rendezvous job: round 3, complete\n\
             participants: 2\n  \
             group rank 0: b (pid 7, local id 0), heartbeat 1970-01-01T00:00:11.000000Z (in 1.0 s)\n  \
             group rank 1: a (pid 7, local id 0), heartbeat 1970-01-01T00:00:08.000000Z (2.0 s ago)\n\
             wait list: 1\n  \
             c (pid 7, local id 0), heartbeat 1970-01-01T00:00:10.000000Z (0.0 s ago)\n\
             redundancy list: 1\n  \
             d (pid 7, local id 0), no heartbeat\n"
        );
        (state.complete, state.closed, state.deadline) = (false, true, Some(time(40)));
        let text = describe_state("job", &state, time(10));
        assert!(
            text.starts_with("rendezvous job: round 3, open, rendezvous closed\nlast call until 1970-01-01T"),
            "{text}"
        );
        assert!(text.contains("(in 30.0 s)\n") && !text.contains("rank 0"), "{text}");
    }

    #[test]
    fn a_value_that_is_not_a_state_is_not_described() {
        assert_eq!(describe("epoch", cell::NULL, time(0)), None);
        assert_eq!(describe("torch.rendezvous.job.0/k", b"17", time(0)), None);
        let text = describe("torch.rendezvous.job", cell::NULL, time(0)).unwrap();
        assert_eq!(text, "rendezvous job: no node has joined yet\n");
    }
}
