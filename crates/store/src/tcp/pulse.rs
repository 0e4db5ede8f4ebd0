//! What others see of a connection: that it has been answered, and that it is gone. It says nothing of how or why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A connection's signs of life. It outlives the connection.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    answers: AtomicU64,
    ended: AtomicBool,
}

impl Pulse {
    /// A call over it was answered.
    pub(super) fn beat(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// There is no more to come.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// A pulse, from some time on.
#[derive(Debug)]
pub(super) struct Watched {
    pulse: Arc<Pulse>,
    before: u64,
}

/// What came since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// Nothing yet.
    None,
    /// An answer.
    Answered,
    /// The end, and no answer before it.
    Ended,
}

impl Watched {
    pub(super) fn from_now(pulse: &Arc<Pulse>) -> Watched {
        Watched { pulse: Arc::clone(pulse), before: pulse.answers.load(Ordering::Relaxed) }
    }

    pub(super) fn sign(&self) -> Sign {
        // In this order: what was answered and then ended was answered.
        let ended = self.pulse.ended.load(Ordering::Acquire);
        match self.pulse.answers.load(Ordering::Relaxed) != self.before {
            true => Sign::Answered,
            false if ended => Sign::Ended,
            false => Sign::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_later_is_a_sign_and_an_answer_counts_for_more_than_the_end() {
        let pulse = Arc::new(Pulse::default());
        pulse.beat();
        let early = Watched::from_now(&pulse);
        assert_eq!(early.sign(), Sign::None);
        pulse.beat();
        let late = Watched::from_now(&pulse);
        pulse.end();
        assert_eq!((early.sign(), late.sign()), (Sign::Answered, Sign::Ended));
    }
}
