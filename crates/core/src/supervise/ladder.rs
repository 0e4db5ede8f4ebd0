//! How one process is ended: it gets a signal, then its own full grace, then SIGKILL; and if even that doesn't help, it is
//! given up. One ladder knows nothing of the others, so a slow worker costs only its own time.

use std::time::Duration;

use super::event::Signal;
use super::policy::Policy;
use crate::rendezvous::MonoTime;

/// Where a process is on its way out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ladder {
    /// It runs, and nobody has told it to end.
    Running,
    /// It is about to get this signal and so much grace.
    Told(Signal, Duration),
    /// It has got it.
    Ending {
        /// When its grace is over.
        until: MonoTime,
    },
    /// It is about to be killed.
    Doomed,
    /// It was killed.
    Killed {
        /// When it is given up.
        until: MonoTime,
    },
    /// It is there, and nothing can be done about it.
    Lost,
    /// There is none.
    #[default]
    Gone,
}

impl Ladder {
    /// It is to end. Who is further down already stays there.
    pub fn tell(&mut self, signal: Signal, grace: Duration) {
        if matches!(self, Ladder::Running | Ladder::Told(..) | Ladder::Ending { .. }) {
            *self = Ladder::Told(signal, grace);
        }
    }

    /// It is to end at once.
    pub fn doom(&mut self) {
        if matches!(self, Ladder::Running | Ladder::Told(..) | Ladder::Ending { .. }) {
            *self = Ladder::Doomed;
        }
    }

    /// Takes the next step, if it is time: the signal to send.
    pub fn poll_signal(&mut self, now: MonoTime) -> Option<Signal> {
        match *self {
            Ladder::Told(signal, grace) => {
                *self = match signal {
                    Signal::KILL => Ladder::Killed { until: now.after(Policy::KILL_PATIENCE) },
                    _ => Ladder::Ending { until: now.after(grace) },
                };
                return Some(signal);
            }
            Ladder::Ending { until } if until <= now => *self = Ladder::Doomed,
            Ladder::Killed { until } if until <= now => *self = Ladder::Lost,
            _ => {}
        }
        if *self != Ladder::Doomed {
            return None;
        }
        *self = Ladder::Killed { until: now.after(Policy::KILL_PATIENCE) };
        Some(Signal::KILL)
    }

    /// When there will be a next step.
    pub fn until(self) -> Option<MonoTime> {
        match self {
            Ladder::Ending { until } | Ladder::Killed { until } => Some(until),
            _ => None,
        }
    }

    /// Whether nothing more is waited for.
    pub fn is_over(self) -> bool {
        matches!(self, Ladder::Gone | Ladder::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonoTime {
        MonoTime::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_process_gets_a_signal_its_grace_and_then_is_killed_and_at_last_given_up() {
        let mut ladder = Ladder::Running;
        assert_eq!(ladder.poll_signal(at(0)), None);
        ladder.tell(Signal::TERM, Duration::from_secs(30));
        assert_eq!(ladder.poll_signal(at(1)), Some(Signal::TERM));
        assert_eq!(ladder.until(), Some(at(31)));
        assert_eq!(ladder.poll_signal(at(30)), None);
        assert_eq!(ladder.poll_signal(at(31)), Some(Signal::KILL));
        assert_eq!(ladder.poll_signal(at(40)), None);
        assert!(!ladder.is_over());
        assert_eq!(ladder.poll_signal(at(41)), None);
        assert_eq!(ladder, Ladder::Lost);
    }

    #[test]
    fn told_again_it_gets_the_new_signal_and_a_new_grace() {
        let mut ladder = Ladder::Running;
        ladder.tell(Signal::TERM, Duration::from_secs(30));
        assert_eq!(ladder.poll_signal(at(0)), Some(Signal::TERM));
        ladder.tell(Signal(2), Duration::from_secs(3));
        assert_eq!(ladder.poll_signal(at(5)), Some(Signal(2)));
        assert_eq!(ladder.until(), Some(at(8)));
        ladder.doom();
        assert_eq!(ladder.poll_signal(at(6)), Some(Signal::KILL));
        ladder.tell(Signal::TERM, Duration::from_secs(30));
        assert_eq!(ladder.poll_signal(at(7)), None, "there is no way up again");
    }

    #[test]
    fn no_grace_means_the_signal_and_sigkill_right_after_it() {
        let mut ladder = Ladder::Running;
        ladder.tell(Signal::TERM, Duration::ZERO);
        assert_eq!(ladder.poll_signal(at(0)), Some(Signal::TERM));
        assert_eq!(ladder.poll_signal(at(0)), Some(Signal::KILL));
        assert_eq!(ladder.poll_signal(at(0)), None);
    }

    #[test]
    fn what_is_gone_gets_nothing() {
        let mut ladder = Ladder::Gone;
        ladder.tell(Signal::TERM, Duration::ZERO);
        ladder.doom();
        assert_eq!(ladder.poll_signal(at(0)), None);
        assert!(ladder.is_over());
    }
}
