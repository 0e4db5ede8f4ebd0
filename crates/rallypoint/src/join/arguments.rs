//! The command line of `rallypoint join`, and the parameters of a rendezvous that follow from it. All wrong arguments are
//! reported together.

use std::ffi::OsString;

use clap::Args;
use rallypoint_rendezvous::{
    RendezvousError, RendezvousParameters, is_address_of_another, read_rendezvous_config,
};

/// Joins a rendezvous: finds the other nodes of a job, torchrun's among them, and gets a rank
///
/// Once it has joined, it prints one line of JSON: run_id, round, rank, world_size, master_addr, master_port and
/// participants. Without a command it then stays in the rendezvous until a signal, joining again (and printing another
/// line) when other nodes want to come in. With a command it runs that as this node's one worker, with torch's environment
/// (RANK, WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and so on), and ends with its exit code.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  rallypoint join --rdzv-endpoint node0:29400 --rdzv-id job1 --nnodes 2
  rallypoint join --rdzv-endpoint node0:29400 --rdzv-id job1 --nnodes 2:8 -- python train.py
  rallypoint join --rdzv-backend static --rdzv-endpoint node0:29500 --nnodes 4 --node-rank 2 -- ./worker
  rallypoint join --rdzv-endpoint node0 --rdzv-id job1 --nnodes 4 --rdzv-conf join_timeout=120,last_call_timeout=5

Exit codes:
  0    left on a signal after it had joined, or the job ended; with a command, the command succeeded
  1    failed for another reason (standard error says which)
  2    wrong usage
  3    the rendezvous is closed
  4    the time ran out before enough nodes were here
  5    the store could not be reached, or was lost
  6    other nodes started over while the command ran; run again to be in the next round
  126, 127   the command could not be run, or was not found
  128+N      ended by signal N while waiting; with a command, the command was ended by signal N
  otherwise  the command's own"
)]
pub(crate) struct JoinArgs {
    /// How nodes find each other: c10d (any number, coming and going) or static (fixed ranks)
    #[arg(long, alias = "rdzv_backend", value_name = "NAME", default_value = "c10d")]
    rdzv_backend: String,
    /// Where they meet; the node that has this address hosts the store (c10d: port 29400 if none is given)
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT", default_value = "")]
    rdzv_endpoint: String,
    /// Which job; the same on all its nodes
    #[arg(long, alias = "rdzv_id", value_name = "ID", default_value = "none")]
    rdzv_id: String,
    /// How many nodes: a number, or the least and the most
    #[arg(long, value_name = "N or MIN:MAX", default_value = "1:1")]
    nnodes: String,
    /// This node's rank; for the static rendezvous only
    #[arg(long, alias = "node_rank", value_name = "N")]
    node_rank: Option<u64>,
    /// Further options of the rendezvous
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,…", default_value = "")]
    rdzv_conf: String,
    /// The address of this node as the others reach it; found out if it isn't given
    #[arg(long, alias = "local_addr", value_name = "ADDRESS")]
    local_addr: Option<String>,
    /// A command to run once this node has joined
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
