//! The `rallypoint` command: what people type. The work is done in the crates below it.

mod bench;
mod exit_code;
mod flags;
mod join;
mod live_line;
mod log;
mod output;
mod progress;
mod python;
mod refusal;
mod run;
mod serve;
mod store;
mod wait_indicator;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

/// Elastic rendezvous for distributed training: a launcher in torchrun's place, a store server that torch can't
/// tell from its own, and their tools
#[derive(Debug, Parser)]
#[command(name = "rallypoint", version, max_term_width = HELP_WIDTH, propagate_version = true)]
#[command(after_help = NOTES, after_long_help = format!("{NOTES}\n\n{}", exit_code::help()))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const NOTES: &str = "Logs go to standard error; RALLYPOINT_LOG=error, warn, info or debug says how much.";

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::BenchArgs),
    Join(join::JoinArgs),
    Run(Box<run::RunArgs>),
    Serve(serve::ServeArgs),
    Store(store::StoreArgs),
    /// Prints a completion script for a shell
    #[command(after_help = "Example:\n  rallypoint completions bash > /etc/bash_completion.d/rallypoint")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Columns of `--help` at most.
const HELP_WIDTH: usize = 110;
/// How long a node that has ended waits for the last lines of its log to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // The agent and its workers are started through this same program.
    let line = match rallypoint_agent::enter() {
        Ok(line) => line,
        Err(code) => return code,
    };
    if line.first().is_some_and(|name| run::is_torchrun(name)) {
        return run::run_as_torchrun(&line);
    }
    let command = Cli::parse_from(&line).command;
    // A server starts its own, once it is the process that will serve; an agent when it knows how much it is to say; and a
    // node may not wait for whoever reads it.
    if matches!(command, Command::Bench(_) | Command::Store(_) | Command::Completions { .. }) {
        log::start();
    }
    match command {
        Command::Bench(args) => bench::run(args),
        Command::Join(args) => {
            let log = log::start_background();
            let code = join::run(args);
            log.finish(FLUSH_TIMEOUT);
            code
        }
        Command::Run(args) => run::run(*args, run::RUN, &line),
        Command::Serve(args) => serve::run(args),
        Command::Store(args) => store::run(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "rallypoint", &mut script);
            output::write_stdout(script).err().unwrap_or(ExitCode::SUCCESS)
        }
    }
}
