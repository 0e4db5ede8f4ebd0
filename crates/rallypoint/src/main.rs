//! The `rallypoint` command line. The modules parse arguments and print results; the other crates do the work.

mod bench;
mod exit_code;
mod flags;
mod join;
mod live_line;
mod log;
mod operator;
mod output;
mod port_owner;
mod progress;
mod python;
mod reference;
mod refusal;
mod run;
mod serve;
mod store;
mod wait_indicator;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

/// Elastic rendezvous for distributed training: a drop-in replacement for torchrun, and a store server for torch
#[derive(Debug, Parser)]
#[command(name = "rallypoint", version, max_term_width = HELP_WIDTH, propagate_version = true)]
#[command(after_help = NOTES, after_long_help = format!("{NOTES}\n\n{}", exit_code::help()))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const NOTES: &str = "Commands log to standard error. --log-level or RALLYPOINT_LOG sets the level.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Serve(serve::ServeArgs),
    Store(store::StoreArgs),
    Join(join::JoinArgs),
    Exclude(operator::ExcludeArgs),
    Drain(operator::DrainArgs),
    ForceQuorum(operator::ForceQuorumArgs),
    Bench(bench::BenchArgs),
    /// Print a completion script for a shell
    #[command(after_help = exit_code::help_with_examples("completions", COMPLETIONS_EXAMPLE))]
    Completions {
        /// Shell to print the script for
        shell: clap_complete::Shell,
    },
    /// Print a reference page in Markdown
    #[command(hide = true)]
    Reference {
        /// Page to print
        page: reference::Page,
    },
}

const COMPLETIONS_EXAMPLE: &str = "  rallypoint completions bash > /etc/bash_completion.d/rallypoint";

/// The maximum width of help texts, in columns. Clap uses the same width if it does not know that of the terminal.
const HELP_WIDTH: usize = 100;
/// The maximum time that a command waits for its log to be written before it exits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // `rallypoint run` starts this program again as the agent, and the agent starts it for each worker. In a worker,
    // `enter` executes the worker's program. In the agent, it returns the command line of the outer process.
    let line = match rallypoint_agent::enter() {
        Ok(line) => line,
        Err(code) => return code,
    };
    if line.first().is_some_and(|name| run::is_torchrun(name)) {
        return run::run_as_torchrun(&line);
    }
    let command = Cli::parse_from(&line).command;
    match command {
        Command::Bench(args) => bench::run(args),
        Command::Exclude(args) => operator::exclude(args),
        Command::Drain(args) => operator::drain(args),
        Command::ForceQuorum(args) => operator::force_quorum(args),
        Command::Join(args) => {
            let log = log::start_background(&args.log);
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
        Command::Reference { page } => reference::run(page),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the command and all of its subcommands, without the `help` commands that clap adds.
    fn all_commands(command: &clap::Command) -> Vec<&clap::Command> {
        let subcommands = command.get_subcommands().filter(|command| command.get_name() != "help");
        std::iter::once(command).chain(subcommands.flat_map(all_commands)).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_lists_the_commands_in_a_fixed_order() {
        let cli = Cli::command();
        let visible = cli.get_subcommands().filter(|command| !command.is_hide_set());
        let names: Vec<_> = visible.map(clap::Command::get_name).collect();
        assert_eq!(
            names,
            ["run", "serve", "store", "join", "exclude", "drain", "force-quorum", "bench", "completions"]
        );
    }

    #[test]
    fn no_value_name_contains_a_space() {
        let cli = Cli::command();
        for arg in all_commands(&cli).into_iter().flat_map(clap::Command::get_arguments) {
            for name in arg.get_value_names().unwrap_or_default() {
                assert!(!name.contains(' '), "{}: {name}", arg.get_id());
            }
        }
    }

    #[test]
    fn the_help_of_every_command_has_headings_and_ends_with_examples() {
        let cli = Cli::command();
        for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let end = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let (_, examples) = end.split_once("\n\nExamples:\n").unwrap_or_else(|| panic!("{name}: {end}"));
            assert!(examples.lines().all(|line| line.starts_with("  ")), "{name}: {examples}");
            assert!(examples.lines().all(|line| line.len() <= HELP_WIDTH), "{name}: {examples}");
            for arg in command
                .get_arguments()
                .filter(|arg| !arg.is_positional() && arg.get_id() != "print_completion")
            {
                assert!(arg.get_help_heading().is_some(), "{name}: {}", arg.get_id());
            }
        }
    }
}
