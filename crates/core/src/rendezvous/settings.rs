//! The settings of one node: the run id, the numbers of nodes, and timeouts.

use std::time::Duration;

use super::state::State;
use super::terms::Launch;

/// The settings of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The run id, which is the name of the job.
    pub run_id: String,
    /// The minimum number of nodes of a round.
    pub min_nodes: u64,
    /// The maximum number of nodes of a round.
    pub max_nodes: u64,
    /// How long a node may take to join a round. A node whose join times out withdraws.
    pub join_timeout: Duration,
    /// The duration of the last call.
    pub last_call_timeout: Duration,
    /// The duration of the last call of a round that re-forms with no more nodes than the round before it, unless
    /// `last_call_timeout` is shorter.
    pub reform_last_call_timeout: Duration,
    /// How long closing the rendezvous may take.
    pub close_timeout: Duration,
    /// How long writing one heartbeat may take.
    pub heartbeat_timeout: Duration,
    /// The interval at which a node renews its heartbeat.
    pub keep_alive_interval: Duration,
    /// The number of intervals without a new heartbeat after which a node is dead.
    pub keep_alive_max_attempt: u32,
    /// How long a node continues while the store does not answer.
    pub store_outage_timeout: Duration,
    /// The launch options of the node, if a launcher started it.
    pub launch: Option<Launch>,
}

impl Settings {
    /// The longest timeout that is accepted: 100 years. Arithmetic with longer times could overflow.
    pub const MAX_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

    /// Creates settings with torch's defaults. The settings that torch does not have get our own defaults.
    pub fn new(run_id: impl Into<String>, min_nodes: u64, max_nodes: u64) -> Settings {
        Settings {
            run_id: run_id.into(),
            min_nodes,
            max_nodes,
            join_timeout: Duration::from_secs(600),
            last_call_timeout: Duration::from_secs(30),
            reform_last_call_timeout: Duration::from_secs(3),
            close_timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_max_attempt: 3,
            store_outage_timeout: Duration::from_secs(600),
            launch: None,
        }
    }

    /// Returns how long a heartbeat may stay unchanged before its node is dead.
    pub fn keep_alive_limit(&self) -> Duration {
        self.keep_alive_interval.saturating_mul(self.keep_alive_max_attempt)
    }

    /// Returns the duration of the last call of the open round of `state`, and the name of its setting.
    ///
    /// A round opens only after every node has left the round before it. By then, all surviving nodes are on the wait
    /// list, so a long last call helps only new nodes. If the number of nodes of the round before is recorded, and this
    /// round does not have more participants, the last call is therefore the shorter of the two settings.
    pub fn last_call(&self, state: &State) -> (Duration, &'static str) {
        let have = state.participants.len() as u64;
        let is_reform = state
            .last_recorded_world()
            .is_some_and(|(round, world)| round.checked_add(1) == Some(state.round) && have <= world);
        match is_reform && self.reform_last_call_timeout < self.last_call_timeout {
            true => (self.reform_last_call_timeout, "reform_last_call_timeout"),
            false => (self.last_call_timeout, "last_call_timeout"),
        }
    }

    /// Returns a message for every error in the settings, or nothing if they are valid. Where torch has the same check,
    /// the message is torch's.
    pub fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        if self.run_id.is_empty() {
            errors.push("The run id must be a non-empty string.".to_owned());
        }
        if self.min_nodes < 1 {
            errors
                .push(format!("The minimum number of nodes ({}) must be greater than zero.", self.min_nodes));
        }
        if self.max_nodes < self.min_nodes {
            errors.push(format!(
                "The maximum number of nodes ({}) must be greater than or equal to the minimum number of nodes ({}).",
                self.max_nodes, self.min_nodes
            ));
        }
        for (name, time) in [
            ("join", self.join_timeout),
            ("last_call", self.last_call_timeout),
            ("reform_last_call", self.reform_last_call_timeout),
            ("store_outage", self.store_outage_timeout),
            ("close", self.close_timeout),
            ("heartbeat", self.heartbeat_timeout),
        ] {
            if time.is_zero() {
                errors.push(format!("The {name} timeout ({}s) must be positive.", time.as_secs()));
            }
            if time > Settings::MAX_TIMEOUT {
                errors.push(format!("The {name} timeout ({}s) is longer than a century.", time.as_secs()));
            }
        }
        // Torch accepts a limit of zero, with which every node counts as dead immediately.
        if self.keep_alive_limit().is_zero() || self.keep_alive_limit() > Settings::MAX_TIMEOUT {
            errors.push(format!(
                "keep_alive_interval ({}s) × keep_alive_max_attempt ({}) is zero or longer than a century.",
                self.keep_alive_interval.as_secs(),
                self.keep_alive_max_attempt
            ));
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_returns_every_error() {
        let mut settings = Settings::new("", 0, 4);
        settings.keep_alive_max_attempt = 0;
        settings.join_timeout = Duration::ZERO;
        let errors = settings.check();
        assert_eq!(errors.len(), 4, "{errors:?}");
        assert!(Settings::new("job", 1, 1).check().is_empty());
        let mut endless = Settings::new("job", 1, 1);
        endless.keep_alive_interval = Duration::from_secs(i64::MAX as u64);
        endless.join_timeout = Duration::MAX;
        assert_eq!(endless.check().len(), 2, "{:?}", endless.check());
        let errors = Settings::new("job", 3, 2).check();
        assert!(errors[0].contains("maximum number of nodes (2)"), "{errors:?}");
    }
}
