//! Giving up a call from outside: what waits looks up now and then to see whether it still should. Who decides that, and
//! why, is the caller's business.

use std::cell::Cell;
use std::time::Duration;

use crate::deadline::Deadline;

/// How long a call that can be interrupted waits before it looks up.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
struct Watch {
    should_stop: Option<fn() -> bool>,
    /// It has said so. It is not asked again, since it may say so only once.
    stopped: bool,
}

thread_local! {
    static WATCH: Cell<Watch> = const { Cell::new(Watch { should_stop: None, stopped: false }) };
}

/// Runs `body`. Whatever waits in it, on this thread, asks `should_stop` twenty times a second; once that says yes, the call
/// under way and all that follow in `body` end as if their time were up.
///
/// A connection on which an answer was still to come is given up with the call.
pub fn interruptible<T>(should_stop: fn() -> bool, body: impl FnOnce() -> T) -> T {
    struct Restore(Watch);
    impl Drop for Restore {
        fn drop(&mut self) {
            WATCH.set(self.0);
        }
    }
    let _restore = Restore(WATCH.replace(Watch { should_stop: Some(should_stop), stopped: false }));
    body()
}

/// Asks the caller of [`interruptible`], if this thread has one, and returns whether it has said to stop.
pub fn is_interrupted() -> bool {
    look_up();
    is_stopped()
}

/// Sleeps for this long, or until this thread is interrupted.
pub fn sleep(duration: Duration) {
    Deadline::after(None).sleep(duration);
}

/// Whether waits on this thread are to be cut into slices.
pub(crate) fn is_watched() -> bool {
    WATCH.get().should_stop.is_some()
}

/// Whether the caller has said to stop.
pub(crate) fn is_stopped() -> bool {
    WATCH.get().stopped
}

/// Asks the caller. No lock may be held that what it does in answer could want.
pub(crate) fn look_up() {
    let watch = WATCH.get();
    if let Some(should_stop) = watch.should_stop
        && !watch.stopped
        && should_stop()
    {
        WATCH.set(Watch { stopped: true, ..watch });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::error::StoreError;
    use crate::hash::HashStore;
    use crate::store::Store;

    #[test]
    fn a_wait_without_end_ends_when_it_is_told_to() {
        let started = Instant::now();
        let store = HashStore::new();
        let ended = interruptible(|| true, || store.wait_for(&["never"], None));
        assert!(matches!(ended, Err(StoreError::Timeout { .. })), "{ended:?}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn one_that_is_not_told_to_waits_on() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let store = HashStore::new();
        let other = store.clone();
        let late = std::thread::spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(60);
            while ASKED.load(Ordering::Relaxed) < 3 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            other.set("k", b"v").unwrap();
        });
        let is_told = || {
            ASKED.fetch_add(1, Ordering::Relaxed);
            false
        };
        assert_eq!(interruptible(is_told, || store.get("k")).unwrap(), b"v");
        late.join().unwrap();
        assert!(ASKED.load(Ordering::Relaxed) >= 3);
    }

    #[test]
    fn it_holds_for_that_body_alone_and_is_asked_once() {
        thread_local!(static ASKED: Cell<u32> = const { Cell::new(0) });
        let stop = || {
            ASKED.set(ASKED.get() + 1);
            true
        };
        interruptible(stop, || {
            Deadline::after(None).sleep(Duration::from_secs(3600));
            assert!(Deadline::after(None).has_passed());
            interruptible(|| false, || assert!(!Deadline::after(None).has_passed()));
            Deadline::after(None).sleep(Duration::from_secs(3600));
        });
        assert_eq!(ASKED.get(), 1);
        assert!(!Deadline::after(None).has_passed());
    }
}
