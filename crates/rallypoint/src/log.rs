//! Where the log goes: to standard error, as much of it as `RALLYPOINT_LOG` says.
//!
//! A server's goes there by way of a thread of its own. Standard error may be a pipe that nobody reads, and writing to
//! that waits for ever: then lines are dropped and counted, and the server goes on.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rallypoint_core::counted;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::live_line::Stderr;
use crate::output;

/// Lines that wait to be written. A burst of them passes; with more, nobody reads.
const MAX_QUEUED_LINES: usize = 1024;
/// How much is said unless told otherwise.
const DEFAULT_LEVEL: LevelFilter = LevelFilter::INFO;
/// Whether the log tells that it could not be written. It would do so where it could not be written, and end the program
/// when that fails too, on a full disk say.
const LOG_INTERNAL_ERRORS: bool = false;

/// Starts the log of a command that may wait for whoever reads it.
pub(crate) fn start() {
    tracing_subscriber::fmt()
        .with_max_level(level_from_environment())
        .with_writer(|| Stderr)
        .with_target(false)
        .log_internal_errors(LOG_INTERNAL_ERRORS)
        .init();
}

/// Starts the log of a server or of one node, which may not.
pub(crate) fn start_background() -> BackgroundWriter {
    start_agent_log(Some(level_from_environment()), false)
}

/// Starts the log of an agent, which may not wait either, as text or as JSON.
pub(crate) fn start_agent_log(level: Option<LevelFilter>, json: bool) -> BackgroundWriter {
    let levels = match level {
        Some(level) => Targets::new().with_default(level),
        // The agent tells of its world; how it came by it is more than most want to know.
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

/// Writes a line as a log in JSON has it, at once.
pub(crate) fn write_json_error(text: &str) {
    let format = tracing_subscriber::fmt().json().flatten_event(true).with_target(false);
    let line = format.with_writer(io::stderr).log_internal_errors(LOG_INTERNAL_ERRORS).finish();
    tracing::subscriber::with_default(line, || tracing::error!("{text}"));
}

/// As much as is asked for; a word that is none is told, and taken for the usual.
fn level_from_environment() -> LevelFilter {
    let Some(text) = std::env::var_os("RALLYPOINT_LOG").filter(|text| !text.is_empty()) else {
        return DEFAULT_LEVEL;
    };
    let text = text.to_string_lossy();
    parse_level(&text).unwrap_or_else(|| {
            output::write_stderr(&format!(
                "rallypoint: RALLYPOINT_LOG={text:?} is none of off, error, warn, info, debug, trace; it is taken for info"
            ));
        DEFAULT_LEVEL
    })
}

pub(crate) fn parse_level(name: &str) -> Option<LevelFilter> {
    Some(match name.trim().to_ascii_lowercase().as_str() {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
}

fn dropped_notice(dropped: u64) -> String {
    let were = if dropped == 1 { "was" } else { "were" };
    format!("{} of the log {were} dropped: nobody read them", counted(dropped, "line"))
}

fn dropped_notice_json(dropped: u64) -> String {
    serde_json::json!({"level": "WARN", "message": dropped_notice(dropped)}).to_string()
}

/// Lines on their way to a thread that writes them. Writing here never waits.
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
    /// Some are with the writer.
    is_writing: bool,
    dropped: u64,
}

impl BackgroundWriter {
    /// Starts the thread. `notice` says how many lines were dropped.
    fn start(mut out: impl Write + Send + 'static, dropped_notice: fn(u64) -> String) -> BackgroundWriter {
        let log_writer = BackgroundWriter(Arc::default());
        let queue = Arc::clone(&log_writer.0);
        std::thread::spawn(move || queue.write_to(&mut out, dropped_notice));
        log_writer
    }

    /// Waits until all is written, but not for long: nobody may be reading.
    pub(crate) fn finish(&self, within: Duration) {
        let busy = |lines: &mut Lines| lines.is_writing || !lines.queued.is_empty();
        // It is the end either way.
        drop(self.0.changed.wait_timeout_while(self.0.lock(), within, busy));
    }
}

impl Write for BackgroundWriter {
    /// Takes a line, or drops it. The subscriber hands over whole ones.
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

    /// Writes what comes, for as long as the process lives. The lock is not held while it does.
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
            // A reader that has gone away is no reason to stop serving.
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

    /// Writes only as far as it is let.
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
        // Nobody reads, and yet this returns.
        log.finish(Duration::from_millis(10));
        for _ in 0..MAX_QUEUED_LINES + 100 {
            permit.send(()).unwrap();
        }
        log.finish(Duration::from_secs(10));
        let text = String::from_utf8(lines.try_iter().flatten().collect()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["first", "line 0"]);
        assert_eq!(lines[MAX_QUEUED_LINES], format!("line {}", MAX_QUEUED_LINES - 1));
        assert_eq!(lines[MAX_QUEUED_LINES + 1..], ["7 lines of the log were dropped: nobody read them"]);
    }
}
