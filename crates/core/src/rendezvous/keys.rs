//! The keys of a rendezvous in a store. Runs with different run ids share no key that a function of this module
//! returns, whatever characters the run ids contain.

use super::operation::Phase;

/// Returns the key of the shared state, which is torch's key.
pub fn state(run_id: &str) -> String {
    format!("torch.rendezvous.{run_id}")
}

/// Returns the key under which nodes announce themselves for a round.
///
/// The key does not start with torch's prefix, so it never equals the state key of another run. The two parts after the
/// run id contain no slash, so removing the last two parts leaves the run id.
pub fn announcements(run_id: &str, round: u64) -> String {
    format!("rallypoint.rendezvous/{run_id}/announced/{round}")
}

/// Returns the key that is set when a phase is over.
pub fn phase_over(run_id: &str, phase: Phase) -> String {
    let Phase { round, complete } = phase;
    format!("rallypoint.rendezvous/{run_id}/{}/{round}", if complete { "ended" } else { "completed" })
}

/// Returns the key that is set by [`Signal::NextRoundWanted`](super::Signal::NextRoundWanted).
pub fn next_round_wanted(run_id: &str, round: u64) -> String {
    format!("rallypoint.rendezvous/{run_id}/wanted/{round}")
}

/// Returns the prefix of the keys that the nodes and workers of a round use. The prefix is torch's.
pub fn round_prefix(run_id: &str, round: u64) -> String {
    format!("{}.{round}", state(run_id))
}

/// Returns the round that a key of this run belongs to, or `None` if the key is that of the state or belongs to another
/// run.
///
/// A key of another run can be ambiguous: the state of run `a.1/b` counts as a key of round 1 of run `a`.
pub fn round_of(run_id: &str, key: &str) -> Option<u64> {
    let number = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number)
    };
    let ours = || {
        let rest = key.strip_prefix("rallypoint.rendezvous/")?.strip_prefix(run_id)?.strip_prefix('/')?;
        let (name, round) = rest.split_once('/')?;
        number(round).filter(|_| ["announced", "completed", "ended", "wanted"].contains(&name))
    };
    let torchs = || {
        let rest = key.strip_prefix(&state(run_id))?.strip_prefix('.')?;
        number(rest.split_once('/')?.0)
    };
    ours().or_else(torchs)
}

/// Returns the run id of the rendezvous that a key belongs to, or `None` if the key belongs to no rendezvous. `key` is
/// a key in a server, so it starts with the slash that clients add.
///
/// Some keys are ambiguous. The state of run `a.1/b` looks like a key of round 1 of run `a`, and counts as a key of run
/// `a`.
pub fn run_id_of(key: &[u8]) -> Option<&[u8]> {
    let key = key.strip_prefix(b"/")?;
    let run_id = if let Some(rest) = key.strip_prefix(b"torch.rendezvous.") {
        // The first slash after `.ROUND` ends the prefix of a round.
        let before_round = |slash: usize| {
            let dot = rest[..slash].iter().rposition(|byte| !byte.is_ascii_digit())?;
            (rest[dot] == b'.' && dot + 1 < slash).then_some(dot)
        };
        let mut slashes = (0..rest.len()).filter(|at| rest[*at] == b'/');
        &rest[..slashes.find_map(before_round).unwrap_or(rest.len())]
    } else {
        let mut parts = key.strip_prefix(b"rallypoint.rendezvous/")?.rsplitn(3, |byte| *byte == b'/');
        parts.nth(2)?
    };
    (!run_id.is_empty()).then_some(run_id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn keys(run_id: &str) -> BTreeSet<String> {
        let phases = [false, true].map(|complete| (0..30).map(move |round| Phase { round, complete }));
        let over = phases.into_iter().flatten().map(|phase| phase_over(run_id, phase));
        let of_rounds =
            (0..30).flat_map(|round| [announcements(run_id, round), next_round_wanted(run_id, round)]);
        over.chain(of_rounds).chain([state(run_id)]).collect()
    }

    #[test]
    fn two_runs_share_no_key_even_if_one_run_id_looks_like_a_key_of_the_other() {
        let ids = ["a", "a.1", "a/announced/1", "a/announced", "/a", "a/", "/", "a/ended/2", "1", "11"];
        let mut all = BTreeSet::new();
        for id in ids {
            let keys = keys(id);
            assert_eq!(keys.len(), 121, "each key has one purpose");
            let before = all.len();
            all.extend(keys);
            assert_eq!(all.len(), before + 121, "{id:?} has a key of another run");
        }
    }

    #[test]
    fn round_of_distinguishes_round_keys_from_the_state_and_from_other_runs() {
        for run_id in ["job", "job.1", "a/announced/1", "/"] {
            let of_rounds = keys(run_id).into_iter().filter(|name| *name != state(run_id));
            let worker_keys = [format!("{}/MASTER_ADDR", round_prefix(run_id, 12))];
            for key in of_rounds.chain(worker_keys) {
                assert!(round_of(run_id, &key).is_some(), "{key}");
            }
            assert_eq!(round_of(run_id, &state(run_id)), None);
            assert_eq!(round_of(run_id, &announcements(run_id, 7)), Some(7));
            assert_eq!(round_of(run_id, &format!("{}/k/8", round_prefix(run_id, 12))), Some(12));
        }
        let of_others = keys("job.1").into_iter().chain([format!("{}/k", round_prefix("job.1", 0))]);
        for key in of_others.chain(["k".into(), "".into(), "torch.rendezvous.job./k".into()]) {
            assert_eq!(round_of("job", &key), None, "{key}");
        }
    }

    #[test]
    fn run_id_of_finds_the_run_of_every_key() {
        for run_id in ["job", "job.1", "1", "a/announced/1", "a/b", "a..2"] {
            let worker_keys = [
                format!("{}/MASTER_ADDR", round_prefix(run_id, 12)),
                format!("{}/a/b/c", round_prefix(run_id, 0)),
            ];
            for key in keys(run_id).into_iter().chain(worker_keys) {
                assert_eq!(run_id_of(format!("/{key}").as_bytes()), Some(run_id.as_bytes()), "{key}");
            }
        }
    }

    #[test]
    fn a_key_outside_any_rendezvous_has_no_run_id() {
        for key in [
            "",
            "/",
            "k",
            "/k",
            "torch.rendezvous.job",
            "/torch.rendezvous.",
            "/torch.rendezvous..0/k",
            "/rallypoint.rendezvous/",
            "/rallypoint.rendezvous/a/0",
            "/rallypoint.static/a/rank/0",
        ] {
            assert_eq!(run_id_of(key.as_bytes()), None, "{key:?}");
        }
    }

    #[test]
    fn only_the_state_key_starts_with_the_torch_prefix() {
        assert_eq!(state("job"), "torch.rendezvous.job");
        let ours =
            keys("torch.rendezvous.job").into_iter().filter(|name| name.starts_with("torch.rendezvous."));
        assert_eq!(ours.count(), 1);
    }
}
