//! The commands of operators: `exclude`, `drain` and `force-quorum`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rallypoint_core::Quantity;
use rallypoint_rendezvous::{OperatorCommand, OperatorError, OperatorReply, Roster, send_command};
use rallypoint_store::Endpoint;
use serde_json::json;

use crate::{exit_code, output};

/// The time for which a node is excluded without `--for`.
const DEFAULT_EXCLUSION: &str = "1h";

/// The job that a command is for.
#[derive(Debug, Args)]
struct JobArgs {
    /// One or more nodes of the job, or its separate server; the first that replies is used
    #[arg(
        short,
        long,
        value_name = "HOST:PORT,…",
        env = "RALLYPOINT_ENDPOINT",
        required = true,
        value_delimiter = ',',
        help_heading = "Job"
    )]
    endpoint: Vec<Endpoint>,
    /// Run id of the job
    #[arg(long, alias = "rdzv_id", value_name = "ID", default_value = "none", help_heading = "Job")]
    rdzv_id: String,
    /// Timeout for the command (250ms, 10s, 5min)
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = positive_time, help_heading = "Job")]
    timeout: Duration,
    /// Print the result as one line of JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

fn positive_time(text: &str) -> Result<Duration, String> {
    let time = Duration::parse(text).map_err(|expected| format!("expected {expected}"))?;
    if time.is_zero() { Err("the time must be greater than 0".into()) } else { Ok(time) }
}

const EXCLUDE_EXAMPLES: &str = "  \
  rallypoint exclude node7 --for 2h --reason \"ECC errors\" -e node0:29400 --rdzv-id my-job
  rallypoint exclude --list -e node0:29400 --rdzv-id my-job
  rallypoint exclude --remove node7 -e node0:29400 --rdzv-id my-job";

/// Keep a node out of a job for some time
///
/// If the node is in the running round, the round restarts without it. The exclusion expires. All replicas of the
/// coordinator know it, so it survives the loss of any node.
#[derive(Debug, Args)]
#[command(after_help = exit_code::help_with_examples("exclude", EXCLUDE_EXAMPLES))]
pub(crate) struct ExcludeArgs {
    /// Name of the node: its host name, or its node_name
    #[arg(required_unless_present = "list")]
    node: Option<String>,
    /// How long the node is excluded (30min, 2h)
    #[arg(
        long = "for",
        value_name = "TIME",
        default_value = DEFAULT_EXCLUSION,
        value_parser = positive_time,
        help_heading = "Exclusion"
    )]
    time: Duration,
    /// Reason, which the node and other operators read
    #[arg(long, value_name = "TEXT", default_value = "an operator excluded it", help_heading = "Exclusion")]
    reason: String,
    /// List the excluded nodes
    #[arg(long, conflicts_with_all = ["node", "remove", "time", "reason"], help_heading = "Exclusion")]
    list: bool,
    /// Let an excluded or drained node join again
    #[arg(long, conflicts_with_all = ["time", "reason"], help_heading = "Exclusion")]
    remove: bool,
    #[command(flatten)]
    job: JobArgs,
}

const DRAIN_EXAMPLES: &str = "  \
  # Leave at the next restart, or restart without the node in five minutes
  rallypoint drain node7 --within 5min -e node0:29400 --rdzv-id my-job";

/// Take a node out of a job when its round restarts
///
/// The node's `rallypoint run` then exits with 0. SIGUSR2 to it does the same. `rallypoint exclude --remove` lets the node
/// join again.
#[derive(Debug, Args)]
#[command(after_help = exit_code::help_with_examples("drain", DRAIN_EXAMPLES))]
pub(crate) struct DrainArgs {
    /// Name of the node: its host name, or its node_name
    node: String,
    /// Restart the round without the node after this time (30s, 5min); without it, the node stays until the next restart
    #[arg(long, value_name = "TIME", value_parser = Duration::parse, help_heading = "Drain")]
    within: Option<Duration>,
    #[command(flatten)]
    job: JobArgs,
}

const FORCE_QUORUM_EXAMPLES: &str = "  \
  # Only after all missing nodes have been stopped
  rallypoint force-quorum -e node3:41234 --rdzv-id my-job";

/// Continue a job whose coordinator has lost a majority of its voters
///
/// The node at the endpoint becomes the only voter. It must have been a voter. By this command you vouch that the missing
/// nodes are stopped. If one of them still runs, there are two jobs.
#[derive(Debug, Args)]
#[command(after_help = exit_code::help_with_examples("force-quorum", FORCE_QUORUM_EXAMPLES))]
pub(crate) struct ForceQuorumArgs {
    #[command(flatten)]
    job: JobArgs,
}

pub(crate) fn exclude(args: ExcludeArgs) -> ExitCode {
    if args.list {
        return send("exclude", &args.job, &OperatorCommand::Roster);
    }
    let host = args.node.unwrap_or_default();
    let command = match args.remove {
        true => OperatorCommand::Include { host },
        false => OperatorCommand::Exclude { host, time: args.time, reason: args.reason },
    };
    send("exclude", &args.job, &command)
}

pub(crate) fn drain(args: DrainArgs) -> ExitCode {
    send("drain", &args.job, &OperatorCommand::Drain { host: args.node, within: args.within })
}

pub(crate) fn force_quorum(args: ForceQuorumArgs) -> ExitCode {
    send("force-quorum", &args.job, &OperatorCommand::ForceQuorum)
}

/// Sends a command, prints the reply, and returns the exit code.
fn send(name: &str, job: &JobArgs, command: &OperatorCommand) -> ExitCode {
    // Any node can redirect a command to the leader, but this one is for the process that gets it.
    let endpoints = match (command, &job.endpoint[..]) {
        (OperatorCommand::ForceQuorum, [_, _, ..]) => {
            output::write_stderr(&format!(
                "rallypoint {name}: --endpoint must name the one node that becomes the voter"
            ));
            return ExitCode::from(exit_code::USAGE);
        }
        (_, endpoints) => endpoints,
    };
    let text = match send_command(endpoints, &job.rdzv_id, command, job.timeout) {
        Ok(OperatorReply::Done(text)) if job.json => format!("{}\n", json!({ "result": text })),
        Ok(OperatorReply::Done(text)) => format!("{text}\n"),
        Ok(OperatorReply::Roster(roster)) => exclusions(&roster, job.json),
        Err(error) => {
            for line in error.to_string().lines() {
                match line.starts_with("hint:") {
                    true => output::write_stderr(line),
                    false => output::write_stderr(&format!("rallypoint {name}: {line}")),
                }
            }
            return ExitCode::from(match error {
                OperatorError::Unreachable { .. } => exit_code::UNREACHABLE,
                _ => exit_code::FAILURE,
            });
        }
    };
    output::write_stdout(text).err().unwrap_or(ExitCode::SUCCESS)
}

fn exclusions(roster: &Roster, as_json: bool) -> String {
    let rows = roster.exclusions.iter().map(|(host, (reason, left))| (host, reason, left.as_secs()));
    match as_json {
        true => {
            let rows: Vec<_> = rows
                .map(|(host, reason, left)| json!({"node": host, "reason": reason, "seconds": left}))
                .collect();
            format!("{}\n", json!(rows))
        }
        false if rows.len() == 0 => "no node is excluded\n".into(),
        false => rows.map(|(host, reason, left)| format!("{host}\t{left} s\t{reason}\n")).collect(),
    }
}
