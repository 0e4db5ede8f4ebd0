//! One operation on the file: what it is, which keys it is about, and how long it may still take. Pauses between tries
//! are made here and nowhere else, so none outlasts the call.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rallypoint_core::wire::Op;

use crate::error::{FileObstacle, StoreError};

/// An operation under way.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) op: Op,
    pub(super) keys: &'a [&'a str],
    started: Instant,
    /// `None` for without end.
    deadline: Option<Instant>,
}

impl<'a> Call<'a> {
    /// An operation that starts now and may take `timeout`; zero for without end.
    pub(super) fn new(op: Op, keys: &'a [&'a str], timeout: Duration) -> Call<'a> {
        let started = Instant::now();
        // A time-out too long for the clock is as good as none.
        let deadline = if timeout.is_zero() { None } else { started.checked_add(timeout) };
        Call { op, keys, started, deadline }
    }

    pub(super) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn key_names(&self) -> Vec<String> {
        self.keys.iter().map(|key| key.to_string()).collect()
    }

    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    pub(super) fn gave_up(&self, path: &Path, obstacle: FileObstacle) -> StoreError {
        StoreError::FileTimeout {
            path: path.to_owned(),
            op: self.op,
            keys: self.key_names(),
            waited: self.waited(),
            obstacle,
        }
    }
}

/// Pauses between tries, each twice as long as the one before up to some length.
#[derive(Debug)]
pub(super) struct Pace {
    next: Duration,
    most: Duration,
}

impl Pace {
    /// Between tries for the lock. Others hold it for microseconds, and may take it again as soon: who asks seldom meets
    /// it free seldom. At this pace asking takes a hundredth of a processor.
    pub(super) fn for_lock() -> Pace {
        Pace { next: Duration::from_micros(50), most: Duration::from_millis(1) }
    }

    /// Between looks at the file for keys to come. Torch's pause is 10 ms always.
    pub(super) fn for_keys() -> Pace {
        Pace { next: Duration::from_millis(1), most: Duration::from_millis(10) }
    }

    /// Pauses, and says so; or says at once that the time is up. The last pause ends when the call does, so that there
    /// is a last try then.
    pub(super) fn pause(&mut self, call: &Call) -> bool {
        let mut pause = self.next;
        if let Some(deadline) = call.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            pause = pause.min(left);
        }
        sleep(pause);
        self.next = self.most.min(self.next * 2);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_with_the_call_and_not_before_it() {
        let timeout = Duration::from_millis(25);
        let call = Call::new(Op::Get, &["k"], timeout);
        let mut pace = Pace::for_keys();
        while pace.pause(&call) {}
        assert!(call.is_over());
        assert!(call.waited() >= timeout);
    }

    #[test]
    fn zero_and_what_the_clock_cannot_hold_are_without_end() {
        for timeout in [Duration::ZERO, Duration::MAX] {
            let call = Call::new(Op::Get, &[], timeout);
            assert!(!call.is_over());
            assert!(Pace::for_lock().pause(&call));
        }
    }
}
