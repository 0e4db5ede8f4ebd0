//! This node's own clock: it only goes forward and means nothing to anybody else.

use std::time::Duration;

/// A moment by this node's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MonoTime(Duration);

impl MonoTime {
    /// So long after the clock's beginning, whenever that was.
    pub fn from_start(passed: Duration) -> MonoTime {
        MonoTime(passed)
    }

    /// How long since `earlier`; nothing if that is later.
    pub fn since(self, earlier: MonoTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// So much later.
    pub fn after(self, later: Duration) -> MonoTime {
        MonoTime(self.0.saturating_add(later))
    }
}
