//! One operation on the file: what it is, which keys it is about, and how long it may still take. Pauses between tries
//! are made here and nowhere else, so none outlasts the call.

use std::path::Path;
use std::time::Duration;

use rallypoint_core::client::{Backoff, Deadline};
use rallypoint_core::wire::Op;

use crate::deadline::{now, pause};
use crate::error::{Context, FileObstacle, StoreError, StoreKind};

/// An operation under way.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) op: Op,
    pub(super) keys: &'a [&'a str],
    deadline: Deadline,
}

impl<'a> Call<'a> {
    pub(super) fn new(op: Op, keys: &'a [&'a str], deadline: Deadline) -> Call<'a> {
        Call { op, keys, deadline }
    }

    pub(super) fn is_over(&self) -> bool {
        self.deadline.has_passed(now())
    }

    pub(super) fn gave_up(&self, path: &Path, obstacle: FileObstacle) -> StoreError {
        StoreError::FileTimeout { context: Box::new(self.context(path)), obstacle }
    }

    pub(super) fn context(&self, path: &Path) -> Context {
        let keys = self.keys.iter().map(|key| key.to_string()).collect();
        let waited = self.deadline.waited(now());
        Context::new(StoreKind::File, path.display().to_string()).during(self.op, keys).after(waited)
    }
}

/// Pauses between tries that end with the call.
#[derive(Debug)]
pub(super) struct Pace(Backoff);

impl Pace {
    /// Between tries for the lock. Others hold it for microseconds, and may take it again as soon: who asks seldom meets
    /// it free seldom. At this pace asking takes about a hundredth of a processor.
    pub(super) fn for_lock() -> Pace {
        Pace(Backoff::new(Duration::from_micros(50), Duration::from_millis(3)))
    }

    /// Between looks at the file for keys to come. Torch's pause is 10 ms always.
    pub(super) fn for_keys() -> Pace {
        Pace(Backoff::new(Duration::from_millis(1), Duration::from_millis(10)))
    }

    /// Pauses, and says so; or says at once that the time is up. The last pause ends when the call does, so that there
    /// is a last try then.
    pub(super) fn pause(&mut self, call: &Call) -> bool {
        let over = call.is_over();
        if !over {
            pause(&mut self.0, &call.deadline);
        }
        !over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_with_the_call_and_not_before_it() {
        let timeout = Duration::from_millis(25);
        let call = Call::new(Op::Get, &["k"], Deadline::after(now(), Some(timeout)));
        let mut pace = Pace::for_keys();
        while pace.pause(&call) {}
        assert!(call.is_over());
        assert!(call.deadline.waited(now()) >= timeout);
    }
}
