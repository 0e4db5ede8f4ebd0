//! One node's attempt to reach one goal, one operation at a time: read the state, decide, write, read again.
//!
//! A driver executes the operations and reports their outcomes; it decides nothing. Every write is a compare-and-set. A
//! failed compare-and-set is not an error: another node wrote first, and the reply contains the state that it wrote. In
//! names, a write has *won* if its compare-and-set succeeded, and is *lost* if it failed.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::apply::apply;
use super::decide::{Change, Decision, Goal, View, WITHDRAW_GRACE, decide};
use super::member::Member;
use super::membership::JoinedRound;
use super::operation::{Cell, End, Fault, Moment, Notice, Operation, Outcome, Phase, Signal};
use super::reason::Reason;
use super::state::{NodeDesc, State};
use super::time::MonoTime;

/// One node's attempt to reach one goal, as a state machine.
#[derive(Debug)]
pub struct Pursuit {
    goal: Goal,
    since: MonoTime,
    deadline: MonoTime,
    /// The state that was read or written last.
    cell: Option<Cell>,
    reason: Reason,
    /// Why the join fails. The node sets this when it decides to withdraw for a reason that ends its join, and the
    /// pursuit ends with it when the withdrawal is written.
    failure: Option<Reason>,
    /// The number of compare-and-sets that failed since the last one that succeeded.
    losses: u32,
    /// A round, and the number of times this node has waited in it for nodes with earlier announcements.
    deferrals: (u64, u32),
    was_spare: bool,
    pending: Pending,
    /// When the pending operation began.
    began: MonoTime,
    /// The phase whose end a signal reported last. If a state that is read later is still in this phase, the signal was
    /// stale, and the node does not wait for it again.
    stale_phase: Option<Phase>,
    notices: VecDeque<Notice>,
}

/// The operation whose outcome is pending, with the context to handle the outcome.
#[derive(Debug)]
enum Pending {
    Read,
    Announce,
    ReadAnnounced,
    Retract(Change, Arc<State>),
    Write(Change),
    Pause(Option<Phase>),
    Host,
}

/// The interval at which a waiting node reads the state. Torch nodes use the same interval.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The base of the backoff after failed compare-and-sets. The backoff doubles with each of them.
const BACKOFF_INTERVAL: Duration = Duration::from_millis(4);
const MAX_BACKOFF_INTERVAL: Duration = Duration::from_millis(1024);
/// The delay per earlier announcement when a node waits for other nodes to write first.
const STAGGER_INTERVAL: Duration = Duration::from_millis(1);
/// The maximum number of earlier announcements that delay a node.
const MAX_STAGGERED: usize = 256;
/// The maximum number of times that a node waits in one round for nodes with earlier announcements.
const MAX_DEFERRALS: u32 = 4;
/// If the failed compare-and-set of a heartbeat took at least this long, the node retries without backoff. A node with
/// such slow writes can write at most 16 times a second anyway.
const SLOW_WRITE_INTERVAL: Duration = Duration::from_millis(60);
/// The shortest pause while waiting, even if something is due earlier.
const MIN_WAIT_INTERVAL: Duration = Duration::from_millis(10);
/// The shortest pause that a signal can end early.
const MIN_SIGNAL_WAIT_INTERVAL: Duration = Duration::from_millis(5);
/// The pause after a failed operation.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

impl Pursuit {
    /// Starts a pursuit of `goal`, and returns it with its first operation. In a pursuit of `Join`, the node first
    /// leaves its last round.
    pub fn start(goal: Goal, member: &mut Member, now: MonoTime) -> (Pursuit, Operation) {
        if goal != Goal::KeepAlive {
            (member.round, member.is_state_lost) = (None, false);
        }
        if matches!(goal, Goal::Join | Goal::Leave) {
            member.joined = None;
        }
        let pursuit = Pursuit {
            goal: if goal == Goal::Join { Goal::Exit } else { goal },
            since: now,
            deadline: now.after(goal.timeout(&member.settings)),
            cell: None,
            reason: Reason::Nothing,
            failure: None,
            losses: 0,
            deferrals: (0, 0),
            was_spare: false,
            pending: Pending::Read,
            began: now,
            stale_phase: None,
            notices: VecDeque::new(),
        };
        (pursuit, Operation::Read)
    }

    /// Returns the current goal. A pursuit of `Join` has the goal `Exit` until the node has left its last round.
    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// Returns the reason for the last decision.
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// Returns the state that was read or written last.
    pub fn state(&self) -> Option<&Arc<State>> {
        self.cell.as_ref()?.state.as_ref()
    }

    /// Returns when the goal must be reached. A spare that is needed gets a new deadline.
    pub fn deadline(&self) -> MonoTime {
        self.deadline
    }

    fn is_spare(&self, me: &NodeDesc) -> bool {
        self.state().is_some_and(|state| state.redundancy_list.contains(me))
    }

    /// Returns the timeout of the next operation. A spare has no deadline, but has to notice an outage of the store.
    ///
    /// Each operation of a heartbeat, a leave or a close has the whole timeout of the goal. If it had only the time
    /// until the deadline, a node with a slow link would abandon a write, and its connection, just before the reply
    /// arrives.
    pub fn call_timeout(&self, member: &Member, now: MonoTime) -> Duration {
        match self.goal.waits() {
            true if self.is_spare(&member.me) => member.call_timeout(now),
            true => (self.deadline.since(now) + WITHDRAW_GRACE).min(member.call_timeout(now)),
            false => self.goal.timeout(&member.settings),
        }
    }

    /// Returns the next notice to log.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Handles the outcome of the operation that was returned last. Returns the next operation.
    pub fn handle(&mut self, member: &mut Member, outcome: Outcome, now: Moment) -> Operation {
        let began = std::mem::replace(&mut self.began, now.mono);
        let pending = std::mem::replace(&mut self.pending, Pending::Read);
        match (&pending, &outcome) {
            (_, Outcome::Failed(fault)) => return self.recover(member, *fault, began, now.mono),
            (Pending::Host, _) if self.is_over(member, now.mono) => return Operation::End(End::Error),
            (Pending::Host, _) => return self.pause(RETRY_INTERVAL, None),
            (Pending::Pause(phase), Outcome::Paused { is_woken }) => {
                self.stale_phase = if *is_woken { *phase } else { self.stale_phase };
                return Operation::Read;
            }
            // Every other outcome is a reply of the store.
            _ => {}
        }
        let took = now.mono.since(began);
        self.notices.extend(member.outage.handle_success(now.mono));
        match (pending, outcome) {
            (Pending::Read, Outcome::Cell(cell)) => {
                member.observe(cell.state.as_ref(), now.mono);
                self.cell = Some(cell);
                self.next(member, None, None, now)
            }
            // Another node may have admitted this one by now.
            (Pending::Announce, Outcome::Done) => Operation::Read,
            (Pending::ReadAnnounced, Outcome::Nodes(nodes)) => {
                self.next(member, Some((&nodes, took)), None, now)
            }
            (Pending::Retract(change, state), Outcome::Done) => self.write(member, change, state),
            (Pending::Write(change), Outcome::Written { won, cell }) => {
                member.observe(cell.state.as_ref(), now.mono);
                let before = self.cell.replace(cell);
                if !won {
                    return self.handle_lost(member, change, took, now);
                }
                member.write_time = took.min(member.settings.keep_alive_interval / 2);
                self.handle_won(member, change, &before.and_then(|cell| cell.state).unwrap_or_default());
                self.next(member, None, None, now)
            }
            (pending, outcome) => unreachable!("{pending:?} ended with {outcome:?}"),
        }
    }

    /// Handles a successful compare-and-set, which replaced the state `before`.
    fn handle_won(&mut self, member: &mut Member, change: Change, before: &State) {
        self.losses = 0;
        if change == Change::Withdraw {
            // The node remembers its announcement until the withdrawal is written: before that, a node that has read
            // the announcement could still admit this node.
            member.announcement = None;
        }
        let after = self.state().cloned().unwrap_or_default();
        if after.complete && !before.complete {
            member.stale_round = after.round.checked_sub(2).or(member.stale_round);
        }
        self.notices.extend(removal_notice(&member.me, before, &after));
    }

    /// Handles a failed compare-and-set. The goal may already be reached in the state that the other node wrote.
    fn handle_lost(&mut self, member: &mut Member, change: Change, took: Duration, now: Moment) -> Operation {
        self.losses += 1;
        let pause = BACKOFF_INTERVAL.saturating_mul(1 << self.losses.min(8)).min(MAX_BACKOFF_INTERVAL);
        let backoff = pause / 4 + pause.mul_f64((now.random % 4096) as f64 / 4096.0 * 0.75);
        // If the compare-and-set of a heartbeat fails, the node retries immediately with the state in the reply. With a
        // backoff, nodes near the store would always write before a node far from it, until that node counts as dead.
        // For a node near the store, every other retry has a backoff.
        let is_urgent = change == Change::KeepAlive && (took >= SLOW_WRITE_INTERVAL || self.losses % 2 == 1);
        self.next(member, None, (!is_urgent).then_some(backoff), now)
    }

    /// Decides what to do next, and returns the operation for it.
    ///
    /// `announced` are the nodes that have announced themselves for the next open round, and the time it took to read
    /// them. The announcements were read after the state. With a `backoff`, the node pauses that long instead of
    /// writing.
    fn next(
        &mut self,
        member: &mut Member,
        announced: Option<(&[NodeDesc], Duration)>,
        backoff: Option<Duration>,
        now: Moment,
    ) -> Operation {
        let raw = self.state().cloned().unwrap_or_default();
        if !raw.has(&member.me)
            && !member.may_be_admitted(&raw)
            && let Some(failure) = self.failure.take()
        {
            return Operation::End(End::Failed(failure));
        }
        let dead = member.dead();
        let state = match dead.is_empty() {
            true => Cow::Borrowed(&*raw),
            false => Cow::Owned(raw.without(&dead, member.settings.min_nodes)),
        };
        // A complete round is used exactly as it was read, so that all nodes get the same group ranks. Nodes may
        // disagree about which nodes are dead.
        let seen = if raw.complete && raw.participants.contains_key(&member.me) { &*raw } else { &*state };
        let view = View {
            member,
            dead: &dead,
            now: now.mono,
            wall: now.wall,
            since: self.since,
            deadline: self.deadline,
            was_spare: self.was_spare,
        };
        let (decision, reason) = decide(self.goal, seen, &view);
        let is_spare = self.goal == Goal::Join && self.is_spare(&member.me);
        if is_spare && !std::mem::replace(&mut self.was_spare, true) {
            self.notices.push_back(Notice::Spare(reason.clone()));
        }
        self.reason = reason.clone();
        let change = match decision {
            Decision::Finish if self.goal == Goal::Exit => {
                self.goal = Goal::Join;
                return self.next(member, None, None, now);
            }
            Decision::Finish => {
                if self.goal == Goal::Join {
                    member.joined = Some(Arc::new(JoinedRound::of(&raw)));
                    (member.round, member.announcement) = (Some(Arc::clone(&raw)), None);
                }
                return Operation::End(End::Reached { state: raw, reason });
            }
            Decision::Fail => return Operation::End(End::Failed(self.failure.take().unwrap_or(reason))),
            Decision::Wait => return self.pause(self.wait(member, now.mono), Phase::of(&raw)),
            Decision::Write(change) => change,
        };
        if let Some(backoff) = backoff {
            return self.pause(backoff, Phase::of(&raw));
        }
        let round = state.next_open_round();
        let mut admitted: &[NodeDesc] = &[];
        if matches!(change, Change::AddToParticipants | Change::MoveToWaitList) {
            let Some((nodes, took)) = announced.filter(|_| member.announcement == Some(round)) else {
                return self.announce(member, round);
            };
            if let Some(delay) = self.stagger_delay(&member.me, &state, nodes, took) {
                return self.pause(delay, Phase::of(&raw));
            }
            admitted = nodes;
        }
        let next = apply(change, &raw, &view, admitted);
        if reason.ends_join() {
            self.failure.get_or_insert(reason);
        }
        // A spare that is needed gets a whole join timeout again.
        if raw.redundancy_list.contains(&member.me) && !next.redundancy_list.contains(&member.me) {
            self.deadline = now.mono.after(member.settings.join_timeout);
        }
        // The announcements of removed and leaving nodes are retracted before the state is written. If they were
        // retracted later, other nodes could admit these nodes again; see `State::count_leaver`.
        let mut withdrawn = dead;
        if change == Change::Withdraw && member.may_be_admitted(&raw) {
            withdrawn.push(member.me.clone());
        }
        if withdrawn.is_empty() {
            return self.write(member, change, Arc::new(next));
        }
        self.pending = Pending::Retract(change, Arc::new(next));
        Operation::Retract { round: round.max(member.announcement.unwrap_or_default()), nodes: withdrawn }
    }

    /// Returns the operation that announces this node for a round, or the one that reads the announcements if the node
    /// has announced itself before. The node that writes next admits all announced nodes.
    fn announce(&mut self, member: &mut Member, round: u64) -> Operation {
        if member.announcement.replace(round) == Some(round) {
            self.pending = Pending::ReadAnnounced;
            return Operation::ReadAnnounced { round };
        }
        self.pending = Pending::Announce;
        Operation::Announce { round }
    }

    /// Returns how long this node waits for nodes with earlier announcements. Returns `None` if no such node still has
    /// to be admitted or moved, or if this node has already waited `MAX_DEFERRALS` times in this round.
    ///
    /// The node with the first announcement admits all announced nodes, or moves them to the wait list. So when many
    /// nodes join or rejoin together, few of them have to write. A node that writes needs three calls: it reads the
    /// state, reads the announcements, and writes. `took` is how long this node took to read the announcements.
    fn stagger_delay(
        &mut self,
        me: &NodeDesc,
        state: &State,
        announced: &[NodeDesc],
        took: Duration,
    ) -> Option<Duration> {
        let index = announced.iter().position(|node| node == me)?;
        let must_write = |node: &&NodeDesc| state.participants.contains_key(*node) == state.complete;
        // The list is searched from its end, because the nodes with the earliest announcements are usually admitted
        // already.
        let ahead = announced[..index].iter().rev().filter(must_write).take(MAX_STAGGERED).count() as u32;
        let deferrals = if self.deferrals.0 == state.round { self.deferrals.1 } else { 0 };
        if ahead == 0 || deferrals == MAX_DEFERRALS {
            return None;
        }
        self.deferrals = (state.round, deferrals + 1);
        Some((3 * took).clamp(BACKOFF_INTERVAL, MAX_BACKOFF_INTERVAL / 4) + STAGGER_INTERVAL * ahead)
    }

    fn write(&mut self, member: &Member, change: Change, state: Arc<State>) -> Operation {
        let cell = self.cell.as_ref().expect("a state was read before anything is written");
        let before = cell.state.clone().unwrap_or_default();
        self.pending = Pending::Write(change);
        let signals = signals(&member.me, &before, &state);
        Operation::Write { token: cell.token.clone(), state, signals }
    }

    fn pause(&mut self, timeout: Duration, phase: Option<Phase>) -> Operation {
        self.pending = Pending::Pause(phase);
        // If the goal does not wait for other nodes, the pause is a backoff or precedes a retry. A signal does not end
        // such a pause.
        let is_waiting = self.goal.waits() && timeout >= MIN_SIGNAL_WAIT_INTERVAL;
        Operation::Pause { timeout, wake: phase.filter(|_| is_waiting && self.stale_phase != phase) }
    }

    /// Returns how long to wait: until the next poll, heartbeat, end of the last call or deadline, whichever is first.
    fn wait(&self, member: &Member, now: MonoTime) -> Duration {
        let last_call = if let Reason::LastCall { left, .. } = self.reason { left } else { POLL_INTERVAL };
        // A spare waits beyond its deadline. Any other node waits until 1 ms after its deadline, because its join times
        // out only *after* the deadline.
        let until_deadline = match now > self.deadline {
            true => POLL_INTERVAL,
            false => self.deadline.since(now) + Duration::from_millis(1),
        };
        POLL_INTERVAL.min(last_call).min(until_deadline).min(member.until_heartbeat()).max(MIN_WAIT_INTERVAL)
    }

    /// Handles a failed operation. The store may or may not have carried it out; the next read shows whether it did.
    fn recover(&mut self, member: &mut Member, fault: Fault, began: MonoTime, now: MonoTime) -> Operation {
        let is_over = self.is_over(member, now);
        // A keep-alive pursuit ends after one call that timed out. If the host of the store is lost, the pursuit first
        // takes over the store, because a node in a round has no other pursuit that could.
        if is_over && self.goal != Goal::KeepAlive {
            return Operation::End(End::Error);
        }
        match member.outage.handle_failure(fault, began, now, &member.settings) {
            Ok(warning) => self.notices.extend(warning),
            Err(lasted) => return Operation::End(End::Outage(lasted)),
        }
        if member.outage.is_host_lost(now) {
            self.pending = Pending::Host;
            return Operation::Host;
        }
        if is_over { Operation::End(End::Error) } else { self.pause(RETRY_INTERVAL, None) }
    }

    /// Returns whether a failure ends the pursuit, because no time is left for another attempt.
    fn is_over(&self, member: &Member, now: MonoTime) -> bool {
        let grace = if self.goal.waits() { WITHDRAW_GRACE } else { Duration::ZERO };
        now >= self.deadline.after(grace) && !self.is_spare(&member.me)
    }
}

/// Returns the signals to send after a write by `me`. They wake the nodes that wait for what the write changed.
fn signals(me: &NodeDesc, before: &State, after: &State) -> Vec<Signal> {
    let (was, is) = (Phase::of(before), Phase::of(after));
    let mut signals = Vec::new();
    if let Some(phase) = was.filter(|_| was != is) {
        signals.push(Signal::PhaseOver(phase));
        if is.is_none() {
            signals.push(Signal::NextRoundWanted { round: phase.round });
        }
    }
    let is_new_waiter = after.wait_list.contains(me) && !before.wait_list.contains(me);
    // After a node of the round is lost, the remaining nodes have to rejoin.
    let has_lost = || was == is && before.participants.keys().any(|node| node != me && !after.has(node));
    if after.complete && (is_new_waiter || has_lost()) {
        signals.push(Signal::NextRoundWanted { round: after.round });
    }
    signals
}

/// Returns a notice that names the dead nodes that a write by `me` removed, or `None` if it removed no node.
fn removal_notice(me: &NodeDesc, before: &State, after: &State) -> Option<Notice> {
    let is_removed = |node: &&NodeDesc| *node != me && !after.has(node);
    let nodes: Vec<_> = before.last_heartbeats.keys().filter(is_removed).cloned().collect();
    let round = before.complete.then_some(before.round);
    (!nodes.is_empty()).then_some(Notice::Removed { nodes, round })
}

#[cfg(test)]
mod tests;
