//! The invariants that each write and each return from a round must keep, by number. They look at the register and at
//! what nodes report, never into a node's head.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rallypoint_core::rendezvous::{NodeDesc, Settings, State, WallTime};

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its number: `R1` …
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
    /// When, in virtual time.
    pub at: Duration,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {}", self.rule, self.at.as_secs_f64(), self.what)
    }
}

/// Fails with what did not hold.
macro_rules! hold {
    ($at:expr, $rule:literal, $holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(Violation { rule: $rule, what: format!($($what)*), at: $at });
        }
    };
}
pub(crate) use hold;

/// Who wrote.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer<'a> {
    pub(crate) node: &'a NodeDesc,
    pub(crate) is_torch: bool,
}

/// The nodes of a round, with their ranks.
type Members = BTreeMap<NodeDesc, i64>;

/// What has been seen of one rendezvous so far.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) settings: Settings,
    /// With whom each round was completed, and whether one of ours has written down with how many.
    completed: BTreeMap<u64, (Members, bool)>,
    closed: bool,
    /// The rounds that were completed before the store lost them, and the last of them may come back as it was.
    lost: Vec<(u64, Members)>,
    /// No round was complete since then.
    pub(crate) is_lost: bool,
    /// When each node's heartbeat last changed in the register.
    pub(crate) changed: BTreeMap<NodeDesc, Duration>,
    /// Since when each node has been on the wait list.
    pub(crate) waiting: BTreeMap<NodeDesc, Duration>,
    /// Since when somebody has been on it.
    pub(crate) waiting_since: Option<Duration>,
    /// Since when nodes of the complete round are no longer in it.
    pub(crate) losing_since: Option<Duration>,
    /// When a round was last completed.
    pub(crate) last_round: Option<Duration>,
    /// Who has announced itself for which round.
    pub(crate) asked: BTreeMap<u64, BTreeSet<NodeDesc>>,
}

impl Checks {
    pub(crate) fn new(settings: Settings) -> Checks {
        Checks {
            settings,
            completed: BTreeMap::new(),
            closed: false,
            lost: Vec::new(),
            is_lost: false,
            changed: BTreeMap::new(),
            waiting: BTreeMap::new(),
            waiting_since: None,
            losing_since: None,
            last_round: None,
            asked: BTreeMap::new(),
        }
    }

    /// The store has lost the state.
    pub(crate) fn lose_state(&mut self) {
        (self.closed, self.is_lost) = (false, true);
        let completed = self.completed.iter().map(|(round, (members, _))| (*round, members.clone()));
        self.lost.extend(completed);
        (self.waiting_since, self.waiting, self.losing_since) = (None, BTreeMap::new(), None);
    }

    /// Whether a write brings back a complete round that the store had lost: with the ranks it had, new heartbeats, and all
    /// nodes that have come since on the wait list. Returns with whom the round was completed.
    pub(crate) fn restored(&self, before: &State, after: &State, writer: &NodeDesc) -> Option<&Members> {
        let newest = before.last_heartbeats.values().max();
        let are_new = after.last_heartbeats.values().all(|heartbeat| newest < Some(heartbeat));
        let was =
            |members: &Members| after.participants.iter().all(|(node, rank)| members.get(node) == Some(rank));
        let is_candidate = !before.has(writer) && !before.complete && after.complete && are_new;
        let found = self.lost.iter().rev().find(|(round, members)| *round == after.round && was(members));
        found.map(|(_, members)| members).filter(|_| is_candidate)
    }

    /// How long a node may be silent, reckoned here: the core's own reckoning is what is checked.
    pub(crate) fn silence(&self) -> Duration {
        self.settings.keep_alive_interval * self.settings.keep_alive_max_attempt
    }

    /// After a write.
    pub(crate) fn written(
        &mut self,
        before: &State,
        after: &State,
        writer: Writer<'_>,
        at: Duration,
    ) -> Result<(), Violation> {
        self.check_lists(after, at)?;
        if let Some(members) = self.restored(before, after, writer.node).cloned() {
            let kept = before.last_heartbeats.keys().all(|node| after.has(node));
            hold!(at, "R8", kept, "{} restored a round and dropped a node", writer.node);
            self.completed.insert(after.round, (members, true));
            (self.is_lost, self.last_round) = (false, Some(at));
            self.note(before, after, at);
            return Ok(());
        }
        self.check_round(before, after, at)?;
        if !writer.is_torch {
            self.check_silent(before, after, writer.node, at)?;
            self.check_transition(before, after, writer.node, at)?;
        }
        if let Some((members, known)) = self.completed.get_mut(&after.round) {
            // A node that writes while the highest rank is there can tell how large the round is. While that one waits for
            // the next round, the writer can tell that the round was larger than it is now.
            let is_here = |last| before.participants.contains_key(last) || before.wait_list.contains(last);
            *known |= !writer.is_torch && members.keys().next_back().is_some_and(is_here);
        }
        self.note(before, after, at);
        Ok(())
    }

    /// What every state must be like.
    fn check_lists(&mut self, after: &State, at: Duration) -> Result<(), Violation> {
        let Settings { min_nodes: min, max_nodes: max, .. } = self.settings;
        let have = after.participants.len() as u64;
        hold!(at, "R3", !after.complete || have <= max, "a complete round of {have} nodes, at most {max}");
        hold!(at, "R11", after.complete || have < max, "an open round of {have} nodes, at most {max}");
        let listed = have as usize + after.wait_list.len() + after.redundancy_list.len();
        hold!(
            at,
            "R5",
            listed == after.last_heartbeats.len(),
            "a node in two lists or none, or no heartbeat: {after:?}"
        );
        for node in after.last_heartbeats.keys() {
            let lists = usize::from(after.participants.contains_key(node))
                + usize::from(after.wait_list.contains(node))
                + usize::from(after.redundancy_list.contains(node));
            hold!(at, "R5", lists == 1, "{node} is in {lists} lists");
        }
        let called = after.deadline.is_some();
        hold!(
            at,
            "R6",
            called == (!after.complete && have >= min),
            "a last call: {called}, complete: {}, {have} nodes of at least {min}",
            after.complete
        );
        hold!(at, "R7", !self.closed || after.closed, "closed was unset");
        self.closed |= after.closed;
        Ok(())
    }

    /// What becomes of rounds.
    fn check_round(&self, before: &State, after: &State, at: Duration) -> Result<(), Violation> {
        let have = after.participants.len() as u64;
        let (was, is) = (before.round, after.round);
        hold!(at, "R4", is == was || is == was + 1 && before.complete, "round {is} after {was}");
        if before.complete && is == was {
            hold!(at, "R4", after.complete, "round {is} was opened again");
            for (node, rank) in &after.participants {
                let held = before.participants.get(node);
                hold!(
                    at,
                    "R4",
                    held == Some(rank),
                    "{node} has rank {rank} in complete round {is}, it had {held:?}"
                );
            }
        }
        if after.complete && (!before.complete || is > was) {
            let min = self.settings.min_nodes;
            hold!(at, "R3", have >= min, "round {is} completed with {have} nodes, at least {min}");
            let ranks: Vec<_> = after.participants.values().copied().collect();
            hold!(at, "R2", ranks.iter().copied().eq(0..have as i64), "ranks {ranks:?}");
        }
        Ok(())
    }

    /// R10, and R9 whatever the clocks and messages did: nobody is put out by ours whose heartbeat has changed within
    /// the time a node has, by a clock that is off by one per cent.
    fn check_silent(
        &self,
        before: &State,
        after: &State,
        writer: &NodeDesc,
        at: Duration,
    ) -> Result<(), Violation> {
        let limit = self.silence().mul_f64(1.0 / 1.011);
        for gone in before.last_heartbeats.keys().filter(|node| *node != writer && !after.has(node)) {
            let silent = at - self.changed.get(gone).copied().unwrap_or(at);
            hold!(
                at,
                "R10",
                silent >= limit,
                "{writer} put out {gone}, which was silent for {silent:?} only"
            );
        }
        Ok(())
    }

    /// Takes note of what the next checks need to know.
    fn note(&mut self, before: &State, after: &State, at: Duration) {
        let fresh = |(node, heartbeat): &(&NodeDesc, &WallTime)| {
            before.last_heartbeats.get(*node) != Some(*heartbeat)
        };
        for (node, _) in after.last_heartbeats.iter().filter(fresh) {
            match self.changed.get_mut(node) {
                Some(changed) => *changed = at,
                None => drop(self.changed.insert(node.clone(), at)),
            }
        }
        if after.wait_list != before.wait_list {
            self.waiting.retain(|node, _| after.wait_list.contains(node));
            for node in &after.wait_list {
                self.waiting.entry(node.clone()).or_insert(at);
            }
        }
        self.waiting_since = (!after.wait_list.is_empty()).then(|| self.waiting_since.unwrap_or(at));
        let completed = self.completed.get(&after.round).filter(|_| after.complete && before.complete);
        let is_losing = completed.is_some_and(|(members, _)| members.len() > after.participants.len());
        self.losing_since = is_losing.then(|| self.losing_since.unwrap_or(at));
    }

    /// Takes note of a round that was completed.
    pub(crate) fn completed(&mut self, after: &State, writer: Writer<'_>, at: Duration) {
        self.last_round = Some(at);
        self.is_lost = false;
        self.completed.insert(after.round, (after.participants.clone(), !writer.is_torch));
        self.asked.retain(|round, _| *round > after.round);
    }

    /// A node returned from a round; `alert` if it was not paused just before.
    pub(crate) fn joined(
        &mut self,
        node: &NodeDesc,
        is_torch: bool,
        alert: bool,
        state: &State,
        now: &State,
        at: Duration,
    ) -> Result<(), Violation> {
        let (round, world) = (state.round, state.participants.len() as u64);
        let rank = state.participants.get(node).copied();
        hold!(at, "R7", !state.closed, "{node} joined a closed rendezvous");
        let Some((completed, known)) = self.completed.get(&round) else {
            return Err(Violation {
                rule: "R1",
                what: format!("{node} returned from round {round} that is open"),
                at,
            });
        };
        hold!(
            at,
            "R1",
            rank == completed.get(node).copied(),
            "{node} returned with {rank:?} of {completed:?}"
        );
        // Of a round that a torch node completed and in which none of ours has written yet, only the ranks tell how large
        // it was, and that it had at least the least; whether the last has left since can't be known.
        let last_left =
            || completed.keys().next_back().is_none_or(|last| !state.participants.contains_key(last));
        let enough = world >= self.settings.min_nodes;
        if !(is_torch || !*known && enough && last_left()) {
            hold!(
                at,
                "R1",
                *completed == state.participants,
                "round {round} was completed with {completed:?}, {node} returned with {:?}",
                state.participants
            );
            let in_range = rank.is_some_and(|rank| (0..world as i64).contains(&rank));
            hold!(at, "R2", in_range, "{node} has rank {rank:?} of {world}");
        }
        if is_torch && alert {
            // Torch counts only those that it takes for alive. Whoever has shown himself lately it must have counted.
            for missing in completed.keys().filter(|member| !state.participants.contains_key(*member)) {
                let silent = at - self.changed.get(missing).copied().unwrap_or_default();
                let gone = round != now.round || !now.participants.contains_key(missing);
                hold!(
                    at,
                    "R1",
                    gone || silent > Duration::from_secs(5),
                    "{node}, a torch node, returned from round {round} without {missing}, silent for {silent:?}"
                );
            }
        }
        Ok(())
    }
}
