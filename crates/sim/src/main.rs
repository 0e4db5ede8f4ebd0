//! `rallypoint-sim FROM TO`: runs the seeds from FROM up to TO. `rallypoint-sim SEED` runs one and prints every event.

use std::process::ExitCode;

use rallypoint_sim::{Config, run};

fn main() -> ExitCode {
    let seeds: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let (from, to, trace) = match seeds[..] {
        [seed] => (seed, seed + 1, true),
        [from, to] => (from, to, false),
        _ => {
            eprintln!("usage: rallypoint-sim SEED | rallypoint-sim FROM TO");
            return ExitCode::from(2);
        }
    };
    let (mut failed, mut rounds, mut healed) = (0u64, 0, std::time::Duration::ZERO);
    for seed in from..to {
        match run(&Config { trace, ..Config::of(seed) }) {
            Ok(summary) => {
                rounds += summary.rounds;
                healed = healed.max(summary.healed.unwrap_or_default());
            }
            Err(violation) => {
                failed += 1;
                println!("seed {seed}: {violation}");
            }
        }
    }
    println!("{} seeds, {rounds} rounds, {failed} violations", to - from);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
