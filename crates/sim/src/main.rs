//! The command line of the simulator.
//!
//! - `rallypoint-sim SEED` runs one seed and prints every event.
//! - `rallypoint-sim FROM TO` runs the seeds from FROM to TO, excluding TO, on all processors.
//! - `rallypoint-sim burst NODES [RESTARTS]` runs NODES nodes that join together, and rejoin together RESTARTS times.
//! - `rallypoint-sim alone NODES` runs NODES nodes that join together without announcements.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rallypoint_sim::{Config, Summary, Violation, run};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<u64>().ok();
    let violations = match &args[..] {
        [seed] if number(seed).is_some() => {
            run_one(&Config { trace: true, ..Config::of(number(seed).unwrap_or(0)) })
        }
        [word, nodes] if word == "alone" => run_one(&Config::burst_alone(1, number(nodes).unwrap_or(256))),
        [word, nodes, restarts @ ..] if word == "burst" => {
            let restarts = restarts.first().and_then(number).unwrap_or(0);
            run_one(&Config { restarts, ..Config::burst(1, number(nodes).unwrap_or(1_000)) })
        }
        [from, to] => match (number(from), number(to)) {
            (Some(from), Some(to)) => run_all(from, to),
            _ => return usage(),
        },
        _ => return usage(),
    };
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: rallypoint-sim SEED | rallypoint-sim FROM TO | rallypoint-sim burst NODES [RESTARTS] | rallypoint-sim alone NODES"
    );
    ExitCode::from(2)
}

/// Runs one configuration, and prints it with its result. Returns the number of violations, which is 0 or 1.
fn run_one(config: &Config) -> u64 {
    let result = run(config);
    println!("{config:?}");
    match &result {
        Ok(summary) => println!("{summary:?}"),
        Err(violation) => println!("seed {}: {violation}", config.seed),
    }
    u64::from(result.is_err())
}

/// Runs a range of seeds, and prints each violation and a summary. Returns the number of violations.
fn run_all(from: u64, to: u64) -> u64 {
    let (next, failed, total) = (AtomicU64::new(from), AtomicU64::new(0), Mutex::new(Summary::default()));
    let work = || {
        let mut sum = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= to {
                break;
            }
            match run(&Config::of(seed)) {
                Ok(summary) => add(&mut sum, &summary),
                Err(violation) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    report(seed, &violation);
                }
            }
        }
        add(&mut total.lock().expect("no thread panics with the lock"), &sum);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (failed, sum) = (failed.into_inner(), total.into_inner().expect("no thread panics with the lock"));
    let Summary { rounds, joins, timeouts, writes, failed_writes, timed_checks, excused, .. } = sum;
    println!(
        "{} seeds, {rounds} rounds, {joins} joins, {timeouts} join timeouts, {writes} writes, {failed_writes} of them failed, \
         {timed_checks:?} timed checks of R9 to R13 and R17, {excused} excused removals, {failed} violations",
        to - from
    );
    failed
}

fn add(sum: &mut Summary, run: &Summary) {
    sum.rounds += run.rounds;
    sum.joins += run.joins;
    sum.timeouts += run.timeouts;
    sum.writes += run.writes;
    sum.failed_writes += run.failed_writes;
    sum.excused += run.excused;
    sum.timed_checks.iter_mut().zip(run.timed_checks).for_each(|(sum, run)| *sum += run);
}

fn report(seed: u64, violation: &Violation) {
    println!("seed {seed}: {violation}");
}
