//! The command line of `rallypoint join`, and the parameters of a rendezvous that follow from it. All wrong arguments are
//! reported together.

use std::ffi::OsString;

use clap::Args;
use rallypoint_rendezvous::{
    RendezvousError, RendezvousParameters, is_address_of_another, read_rendezvous_config,
};

use crate::exit_code;
use crate::log::LogArgs;

const EXAMPLES: &str = "  \
  # Stay in the rendezvous until a signal
  rallypoint join --rdzv-endpoint node0:29400 --rdzv-id job1 --nnodes 2
  # Run a command once the node has joined
  rallypoint join --rdzv-endpoint node0:29400 --rdzv-id job1 --nnodes 2:8 -- python train.py
  # Fixed ranks
  rallypoint join --rdzv-backend static --rdzv-endpoint node0:29500 --nnodes 4 --node-rank 2 -- ./worker
  # Other timeouts
  rallypoint join --rdzv-endpoint node0 --rdzv-id job1 --nnodes 4 --rdzv-conf join_timeout=120";

/// Join a rendezvous as one node, and run at most one command
///
/// When the node has joined, it prints one line of JSON: run_id, round, rank, world_size, master_addr, master_port and
/// participants. Without a command it stays until a signal, and rejoins (and prints another line) when other nodes wait to
/// join. With a command it runs that as its only worker, with torch's environment (RANK, WORLD_SIZE, GROUP_RANK,
/// GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and so on), and exits with its exit code.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = exit_code::help_with_examples("join", EXAMPLES))]
pub(crate) struct JoinArgs {
    /// Number of nodes, or the minimum and the maximum
    #[arg(long, value_name = "N|MIN:MAX", default_value = "1:1", help_heading = "Nodes")]
    nnodes: String,
    /// Rank of this node; for the static rendezvous only
    #[arg(long, alias = "node_rank", value_name = "N", help_heading = "Nodes")]
    node_rank: Option<u64>,
    /// Address under which other nodes reach this node [default: detected]
    #[arg(long, alias = "local_addr", value_name = "ADDRESS", help_heading = "Nodes")]
    local_addr: Option<String>,
    /// Backend: c10d (elastic) or static (fixed ranks)
    #[arg(
        long,
        alias = "rdzv_backend",
        value_name = "NAME",
        default_value = "c10d",
        help_heading = "Rendezvous"
    )]
    rdzv_backend: String,
    /// Endpoint of the store; the node with this address hosts it [default port of c10d: 29400]
    #[arg(
        long,
        alias = "rdzv_endpoint",
        value_name = "HOST:PORT",
        default_value = "",
        help_heading = "Rendezvous"
    )]
    rdzv_endpoint: String,
    /// Run id of the job; the same on all nodes
    #[arg(long, alias = "rdzv_id", value_name = "ID", default_value = "none", help_heading = "Rendezvous")]
    rdzv_id: String,
    /// Further options, such as join_timeout and last_call_timeout
    #[arg(
        long,
        alias = "rdzv_conf",
        value_name = "KEY=VALUE,…",
        default_value = "",
        help_heading = "Rendezvous"
    )]
    rdzv_conf: String,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// Command to run once this node has joined
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl JoinArgs {
    pub(super) fn parameters(&self) -> Result<RendezvousParameters, RendezvousError> {
        let (mut config, mut errors) = read_rendezvous_config(&self.rdzv_conf);
        match (self.rdzv_backend.as_str(), self.node_rank) {
            ("static", Some(rank)) => {
                drop(config.insert("rank".into(), i64::try_from(rank).unwrap_or(i64::MAX).into()))
            }
            (_, None) => {}
            (backend, Some(_)) => {
                errors.push(format!("--node-rank is for --rdzv-backend static; {backend} gives ranks itself"))
            }
        }
        if let Some(address) = self.local_addr.as_deref().filter(|address| is_address_of_another(address)) {
            errors.push(format!("--local-addr {address}: this machine does not have that address"));
        }
        let (min, max) = parse_nodes(&self.nnodes).unwrap_or_else(|text| {
            errors.push(text);
            (1, 1)
        });
        let new = |min, max| {
            RendezvousParameters::new(&self.rdzv_backend, &self.rdzv_endpoint, &self.rdzv_id, min, max)
        };
        // If the numbers of nodes are wrong, the rest is checked without them.
        let parameters = new(min, max).or_else(|error| {
            add_messages(&mut errors, &error);
            new(1, 1)
        });
        match parameters.and_then(|parameters| parameters.with_config(config)) {
            Ok(parameters) => {
                let parameters = parameters.with_local_addr(self.local_addr.clone());
                errors.extend(parameters.check());
                if errors.is_empty() {
                    return Ok(parameters);
                }
            }
            Err(error) => add_messages(&mut errors, &error),
        }
        Err(RendezvousError::Parameters(errors))
    }
}

/// Adds what the error says, except what is there already.
fn add_messages(errors: &mut Vec<String>, error: &RendezvousError) {
    for line in error.to_string().lines() {
        if !errors.iter().any(|known| known == line) {
            errors.push(line.into());
        }
    }
}

/// `N`, or `MIN:MAX`.
fn parse_nodes(text: &str) -> Result<(u64, u64), String> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let read = match text.split_once(':') {
        None => number(text).map(|n| (n, n)),
        Some((min, max)) => number(min).zip(number(max)),
    };
    read.ok_or_else(|| format!("--nnodes {text:?} is neither a number nor MIN:MAX (examples: 4, 2:8)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nnodes_is_one_number_or_a_range() {
        assert_eq!(parse_nodes("4"), Ok((4, 4)));
        assert_eq!(parse_nodes("2:8"), Ok((2, 8)));
        for text in ["", "a", "1:", ":1", "1:2:3", "-1"] {
            assert!(parse_nodes(text).unwrap_err().contains("MIN:MAX"), "{text}");
        }
    }
}
