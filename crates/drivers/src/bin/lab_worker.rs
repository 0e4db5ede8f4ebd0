//! A worker that measures its own life, for tests and benchmarks with several hosts on one machine.
//!
//! `lab_worker DIRECTORY FIFO` writes one line to a file of its own in DIRECTORY. The first field of the line, `last`, is a
//! time at which the worker still ran, and is renewed every 2 ms. All times are seconds of `CLOCK_MONOTONIC`, which all
//! hosts of one machine share. The worker exits with success when another process opens FIFO for writing.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Interval at which a worker renews `last`. The end of a worker is known to this precision.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(2);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = monotonic_time();
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(fifo)) = (arguments.next(), arguments.next()) else {
        return Err("usage: lab_worker DIRECTORY FIFO".into());
    };
    let variable = |name| std::env::var(name).unwrap_or_else(|_| "-".into());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let pid = std::process::id();
    let (rank, world_size) = (variable("GROUP_RANK"), variable("GROUP_WORLD_SIZE"));
    let restart = variable("TORCHELASTIC_RESTART_COUNT");
    // Two worlds that were formed independently may use the same number of the round, but not the same store.
    let world =
        format!("{}@{}:{}", variable("RALLYPOINT_ROUND"), variable("MASTER_ADDR"), variable("MASTER_PORT"));
    let file = File::create(format!("{directory}/{host}-{pid}-{:.6}", start.as_secs_f64()))?;
    let line = format!(
        "{} start={:.6} host={host} world={world} group_rank={rank} group_world_size={world_size}\n",
        last(start),
        start.as_secs_f64(),
    );
    file.write_all_at(line.as_bytes(), 0)?;
    println!("lab-worker group_rank={rank} world={world_size} restart={restart} pid={pid}");
    std::io::stdout().flush()?;
    std::thread::spawn(move || {
        // Opening a FIFO for reading blocks until it has a writer.
        let opened = File::open(&fifo);
        std::process::exit(i32::from(opened.is_err()));
    });
    loop {
        file.write_all_at(last(monotonic_time()).as_bytes(), 0)?;
        std::thread::sleep(RENEWAL_INTERVAL);
    }
}

/// Returns the field `last`. Its length does not change, so it can be overwritten.
fn last(time: Duration) -> String {
    format!("last={:020.6}", time.as_secs_f64())
}

fn monotonic_time() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
