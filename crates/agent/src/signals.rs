//! Signals as bytes in a pipe, one pipe each, for a loop that waits for many things.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

/// A signal that comes out of the other end from now on, a byte each time.
pub(crate) fn register(signal: i32) -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal, write)?;
    Ok(read)
}

/// The same; but `None` if whoever started this process wants it ignored, as `nohup` does.
pub(crate) fn catch(signal: i32) -> io::Result<Option<UnixStream>> {
    if is_ignored(signal) { Ok(None) } else { register(signal).map(Some) }
}

/// The signals that this agent handles.
pub(crate) struct Signals {
    /// Each with the end it comes out of.
    pub(crate) caught: Vec<(i32, UnixStream)>,
}

impl Signals {
    pub(crate) fn catch(numbers: &[i32]) -> io::Result<Signals> {
        let mut caught = Vec::new();
        for number in numbers {
            if let Some(stream) = catch(*number)? {
                caught.push((*number, stream));
            }
        }
        Ok(Signals { caught })
    }

    /// Those that have come, each as often as it has.
    pub(crate) fn take(&mut self) -> Vec<i32> {
        let mut came = Vec::new();
        for (number, stream) in &mut self.caught {
            came.extend(std::iter::repeat_n(*number, drain(stream)));
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

/// Whether this process was started with that signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_comes_as_often_as_it_was_sent() {
        let mut signals = Signals::catch(&[signal_hook::consts::SIGURG]).unwrap();
        assert_eq!(signals.take(), [] as [i32; 0]);
        for _ in 0..3 {
            signal_hook::low_level::raise(signal_hook::consts::SIGURG).unwrap();
        }
        assert_eq!(signals.take(), [signal_hook::consts::SIGURG; 3]);
    }

    #[test]
    fn what_is_ignored_is_not_caught() {
        // The runtime of Rust ignores it.
        assert!(catch(signal_hook::consts::SIGPIPE).unwrap().is_none());
        assert!(catch(signal_hook::consts::SIGWINCH).unwrap().is_some());
    }
}
