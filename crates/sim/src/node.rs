//! A simulated node: its clocks, its stage, and the part of its history that the checks need.
//!
//! The trait [`Behavior`] has two implementations: nodes of ours, and nodes that behave like torch's.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{MonoTime, NodeDesc, Phase, State, WallTime};

use crate::network::{Reply, Request};

/// The local id of torch nodes. Nodes of ours have the local id 0.
pub(crate) const TORCH_LOCAL_ID: i64 = 1;

/// The current activity of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The node leaves its last round, before it joins the next.
    Exiting,
    Joining,
    /// The node is in a round, and its worker runs.
    Working {
        round: u64,
    },
    /// The node leaves the rendezvous.
    Leaving,
    Closing,
    /// The node crashed, left, timed out or finished.
    Ended,
}

/// The clocks of a node, which differ from the virtual time.
#[derive(Debug, Clone)]
pub(crate) struct Clocks {
    /// The error of the wall clock, in microseconds.
    pub(crate) offset: i64,
    /// The drift of the monotonic clock, in parts per million.
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
            .expect("the time is within the range of WallTime")
    }
}

/// What a node does next.
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
    /// The join ended with a timeout or an outage.
    TimedOut {
        /// Whether the node had time to withdraw and to retract its announcement.
        is_clean: bool,
    },
    /// The node has left the rendezvous and has written its withdrawal.
    Left,
    /// The node itself has broken a rule.
    RuleBroken {
        rule: &'static str,
        what: String,
    },
}

/// What a node does next, and its report.
pub(crate) type Step = (Command, Option<Report>);

/// The part of a node that its behavior and the world share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) clocks: Clocks,
    pub(crate) stage: Stage,
    /// The phase whose end wakes the node from its current [`Command::Sleep`].
    pub(crate) wake_phase: Option<Phase>,
    /// A phase that the node has just ended. The world takes it and signals the waiting nodes.
    pub(crate) ended_phase: Option<Phase>,
}

/// The behavior of a node.
pub(crate) trait Behavior: fmt::Debug {
    /// Starts to join the next round.
    fn join(&mut self, context: &mut Context, now: Duration) -> Step;
    /// Starts to leave the rendezvous. Returns `None` if the node exits without a request.
    fn leave(&mut self, context: &mut Context, now: Duration) -> Option<Step>;
    /// Starts to close the rendezvous.
    fn close(&mut self, context: &mut Context, now: Duration) -> Step;
    /// Handles a reply.
    fn handle_reply(&mut self, context: &mut Context, reply: Reply, random: u64, now: Duration) -> Step;
    /// Handles the timeout of a request.
    fn handle_no_reply(&mut self, context: &mut Context, now: Duration) -> Step;
    /// Handles a report of the store client that the store was emptied.
    fn handle_store_emptied(&mut self) {}
    /// Handles the end of a [`Command::Sleep`]. `is_woken` is true if a signal ended the sleep early.
    fn handle_timer(&mut self, context: &mut Context, is_woken: bool, now: Duration) -> Step;
}

/// A simulated node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) me: NodeDesc,
    /// The index of the rendezvous of the node.
    pub(crate) job: usize,
    pub(crate) is_torch: bool,
    pub(crate) context: Context,
    pub(crate) behavior: Box<dyn Behavior>,
    /// The number of the pending request or timer. Events with another number are ignored.
    pub(crate) awaited_number: u64,
    /// Whether a request is pending.
    pub(crate) awaits_reply: bool,
    /// When the node resumes, if a fault has paused its process.
    pub(crate) paused_until: Option<Duration>,
    /// When the node last resumed after such a pause.
    pub(crate) resumed_at: Option<Duration>,
    /// When the node started, or when its last fault (pause, outage, request timeout) ended.
    pub(crate) last_fault_at: Duration,
    pub(crate) died_at: Option<Duration>,
    /// Whether the stage of the node was [`Stage::Exiting`] when its last command was recorded.
    pub(crate) was_exiting: bool,
    /// When the worker of the node started, if it runs.
    pub(crate) working_since: Option<Duration>,
    /// When the last join started.
    pub(crate) joining_since: Duration,
    /// Whether the node was a spare since `joining_since`. Its join may then take longer than the join timeout, which
    /// does not apply to spares and starts again from 0 when a spare is needed.
    pub(crate) was_spare: bool,
    /// Whether the node has withdrawn cleanly, so that no node may admit it again.
    pub(crate) has_left: bool,
    /// Whether a request that the node no longer waits for may still reach the store.
    pub(crate) has_stray_request: bool,
    /// The number of consecutive compare-and-sets that failed.
    pub(crate) failed_writes: u32,
    /// The times at which the node sent its compare-and-sets of the last second.
    pub(crate) write_attempts: VecDeque<Duration>,
}

impl Node {
    pub(crate) fn is_up(&self) -> bool {
        self.context.stage != Stage::Ended
    }

    /// Records the next command of the node. The reply or timer of the command has this `number`. Returns whether the
    /// command starts a join.
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

    /// Returns whether the node joins a round or is in one.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.context.stage, Stage::Exiting | Stage::Joining | Stage::Working { .. })
    }
}
