//! Under which names a rendezvous lies in a store. Two runs with different ids have no name in common, whatever the ids
//! look like; what lies under the names is not decided here.

use super::operation::Phase;

/// The key of the shared state: torch's.
pub fn state(run_id: &str) -> String {
    format!("torch.rendezvous.{run_id}")
}

/// The key under which nodes announce themselves for a round.
///
/// It doesn't begin as torch's keys do: what lies under those must be a state. Behind the id come only names without a
/// slash, so that the id is what is left when they are taken off the end.
pub fn announcements(run_id: &str, round: u64) -> String {
    format!("rallypoint.rendezvous/{run_id}/announced/{round}")
}

/// The key that appears when a phase is over.
pub fn phase_over(run_id: &str, phase: Phase) -> String {
    let Phase { round, complete } = phase;
    format!("rallypoint.rendezvous/{run_id}/{}/{round}", if complete { "ended" } else { "completed" })
}

/// The key that appears when somebody wants to be in the round after this one.
pub fn next_round_wanted(run_id: &str, round: u64) -> String {
    format!("rallypoint.rendezvous/{run_id}/wanted/{round}")
}

/// The store of a round, in which its nodes and their workers meet: torch's name for it, before which its keys come.
pub fn round_prefix(run_id: &str, round: u64) -> String {
    format!("{}.{round}", state(run_id))
}

/// Returns the round of this run that the key belongs to. Every key of the run but the state belongs to one. A key of
/// another run whose id looks like such a key is taken for one of this run.
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

/// Returns the run id of the rendezvous that a server's key belongs to. Server keys start with the slash that clients add.
///
/// Some keys are ambiguous: the state of run `a.1/b` reads as a key of round 1 of run `a`, and counts as one of run `a`.
pub fn run_id_of(key: &[u8]) -> Option<&[u8]> {
    let key = key.strip_prefix(b"/")?;
    let run_id = if let Some(rest) = key.strip_prefix(b"torch.rendezvous.") {
        // The first slash behind `.ROUND` ends the prefix of a round.
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

    fn names(run_id: &str) -> BTreeSet<String> {
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
            let names = names(id);
            assert_eq!(names.len(), 121, "each name is one thing");
            let before = all.len();
            all.extend(names);
            assert_eq!(all.len(), before + 121, "{id:?} has a name of another run");
        }
    }

    #[test]
    fn round_of_distinguishes_round_keys_from_the_state_and_from_other_runs() {
        for run_id in ["job", "job.1", "a/announced/1", "/"] {
            let of_rounds = names(run_id).into_iter().filter(|name| *name != state(run_id));
            let met = [format!("{}/MASTER_ADDR", round_prefix(run_id, 12))];
            for key in of_rounds.chain(met) {
                assert!(round_of(run_id, &key).is_some(), "{key}");
            }
            assert_eq!(round_of(run_id, &state(run_id)), None);
            assert_eq!(round_of(run_id, &announcements(run_id, 7)), Some(7));
            assert_eq!(round_of(run_id, &format!("{}/k/8", round_prefix(run_id, 12))), Some(12));
        }
        let of_others = names("job.1").into_iter().chain([format!("{}/k", round_prefix("job.1", 0))]);
        for key in of_others.chain(["k".into(), "".into(), "torch.rendezvous.job./k".into()]) {
            assert_eq!(round_of("job", &key), None, "{key}");
        }
    }

    #[test]
    fn run_id_of_finds_the_run_of_every_key() {
        for run_id in ["job", "job.1", "1", "a/announced/1", "a/b", "a..2"] {
            let met = [
                format!("{}/MASTER_ADDR", round_prefix(run_id, 12)),
                format!("{}/a/b/c", round_prefix(run_id, 0)),
            ];
            for key in names(run_id).into_iter().chain(met) {
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
            names("torch.rendezvous.job").into_iter().filter(|name| name.starts_with("torch.rendezvous."));
        assert_eq!(ours.count(), 1);
    }
}
