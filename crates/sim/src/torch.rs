//! A node that does as torch's do: it looks once a second, takes others for dead by its wall clock, forgets what it
//! wanted when a compare-and-set is lost, and knows of no announcements and no wake-ups. Written from what torch's nodes
//! were seen to do, to be in one round with ours; it is not how anything should be done.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rallypoint_core::rendezvous::{
    Cell, Extra, MonoTime, NodeDesc, Settings, State, WITHDRAW_GRACE, WallTime, keys,
};

use crate::network::{Name, Reply, Request};
use crate::node::{Behavior, Life, Next, Report, Stage, Want};

/// Torch's cache of the state; its pauses are a little longer, as they are in truth.
const CACHE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1_001);

/// A behavior like torch's.
#[derive(Debug)]
pub(crate) struct Torch {
    me: NodeDesc,
    settings: Settings,
    key: Name,
    state: State,
    token: Bytes,
    dirty: bool,
    synced: Option<MonoTime>,
    operation: Operation,
    deadline: MonoTime,
    /// When it last saw to its heartbeat.
    beat: MonoTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Exit,
    Join,
    KeepAlive,
    Close,
    /// `num_nodes_waiting`.
    Look,
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
            synced: None,
            operation: Operation::Look,
            deadline: MonoTime::default(),
            beat: MonoTime::default(),
        }
    }

    fn start(&mut self, operation: Operation, life: &mut Life, now: Duration) -> Next {
        self.operation = operation;
        self.sync(life, now)
    }

    fn sync(&mut self, life: &mut Life, now: Duration) -> Next {
        let mono = life.clocks.mono(now);
        if self.dirty {
            let (key, token, state) = (self.key.clone(), self.token.clone(), Arc::new(self.state.clone()));
            return (Want::Send(Request::Write { key, token, state }), None);
        }
        match self.synced.is_some_and(|synced| mono.since(synced) <= CACHE) {
            true => self.act(life, now),
            false => (Want::Send(Request::Read { key: self.key.clone() }), None),
        }
    }

    fn sanitise(&mut self, wall: WallTime) {
        let limit = self.settings.keep_alive_limit();
        let old = |(_, heartbeat): &(&NodeDesc, &WallTime)| {
            heartbeat.checked_add(limit).is_some_and(|end| end < wall)
        };
        let dead: Vec<_> =
            self.state.last_heartbeats.iter().filter(old).map(|(node, _)| node.clone()).collect();
        if !dead.is_empty() {
            let before = self.state.participants.len();
            dead.iter().for_each(|node| self.forget(node));
            if self.state.participants.len() < before {
                self.epilogue();
            }
        }
    }

    fn forget(&mut self, node: &NodeDesc) {
        self.state.participants.remove(node);
        self.state.wait_list.remove(node);
        self.state.redundancy_list.remove(node);
        self.state.last_heartbeats.remove(node);
    }

    fn epilogue(&mut self) {
        if self.state.complete && self.state.participants.is_empty() {
            self.state.complete = false;
            self.state.round += 1;
        }
        if !self.state.complete && (self.state.participants.len() as u64) < self.settings.min_nodes {
            self.state.deadline = None;
        }
    }

    fn decide(&self, mono: MonoTime, wall: WallTime) -> Action {
        let late = mono > self.deadline;
        let due = self.state.last_heartbeats.get(&self.me).is_some_and(|heartbeat| {
            heartbeat.checked_add(self.settings.keep_alive_interval).is_some_and(|due| due <= wall)
        });
        let here = self.state.participants.contains_key(&self.me);
        match self.operation {
            Operation::Exit if !here => Action::Finish,
            Operation::Exit if late => Action::Timeout,
            Operation::Exit => Action::RemoveFromParticipants,
            Operation::KeepAlive if !due => Action::Finish,
            Operation::KeepAlive => Action::KeepAlive,
            Operation::Close if self.state.closed => Action::Finish,
            Operation::Close => Action::MarkClosed,
            Operation::Look => Action::Finish,
            Operation::Join => self.decide_to_join(mono, wall, late, due, here),
        }
    }

    /// Row by row as torch has them.
    fn decide_to_join(&self, mono: MonoTime, wall: WallTime, late: bool, due: bool, here: bool) -> Action {
        let (state, have) = (&self.state, self.state.participants.len() as u64);
        let Settings { min_nodes, max_nodes, .. } = self.settings;
        let spare = state.redundancy_list.contains(&self.me);
        let waiting = state.wait_list.contains(&self.me);
        let may_undo = mono.since(self.deadline) <= WITHDRAW_GRACE;
        let stay = if due { Action::KeepAlive } else { Action::Sync };
        if state.closed {
            Action::Closed
        } else if spare {
            if have == max_nodes { stay } else { Action::RemoveFromRedundancyList }
        } else if state.complete && here {
            Action::Finish
        } else if late && may_undo && here {
            Action::RemoveFromParticipants
        } else if late && may_undo && waiting {
            Action::RemoveFromWaitList
        } else if late {
            Action::Timeout
        } else if state.complete && have < max_nodes && !waiting {
            Action::AddToWaitList
        } else if state.complete && have >= max_nodes && !waiting {
            Action::AddToRedundancyList
        } else if !state.complete && here {
            let over = state.deadline.is_some_and(|deadline| deadline < wall);
            if have >= min_nodes && have <= max_nodes && over { Action::MarkComplete } else { stay }
        } else if !state.complete {
            Action::AddToParticipants
        } else {
            stay
        }
    }

    fn act(&mut self, life: &mut Life, now: Duration) -> Next {
        let (mono, wall) = (life.clocks.mono(now), life.clocks.wall(now));
        let me = self.me.clone();
        let action = self.decide(mono, wall);
        match action {
            Action::Finish => return self.finished(life, now),
            Action::Closed => {
                life.stage = Stage::Gone;
                return (Want::Nothing, None);
            }
            Action::Timeout => {
                life.stage = Stage::Gone;
                return (Want::Nothing, Some(Report::TimedOut { cleanly: false }));
            }
            Action::Sync => return (Want::Sleep(PAUSE), None),
            Action::KeepAlive => {}
            Action::AddToParticipants => {
                self.state.wait_list.remove(&me);
                self.state.participants.insert(me.clone(), 0);
                // What a later torch might keep there; ours must carry it along.
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
                self.forget(&me);
                self.epilogue();
            }
            Action::RemoveFromWaitList => self.forget(&me),
            Action::RemoveFromRedundancyList => {
                self.forget(&me);
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
        self.sync(life, now)
    }

    fn complete(&mut self) {
        self.state.complete = true;
        self.state.deadline = None;
        for (rank, (_, held)) in (0..).zip(self.state.participants.iter_mut()) {
            *held = rank;
        }
    }

    fn finished(&mut self, life: &mut Life, now: Duration) -> Next {
        match (self.operation, life.stage) {
            (Operation::Exit, _) => {
                life.stage = Stage::Joining;
                self.start(Operation::Join, life, now)
            }
            (Operation::Join, _) => {
                life.stage = Stage::Working { round: self.state.round };
                self.beat = life.clocks.mono(now);
                (Want::Sleep(PAUSE), Some(Report::Joined { state: Arc::new(self.state.clone()) }))
            }
            (Operation::KeepAlive, Stage::Working { .. }) => {
                self.beat = life.clocks.mono(now);
                self.start(Operation::Look, life, now)
            }
            (Operation::Look, Stage::Working { .. }) if !self.state.closed => {
                match self.state.wait_list.is_empty() {
                    true => (Want::Sleep(PAUSE), None),
                    false => self.join(life, now),
                }
            }
            _ => {
                life.stage = Stage::Gone;
                (Want::Nothing, None)
            }
        }
    }
}

impl Behavior for Torch {
    fn join(&mut self, life: &mut Life, now: Duration) -> Next {
        life.stage = Stage::Exiting;
        self.deadline = life.clocks.mono(now).after(self.settings.join_timeout);
        self.start(Operation::Exit, life, now)
    }

    fn leave(&mut self, _life: &mut Life, _now: Duration) -> Option<Next> {
        None
    }

    fn close(&mut self, life: &mut Life, now: Duration) -> Next {
        life.stage = Stage::Closing;
        self.start(Operation::Close, life, now)
    }

    fn handle_reply(&mut self, life: &mut Life, reply: Reply, _random: u64, now: Duration) -> Next {
        let (Reply::Cell(cell) | Reply::Written { cell, .. }) = reply else {
            unreachable!("it asks for nothing else")
        };
        let Cell { state, token } = cell;
        (self.state, self.token, self.dirty) =
            (state.map(Arc::unwrap_or_clone).unwrap_or_default(), token, false);
        self.synced = Some(life.clocks.mono(now));
        self.sanitise(life.clocks.wall(now));
        self.act(life, now)
    }

    fn handle_no_reply(&mut self, life: &mut Life, now: Duration) -> Next {
        self.sync(life, now)
    }

    fn handle_timer(&mut self, life: &mut Life, _is_woken: bool, now: Duration) -> Next {
        let due = life.clocks.mono(now).since(self.beat) >= self.settings.keep_alive_interval;
        match (life.stage, due) {
            (Stage::Gone, _) => (Want::Nothing, None),
            (Stage::Working { .. }, true) => self.start(Operation::KeepAlive, life, now),
            (Stage::Working { .. }, false) => self.start(Operation::Look, life, now),
            _ => self.sync(life, now),
        }
    }
}
