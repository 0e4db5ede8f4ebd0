//! Delivers signals as bytes in streams, so that a loop can wait for them with `poll`.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A signal that is received twice within this time counts once. `timeout`, Slurm and systemd send a signal to all
/// processes of a job. The agent then receives it from them, and again from the outer process, which forwards it.
const DUPLICATE_INTERVAL: Duration = Duration::from_secs(1);

/// Returns a stream that gets a byte each time this process receives the signal.
pub(crate) fn register(signal: i32) -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal, write)?;
    Ok(read)
}

/// Registers the signal as [`register`] does, but returns `None` if this process ignores the signal, for example
/// because `nohup` started it.
///
/// SIGINT and SIGQUIT are always registered. A shell without job control starts background processes with both ignored,
/// but users still want to stop a job with them.
pub(crate) fn catch(signal: i32) -> io::Result<Option<UnixStream>> {
    let is_always_caught = [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT].contains(&signal);
    if is_ignored(signal) && !is_always_caught { Ok(None) } else { register(signal).map(Some) }
}

/// The signals that this agent handles.
pub(crate) struct Signals {
    caught: Vec<CaughtSignal>,
}

struct CaughtSignal {
    number: i32,
    /// The stream that gets a byte for each signal.
    stream: UnixStream,
    /// When [`Signals::take`] last returned this signal.
    last_counted: Option<Instant>,
}

impl Signals {
    pub(crate) fn catch(numbers: &[i32]) -> io::Result<Signals> {
        let mut caught = Vec::new();
        for number in numbers {
            if let Some(stream) = catch(*number)? {
                caught.push(CaughtSignal { number: *number, stream, last_counted: None });
            }
        }
        Ok(Signals { caught })
    }

    /// Returns the streams of all signals. A stream is readable after its signal was received.
    pub(crate) fn streams(&self) -> impl Iterator<Item = &UnixStream> {
        self.caught.iter().map(|caught| &caught.stream)
    }

    /// Returns the signals that were received since the last call. A signal repeated within `DUPLICATE_INTERVAL` counts
    /// once.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<i32> {
        let mut received = Vec::new();
        for CaughtSignal { number, stream, last_counted } in &mut self.caught {
            let is_new =
                last_counted.is_none_or(|before| now.saturating_duration_since(before) >= DUPLICATE_INTERVAL);
            if drain(stream) > 0 && is_new {
                received.push(*number);
                *last_counted = Some(now);
            }
        }
        received
    }
}

/// Reads and discards all bytes of a stream. Returns their number.
pub(crate) fn drain(mut stream: &UnixStream) -> usize {
    let (mut bytes, mut count) = ([0; 256], 0);
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        count += read;
    }
    count
}

/// Returns whether this process ignores the signal, for example because `nohup` started it.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_repeated_within_one_second_counts_once() {
        let mut signals = Signals::catch(&[signal_hook::consts::SIGURG]).unwrap();
        let start = Instant::now();
        assert_eq!(signals.take(start), [] as [i32; 0]);
        let mut count_at = |later, times| {
            (0..times).for_each(|_| signal_hook::low_level::raise(signal_hook::consts::SIGURG).unwrap());
            signals.take(start + later).len()
        };
        assert_eq!(count_at(Duration::ZERO, 3), 1);
        assert_eq!(count_at(DUPLICATE_INTERVAL / 2, 1), 0);
        assert_eq!(
            count_at(DUPLICATE_INTERVAL, 1),
            1,
            "a signal that did not count does not extend the interval"
        );
        assert_eq!(count_at(DUPLICATE_INTERVAL * 3, 0), 0);
    }

    #[test]
    fn an_ignored_signal_is_not_caught() {
        // Rust's runtime ignores SIGPIPE.
        assert!(catch(signal_hook::consts::SIGPIPE).unwrap().is_none());
        assert!(catch(signal_hook::consts::SIGWINCH).unwrap().is_some());
    }
}
