//! Figures that the server's thread writes and anybody may read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A server in figures.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct ServerStats { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            stop: AtomicBool,
            ended: AtomicBool,
            questions: Mutex<Vec<Sender<ServerStats>>>,
            $(pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            pub(super) fn read(&self) -> ServerStats {
                ServerStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Connections open now.
    connections,
    /// Connections accepted since the start.
    accepted,
    /// Connections refused: too many, no file left, or an address that misbehaved.
    refused,
    /// VALIDATE requests with another magic number.
    bad_magic,
    /// Connections closed because their bytes were not the protocol (`bad_magic` included).
    protocol_errors,
    /// Connections closed because a request could not be carried out.
    refusals,
    /// Connections closed because they did not finish the handshake in time.
    no_handshake,
    /// Connections closed because a request arrived too slowly or took too much room.
    slow_input,
    /// Connections closed because they did not take their replies.
    slow_output,
    /// Connections there may be at a time, as far as limits and files allow.
    most_connections,
    /// 1 from when there was no file for another connection until there is one again.
    out_of_files,
    /// Keys held, as of the last sweep or question.
    keys,
    /// Bytes held in keys, values and queues, as of the last sweep or question.
    bytes,
}

impl Counters {
    pub(super) fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(super) fn note_end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Leaves a question for the loop.
    pub(super) fn ask(&self, reply: Sender<ServerStats>) {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner).push(reply);
    }

    /// Answers what was asked.
    pub(super) fn answer(&self) {
        for reply in std::mem::take(&mut *self.questions.lock().unwrap_or_else(PoisonError::into_inner)) {
            // Who asked may have gone.
            let _ = reply.send(self.read());
        }
    }

    pub(super) fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
