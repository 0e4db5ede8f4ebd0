//! What the thread of the server shares with the threads that ask about it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use rallypoint_core::hub::ServerStats;

/// Requests to the event loop, and whether it has ended.
#[derive(Debug, Default)]
pub(super) struct Shared {
    stop: AtomicBool,
    ended: AtomicBool,
    questions: Mutex<Vec<Sender<ServerStats>>>,
    is_asked: AtomicBool,
}

impl Shared {
    pub(super) fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(super) fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns a guard that records the end of the loop, however it comes.
    pub(super) fn end_on_drop(&self) -> impl Drop {
        struct Ended<'a>(&'a AtomicBool);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        Ended(&self.ended)
    }

    /// Asks the loop for its figures.
    pub(super) fn ask(&self) -> Receiver<ServerStats> {
        let (reply, replied) = channel();
        self.questions.lock().unwrap_or_else(PoisonError::into_inner).push(reply);
        self.is_asked.store(true, Ordering::Release);
        replied
    }

    /// Answers what was asked.
    pub(super) fn answer(&self, stats: impl Fn() -> ServerStats) {
        if !self.is_asked.swap(false, Ordering::AcqRel) {
            return;
        }
        for reply in std::mem::take(&mut *self.questions.lock().unwrap_or_else(PoisonError::into_inner)) {
            // The thread that asked may have given up.
            let _ = reply.send(stats());
        }
    }
}
