//! The command line of the simulator.
//!
//! - `rallypoint-sim SEED` runs one seed and prints every event.
//! - `rallypoint-sim FROM TO` runs the seeds from FROM to TO, excluding TO, on all processors.
//! - `rallypoint-sim burst NODES [RESTARTS]` runs NODES nodes that join together, and rejoin together RESTARTS times.
//! - `rallypoint-sim alone NODES` runs NODES nodes that join together without announcements.
//! - `rallypoint-sim native SEED` and `rallypoint-sim native FROM TO` do the same with the native rendezvous.
//! - `rallypoint-sim native scenarios [COUNT]` runs each scenario of the native rendezvous with COUNT seeds.
//! - `rallypoint-sim native scenario NUMBER SEED` runs one of them and prints every event.
//! - `rallypoint-sim native scale NODES` runs NODES nodes, of which some are lost.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rallypoint_sim::{
    Config, NativeConfig, NativeSummary, SCENARIOS, Summary, Violation, run, run_native, run_scale, run_seeds,
};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    let violations = match &words[..] {
        ["native", words @ ..] => run_native_command(words),
        [seed] if number(seed).is_some() => {
            Some(run_one(&Config { trace: true, ..Config::of(number(seed).unwrap_or(0)) }))
        }
        ["alone", nodes] => Some(run_one(&Config::burst_alone(1, number(nodes).unwrap_or(256)))),
        ["burst", nodes, restarts @ ..] => {
            let restarts = restarts.first().and_then(|restarts| number(restarts)).unwrap_or(0);
            Some(run_one(&Config { restarts, ..Config::burst(1, number(nodes).unwrap_or(1_000)) }))
        }
        words => range(words).map(run_all),
    };
    match violations {
        Some(0) => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
        None => usage(),
    }
}

/// Parses `FROM TO`.
fn range(words: &[&str]) -> Option<Range<u64>> {
    match words {
        [from, to] => Some(from.parse().ok()?..to.parse().ok()?),
        _ => None,
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: rallypoint-sim [native] SEED | rallypoint-sim [native] FROM TO | rallypoint-sim burst NODES [RESTARTS] \
         | rallypoint-sim alone NODES | rallypoint-sim native scenarios [COUNT] \
         | rallypoint-sim native scenario NUMBER SEED | rallypoint-sim native scale NODES"
    );
    ExitCode::from(2)
}

/// Runs one configuration, and prints it with its result. Returns the number of violations, which is 0 or 1.
fn run_one(config: &Config) -> u64 {
    let result = run(config);
    println!("{config:?}");
    match &result {
        Ok(summary) => println!("{summary:?}"),
        Err(violation) => report(config.seed, violation),
    }
    u64::from(result.is_err())
}

/// Runs a range of seeds, and prints each violation and a summary. Returns the number of violations.
fn run_all(seeds: Range<u64>) -> u64 {
    let (failed, count) = (AtomicU64::new(0), seeds.end.saturating_sub(seeds.start));
    let sums = run_seeds(
        seeds,
        || false,
        |sum: &mut Summary, seed| match run(&Config::of(seed)) {
            Ok(summary) => sum.add(&summary),
            Err(violation) => {
                failed.fetch_add(1, Ordering::Relaxed);
                report(seed, &violation);
            }
        },
    );
    let mut total = Summary::default();
    sums.iter().for_each(|sum| total.add(sum));
    let failed = failed.into_inner();
    let Summary { rounds, joins, timeouts, writes, failed_writes, timed_checks, excused, .. } = total;
    println!(
        "{count} seeds, {rounds} rounds, {joins} joins, {timeouts} join timeouts, {writes} writes, {failed_writes} of them failed, \
         {timed_checks:?} timed checks of R9 to R13 and R17, {excused} excused removals, {failed} violations"
    );
    failed
}

fn report(seed: u64, violation: &Violation) {
    println!("seed {seed}: {violation}");
}

// ---- the native rendezvous ----

/// Runs a command for the native rendezvous. Returns the number of violations, or `None` if the command is invalid.
fn run_native_command(words: &[&str]) -> Option<u64> {
    match words {
        ["scale", nodes] => run_native_scale(nodes.parse().ok()?),
        ["scenarios"] => Some(run_scenarios(20)),
        ["scenarios", count] => Some(run_scenarios(count.parse().ok()?)),
        ["scenario", index, seed] => {
            let (scenario, seed) = (SCENARIOS.get(index.parse::<usize>().ok()?)?, seed.parse().ok()?);
            println!("{}", scenario.name);
            Some(print_result(seed, scenario.run(seed, true)))
        }
        [seed] => {
            let config = NativeConfig { trace: true, ..NativeConfig::of(seed.parse().ok()?) };
            println!("{config:?}");
            Some(print_result(config.seed, run_native(&config)))
        }
        words => range(words).map(run_all_native),
    }
}

fn print_result(seed: u64, result: Result<NativeSummary, Violation>) -> u64 {
    match &result {
        Ok(summary) => println!("{summary:?}"),
        Err(violation) => report(seed, violation),
    }
    u64::from(result.is_err())
}

fn run_all_native(seeds: Range<u64>) -> u64 {
    let (failed, count, start) = (AtomicU64::new(0), seeds.end.saturating_sub(seeds.start), Instant::now());
    let sums = run_seeds(
        seeds,
        || false,
        |sum: &mut NativeSummary, seed| {
            // The seed of a panic is printed, too.
            match std::panic::catch_unwind(|| run_native(&NativeConfig::of(seed))) {
                Ok(Ok(summary)) => return sum.add(&summary),
                Ok(Err(violation)) => report(seed, &violation),
                Err(_) => println!("seed {seed}: a panic"),
            }
            failed.fetch_add(1, Ordering::Relaxed);
        },
    );
    let mut total = NativeSummary::default();
    sums.iter().for_each(|sum| total.add(sum));
    let (failed, took) = (failed.into_inner(), start.elapsed());
    println!("{total:?}");
    println!(
        "{count} seeds in {:.1} s ({:.0} per second), {failed} violations",
        took.as_secs_f64(),
        count as f64 / took.as_secs_f64()
    );
    failed
}

/// Runs each scenario with some seeds. Prints the first violation of each. Returns the number of scenarios with one.
fn run_scenarios(count: u64) -> u64 {
    let mut failed = 0;
    for (index, scenario) in SCENARIOS.iter().enumerate() {
        let run = |seed| scenario.run(seed, false).err().map(|violation| (seed, violation));
        match (0..count).find_map(run) {
            None => println!("{index}: {}: passed", scenario.name),
            Some((seed, violation)) => {
                failed += 1;
                println!("{index}: {}: seed {seed}: {violation}", scenario.name);
            }
        }
    }
    failed
}

fn run_native_scale(nodes: usize) -> Option<u64> {
    let start = Instant::now();
    let result = run_scale(nodes, |phase| println!("{:>8.2} s: {phase}", start.elapsed().as_secs_f64()));
    match &result {
        Ok(scale) => println!("{scale:?}"),
        Err(violation) => println!("{violation}"),
    }
    Some(u64::from(result.is_err()))
}
