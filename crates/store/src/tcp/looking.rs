//! Looking for an answer instead of sleeping until it comes.

use std::sync::atomic::{AtomicU64, Ordering};

/// A thread that looks for an answer without sleeping. Where many do, they take the time of those who would answer, so only
/// some may: at most every second processor is busy with it.
pub(super) struct Looker {
    process: u32,
}

/// How many there are, and above that in which process: a forked child has none of its parent's threads.
static LOOKERS: AtomicU64 = AtomicU64::new(0);

impl Looker {
    /// One more, in this process; `None` if there are enough.
    pub(super) fn start(process: u32) -> Option<Looker> {
        let most = most_lookers();
        let own = u64::from(process) << 32;
        let more = |now: u64| match now & !0xffff_ffff == own {
            true => (now - own < most).then_some(now + 1),
            false => Some(own + 1),
        };
        LOOKERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Looker { process })
    }
}

/// How many may look. Asking takes a while, so it is asked once; not behind a `OnceLock`, which would never open in a child
/// that was forked while another thread was asking.
fn most_lookers() -> u64 {
    static MOST: AtomicU64 = AtomicU64::new(0);
    match MOST.load(Ordering::Relaxed) {
        0 => {
            let most = std::thread::available_parallelism().map_or(1, |all| (all.get() as u64 / 2).max(1));
            MOST.store(most, Ordering::Relaxed);
            most
        }
        most => most,
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        let own = u64::from(self.process) << 32;
        let fewer = |now: u64| (now & !0xffff_ffff == own && now > own).then(|| now - 1);
        let _ = LOOKERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }
}
