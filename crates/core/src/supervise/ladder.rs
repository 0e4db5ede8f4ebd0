//! How one process is ended: it gets a signal, then its own full grace, then SIGKILL; and if even that doesn't help, it is
//! given up. One ladder knows nothing of the others, so a slow worker costs only its own time.

use std::time::Duration;

use super::event::Signal;
use super::supervisor::Policy;
use crate::rendezvous::MonoTime;

/// Where a process is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ladder {
    /// It runs and was not told to end.
    Running,
    /// It is about to get this signal.
    Told(Signal),
    /// It has got a signal, and its grace ends then.
    Ending { until: MonoTime },
    /// It was killed, and is given up then.
    Killed { until: MonoTime },
    /// It is there, and nothing can be done about it.
    Lost,
    /// There is no such process.
    Gone,
}

impl Ladder {
    /// The process is to get this signal and end, unless it was killed already.
    pub(super) fn tell(&mut self, signal: Signal) {
        if matches!(self, Ladder::Running | Ladder::Told(_) | Ladder::Ending { .. }) {
            *self = Ladder::Told(signal);
        }
    }

    /// Takes the next step, if it is time, and returns the signal to send.
    pub(super) fn poll_signal(&mut self, now: MonoTime, grace: Duration) -> Option<Signal> {
        let signal = match *self {
            Ladder::Told(signal) => signal,
            Ladder::Ending { until } if until <= now => Signal::KILL,
            Ladder::Killed { until } if until <= now => {
                *self = Ladder::Lost;
                return None;
            }
            _ => return None,
        };
        *self = match signal {
            Signal::KILL => Ladder::Killed { until: now.after(Policy::KILL_GRACE) },
            _ => Ladder::Ending { until: now.after(grace) },
        };
        Some(signal)
    }

    /// When there will be a next step.
    pub(super) fn until(self) -> Option<MonoTime> {
        match self {
            Ladder::Ending { until } | Ladder::Killed { until } => Some(until),
            _ => None,
        }
    }

    /// Whether nothing more is waited for.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Ladder::Gone | Ladder::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> MonoTime {
        MonoTime::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_process_gets_a_signal_its_grace_and_then_is_killed_and_at_last_given_up() {
        let mut ladder = Ladder::Running;
        assert_eq!(ladder.poll_signal(at(0), GRACE), None);
        ladder.tell(Signal::TERM);
        assert_eq!(ladder.poll_signal(at(1), GRACE), Some(Signal::TERM));
        assert_eq!(ladder.until(), Some(at(31)));
        assert_eq!(ladder.poll_signal(at(30), GRACE), None);
        assert_eq!(ladder.poll_signal(at(31), GRACE), Some(Signal::KILL));
        assert_eq!(ladder.poll_signal(at(40), GRACE), None);
        assert!(!ladder.is_over());
        assert_eq!(ladder.poll_signal(at(41), GRACE), None);
        assert_eq!(ladder, Ladder::Lost);
    }

    #[test]
    fn told_again_it_gets_the_new_signal_and_a_new_grace() {
        let mut ladder = Ladder::Running;
        ladder.tell(Signal::TERM);
        assert_eq!(ladder.poll_signal(at(0), GRACE), Some(Signal::TERM));
        ladder.tell(Signal(2));
        assert_eq!(ladder.poll_signal(at(5), GRACE), Some(Signal(2)));
        assert_eq!(ladder.until(), Some(at(35)));
        ladder.tell(Signal::KILL);
        assert_eq!(ladder.poll_signal(at(6), GRACE), Some(Signal::KILL));
        ladder.tell(Signal::TERM);
        assert_eq!(ladder.poll_signal(at(7), GRACE), None, "there is no way up again");
    }

    #[test]
    fn no_grace_means_the_signal_and_sigkill_right_after_it() {
        let mut ladder = Ladder::Running;
        ladder.tell(Signal::TERM);
        assert_eq!(ladder.poll_signal(at(0), Duration::ZERO), Some(Signal::TERM));
        assert_eq!(ladder.poll_signal(at(0), Duration::ZERO), Some(Signal::KILL));
        assert_eq!(ladder.poll_signal(at(0), Duration::ZERO), None);
    }

    #[test]
    fn what_is_gone_gets_nothing() {
        let mut ladder = Ladder::Gone;
        ladder.tell(Signal::TERM);
        ladder.tell(Signal::KILL);
        assert_eq!(ladder.poll_signal(at(0), GRACE), None);
        assert!(ladder.is_over());
    }
}
