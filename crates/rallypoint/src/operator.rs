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
    /// Any node of the job, or its separate server
    #[arg(short, long, value_name = "HOST:PORT", env = "RALLYPOINT_ENDPOINT", help_heading = "Job")]
    endpoint: Endpoint,
    /// Run id of the job
    #[arg(long, alias = "rdzv_id", value_name = "ID", default_value = "none", help_heading = "Job")]
    rdzv_id: String,
    /// Timeout for the command
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = Duration::parse, help_heading = "Job")]
    timeout: Duration,
    /// Print the result as one line of JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXCLUDE_EXAMPLES: &str = "  \
  rallypoint exclude node7 --for 2h --reason \"ECC errors\" -e node0:29400 --rdzv-id my-job
  rallypoint exclude --list -e node0:29400 --rdzv-id my-job
  rallypoint exclude --remove node7 -e node0:29400 --rdzv-id my-job";

/// Keep a node out of a job for some time
///
/// The round that the node is in restarts without it. The exclusion expires. It survives the loss of the coordinator.
#[derive(Debug, Args)]
#[command(after_help = exit_code::help_with_examples("exclude", EXCLUDE_EXAMPLES))]
pub(crate) struct ExcludeArgs {
    /// Host name of the node
    #[arg(required_unless_present = "list")]
    node: Option<String>,
    /// How long the node is excluded (30min, 2h)
    #[arg(long = "for", value_name = "TIME", default_value = DEFAULT_EXCLUSION, value_parser = Duration::parse, help_heading = "Exclusion")]
    time: Duration,
    /// Reason, which the node and other operators read
    #[arg(long, value_name = "TEXT", default_value = "an operator excluded it", help_heading = "Exclusion")]
    reason: String,
    /// List the excluded nodes
    #[arg(long, conflicts_with_all = ["node", "remove"], help_heading = "Exclusion")]
    list: bool,
    /// Let an excluded or drained node join again
    #[arg(long, help_heading = "Exclusion")]
    remove: bool,
    #[command(flatten)]
    job: JobArgs,
}

const DRAIN_EXAMPLES: &str = "  \
  # Leave at the next restart, or restart without the node in five minutes
  rallypoint drain node7 --within 5min -e node0:29400 --rdzv-id my-job";

/// Take a node out of a job when its round restarts
///
/// SIGUSR2 to the node's `rallypoint run` does the same.
#[derive(Debug, Args)]
#[command(after_help = exit_code::help_with_examples("drain", DRAIN_EXAMPLES))]
pub(crate) struct DrainArgs {
    /// Host name of the node
    node: String,
    /// Restart the round without the node after this time; by default, the node waits for another reason
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
/// The node at the endpoint becomes the only voter. By this command you vouch that the missing nodes are stopped: if one
/// of them still runs, two jobs run.
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
    let text = match send_command(&job.endpoint, &job.rdzv_id, command, job.timeout) {
        Ok(OperatorReply::Done(text)) if job.json => format!("{}\n", json!({ "result": text })),
        Ok(OperatorReply::Done(text)) => format!("{text}\n"),
        Ok(OperatorReply::Roster(roster)) => exclusions(&roster, job.json),
        Err(error) => {
            output::write_stderr(&format!("rallypoint {name}: {error}"));
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
        false => rows.map(|(host, reason, left)| format!("{host}\t{left} s\t{reason}\n")).collect(),
    }
}
