//! The log: lines on standard error, at the level of `--log-level` or `RALLYPOINT_LOG`.
//!
//! A server or a node queues its log lines for a background thread, which writes them. Standard error can be a pipe
//! that no process reads, and a write to such a pipe can block forever. Lines that don't fit into the queue are
//! dropped and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use rallypoint_core::counted;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::live_line::Stderr;
use crate::output;

/// The maximum number of lines in the queue of the background thread. It is large enough for a burst of log lines. A
/// full queue means that no process reads the log.
const MAX_QUEUED_LINES: usize = 1024;
const DEFAULT_LEVEL: LevelFilter = LevelFilter::INFO;
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Whether the subscriber reports its own write errors. This must be off: the report would go to standard error, where
/// the write has just failed, for example because the disk is full. If the report fails, too, the subscriber panics.
const LOG_INTERNAL_ERRORS: bool = false;

/// The flag that sets the log level.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Log level [default: RALLYPOINT_LOG, or info]
    #[arg(
        long,
        alias = "log_level",
        value_name = "LEVEL",
        value_parser = PossibleValuesParser::new(LEVELS).map(|name| parse_level(&name).expect("a level")),
        ignore_case = true,
        global = true,
        help_heading = "Observability"
    )]
    log_level: Option<LevelFilter>,
}

impl LogArgs {
    /// Returns the level of `--log-level`, if the flag is on the command line.
    pub(crate) fn level(&self) -> Option<LevelFilter> {
        self.log_level
    }

    /// Returns the level of `--log-level`, or else of `RALLYPOINT_LOG`, or else the default.
    fn level_or_default(&self) -> LevelFilter {
        self.level().unwrap_or_else(level_from_environment)
    }
}

/// Starts the log of `store` or `bench`. Its writes go directly to standard error and may block.
pub(crate) fn start(args: &LogArgs) {
    tracing_subscriber::fmt()
        .with_max_level(args.level_or_default())
        .with_writer(|| Stderr)
        .with_target(false)
        .log_internal_errors(LOG_INTERNAL_ERRORS)
        .init();
}

/// Starts the log of `serve` or `join`. Its writes never block.
pub(crate) fn start_background(args: &LogArgs) -> BackgroundWriter {
    start_agent_log(Some(args.level_or_default()), false)
}

/// Starts the log of an agent, as text or as JSON. Its writes never block. Without a `level`, the log has the default
/// levels of an agent.
pub(crate) fn start_agent_log(level: Option<LevelFilter>, json: bool) -> BackgroundWriter {
    let levels = match level {
        Some(level) => Targets::new().with_default(level),
        // By default, the agent logs each round that it joins, but not the steps of the rendezvous before it.
        None => Targets::new().with_default(DEFAULT_LEVEL).with_targets([
            ("rallypoint_rendezvous", LevelFilter::WARN),
            ("rallypoint_store", LevelFilter::WARN),
        ]),
    };
    let log_writer = BackgroundWriter::start(Stderr, if json { dropped_notice_json } else { dropped_notice });
    let lines = log_writer.clone();
    let log = tracing_subscriber::fmt::layer()
        .with_writer(move || lines.clone())
        .with_target(false)
        .log_internal_errors(LOG_INTERNAL_ERRORS);
    let log = if json { log.json().flatten_event(true).boxed() } else { log.boxed() };
    tracing_subscriber::registry().with(log.with_filter(levels)).init();
    log_writer
}

/// Writes an error to standard error as one line of JSON, without the background thread. The write may block.
pub(crate) fn write_json_error(text: &str) {
    let format = tracing_subscriber::fmt().json().flatten_event(true).with_target(false);
    let line = format.with_writer(io::stderr).log_internal_errors(LOG_INTERNAL_ERRORS).finish();
    tracing::subscriber::with_default(line, || tracing::error!("{text}"));
}

/// Returns the level of `RALLYPOINT_LOG`. If the value is not a level, prints an error and returns the default.
fn level_from_environment() -> LevelFilter {
    let text = std::env::var_os("RALLYPOINT_LOG").unwrap_or_default();
    if text.is_empty() {
        return DEFAULT_LEVEL;
    }
    let text = text.to_string_lossy();
    parse_level(&text).unwrap_or_else(|| {
        output::write_stderr(&format!("rallypoint: {}; using info", wrong_level(&text)));
        DEFAULT_LEVEL
    })
}

/// Returns the error for a value of `RALLYPOINT_LOG` that is not a level.
pub(crate) fn wrong_level(text: &str) -> String {
    format!("RALLYPOINT_LOG={text:?} is not one of {}", LEVELS.join(", "))
}

pub(crate) fn parse_level(name: &str) -> Option<LevelFilter> {
    // `LevelFilter` would also parse numbers, which are not accepted.
    let name = name.trim().to_ascii_lowercase();
    LEVELS.contains(&&*name).then(|| name.parse().ok()).flatten()
}

fn dropped_notice(dropped: u64) -> String {
    let were = if dropped == 1 { "was" } else { "were" };
    format!("{} {were} dropped: no process read them", counted(dropped, "log line"))
}

fn dropped_notice_json(dropped: u64) -> String {
    serde_json::json!({"level": "WARN", "message": dropped_notice(dropped)}).to_string()
}

/// A queue of log lines for a background thread that writes them. A write to the queue never blocks.
#[derive(Clone)]
pub(crate) struct BackgroundWriter(Arc<Queue>);

#[derive(Default)]
struct Queue {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    queued: VecDeque<Vec<u8>>,
    /// Whether the thread is writing lines that it has taken from the queue.
    is_writing: bool,
    dropped: u64,
}

impl BackgroundWriter {
    /// Starts the thread, which writes to `out`. `dropped_notice` returns the line that reports a number of dropped
    /// lines.
    fn start(mut out: impl Write + Send + 'static, dropped_notice: fn(u64) -> String) -> BackgroundWriter {
        let log_writer = BackgroundWriter(Arc::default());
        let queue = Arc::clone(&log_writer.0);
        std::thread::spawn(move || queue.write_to(&mut out, dropped_notice));
        log_writer
    }

    /// Waits until the thread has written all lines, at most for `within`.
    pub(crate) fn finish(&self, within: Duration) {
        let busy = |lines: &mut Lines| lines.is_writing || !lines.queued.is_empty();
        // The caller continues in any case, so the result of the wait is not used.
        drop(self.0.changed.wait_timeout_while(self.0.lock(), within, busy));
    }
}

impl Write for BackgroundWriter {
    /// Queues a line, or drops it if the queue is full. The subscriber calls this with whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lock();
        match lines.queued.len() < MAX_QUEUED_LINES {
            true => lines.queued.push_back(line.to_vec()),
            false => lines.dropped += 1,
        }
        self.0.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes queued lines until the process exits. The lock is released during writes, so that they delay no logging
    /// thread.
    fn write_to(&self, out: &mut impl Write, dropped_notice: fn(u64) -> String) {
        loop {
            let mut lines = self.lock();
            lines.is_writing = false;
            self.changed.notify_all();
            let idle = |lines: &mut Lines| lines.queued.is_empty();
            let mut lines = self.changed.wait_while(lines, idle).unwrap_or_else(PoisonError::into_inner);
            lines.is_writing = true;
            let (queued, dropped) = (std::mem::take(&mut lines.queued), std::mem::take(&mut lines.dropped));
            drop(lines);
            // Write errors are ignored, because a closed standard error must not stop the process.
            for line in queued {
                let _ = out.write_all(&line);
            }
            if dropped > 0 {
                let _ = writeln!(out, "{}", dropped_notice(dropped));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A writer that blocks in each write until the test sends a permit.
    struct GatedWriter(Receiver<()>, Sender<Vec<u8>>);

    impl Write for GatedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn logging_never_blocks_and_dropped_lines_are_counted() {
        let (permit, permits) = channel();
        let (written, lines) = channel();
        let mut log = BackgroundWriter::start(GatedWriter(permits, written), dropped_notice);
        writeln!(log, "first").unwrap();
        while !log.0.lock().is_writing {
            std::thread::yield_now();
        }
        for n in 0..MAX_QUEUED_LINES + 7 {
            log.write_all(format!("line {n}\n").as_bytes()).unwrap();
        }
        // The test has sent no permit, so the thread blocks in its first write and `finish` times out.
        log.finish(Duration::from_millis(10));
        for _ in 0..MAX_QUEUED_LINES + 100 {
            permit.send(()).unwrap();
        }
        log.finish(Duration::from_secs(10));
        let text = String::from_utf8(lines.try_iter().flatten().collect()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["first", "line 0"]);
        assert_eq!(lines[MAX_QUEUED_LINES], format!("line {}", MAX_QUEUED_LINES - 1));
        assert_eq!(lines[MAX_QUEUED_LINES + 1..], ["7 log lines were dropped: no process read them"]);
    }
}
