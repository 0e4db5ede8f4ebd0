//! The reference page of the command line: every command with its flags and examples.

use clap::{Arg, Command, CommandFactory};

use super::code;
use crate::Cli;
use crate::flags::variable_of;

pub(super) fn markdown() -> String {
    let mut cli = Cli::command();
    // `build` adds the names of the parent commands to the usage of each subcommand.
    cli.build();
    let mut text = format!("{}\n", long_about(&cli));
    for command in visible(&cli) {
        describe(&mut text, command, "##");
        for subcommand in visible(command) {
            describe(&mut text, subcommand, "###");
        }
    }
    text
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn describe(text: &mut String, command: &Command, level: &str) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    text.push_str(&format!("\n{level} `{name}`\n\n{}\n\n```text\n{usage}\n```\n", long_about(command)));
    let is_subcommand = level != "##";
    let arguments = command
        .get_arguments()
        // A global flag is described only with the command that defines it, not with its subcommands.
        .filter(|arg| !(is_subcommand && arg.is_global_set()))
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version");
    let mut headings: Vec<(&str, String)> = Vec::new();
    for arg in arguments {
        let default = if arg.is_positional() { "Arguments" } else { "Options" };
        let heading = arg.get_help_heading().unwrap_or(default);
        let line = format!("- {}: {}\n", names(arg), description(command, arg));
        match headings.iter_mut().find(|(name, _)| *name == heading) {
            Some((_, lines)) => lines.push_str(&line),
            None => headings.push((heading, line)),
        }
    }
    for (heading, lines) in headings {
        text.push_str(&format!("\n**{heading}**\n\n{lines}"));
    }
    let end = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if let Some((_, examples)) = end.split_once("Examples:\n") {
        let examples: String = examples.lines().map(|line| format!("{}\n", line.trim_start())).collect();
        text.push_str(&format!("\n**Examples**\n\n```sh\n{examples}```\n"));
    }
}

fn long_about(command: &Command) -> String {
    command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default()
}

/// Returns the short and long name of a flag with the name of its value, or the name of a positional argument.
fn names(arg: &Arg) -> String {
    let value: String = match (arg.get_action().takes_values(), arg.get_value_names()) {
        (true, Some(names)) => names.join(" "),
        _ => String::new(),
    };
    if arg.is_positional() {
        return code(&value);
    }
    let long = arg.get_long().map(|long| format!("--{long} {value}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let names: Vec<_> = short.into_iter().chain(long).map(|name| code(name.trim_end())).collect();
    names.join(", ")
}

/// Returns the help of a flag or argument, with its possible values, its default and its environment variable.
fn description(command: &Command, arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    // The source has no period after the first line of a help text. Add it if more text follows.
    let mut text = help.replacen("\n\n", ". ", 1).replace("\n\n", " ").replace('\n', " ");
    let mut add = |name: &str, values: Vec<String>| {
        if !values.is_empty() {
            text.push_str(&format!(" [{name}: {}]", values.join(", ")));
        }
    };
    if arg.get_action().takes_values() {
        let values = arg.get_possible_values();
        add("possible values", values.iter().map(|value| value.get_name().to_owned()).collect());
        let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
        add("default", defaults.filter(|value| !value.is_empty()).collect());
    }
    let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
    add("environment", variable.or_else(|| variable_of(command.get_name(), arg)).into_iter().collect());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_described_with_flags_defaults_variables_and_examples() {
        let text = markdown();
        for line in [
            "## `rallypoint run`",
            "### `rallypoint store get`",
            "**Rendezvous**",
            "- `--nnodes N|MIN:MAX`: Number of nodes, or the minimum and the maximum [default: 1:1] [environment: PET_NNODES]",
            "- `-e`, `--endpoint HOST:PORT`: Server of the store [environment: RALLYPOINT_ENDPOINT]",
            "- `KEY`: Key to read",
            "rallypoint run --nproc-per-node 4 train.py --epochs 10",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} in {text}");
        }
        assert!(!text.contains("rallypoint reference") && !text.contains("--help"), "{text}");
    }
}
