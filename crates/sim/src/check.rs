//! Checks the rules for every write and every join. `docs/internals/simulator.md` lists the rules by number.
//!
//! The checks in this file read the state in the store and the reports of nodes, never the internal state of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rallypoint_core::rendezvous::{NodeDesc, Settings, State, WallTime};

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The number of the rule, such as `R1`.
    pub rule: &'static str,
    /// How the rule was broken.
    pub what: String,
    /// The virtual time.
    pub at: Duration,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {}", self.rule, self.at.as_secs_f64(), self.what)
    }
}

/// Returns a [`Violation`] from the current function if the condition is false.
macro_rules! require {
    ($at:expr, $rule:literal, $condition:expr, $($what:tt)*) => {
        if !$condition {
            return Err(Violation { rule: $rule, what: format!($($what)*), at: $at });
        }
    };
}
pub(crate) use require;

/// The node that wrote a state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer<'a> {
    pub(crate) node: &'a NodeDesc,
    pub(crate) is_torch: bool,
}

/// The nodes of a round, with their group ranks.
type Members = BTreeMap<NodeDesc, i64>;

/// The part of the history of one rendezvous that the checks need.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) settings: Settings,
    /// By round: the members with which the round was completed, and whether nodes of ours can know the number of these
    /// members.
    completed: BTreeMap<u64, (Members, bool)>,
    closed: bool,
    /// The completed rounds that the store has lost. A node may restore such a round.
    lost_rounds: Vec<(u64, Members)>,
    /// Whether the store has lost its state and no round was completed or restored since.
    pub(crate) is_state_lost: bool,
    /// When the heartbeat of each node last changed in the store.
    pub(crate) heartbeat_changed_at: BTreeMap<NodeDesc, Duration>,
    /// When each node on the wait list was added to it.
    pub(crate) wait_started_at: BTreeMap<NodeDesc, Duration>,
    /// When the wait list last became non-empty, or `None` if it is empty.
    pub(crate) waiting_since: Option<Duration>,
    /// When the complete round lost its first node, or `None` if all of its nodes are in it.
    pub(crate) losing_since: Option<Duration>,
    /// When a round was last completed or restored.
    pub(crate) last_round_at: Option<Duration>,
    /// The nodes that have announced themselves, by round.
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

    /// Records that the store has lost its state.
    pub(crate) fn lose_state(&mut self) {
        (self.closed, self.is_state_lost) = (false, true);
        let completed = self.completed.iter().map(|(round, (members, _))| (*round, members.clone()));
        self.lost_rounds.extend(completed);
        (self.waiting_since, self.wait_started_at, self.losing_since) = (None, BTreeMap::new(), None);
    }

    /// Returns the members of the round that a write restores, or `None` if the write restores no round that the store
    /// has lost. A write that restores a round has the group ranks of that round, and a new heartbeat for every node.
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

    /// Returns how long a heartbeat stays unchanged before its node is dead. This function does not call
    /// `Settings::keep_alive_limit`, which is under test.
    pub(crate) fn dead_after(&self) -> Duration {
        self.settings.keep_alive_interval * self.settings.keep_alive_max_attempt
    }

    /// Checks a write, and records it for later checks.
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
            require!(at, "R8", keeps_all, "{} restored a round and lost a node of the state", writer.node);
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
            // If the node of the highest group rank is in the round, its rank shows the number of nodes of the round.
            // If that node is on the wait list, the state shows that the round may have been larger.
            let is_listed = |last| before.participants.contains_key(last) || before.wait_list.contains(last);
            *is_size_known |= !writer.is_torch && members.keys().next_back().is_some_and(is_listed);
        }
        self.record(before, after, at);
        Ok(())
    }

    /// Checks the rules that hold for every state: R3, R5, R6, R7, R11.
    fn check_lists(&mut self, after: &State, at: Duration) -> Result<(), Violation> {
        let Settings { min_nodes: min, max_nodes: max, .. } = self.settings;
        let have = after.participants.len() as u64;
        require!(at, "R3", !after.complete || have <= max, "a complete round of {have} nodes, above {max}");
        require!(at, "R11", after.complete || have < max, "an open round of {have} nodes, not below {max}");
        let listed = have as usize + after.wait_list.len() + after.redundancy_list.len();
        require!(
            at,
            "R5",
            listed == after.last_heartbeats.len(),
            "a node is in two lists, in no list, or without a heartbeat: {after:?}"
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
            "last call: {has_last_call}, complete: {}, {have} nodes of at least {min}",
            after.complete
        );
        require!(at, "R7", !self.closed || after.closed, "closed was unset");
        self.closed |= after.closed;
        Ok(())
    }

    /// Checks how rounds follow each other: R2, R3, R4.
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
            require!(at, "R3", have >= min, "round {new} completed with {have} nodes, below {min}");
            let ranks: Vec<_> = after.participants.values().copied().collect();
            require!(at, "R2", ranks.iter().copied().eq(0..have as i64), "ranks {ranks:?}");
        }
        Ok(())
    }

    /// Checks R10: a node of ours removes no node whose heartbeat has changed within [`Checks::dead_after`], less 1 %
    /// for clock drift. The rule applies even if clocks are wrong and messages are late or lost.
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
                "{writer} removed {removed}, whose heartbeat changed {age:?} ago"
            );
        }
        Ok(())
    }

    /// Records a write for later checks.
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

    /// Records that a round was completed.
    pub(crate) fn record_completed(&mut self, after: &State, writer: Writer<'_>, at: Duration) {
        self.last_round_at = Some(at);
        self.is_state_lost = false;
        self.completed.insert(after.round, (after.participants.clone(), !writer.is_torch));
        self.announced.retain(|round, _| *round > after.round);
    }

    /// Checks R1, R2 and R7 when a node has joined a round. `state` is the state that the node read, and `current` is
    /// the state in the store. `was_awake` means that the node was not paused within the last 5 s.
    pub(crate) fn check_joined(
        &mut self,
        node: &NodeDesc,
        is_torch: bool,
        was_awake: bool,
        state: &State,
        current: &State,
        at: Duration,
    ) -> Result<(), Violation> {
        let (round, world) = (state.round, state.participants.len() as u64);
        let rank = state.participants.get(node).copied();
        require!(at, "R7", !state.closed, "{node} joined a closed rendezvous");
        // A node that was paused may join a round that the store has lost during the pause. The store may have another
        // round of the same number by then.
        if !was_awake && self.lost_rounds.iter().any(|lost| *lost == (round, state.participants.clone())) {
            return Ok(());
        }
        let Some((completed, is_size_known)) = self.completed.get(&round) else {
            return Err(Violation {
                rule: "R1",
                what: format!("{node} joined round {round}, which was never completed"),
                at,
            });
        };
        require!(
            at,
            "R1",
            rank == completed.get(node).copied(),
            "{node} joined with rank {rank:?} of {completed:?}"
        );
        // If a torch node completed the round and no node of ours has written since, only the group ranks and
        // `min_nodes` show the number of its nodes. Then a node can't know whether the node of the highest group rank
        // has left.
        let has_last_left =
            || completed.keys().next_back().is_none_or(|last| !state.participants.contains_key(last));
        let enough = world >= self.settings.min_nodes;
        if !(is_torch || !*is_size_known && enough && has_last_left()) {
            require!(
                at,
                "R1",
                *completed == state.participants,
                "round {round} was completed with {completed:?}, but {node} joined it with {:?}",
                state.participants
            );
            let in_range = rank.is_some_and(|rank| (0..world as i64).contains(&rank));
            require!(at, "R2", in_range, "{node} has rank {rank:?} of {world}");
        }
        if is_torch && was_awake {
            // A torch node joins with only the participants that it considers alive. These must include every node with
            // a recent heartbeat.
            for missing in completed.keys().filter(|member| !state.participants.contains_key(*member)) {
                let age = at - self.heartbeat_changed_at.get(missing).copied().unwrap_or_default();
                let has_left = round != current.round || !current.participants.contains_key(missing);
                require!(
                    at,
                    "R1",
                    has_left || age > Duration::from_secs(5),
                    "torch node {node} joined round {round} without {missing}, whose heartbeat changed {age:?} ago"
                );
            }
        }
        Ok(())
    }
}
