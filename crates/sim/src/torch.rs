//! Simulates a torch node, which shares rounds with nodes of ours.
//!
//! A torch node polls the state once a second and detects dead nodes by its wall clock. It discards its change when its
//! compare-and-set fails, and uses neither announcements nor signals. This file was written from the observed behavior
//! of torch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rallypoint_core::rendezvous::{
    Cell, Extra, MonoTime, NodeDesc, Settings, State, WITHDRAW_GRACE, WallTime, keys,
};

use crate::network::{Key, Reply, Request};
use crate::node::{Behavior, Command, Context, Report, Stage, Step};

/// How long torch uses a cached state before it reads the state again.
const CACHE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two polls. Torch sleeps for 1 s, and a real sleep takes slightly longer.
const POLL_INTERVAL: Duration = Duration::from_millis(1_001);

/// The behavior of a torch node.
#[derive(Debug)]
pub(crate) struct Torch {
    me: NodeDesc,
    settings: Settings,
    key: Key,
    state: State,
    token: Bytes,
    dirty: bool,
    synced_at: Option<MonoTime>,
    operation: Operation,
    deadline: MonoTime,
    /// When the last keep-alive operation of this round finished. Before the first one, when the join finished.
    last_beat: MonoTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Exit,
    Join,
    KeepAlive,
    Close,
    /// Torch's `num_nodes_waiting`.
    CountWaiting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Finish,
    Closed,
    Timeout,
    Sync,
    KeepAlive,
    AddToParticipants,
    AddToWaitList,
    AddToRedundancyList,
    RemoveFromParticipants,
    RemoveFromWaitList,
    RemoveFromRedundancyList,
    MarkComplete,
    MarkClosed,
}

impl Torch {
    pub(crate) fn new(me: NodeDesc, settings: Settings) -> Torch {
        Torch {
            key: keys::state(&settings.run_id).into(),
            me,
            settings,
            state: State::default(),
            token: Bytes::new(),
            dirty: false,
            synced_at: None,
            operation: Operation::CountWaiting,
            deadline: MonoTime::default(),
            last_beat: MonoTime::default(),
        }
    }

    fn start(&mut self, operation: Operation, context: &mut Context, now: Duration) -> Step {
        self.operation = operation;
        self.sync(context, now)
    }

    fn sync(&mut self, context: &mut Context, now: Duration) -> Step {
        let mono = context.clocks.mono(now);
        if self.dirty {
            let (key, token, state) = (self.key.clone(), self.token.clone(), Arc::new(self.state.clone()));
            return (Command::Send(Request::Write { key, token, state }), None);
        }
        match self.synced_at.is_some_and(|synced| mono.since(synced) <= CACHE_TIMEOUT) {
            true => self.act(context, now),
            false => (Command::Send(Request::Read { key: self.key.clone() }), None),
        }
    }

    fn sanitize(&mut self, wall: WallTime) {
        let limit = self.settings.keep_alive_limit();
        let is_dead = |(_, heartbeat): &(&NodeDesc, &WallTime)| {
            heartbeat.checked_add(limit).is_some_and(|end| end < wall)
        };
        let dead: Vec<_> =
            self.state.last_heartbeats.iter().filter(is_dead).map(|(node, _)| node.clone()).collect();
        if !dead.is_empty() {
            let before = self.state.participants.len();
            dead.iter().for_each(|node| self.remove(node));
            if self.state.participants.len() < before {
                self.remove_participant_epilogue();
            }
        }
    }

    fn remove(&mut self, node: &NodeDesc) {
        self.state.participants.remove(node);
        self.state.wait_list.remove(node);
        self.state.redundancy_list.remove(node);
        self.state.last_heartbeats.remove(node);
    }

    fn remove_participant_epilogue(&mut self) {
        if self.state.complete && self.state.participants.is_empty() {
            self.state.complete = false;
            self.state.round += 1;
        }
        if !self.state.complete && (self.state.participants.len() as u64) < self.settings.min_nodes {
            self.state.deadline = None;
        }
    }

    fn decide(&self, mono: MonoTime, wall: WallTime) -> Action {
        let is_late = mono > self.deadline;
        let is_due = self.state.last_heartbeats.get(&self.me).is_some_and(|heartbeat| {
            heartbeat.checked_add(self.settings.keep_alive_interval).is_some_and(|due| due <= wall)
        });
        let is_participant = self.state.participants.contains_key(&self.me);
        match self.operation {
            Operation::Exit if !is_participant => Action::Finish,
            Operation::Exit if is_late => Action::Timeout,
            Operation::Exit => Action::RemoveFromParticipants,
            Operation::KeepAlive if !is_due => Action::Finish,
            Operation::KeepAlive => Action::KeepAlive,
            Operation::Close if self.state.closed => Action::Finish,
            Operation::Close => Action::MarkClosed,
            Operation::CountWaiting => Action::Finish,
            Operation::Join => self.decide_to_join(mono, wall, is_late, is_due, is_participant),
        }
    }

    /// Decides as torch's join operation does, and checks its conditions in the same order.
    fn decide_to_join(
        &self,
        mono: MonoTime,
        wall: WallTime,
        is_late: bool,
        is_due: bool,
        is_participant: bool,
    ) -> Action {
        let (state, have) = (&self.state, self.state.participants.len() as u64);
        let Settings { min_nodes, max_nodes, .. } = self.settings;
        let spare = state.redundancy_list.contains(&self.me);
        let waiting = state.wait_list.contains(&self.me);
        let may_undo = mono.since(self.deadline) <= WITHDRAW_GRACE;
        let stay = if is_due { Action::KeepAlive } else { Action::Sync };
        if state.closed {
            Action::Closed
        } else if spare {
            if have == max_nodes { stay } else { Action::RemoveFromRedundancyList }
        } else if state.complete && is_participant {
            Action::Finish
        } else if is_late && may_undo && is_participant {
            Action::RemoveFromParticipants
        } else if is_late && may_undo && waiting {
            Action::RemoveFromWaitList
        } else if is_late {
            Action::Timeout
        } else if state.complete && have < max_nodes && !waiting {
            Action::AddToWaitList
        } else if state.complete && have >= max_nodes && !waiting {
            Action::AddToRedundancyList
        } else if !state.complete && is_participant {
            let over = state.deadline.is_some_and(|deadline| deadline < wall);
            if have >= min_nodes && have <= max_nodes && over { Action::MarkComplete } else { stay }
        } else if !state.complete {
            Action::AddToParticipants
        } else {
            stay
        }
    }

    fn act(&mut self, context: &mut Context, now: Duration) -> Step {
        let (mono, wall) = (context.clocks.mono(now), context.clocks.wall(now));
        let me = self.me.clone();
        let action = self.decide(mono, wall);
        match action {
            Action::Finish => return self.handle_finished(context, now),
            Action::Closed => {
                context.stage = Stage::Ended;
                return (Command::Nothing, None);
            }
            Action::Timeout => {
                context.stage = Stage::Ended;
                return (Command::Nothing, Some(Report::TimedOut { is_clean: false }));
            }
            Action::Sync => return (Command::Sleep(POLL_INTERVAL), None),
            Action::KeepAlive => {}
            Action::AddToParticipants => {
                self.state.wait_list.remove(&me);
                self.state.participants.insert(me.clone(), 0);
                // This attribute stands for one that a later version of torch might add. Nodes of ours must preserve
                // it.
                self.state.extra.insert("joined_last".into(), Extra::Int(me.pid));
                let have = self.state.participants.len() as u64;
                if have == self.settings.min_nodes {
                    self.state.deadline = wall.checked_add(self.settings.last_call_timeout);
                }
                if have == self.settings.max_nodes {
                    self.complete();
                }
            }
            Action::AddToWaitList => {
                self.state.redundancy_list.remove(&me);
                self.state.wait_list.insert(me.clone());
            }
            Action::AddToRedundancyList => {
                self.state.redundancy_list.insert(me.clone());
            }
            Action::RemoveFromParticipants => {
                self.remove(&me);
                self.remove_participant_epilogue();
            }
            Action::RemoveFromWaitList => self.remove(&me),
            Action::RemoveFromRedundancyList => {
                self.remove(&me);
                self.deadline = mono.after(self.settings.join_timeout);
            }
            Action::MarkComplete => self.complete(),
            Action::MarkClosed => self.state.closed = true,
        }
        let beats = [Action::KeepAlive, Action::AddToParticipants, Action::AddToWaitList];
        if beats.contains(&action) || action == Action::AddToRedundancyList {
            self.state.last_heartbeats.insert(me, wall);
        }
        self.dirty = true;
        self.sync(context, now)
    }

    fn complete(&mut self) {
        self.state.complete = true;
        self.state.deadline = None;
        for (rank, (_, assigned)) in (0..).zip(self.state.participants.iter_mut()) {
            *assigned = rank;
        }
    }

    fn handle_finished(&mut self, context: &mut Context, now: Duration) -> Step {
        match (self.operation, context.stage) {
            (Operation::Exit, _) => {
                context.stage = Stage::Joining;
                self.start(Operation::Join, context, now)
            }
            (Operation::Join, _) => {
                context.stage = Stage::Working { round: self.state.round };
                self.last_beat = context.clocks.mono(now);
                (Command::Sleep(POLL_INTERVAL), Some(Report::Joined { state: Arc::new(self.state.clone()) }))
            }
            (Operation::KeepAlive, Stage::Working { .. }) => {
                self.last_beat = context.clocks.mono(now);
                self.start(Operation::CountWaiting, context, now)
            }
            (Operation::CountWaiting, Stage::Working { .. }) if !self.state.closed => {
                match self.state.wait_list.is_empty() {
                    true => (Command::Sleep(POLL_INTERVAL), None),
                    false => self.join(context, now),
                }
            }
            _ => {
                context.stage = Stage::Ended;
                (Command::Nothing, None)
            }
        }
    }
}

impl Behavior for Torch {
    fn join(&mut self, context: &mut Context, now: Duration) -> Step {
        context.stage = Stage::Exiting;
        self.deadline = context.clocks.mono(now).after(self.settings.join_timeout);
        self.start(Operation::Exit, context, now)
    }

    fn leave(&mut self, _context: &mut Context, _now: Duration) -> Option<Step> {
        None
    }

    fn close(&mut self, context: &mut Context, now: Duration) -> Step {
        context.stage = Stage::Closing;
        self.start(Operation::Close, context, now)
    }

    fn handle_reply(&mut self, context: &mut Context, reply: Reply, _random: u64, now: Duration) -> Step {
        let (Reply::Cell(cell) | Reply::Written { cell, .. }) = reply else {
            unreachable!("a torch node only reads and writes")
        };
        let Cell { state, token } = cell;
        (self.state, self.token, self.dirty) =
            (state.map(Arc::unwrap_or_clone).unwrap_or_default(), token, false);
        self.synced_at = Some(context.clocks.mono(now));
        self.sanitize(context.clocks.wall(now));
        self.act(context, now)
    }

    fn handle_no_reply(&mut self, context: &mut Context, now: Duration) -> Step {
        self.sync(context, now)
    }

    fn handle_timer(&mut self, context: &mut Context, _is_woken: bool, now: Duration) -> Step {
        let is_due = context.clocks.mono(now).since(self.last_beat) >= self.settings.keep_alive_interval;
        match (context.stage, is_due) {
            (Stage::Ended, _) => (Command::Nothing, None),
            (Stage::Working { .. }, true) => self.start(Operation::KeepAlive, context, now),
            (Stage::Working { .. }, false) => self.start(Operation::CountWaiting, context, now),
            _ => self.sync(context, now),
        }
    }
}
