//! The terms of a job: `--nnodes`, which all nodes must agree on, and the launch options, which should be the same. The
//! first node of ours publishes its terms in the shared state.

use std::fmt;

use super::settings::Settings;
use super::state::{NodeDesc, State};

/// The name of the attribute that contains the terms. Torch nodes preserve it without reading it.
const TERMS_ATTR: &str = "rallypoint_terms";

/// The launch options of a node. They are usually the same on all nodes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// The number of restarts after failures that `--max-restarts` allows.
    pub max_restarts: u32,
    /// A hash of the command that the workers run.
    pub command: u64,
}

/// The terms of a job, and the node that published them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The minimum number of nodes of a round.
    pub min_nodes: u64,
    /// The maximum number of nodes of a round.
    pub max_nodes: u64,
    /// The launch options of the node, if a launcher started it.
    pub launch: Option<Launch>,
    /// The node that published the terms, for people to read.
    pub node: String,
}

impl Terms {
    /// Returns the terms of node `me`.
    pub fn new(me: &NodeDesc, settings: &Settings) -> Terms {
        let Settings { min_nodes, max_nodes, launch, .. } = *settings;
        Terms { min_nodes, max_nodes, launch, node: format!("{} (pid {})", me.addr, me.pid) }
    }

    /// Returns the value of `--nnodes`.
    pub fn nnodes(&self) -> String {
        format!("{}:{}", self.min_nodes, self.max_nodes)
    }

    /// Returns whether these terms and `other` have the same `--nnodes`.
    pub fn agrees_with(&self, other: &Terms) -> bool {
        (self.min_nodes, self.max_nodes) == (other.min_nodes, other.max_nodes)
    }

    /// Returns the differences between the launch options (restart limit, command), for a warning. Nodes with different
    /// launch options may still be in the same job.
    pub fn differences(&self, other: &Terms) -> Vec<String> {
        let (Some(ours), Some(theirs)) = (self.launch, other.launch) else { return Vec::new() };
        let mut found = Vec::new();
        if ours.max_restarts != theirs.max_restarts {
            let (ours, theirs) = (ours.max_restarts, theirs.max_restarts);
            found.push(format!("--max-restarts is {ours} here and {theirs} there"));
        }
        if ours.command != theirs.command {
            found.push("the commands differ".into());
        }
        found
    }

    fn parse(text: &str) -> Option<Terms> {
        let (numbers, node) = text.split_once(" by ")?;
        let (nodes, launch) = numbers.split_once(' ').unwrap_or((numbers, ""));
        let (min, max) = nodes.split_once(':')?;
        let launch = launch.split_once('/').and_then(|(restarts, command)| {
            let command = u64::from_str_radix(command, 16).ok()?;
            Some(Launch { max_restarts: restarts.parse().ok()?, command })
        });
        Some(Terms { min_nodes: min.parse().ok()?, max_nodes: max.parse().ok()?, launch, node: node.into() })
    }
}

/// Formats the terms as the value of the attribute: `MIN:MAX RESTARTS/COMMAND by NODE`, or `MIN:MAX by NODE` without
/// launch options.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.nnodes())?;
        if let Some(Launch { max_restarts, command }) = self.launch {
            write!(f, " {max_restarts}/{command:016x}")?;
        }
        write!(f, " by {}", self.node)
    }
}

impl State {
    /// Returns the published terms of the job, if a node of ours has published any.
    pub fn terms(&self) -> Option<Terms> {
        self.text(TERMS_ATTR).and_then(Terms::parse)
    }

    /// Publishes the terms of `me` in this state, which replaces `before`. Does nothing if `before` has terms and lists
    /// another node.
    pub(super) fn publish_terms(&mut self, before: &State, me: &NodeDesc, settings: &Settings) {
        if before.terms().is_none() || !before.has_other_nodes(me) {
            self.set_text(TERMS_ATTR, Terms::new(me, settings).to_string());
        }
    }

    /// Returns whether a node other than `me` is in one of the lists.
    pub(super) fn has_other_nodes(&self, me: &NodeDesc) -> bool {
        self.lists().any(|node| node != me)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{node, open};
    use super::*;

    fn settings(min: u64, max: u64, launch: Option<Launch>) -> Settings {
        Settings { launch, ..Settings::new("job", min, max) }
    }

    #[test]
    fn terms_are_parsed_as_they_were_formatted() {
        let launch = Launch { max_restarts: 3, command: 0xabc };
        for launch in [None, Some(launch)] {
            let terms = Terms::new(&NodeDesc::new("a by b", 7, 0), &settings(2, 4, launch));
            assert_eq!(Terms::parse(&terms.to_string()), Some(terms));
        }
        for text in ["", "2:4", "2 by a", "x:4 by a"] {
            assert_eq!(Terms::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn terms_stay_unchanged_while_another_node_is_listed() {
        let (ours, theirs) = (settings(2, 4, None), settings(2, 3, None));
        let mut state = open(&["a"]);
        state.publish_terms(&State::default(), &node("a"), &theirs);
        let before = state.clone();
        state.publish_terms(&before, &node("b"), &ours);
        assert_eq!(state.terms().unwrap().nnodes(), "2:3");
        state.publish_terms(&open(&["b"]), &node("b"), &ours);
        assert_eq!(state.terms().unwrap().nnodes(), "2:4");
    }

    #[test]
    fn only_the_command_and_the_restart_limit_are_compared() {
        let launch = Launch { max_restarts: 3, command: 1 };
        let terms = |launch| Terms::new(&node("a"), &settings(1, 1, launch));
        let differences = |other| terms(Some(launch)).differences(&terms(other));
        assert_eq!(differences(Some(launch)), [] as [&str; 0]);
        assert_eq!(differences(None), [] as [&str; 0]);
        let other = Launch { max_restarts: 0, command: 2 };
        assert_eq!(differences(Some(other)), ["--max-restarts is 3 here and 0 there", "the commands differ"]);
    }
}
