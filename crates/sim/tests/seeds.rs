//! Simulates 10,000 seeds with faults, and large jobs without faults. A failing seed is printed.

use std::sync::LazyLock;

use rallypoint_sim::{Config, Summary, Violation, first_failure, run};

const SEEDS: u64 = 10_000;
/// The summaries of the seeds below this number are added up in [`Runs::sum`].
const SUMMED_SEEDS: u64 = 2_000;

/// The result of all seeds, which run once for all tests in this file.
struct Runs {
    /// The lowest seed that failed. The remaining seeds are not run after a failure.
    failed_seed: Option<u64>,
    /// The sum of the summaries of the first [`SUMMED_SEEDS`] seeds.
    sum: Summary,
}

static RUNS: LazyLock<Runs> = LazyLock::new(|| {
    let (failed_seed, sums) = first_failure(0..SEEDS, |sum: &mut Summary, seed| {
        let summary = run(&Config::of(seed))?;
        if seed < SUMMED_SEEDS {
            sum.add(&summary);
        }
        Ok::<(), Violation>(())
    });
    let mut sum = Summary::default();
    sums.iter().for_each(|part| sum.add(part));
    Runs { failed_seed, sum }
});

#[test]
fn ten_thousand_seeds_break_no_rule() {
    if let Some(seed) = RUNS.failed_seed {
        let again = format!("repeat it with: cargo run --release -p rallypoint-sim -- {seed}");
        match run(&Config::of(seed)) {
            Ok(_) => panic!("seed {seed} failed once and then passed: the run is not deterministic\n{again}"),
            Err(violation) => panic!("seed {seed}: {violation}\n{again}"),
        }
    }
}

/// These seeds, which are above 10,000, found a bug in the following case: a torch node completed a round, and the node
/// with the highest group rank left before any node of ours had read that the round was complete.
#[test]
fn seeds_that_once_failed_break_no_rule() {
    for seed in [18_419, 28_718, 50_799, 54_911, 74_806, 76_209, 120_586, 200_022] {
        run(&Config::of(seed)).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}

#[test]
fn a_seed_always_gives_the_same_run() {
    for seed in 0..50 {
        assert_eq!(run(&Config::of(seed)), run(&Config::of(seed)), "seed {seed}");
    }
}

/// A check that is never applied finds no bug. So every timed check must have been applied, joins must have timed out,
/// and runs must have had torch nodes and a second rendezvous. No removal of a live node may have been excused.
#[test]
fn every_timed_check_is_exercised() {
    let Runs { failed_seed, sum: Summary { timed_checks, timeouts, failed_writes, excused, .. } } = &*RUNS;
    assert_eq!(*failed_seed, None, "not all seeds were run: see ten_thousand_seeds_break_no_rule");
    assert!(timed_checks.iter().all(|count| *count > 10), "count of R9 to R13 and R17: {timed_checks:?}");
    assert_eq!(*excused, 0, "R9 excused the removal of a live node");
    assert!(*timeouts > 100 && *failed_writes > 10_000, "{timeouts} timeouts, {failed_writes} failed writes");
    let configs: Vec<_> = (0..SUMMED_SEEDS).map(Config::of).collect();
    assert!(configs.iter().filter(|config| config.torch_one_in > 0).count() > 300);
    assert!(configs.iter().filter(|config| config.jobs > 1).count() > 100);
}

#[test]
fn nodes_that_join_together_need_at_most_3_writes_per_node() {
    for (seed, nodes) in [(1, 16), (2, 64), (3, 256), (4, 1_000)] {
        let summary = run(&Config::burst(seed, nodes)).unwrap();
        assert_eq!(summary.joins, nodes, "all nodes have joined");
        assert!(summary.first_round_at.unwrap().as_secs_f64() < 2.0, "{summary:?}");
        assert!(summary.writes_to_recover <= 3 * nodes, "{nodes} nodes: {summary:?}");
    }
}

/// All nodes leave the round and join the next together. The node with the first announcement moves the other nodes to
/// the wait list, and admits them to the next round. In every run, no node may write more than 20 times per
/// second.
#[test]
fn a_thousand_nodes_that_rejoin_together_need_at_most_6_writes_per_node() {
    let summary = run(&Config { restarts: 1, checks_writes: false, ..Config::burst(4, 1_000) }).unwrap();
    assert_eq!((summary.rounds, summary.joins), (2, 2_000), "{summary:?}");
    assert!(summary.recovered_at.unwrap().as_secs_f64() < 10.0, "{summary:?}");
    assert!(summary.writes <= 6 * 1_000, "{summary:?}");
}

/// An earlier version removed a live node in this run, because three of its compare-and-sets, each with a latency of 1
/// s, had failed.
#[test]
fn a_node_far_from_the_store_is_not_removed_because_other_nodes_write_faster() {
    run(&Config::of(514_463)).unwrap();
}

/// Without announcements, each successful compare-and-set makes the pending ones of all other nodes fail. The run
/// checks that no node writes more than 20 times per second.
#[test]
fn nodes_without_announcements_that_join_together_do_not_flood_the_store() {
    let summary = run(&Config::burst_alone(7, 256)).unwrap();
    assert_eq!(summary.joins, 256, "all nodes have joined");
    assert!(summary.failed_writes > 0 && summary.first_round_at.unwrap().as_secs_f64() < 30.0, "{summary:?}");
}

/// Messages of all nodes take up to 50 ms, including those of the node with the first announcement, which admits the
/// other nodes.
#[test]
fn nodes_far_from_the_store_that_join_together_need_at_most_3_writes_per_node() {
    let config = Config { max_latency_us: 50_000, ..Config::burst(5, 256) };
    let summary = run(&config).unwrap();
    assert_eq!(summary.joins, 256, "all nodes have joined");
    assert!(summary.first_round_at.unwrap().as_secs_f64() < 5.0, "{summary:?}");
    assert!(summary.writes_to_recover <= 3 * 256, "{summary:?}");
}

#[test]
fn ten_thousand_nodes_form_a_round_within_30_s() {
    let summary = run(&Config::burst(6, 10_000)).unwrap();
    assert_eq!(summary.joins, 10_000, "all nodes have joined");
    assert!(summary.first_round_at.unwrap().as_secs_f64() < 30.0, "{summary:?}");
    assert!(summary.writes_to_recover <= 30_000, "{summary:?}");
}
