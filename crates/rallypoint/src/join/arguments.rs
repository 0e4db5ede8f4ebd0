//! The command line of `rallypoint join`, and the rendezvous parameters that are derived from it. One error lists all
//! wrong arguments.

use std::ffi::OsString;

use clap::Args;
use rallypoint_rendezvous::{
    NATIVE_BACKEND, RendezvousError, RendezvousParameters, is_remote_address, read_rendezvous_config,
};

use crate::exit_code;
use crate::flags::{FlagEnvironment, FlagValue};
use crate::log::LogArgs;

const EXAMPLES: &str = "  \
  # Stay in the rendezvous until a signal
  rallypoint join --rdzv-endpoint node0:29400 --rdzv-id job1 --nnodes 2
  # Run a command once the node has joined
  rallypoint join --rdzv-endpoint node0:29400 --rdzv-id job1 --nnodes 2:8 -- python train.py
  # Fixed ranks
  rallypoint join --rdzv-backend static --rdzv-endpoint node0:29500 --nnodes 4 --node-rank 2
  # Other timeouts
  rallypoint join --rdzv-endpoint node0 --rdzv-id job1 --nnodes 4 --rdzv-conf join_timeout=120";

/// Join a rendezvous as one node, and run at most one command
///
/// When the node has joined, it prints one line of JSON: run_id, round, rank, world_size, master_addr, master_port and
/// participants. Without a command, the node stays until a signal or until the rendezvous is closed. It rejoins (and
/// prints another line) when other nodes wait to join and no node of its round runs workers. With a command, the node
/// runs the command as its only worker, with torch's environment (RANK, WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT and so on), and exits with the exit code of the command.
///
/// The flags can also be set by the variables of `rallypoint run`: PET_NNODES, PET_NODE_RANK, PET_LOCAL_ADDR,
/// PET_RDZV_BACKEND, PET_RDZV_ENDPOINT, PET_RDZV_ID and PET_RDZV_CONF. The command line wins.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = exit_code::help_with_examples("join", EXAMPLES))]
pub(crate) struct JoinArgs {
    /// Number of nodes, or the minimum and the maximum [default: 1:1]
    #[arg(long, value_name = "N|MIN:MAX", help_heading = "Nodes")]
    nnodes: Option<String>,
    /// Rank of this node, for the static rendezvous; rank that this node asks for, for the backend rallypoint
    #[arg(long, alias = "node_rank", value_name = "N", help_heading = "Nodes")]
    node_rank: Option<u64>,
    /// Address under which other nodes reach this node [default: detected]
    #[arg(long, alias = "local_addr", value_name = "ADDRESS", help_heading = "Nodes")]
    local_addr: Option<String>,
    /// Backend: rallypoint (elastic, survives the loss of any node), c10d (elastic, with torchrun's nodes) or static (fixed
    /// ranks) [default: c10d]
    #[arg(long, alias = "rdzv_backend", value_name = "NAME", help_heading = "Rendezvous")]
    rdzv_backend: Option<String>,
    /// Endpoint of the store; the node with this address hosts it. For the backend rallypoint, a list of nodes
    /// [default port: 29400]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT,…", help_heading = "Rendezvous")]
    rdzv_endpoint: Option<String>,
    /// Run id of the job; the same on all nodes [default: the text "none"]
    #[arg(long, alias = "rdzv_id", value_name = "ID", help_heading = "Rendezvous")]
    rdzv_id: Option<String>,
    /// Further options, such as join_timeout and last_call_timeout
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,…", help_heading = "Rendezvous")]
    rdzv_conf: Option<String>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// Command to run once this node has joined
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl JoinArgs {
    /// Returns the parameters of the rendezvous. Adds a warning for each environment variable that has no effect.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`], which lists all wrong arguments.
    pub(super) fn parameters(
        &self,
        environment: &FlagEnvironment<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<RendezvousParameters, RendezvousError> {
        let text = |typed: &Option<String>, flag, default: &str| {
            environment.text(typed, flag).unwrap_or_else(|| default.into())
        };
        let nnodes = environment.flag(&self.nnodes, "--nnodes");
        let nnodes = nnodes.unwrap_or(FlagValue { value: "1:1".into(), flag: "--nnodes", is_typed: false });
        let backend = text(&self.rdzv_backend, "--rdzv-backend", "c10d");
        let endpoint = text(&self.rdzv_endpoint, "--rdzv-endpoint", "");
        let run_id = text(&self.rdzv_id, "--rdzv-id", "none");
        let local_addr = environment.text(&self.local_addr, "--local-addr");
        let (mut config, mut errors) = read_rendezvous_config(&text(&self.rdzv_conf, "--rdzv-conf", ""));
        let rank = environment.number_value(self.node_rank, "--node-rank", parse_rank).and_then(|rank| {
            match (backend.as_str(), rank) {
                ("static" | NATIVE_BACKEND, Some(rank)) => {
                    let option = if backend == NATIVE_BACKEND { "node_rank" } else { "rank" };
                    let other = config.get(option).map(ToString::to_string);
                    match other.filter(|other| *other != rank.value.to_string()) {
                        Some(other) => rank.refuse(&format!("--rdzv-conf has {option}={other}"), warnings)?,
                        None => {
                            let rank = i64::try_from(rank.value).unwrap_or(i64::MAX);
                            config.insert(option.into(), rank.into());
                        }
                    }
                }
                (_, Some(rank)) => {
                    rank.refuse(
                        &format!(
                            "it is for the backends static and {NATIVE_BACKEND}; {backend} assigns ranks"
                        ),
                        warnings,
                    )?;
                }
                (_, None) => {}
            }
            Ok(())
        });
        errors.extend(rank.err().map(|refusal| refusal.text));
        if backend == NATIVE_BACKEND && !self.command.is_empty() {
            // A node that waits to join must not stop the command.
            config.entry("scale_up".into()).or_insert_with(|| "never".into());
        }
        if let Some(address) = local_addr.as_deref().filter(|address| is_remote_address(address)) {
            errors.push(format!("--local-addr {address}: this machine does not have that address"));
        }
        let (min, max) = parse_nodes(&nnodes.value).unwrap_or_else(|text| {
            errors.push(text);
            (1, 1)
        });
        if backend == "static" && min != max {
            let why = format!(
                "the static rendezvous has a fixed number of nodes; use --nnodes {max}, or the backend c10d"
            );
            errors.extend(nnodes.refuse(&why, warnings).err().map(|refusal| refusal.text));
        }
        let new = |min, max| RendezvousParameters::new(&backend, &endpoint, &run_id, min, max);
        // If the numbers of nodes are wrong, the other arguments are checked with one node, so that their errors are
        // found, too.
        let parameters = new(min, max).or_else(|error| {
            add_messages(&mut errors, &error);
            new(1, 1)
        });
        match parameters.and_then(|parameters| parameters.with_config(config)) {
            Ok(parameters) => {
                let parameters = parameters.with_local_addr(local_addr);
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

fn parse_rank(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("invalid int value: '{text}'"))
}

/// Adds each line of an error to `errors`, unless `errors` already contains it.
fn add_messages(errors: &mut Vec<String>, error: &RendezvousError) {
    for line in error.to_string().lines() {
        if !errors.iter().any(|known| known == line) {
            errors.push(line.into());
        }
    }
}

/// Parses `N` or `MIN:MAX`, and returns the minimum and the maximum number of nodes.
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

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        join: JoinArgs,
    }

    fn parameters(
        line: &str,
        variables: &[(&str, &str)],
    ) -> (Result<RendezvousParameters, String>, Vec<String>) {
        let line = std::iter::once("join").chain(line.split_whitespace());
        let args = <Cli as clap::Parser>::try_parse_from(line).unwrap().join;
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        let mut warnings = Vec::new();
        let result = args.parameters(&FlagEnvironment(&lookup), &mut warnings);
        (result.map_err(|error| error.to_string()), warnings)
    }

    #[test]
    fn variables_are_defaults_and_the_command_line_wins() {
        let variables = [
            ("PET_NNODES", "3:3"),
            ("PET_RDZV_BACKEND", "static"),
            ("PET_RDZV_ENDPOINT", "127.0.0.1:29500"),
            ("PET_RDZV_ID", "job1"),
            ("PET_RDZV_CONF", "timeout=7"),
            ("PET_NODE_RANK", "1"),
            ("PET_LOCAL_ADDR", "127.0.0.1"),
        ];
        let made = parameters("", &variables).0.unwrap();
        assert_eq!((made.min_nodes, made.max_nodes), (3, 3));
        assert_eq!((made.backend.as_str(), made.endpoint.as_str()), ("static", "127.0.0.1:29500"));
        assert_eq!((made.run_id.as_str(), made.local_addr.as_deref()), ("job1", Some("127.0.0.1")));
        assert_eq!(
            (made.get_as_int("timeout").unwrap(), made.get_as_int("rank").unwrap()),
            (Some(7), Some(1))
        );
        let made = parameters("--nnodes 4 --node-rank 3 --rdzv-id job2", &variables).0.unwrap();
        assert_eq!((made.max_nodes, made.run_id.as_str()), (4, "job2"));
        assert_eq!(made.get_as_int("rank").unwrap(), Some(3));
        let error = parameters("", &[("PET_NODE_RANK", "x")]).0.unwrap_err();
        assert!(error.contains("PET_NODE_RANK (--node-rank): invalid int value: 'x'"), "{error}");
    }

    #[test]
    fn every_variable_that_is_read_is_documented() {
        let read = std::cell::RefCell::new(std::collections::BTreeSet::new());
        let lookup = |name: &str| {
            read.borrow_mut().insert(name.to_owned());
            None
        };
        let args = <Cli as clap::Parser>::try_parse_from(["join"]).unwrap().join;
        args.parameters(&FlagEnvironment(&lookup), &mut Vec::new()).unwrap();
        crate::reference::environment::assert_documented("join", &read.into_inner());
    }

    #[test]
    fn a_node_rank_for_c10d_is_refused_as_a_flag_and_causes_a_warning_as_a_variable() {
        let error = parameters("--node-rank 1", &[]).0.unwrap_err();
        assert!(error.starts_with("--node-rank 1 can't be honored"), "{error}");
        let native = "--rdzv-backend rallypoint --rdzv-endpoint 127.0.0.1 --nnodes 2 --node-rank";
        let made = parameters(&format!("{native} 1"), &[]).0.unwrap();
        assert_eq!(made.get_as_int("node_rank").unwrap(), Some(1));
        let error = parameters(&format!("{native} 2"), &[]).0.unwrap_err();
        assert_eq!(error, "node_rank is \"2\"; it must be a number from 0 to 1");
        let (made, warnings) = parameters("", &[("PET_NODE_RANK", "1")]);
        assert_eq!(made.unwrap().backend, "c10d");
        assert!(
            warnings.len() == 1 && warnings[0].starts_with("PET_NODE_RANK=1 has no effect"),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_node_that_waits_does_not_stop_the_command_of_a_node_in_a_native_rendezvous() {
        let native = "--rdzv-backend rallypoint --rdzv-endpoint 127.0.0.1";
        let scale_up = |line: &str| {
            let made = parameters(line, &[]).0.unwrap();
            made.get("scale_up").map(ToString::to_string)
        };
        assert_eq!(scale_up(native), None);
        assert_eq!(scale_up(&format!("{native} -- true")).as_deref(), Some("never"));
        assert_eq!(scale_up(&format!("{native} --rdzv-conf scale_up=now -- true")).as_deref(), Some("now"));
    }

    #[test]
    fn flags_that_contradict_the_static_rendezvous_are_refused() {
        let fixed = "--rdzv-backend static --rdzv-endpoint 127.0.0.1:29500";
        let error = |more: &str| parameters(&format!("{fixed} {more}"), &[]).0.unwrap_err();
        let text = error("--nnodes 2:4 --node-rank 0");
        assert!(text.starts_with("--nnodes 2:4 can't be honored: the static rendezvous"), "{text}");
        let text = error("--nnodes 2 --node-rank 0 --rdzv-conf rank=1");
        assert!(text.starts_with("--node-rank 0 can't be honored: --rdzv-conf has rank=1"), "{text}");
        parameters(&format!("{fixed} --nnodes 2 --node-rank 1 --rdzv-conf rank=1"), &[]).0.unwrap();
        let line = format!("{fixed} --nnodes 2 --rdzv-conf rank=0");
        let (made, warnings) = parameters(&line, &[("PET_NODE_RANK", "1")]);
        assert_eq!(made.unwrap().get_as_int("rank").unwrap(), Some(0));
        assert_eq!(warnings, ["PET_NODE_RANK=1 has no effect: --rdzv-conf has rank=0"]);
    }

    #[test]
    fn nnodes_is_one_number_or_a_range() {
        assert_eq!(parse_nodes("4"), Ok((4, 4)));
        assert_eq!(parse_nodes("2:8"), Ok((2, 8)));
        for text in ["", "a", "1:", ":1", "1:2:3", "-1"] {
            assert!(parse_nodes(text).unwrap_err().contains("MIN:MAX"), "{text}");
        }
    }
}
