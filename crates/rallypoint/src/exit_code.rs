//! The exit codes of all commands, in one table.

use std::fmt;

/// A failure that no other exit code describes. Standard error has the reason.
pub(crate) const FAILURE: u8 = 1;
/// Wrong usage.
pub(crate) const USAGE: u8 = 2;
/// `store`: the key is absent, or the queue is empty.
pub(crate) const ABSENT: u8 = 3;
/// `join`: the rendezvous is closed.
pub(crate) const CLOSED: u8 = 3;
/// A timeout expired.
pub(crate) const TIMEOUT: u8 = 4;
/// The store could not be reached, or the connection to it was lost.
pub(crate) const UNREACHABLE: u8 = 5;
/// `store cas`: the key has another value than the expected one.
pub(crate) const OTHER_VALUE: u8 = 6;
/// `join`: other nodes re-formed the round while the command ran.
pub(crate) const ROUND_OVER: u8 = 6;
/// `join`: the command could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// `join`: the command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// `bench`: SIGINT or SIGTERM interrupted the run.
pub(crate) const INTERRUPTED: u8 = 130;

/// Returns the exit code with which a shell reports a process that this signal ended: 128 plus the number of the
/// signal.
pub(crate) fn of_signal(signal: i32) -> u8 {
    128u8.saturating_add(signal as u8)
}

/// The meaning of one exit code for one or more commands.
pub(crate) struct Row {
    code: Code,
    commands: &'static [&'static str],
    meaning: &'static str,
}

enum Code {
    Number(u8),
    Signal,
    Other,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Number(number) => f.pad(&number.to_string()),
            Code::Signal => f.pad("128+N"),
            Code::Other => f.pad("other"),
        }
    }
}

const fn row(code: u8, commands: &'static [&'static str], meaning: &'static str) -> Row {
    Row { code: Code::Number(code), commands, meaning }
}

pub(crate) const TABLE: &[Row] = &[
    row(
        0,
        &["run"],
        "all workers of this node succeeded, the job ended while it was a spare, or it was drained",
    ),
    row(0, &["serve"], "SIGTERM or SIGINT stopped the server"),
    row(0, &["join"], "the command succeeded; without one, the job ended, or a signal came after joining"),
    row(0, &["store", "exclude", "drain", "force-quorum", "bench", "completions"], "success"),
    row(
        FAILURE,
        &["run"],
        "a worker failed on any node, a signal ended the job, or no worker could be started",
    ),
    row(FAILURE, &["serve"], "the server could not listen, or stopped by itself"),
    row(
        FAILURE,
        &["store", "join", "bench", "completions"],
        "another failure; standard error has the reason",
    ),
    row(
        FAILURE,
        &["exclude", "drain", "force-quorum"],
        "the command was refused; standard error has the reason",
    ),
    row(USAGE, &["run"], "wrong usage, except for errors for which torchrun exits with 1"),
    row(
        USAGE,
        &["serve", "store", "join", "exclude", "drain", "force-quorum", "bench", "completions"],
        "wrong usage",
    ),
    row(ABSENT, &["store"], "the key is absent, or the queue is empty"),
    row(CLOSED, &["join"], "the rendezvous is closed"),
    row(TIMEOUT, &["store", "bench"], "the timeout expired"),
    row(TIMEOUT, &["join"], "the timeout expired before enough nodes had joined"),
    row(
        UNREACHABLE,
        &["store"],
        "the server was not reachable or was lost; the outcome of a write may be unknown",
    ),
    row(UNREACHABLE, &["exclude", "drain", "force-quorum"], "no node of the job could be reached"),
    row(UNREACHABLE, &["join", "bench"], "the store could not be reached, or the connection was lost"),
    row(OTHER_VALUE, &["store"], "cas: the key has another value"),
    row(
        ROUND_OVER,
        &["join"],
        "other nodes re-formed the round while the command ran; run again to join the next one",
    ),
    row(NOT_EXECUTABLE, &["join"], "the command could not be executed"),
    row(NOT_FOUND, &["join"], "the command was not found"),
    row(INTERRUPTED, &["bench"], "SIGINT or SIGTERM interrupted the run"),
    Row {
        code: Code::Signal,
        commands: &["run"],
        meaning: "signal N came before workers were started, or is not in --signals-to-handle",
    },
    Row {
        code: Code::Signal,
        commands: &["join"],
        meaning: "signal N ended the node while it waited, or ended the command",
    },
    Row { code: Code::Other, commands: &["join"], meaning: "the exit code of the command" },
];

/// Returns the exit codes of all commands, for `rallypoint --help`.
pub(crate) fn help() -> String {
    let line = |row: &Row| format!("  {:<5}  {}: {}\n", row.code, row.commands.join(", "), row.meaning);
    format!("Exit codes:\n{}", TABLE.iter().map(line).collect::<String>())
}

/// Returns the end of the help of one command: its exit codes, and examples.
pub(crate) fn help_with_examples(command: &str, examples: &str) -> String {
    let rows = TABLE.iter().filter(|row| row.commands.contains(&command));
    let codes: String = rows.map(|row| format!("  {:<5}  {}\n", row.code, row.meaning)).collect();
    format!("Exit codes:\n{codes}\nExamples:\n{examples}")
}

/// Returns the exit codes of all commands as a table in Markdown.
pub(crate) fn markdown() -> String {
    let line = |row: &Row| format!("| {} | {} | {} |\n", row.code, row.commands.join(", "), row.meaning);
    format!("| code | command | meaning |\n|---|---|---|\n{}", TABLE.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HELP_WIDTH;

    const ALL: &[&str] =
        &["run", "serve", "store", "join", "exclude", "drain", "force-quorum", "bench", "completions"];

    #[test]
    fn no_row_of_the_help_wraps() {
        for line in help().lines() {
            assert!(line.len() <= HELP_WIDTH, "{line}");
        }
    }

    #[test]
    fn every_code_of_a_command_has_one_meaning() {
        for command in ALL {
            let rows = TABLE.iter().filter(|row| row.commands.contains(command));
            let codes: Vec<_> = rows.map(|row| row.code.to_string()).collect();
            let mut unique = codes.clone();
            unique.dedup();
            assert_eq!(codes, unique, "{command}");
            assert!(codes.starts_with(&["0".into(), "1".into(), "2".into()]), "{command}: {codes:?}");
        }
    }

    #[test]
    fn codes_are_in_ascending_order() {
        let numbers = TABLE.iter().filter_map(|row| match row.code {
            Code::Number(number) => Some(number),
            Code::Signal | Code::Other => None,
        });
        assert!(numbers.is_sorted());
    }
}
