//! One simulated node: its clocks, its stage, and what is remembered of it for the checks. How it decides is its behavior's
//! business, of which there are two kinds.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{MonoTime, NodeDesc, Phase, State, WallTime};

use crate::network::{Reply, Request};

/// What a node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// On its way into a round: out of the old one first, then into the next.
    Exiting,
    Joining,
    /// In a round, working.
    Working {
        round: u64,
    },
    /// On its way out for good.
    Leaving,
    Closing,
    /// Gone: crashed, left, timed out or finished.
    Ended,
}

/// A node's clocks. The real time of the world is not for its eyes.
#[derive(Debug, Clone)]
pub(crate) struct Clocks {
    /// How far its wall clock is off, in microseconds.
    pub(crate) offset: i64,
    /// How fast its own clock runs, in parts of a million off.
    pub(crate) drift: i64,
}

impl Clocks {
    pub(crate) fn mono(&self, now: Duration) -> MonoTime {
        let micros = now.as_micros() as i64;
        MonoTime::from_start(
            Duration::from_micros((micros + micros / 1000 * self.drift / 1000).max(0) as u64),
        )
    }

    pub(crate) fn wall(&self, now: Duration) -> WallTime {
        const START: i64 = 1_800_000_000_000_000;
        WallTime::from_micros(START + now.as_micros() as i64 + self.offset)
            .expect("within the years that count")
    }
}

/// What a node wants of the world next.
#[derive(Debug)]
pub(crate) enum Command {
    Send(Request),
    Sleep(Duration),
    Nothing,
}

/// What a node reports to the checks.
#[derive(Debug)]
pub(crate) enum Report {
    Joined {
        state: Arc<State>,
    },
    /// It gave up joining; whether it had the time to take back all that it had said.
    TimedOut {
        is_clean: bool,
    },
    /// It has left, and nobody counts on it.
    Left,
    /// Something that its behavior should not have done.
    RuleBroken {
        rule: &'static str,
        what: String,
    },
}

/// What a node wants, and what it has to report.
pub(crate) type Step = (Command, Option<Report>);

/// What a behavior and the world both see of a node.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) clocks: Clocks,
    pub(crate) stage: Stage,
    /// In which phase it pauses, for a wake-up.
    pub(crate) wake_phase: Option<Phase>,
    /// A phase it has ended and must tell of.
    pub(crate) ended_phase: Option<Phase>,
}

/// How a node decides.
pub(crate) trait Behavior: fmt::Debug {
    /// Starts towards the next round.
    fn join(&mut self, context: &mut Context, now: Duration) -> Step;
    /// Starts to leave for good; `None` if it just goes.
    fn leave(&mut self, context: &mut Context, now: Duration) -> Option<Step>;
    /// Starts to close the rendezvous.
    fn close(&mut self, context: &mut Context, now: Duration) -> Step;
    /// An answer came.
    fn handle_reply(&mut self, context: &mut Context, reply: Reply, random: u64, now: Duration) -> Step;
    /// No answer came in time.
    fn handle_no_reply(&mut self, context: &mut Context, now: Duration) -> Step;
    /// The store has lost everything, and the node's client has noticed.
    fn handle_store_emptied(&mut self) {}
    /// A pause is over; `is_woken` if a signal ended it.
    fn handle_timer(&mut self, context: &mut Context, is_woken: bool, now: Duration) -> Step;
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) me: NodeDesc,
    /// Which rendezvous it is for.
    pub(crate) job: usize,
    pub(crate) is_torch: bool,
    pub(crate) context: Context,
    pub(crate) behavior: Box<dyn Behavior>,
    /// The number of the message it waits for an answer to, or of the timer; older ones mean nothing.
    pub(crate) awaited_number: u64,
    /// Whether that is a message.
    pub(crate) awaits_reply: bool,
    pub(crate) paused_until: Option<Duration>,
    /// When it last went on after a pause.
    pub(crate) resumed_at: Option<Duration>,
    /// When it started, was last cut off, paused or delayed beyond what it may bear.
    pub(crate) last_fault_at: Duration,
    pub(crate) died_at: Option<Duration>,
    pub(crate) was_exiting: bool,
    /// Since when it has been working in a round, if it is.
    pub(crate) working_since: Option<Duration>,
    /// Since when it has been on its way into a round.
    pub(crate) joining_since: Duration,
    /// Whether it was a spare since then, which has all its time again.
    pub(crate) was_spare: bool,
    /// Whether it went cleanly, so that nobody may count on it any more.
    pub(crate) has_left: bool,
    /// Whether something it said may still be under way although it has said other things since.
    pub(crate) has_stray_request: bool,
    /// How many of its writes were lost, one after the other.
    pub(crate) lost_writes: u32,
    /// When it tried to write, in the last second.
    pub(crate) write_attempts: VecDeque<Duration>,
}

impl Node {
    pub(crate) fn is_up(&self) -> bool {
        self.context.stage != Stage::Ended
    }

    /// Takes note of what it wants next, under a number; whether that is to join.
    pub(crate) fn record(&mut self, command: &Command, number: u64, now: Duration) -> bool {
        self.awaited_number = number;
        self.awaits_reply = matches!(command, Command::Send(_));
        let exiting = self.context.stage == Stage::Exiting;
        let starts = exiting && !self.was_exiting;
        if starts {
            (self.joining_since, self.was_spare) = (now, false);
        }
        self.was_exiting = exiting;
        let is_working = matches!(self.context.stage, Stage::Working { .. });
        self.working_since = is_working.then(|| self.working_since.unwrap_or(now));
        starts
    }

    /// Whether it is about to be or to stay in a round.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.context.stage, Stage::Exiting | Stage::Joining | Stage::Working { .. })
    }
}
