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
macro_rules! require {
    ($at:expr, $rule:literal, $condition:expr, $($what:tt)*) => {
        if !$condition {
            return Err(Violation { rule: $rule, what: format!($($what)*), at: $at });
        }
    };
}
pub(crate) use require;

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
    lost_rounds: Vec<(u64, Members)>,
    /// No round was complete since then.
    pub(crate) is_state_lost: bool,
    /// When each node's heartbeat last changed in the register.
    pub(crate) heartbeat_changed_at: BTreeMap<NodeDesc, Duration>,
    /// Since when each node has been on the wait list.
    pub(crate) wait_started_at: BTreeMap<NodeDesc, Duration>,
    /// Since when somebody has been on it.
    pub(crate) waiting_since: Option<Duration>,
    /// Since when nodes of the complete round are no longer in it.
    pub(crate) losing_since: Option<Duration>,
    /// When a round was last completed.
    pub(crate) last_round_at: Option<Duration>,
    /// Who has announced itself for which round.
    pub(crate) announced: BTreeMap<u64, BTreeSet<NodeDesc>>,
}

impl Checks {
    pub(crate) fn new(settings: Settings) -> Checks {
        Checks {
            settings,
            completed: BTreeMap::new(),
            closed: false,
            lost_rounds: Vec::new(),
            is_state_lost: false,
            heartbeat_changed_at: BTreeMap::new(),
            wait_started_at: BTreeMap::new(),
            waiting_since: None,
            losing_since: None,
            last_round_at: None,
            announced: BTreeMap::new(),
        }
    }

    /// The store has lost the state.
    pub(crate) fn lose_state(&mut self) {
        (self.closed, self.is_state_lost) = (false, true);
        let completed = self.completed.iter().map(|(round, (members, _))| (*round, members.clone()));
        self.lost_rounds.extend(completed);
        (self.waiting_since, self.wait_started_at, self.losing_since) = (None, BTreeMap::new(), None);
    }

    /// Whether a write brings back a complete round that the store had lost: with the ranks it had, new heartbeats, and all
    /// nodes that have come since on the wait list. Returns with whom the round was completed.
    pub(crate) fn restored(&self, before: &State, after: &State, writer: &NodeDesc) -> Option<&Members> {
        let newest = before.last_heartbeats.values().max();
        let are_new = after.last_heartbeats.values().all(|heartbeat| newest < Some(heartbeat));
        let has_ranks =
            |members: &Members| after.participants.iter().all(|(node, rank)| members.get(node) == Some(rank));
        let is_candidate = !before.has(writer) && !before.complete && after.complete && are_new;
        let found = self
            .lost_rounds
            .iter()
            .rev()
            .find(|(round, members)| *round == after.round && has_ranks(members));
        found.map(|(_, members)| members).filter(|_| is_candidate)
    }

    /// How long a node may be silent, reckoned here: the core's own reckoning is what is checked.
    pub(crate) fn dead_after(&self) -> Duration {
        self.settings.keep_alive_interval * self.settings.keep_alive_max_attempt
    }

    /// After a write.
    pub(crate) fn check_write(
        &mut self,
        before: &State,
        after: &State,
        writer: Writer<'_>,
        at: Duration,
    ) -> Result<(), Violation> {
        self.check_lists(after, at)?;
        if let Some(members) = self.restored(before, after, writer.node).cloned() {
            let keeps_all = before.last_heartbeats.keys().all(|node| after.has(node));
            require!(at, "R8", keeps_all, "{} restored a round and dropped a node", writer.node);
            self.completed.insert(after.round, (members, true));
            (self.is_state_lost, self.last_round_at) = (false, Some(at));
            self.record(before, after, at);
            return Ok(());
        }
        self.check_round(before, after, at)?;
        if !writer.is_torch {
            self.check_removals(before, after, writer.node, at)?;
            self.check_transition(before, after, writer.node, at)?;
        }
        if let Some((members, is_size_known)) = self.completed.get_mut(&after.round) {
            // A node that writes while the highest rank is there can tell how large the round is. While that one waits for
            // the next round, the writer can tell that the round was larger than it is now.
            let is_listed = |last| before.participants.contains_key(last) || before.wait_list.contains(last);
            *is_size_known |= !writer.is_torch && members.keys().next_back().is_some_and(is_listed);
        }
        self.record(before, after, at);
        Ok(())
    }

    /// What every state must be like.
    fn check_lists(&mut self, after: &State, at: Duration) -> Result<(), Violation> {
        let Settings { min_nodes: min, max_nodes: max, .. } = self.settings;
        let have = after.participants.len() as u64;
        require!(at, "R3", !after.complete || have <= max, "a complete round of {have} nodes, at most {max}");
        require!(at, "R11", after.complete || have < max, "an open round of {have} nodes, at most {max}");
        let listed = have as usize + after.wait_list.len() + after.redundancy_list.len();
        require!(
            at,
            "R5",
            listed == after.last_heartbeats.len(),
            "a node in two lists or none, or no heartbeat: {after:?}"
        );
        for node in after.last_heartbeats.keys() {
            let lists = usize::from(after.participants.contains_key(node))
                + usize::from(after.wait_list.contains(node))
                + usize::from(after.redundancy_list.contains(node));
            require!(at, "R5", lists == 1, "{node} is in {lists} lists");
        }
        let has_last_call = after.deadline.is_some();
        require!(
            at,
            "R6",
            has_last_call == (!after.complete && have >= min),
            "a last call: {has_last_call}, complete: {}, {have} nodes of at least {min}",
            after.complete
        );
        require!(at, "R7", !self.closed || after.closed, "closed was unset");
        self.closed |= after.closed;
        Ok(())
    }

    /// What becomes of rounds.
    fn check_round(&self, before: &State, after: &State, at: Duration) -> Result<(), Violation> {
        let have = after.participants.len() as u64;
        let (old, new) = (before.round, after.round);
        require!(at, "R4", new == old || new == old + 1 && before.complete, "round {new} after {old}");
        if before.complete && new == old {
            require!(at, "R4", after.complete, "round {new} was opened again");
            for (node, rank) in &after.participants {
                let old_rank = before.participants.get(node);
                require!(
                    at,
                    "R4",
                    old_rank == Some(rank),
                    "{node} has rank {rank} in complete round {new}, it had {old_rank:?}"
                );
            }
        }
        if after.complete && (!before.complete || new > old) {
            let min = self.settings.min_nodes;
            require!(at, "R3", have >= min, "round {new} completed with {have} nodes, at least {min}");
            let ranks: Vec<_> = after.participants.values().copied().collect();
            require!(at, "R2", ranks.iter().copied().eq(0..have as i64), "ranks {ranks:?}");
        }
        Ok(())
    }

    /// R10, and R9 whatever the clocks and messages did: nobody is put out by ours whose heartbeat has changed within
    /// the time a node has, by a clock that is off by one per cent.
    fn check_removals(
        &self,
        before: &State,
        after: &State,
        writer: &NodeDesc,
        at: Duration,
    ) -> Result<(), Violation> {
        let limit = self.dead_after().mul_f64(1.0 / 1.011);
        for removed in before.last_heartbeats.keys().filter(|node| *node != writer && !after.has(node)) {
            let age = at - self.heartbeat_changed_at.get(removed).copied().unwrap_or(at);
            require!(
                at,
                "R10",
                age >= limit,
                "{writer} put out {removed}, which was silent for {age:?} only"
            );
        }
        Ok(())
    }

    /// Takes note of what the next checks need to know.
    fn record(&mut self, before: &State, after: &State, at: Duration) {
        let is_new = |(node, heartbeat): &(&NodeDesc, &WallTime)| {
            before.last_heartbeats.get(*node) != Some(*heartbeat)
        };
        for (node, _) in after.last_heartbeats.iter().filter(is_new) {
            match self.heartbeat_changed_at.get_mut(node) {
                Some(changed) => *changed = at,
                None => drop(self.heartbeat_changed_at.insert(node.clone(), at)),
            }
        }
        if after.wait_list != before.wait_list {
            self.wait_started_at.retain(|node, _| after.wait_list.contains(node));
            for node in &after.wait_list {
                self.wait_started_at.entry(node.clone()).or_insert(at);
            }
        }
        self.waiting_since = (!after.wait_list.is_empty()).then(|| self.waiting_since.unwrap_or(at));
        let completed = self.completed.get(&after.round).filter(|_| after.complete && before.complete);
        let is_losing = completed.is_some_and(|(members, _)| members.len() > after.participants.len());
        self.losing_since = is_losing.then(|| self.losing_since.unwrap_or(at));
    }

    /// Takes note of a round that was completed.
    pub(crate) fn record_completed(&mut self, after: &State, writer: Writer<'_>, at: Duration) {
        self.last_round_at = Some(at);
        self.is_state_lost = false;
        self.completed.insert(after.round, (after.participants.clone(), !writer.is_torch));
        self.announced.retain(|round, _| *round > after.round);
    }

    /// A node returned from a round; `was_awake` if it was not paused just before.
    pub(crate) fn check_joined(
        &mut self,
        node: &NodeDesc,
        is_torch: bool,
        was_awake: bool,
        state: &State,
        now: &State,
        at: Duration,
    ) -> Result<(), Violation> {
        let (round, world) = (state.round, state.participants.len() as u64);
        let rank = state.participants.get(node).copied();
        require!(at, "R7", !state.closed, "{node} joined a closed rendezvous");
        let Some((completed, is_size_known)) = self.completed.get(&round) else {
            return Err(Violation {
                rule: "R1",
                what: format!("{node} returned from round {round} that is open"),
                at,
            });
        };
        require!(
            at,
            "R1",
            rank == completed.get(node).copied(),
            "{node} returned with {rank:?} of {completed:?}"
        );
        // Of a round that a torch node completed and in which none of ours has written yet, only the ranks tell how large
        // it was, and that it had at least the least; whether the last has left since can't be known.
        let has_last_left =
            || completed.keys().next_back().is_none_or(|last| !state.participants.contains_key(last));
        let enough = world >= self.settings.min_nodes;
        if !(is_torch || !*is_size_known && enough && has_last_left()) {
            require!(
                at,
                "R1",
                *completed == state.participants,
                "round {round} was completed with {completed:?}, {node} returned with {:?}",
                state.participants
            );
            let in_range = rank.is_some_and(|rank| (0..world as i64).contains(&rank));
            require!(at, "R2", in_range, "{node} has rank {rank:?} of {world}");
        }
        if is_torch && was_awake {
            // Torch counts only those that it takes for alive. Whoever has shown himself lately it must have counted.
            for missing in completed.keys().filter(|member| !state.participants.contains_key(*member)) {
                let age = at - self.heartbeat_changed_at.get(missing).copied().unwrap_or_default();
                let has_left = round != now.round || !now.participants.contains_key(missing);
                require!(
                    at,
                    "R1",
                    has_left || age > Duration::from_secs(5),
                    "{node}, a torch node, returned from round {round} without {missing}, silent for {age:?}"
                );
            }
        }
        Ok(())
    }
}
