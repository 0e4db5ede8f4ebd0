//! Signals as bytes in a pipe, one pipe each, for a loop that waits for many things.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// What comes again so soon was sent once, to both of our processes: `timeout`, Slurm and systemd send a signal to all
/// that they have started, and the outer process hands it on.
const MOMENT: Duration = Duration::from_secs(1);

/// A signal that comes out of the other end from now on, a byte each time.
pub(crate) fn register(signal: i32) -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal, write)?;
    Ok(read)
}

/// The same; but `None` if whoever started this process wants it ignored, as `nohup` does. A shell that has no terminal
/// ignores these two for all that it starts in the background, whose users want to end it with them nevertheless.
pub(crate) fn catch(signal: i32) -> io::Result<Option<UnixStream>> {
    let anyway = [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT].contains(&signal);
    if is_ignored(signal) && !anyway { Ok(None) } else { register(signal).map(Some) }
}

/// The signals that this agent handles.
pub(crate) struct Signals {
    caught: Vec<Caught>,
}

struct Caught {
    number: i32,
    /// The end it comes out of.
    stream: UnixStream,
    /// When it last counted.
    counted: Option<Instant>,
}

impl Signals {
    pub(crate) fn catch(numbers: &[i32]) -> io::Result<Signals> {
        let mut caught = Vec::new();
        for number in numbers {
            if let Some(stream) = catch(*number)? {
                caught.push(Caught { number: *number, stream, counted: None });
            }
        }
        Ok(Signals { caught })
    }

    /// Readable when one has come.
    pub(crate) fn streams(&self) -> impl Iterator<Item = &UnixStream> {
        self.caught.iter().map(|caught| &caught.stream)
    }

    /// Those that have come by now. The same one within a moment counts once.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<i32> {
        let mut came = Vec::new();
        for Caught { number, stream, counted } in &mut self.caught {
            let is_new = counted.is_none_or(|before| now.saturating_duration_since(before) >= MOMENT);
            if drain(stream) > 0 && is_new {
                came.push(*number);
                *counted = Some(now);
            }
        }
        came
    }
}

/// Empties a pipe; how many bytes there were.
pub(crate) fn drain(mut stream: &UnixStream) -> usize {
    let (mut bytes, mut count) = ([0; 256], 0);
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        count += read;
    }
    count
}

/// Returns whether this process was started with that signal ignored, as `nohup` does.
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
    fn what_comes_again_within_a_moment_counts_once_and_later_again() {
        let mut signals = Signals::catch(&[signal_hook::consts::SIGURG]).unwrap();
        let start = Instant::now();
        assert_eq!(signals.take(start), [] as [i32; 0]);
        let mut came_at = |later, times| {
            (0..times).for_each(|_| signal_hook::low_level::raise(signal_hook::consts::SIGURG).unwrap());
            signals.take(start + later).len()
        };
        assert_eq!(came_at(Duration::ZERO, 3), 1);
        assert_eq!(came_at(MOMENT / 2, 1), 0);
        assert_eq!(came_at(MOMENT, 1), 1, "what did not count does not make it longer");
        assert_eq!(came_at(MOMENT * 3, 0), 0);
    }

    #[test]
    fn what_is_ignored_is_not_caught() {
        // The runtime of Rust ignores it.
        assert!(catch(signal_hook::consts::SIGPIPE).unwrap().is_none());
        assert!(catch(signal_hook::consts::SIGWINCH).unwrap().is_some());
    }
}
