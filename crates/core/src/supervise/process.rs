//! Stops one process: with a signal, and with SIGKILL after a grace. A process that survives SIGKILL for 10 s counts as
//! unkillable.
//!
//! Each process has a grace of its own, which does not depend on how long other processes take to exit.

use std::time::Duration;

use super::event::Signal;
use super::supervisor::Policy;
use crate::rendezvous::MonoTime;

/// The state of one process that the supervisor stops: a worker, or all orphans together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    /// The process runs, and no stop was requested.
    Running,
    /// This signal is to be sent to the process next.
    SignalPending(Signal),
    /// A signal was sent to the process. It gets SIGKILL at `until`.
    Terminating { until: MonoTime },
    /// SIGKILL was sent to the process. It counts as unkillable at `until`.
    Killed { until: MonoTime },
    /// The process still exists, although SIGKILL was sent to it [`Policy::KILL_GRACE`] ago.
    Unkillable,
    /// The process has exited, or was never started.
    Exited,
}

impl Process {
    /// Requests that this signal is sent to the process. Does nothing if SIGKILL was sent or requested already,
    /// or the process has exited.
    pub(super) fn request_stop(&mut self, signal: Signal) {
        let is_kill_pending = *self == Process::SignalPending(Signal::KILL);
        if !is_kill_pending
            && matches!(self, Process::Running | Process::SignalPending(_) | Process::Terminating { .. })
        {
            *self = Process::SignalPending(signal);
        }
    }

    /// Returns the signal to send now, if any. The process counts as signaled from then on.
    pub(super) fn poll_signal(&mut self, now: MonoTime, grace: Duration) -> Option<Signal> {
        let signal = match *self {
            Process::SignalPending(signal) => signal,
            Process::Terminating { until } if until <= now => Signal::KILL,
            Process::Killed { until } if until <= now => {
                *self = Process::Unkillable;
                return None;
            }
            _ => return None,
        };
        *self = match signal {
            Signal::KILL => Process::Killed { until: now.after(Policy::KILL_GRACE) },
            _ => Process::Terminating { until: now.after(grace) },
        };
        Some(signal)
    }

    /// Returns when `poll_signal` has to be called again.
    pub(super) fn deadline(self) -> Option<MonoTime> {
        match self {
            Process::Terminating { until } | Process::Killed { until } => Some(until),
            _ => None,
        }
    }

    /// Returns whether the supervisor no longer waits for the process to exit.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Process::Exited | Process::Unkillable)
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
    fn a_process_gets_a_signal_is_killed_after_the_grace_and_then_counts_as_unkillable() {
        let mut process = Process::Running;
        assert_eq!(process.poll_signal(at(0), GRACE), None);
        process.request_stop(Signal::TERM);
        assert_eq!(process.poll_signal(at(1), GRACE), Some(Signal::TERM));
        assert_eq!(process.deadline(), Some(at(31)));
        assert_eq!(process.poll_signal(at(30), GRACE), None);
        assert_eq!(process.poll_signal(at(31), GRACE), Some(Signal::KILL));
        assert_eq!(process.poll_signal(at(40), GRACE), None);
        assert!(!process.is_over());
        assert_eq!(process.poll_signal(at(41), GRACE), None);
        assert_eq!(process, Process::Unkillable);
    }

    #[test]
    fn a_second_stop_request_sends_its_signal_and_restarts_the_grace() {
        let mut process = Process::Running;
        process.request_stop(Signal::TERM);
        assert_eq!(process.poll_signal(at(0), GRACE), Some(Signal::TERM));
        process.request_stop(Signal(2));
        assert_eq!(process.poll_signal(at(5), GRACE), Some(Signal(2)));
        assert_eq!(process.deadline(), Some(at(35)));
        process.request_stop(Signal::KILL);
        assert_eq!(process.poll_signal(at(6), GRACE), Some(Signal::KILL));
        process.request_stop(Signal::TERM);
        assert_eq!(process.poll_signal(at(7), GRACE), None, "SIGKILL was sent already");
    }

    #[test]
    fn a_grace_of_zero_sends_sigkill_right_after_the_signal() {
        let mut process = Process::Running;
        process.request_stop(Signal::TERM);
        assert_eq!(process.poll_signal(at(0), Duration::ZERO), Some(Signal::TERM));
        assert_eq!(process.poll_signal(at(0), Duration::ZERO), Some(Signal::KILL));
        assert_eq!(process.poll_signal(at(0), Duration::ZERO), None);
    }

    #[test]
    fn an_exited_process_gets_no_signal() {
        let mut process = Process::Exited;
        process.request_stop(Signal::TERM);
        process.request_stop(Signal::KILL);
        assert_eq!(process.poll_signal(at(0), GRACE), None);
        assert!(process.is_over());
    }
}
