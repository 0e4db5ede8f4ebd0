//! Thousands of seeds, each a run with its own faults. A failure prints how to see it again.

use rallypoint_sim::{Config, run};

fn hold(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(violation) = run(&Config::of(seed)) {
            panic!("seed {seed}: {violation}\nsee it with: cargo run --release -p rallypoint-sim -- {seed}");
        }
    }
}

#[test]
fn the_first_thousand_seeds_hold() {
    hold(0..1_000);
}

#[test]
fn the_second_thousand_seeds_hold() {
    hold(1_000..2_000);
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..50 {
        assert_eq!(run(&Config::of(seed)), run(&Config::of(seed)), "seed {seed}");
    }
}

#[test]
fn many_who_come_at_once_need_few_writes() {
    for (seed, nodes) in [(1, 16), (2, 64), (3, 256)] {
        let quiet = Config {
            nodes,
            min_nodes: nodes,
            max_nodes: nodes,
            trouble: std::time::Duration::ZERO,
            late: 0,
            lost: 0,
            fault_every: 0,
            latency: 2_000,
            ..Config::of(seed)
        };
        let summary = run(&quiet).unwrap();
        assert_eq!(summary.joins, nodes, "all are in");
        assert!(summary.first_round.unwrap().as_secs_f64() < 3.0, "{summary:?}");
        println!("{nodes} nodes: {summary:?}");
    }
}
