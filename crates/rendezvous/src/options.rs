//! The options of `--rdzv-conf`, with their defaults and meanings.

/// An option of a rendezvous backend (`--rdzv-conf NAME=VALUE,…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RendezvousOption {
    /// The name.
    pub name: &'static str,
    /// The default as text, in seconds if the option is a time. Empty if there is none.
    pub default: &'static str,
    /// The meaning, in one sentence or two.
    pub meaning: &'static str,
}

pub(crate) const fn option(
    name: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> RendezvousOption {
    RendezvousOption { name, default, meaning }
}

/// The options of the `c10d` backend. It accepts and ignores `timeout` and `rank`, because torch's launcher passes them
/// to every backend.
pub const C10D_OPTIONS: [RendezvousOption; 15] = [
    option("join_timeout", "600", "Time that a node tries to join a round."),
    option(
        "last_call_timeout",
        "30",
        "Time that a round with enough nodes waits for more. A round with the maximum number of nodes starts immediately.",
    ),
    option(
        "reform_last_call_timeout",
        "3",
        "Replaces a longer `last_call_timeout` if a round re-forms with no more nodes than the previous one had.",
    ),
    option("store_outage_timeout", "600", "Time that a node continues while the store does not answer."),
    option(
        "close_timeout",
        "30",
        "Time that closing the rendezvous may take; at the end of `run` and `join`, at most 6 s.",
    ),
    option("heartbeat_timeout", "5", "Time that sending one heartbeat may take."),
    option("keep_alive_interval", "5", "Interval between two heartbeats of a node."),
    option(
        "keep_alive_max_attempt",
        "3",
        "Number of intervals without a heartbeat after which other nodes drop a node.",
    ),
    option(
        "cas_backoff_max_seconds",
        "",
        "Checked as torch checks it, and otherwise unused: nodes back off by themselves.",
    ),
    option("store_type", "tcp", "`tcp`, or `file` for a file that all nodes can lock and write."),
    option(
        "is_host",
        "",
        "1 makes this node host the store, 0 prevents it. By default the node hosts it if the machine has the endpoint's address.",
    ),
    option(
        "read_timeout",
        "60",
        "Timeout for connecting to the store, for each later operation on it, and for waiting for the `MASTER_ADDR` of the node with group rank 0.",
    ),
    option(
        "expected_hosts",
        "",
        "Hosts that should join, for messages only: `node[1-8]` or `a;b;c`. By default the node list of Slurm.",
    ),
    option("timeout", "", "Accepted and unused."),
    option("rank", "", "Accepted and unused."),
];

/// The options of the `static` backend.
pub const STATIC_OPTIONS: [RendezvousOption; 2] = [
    option("rank", "", "Rank of this node, which `--node-rank` sets."),
    option(
        "timeout",
        "600",
        "Time to wait until all nodes have joined; `rallypoint run` sets 900, as torchrun does.",
    ),
];

#[cfg(test)]
mod tests {
    use rallypoint_core::rendezvous::Settings;

    use super::*;
    use crate::parameters::{RendezvousParameters, parse_rendezvous_config};
    use crate::settings::{read_timeout, settings};

    #[test]
    fn documented_defaults_are_the_defaults() {
        let defaults = C10D_OPTIONS.iter().filter(|option| !option.default.is_empty());
        let config: Vec<_> = defaults.map(|option| format!("{}={}", option.name, option.default)).collect();
        let parameters = RendezvousParameters::new("c10d", "h", "run", 1, 2).unwrap();
        let explicit =
            parameters.clone().with_config(parse_rendezvous_config(&config.join(",")).unwrap()).unwrap();
        assert_eq!(settings(&explicit).unwrap(), Settings::new("run", 1, 2));
        assert_eq!(read_timeout(&explicit).unwrap(), read_timeout(&parameters).unwrap());
    }
}
