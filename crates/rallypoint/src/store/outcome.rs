//! The results and errors of `rallypoint store`: their text, their JSON and their exit codes.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rallypoint_core::rendezvous::WallTime;
use rallypoint_core::wire::Op;
use rallypoint_store::{Awaited, ConnectionFault, Endpoint, Failure, Oversized, StoreError};
use serde_json::{Value, json};

use super::state;
use crate::exit_code::{ABSENT, FAILURE, OTHER_VALUE, TIMEOUT, UNREACHABLE, USAGE};
use crate::output;

/// The result of an operation.
pub(super) enum Outcome {
    /// A value was written.
    Done { key: String },
    /// All awaited keys are present, or the barrier was passed.
    Waited,
    /// A value was read.
    Value { key: String, value: Vec<u8>, raw: bool },
    /// A compare-and-set failed, because the key has this other value.
    OtherValue { key: String, value: Vec<u8> },
    /// The key is absent.
    Absent { key: String },
    /// The queue is empty.
    Empty { key: String },
    /// A number, and the name that it has in JSON.
    Number { name: &'static str, number: i64 },
    /// The number of keys that `delete` deleted.
    Deleted { count: u64 },
    /// The number of keys that `clear` deleted.
    Cleared { count: u64 },
    /// For each key of `check`, whether it is present.
    Presence(Vec<(bool, String)>),
    /// The keys that `list` found.
    Keys(Vec<String>),
    /// The server replied to a PING after this time.
    Pong { time: Duration, identity: Option<String> },
}

impl Outcome {
    /// Prints the result and returns its exit code.
    pub(super) fn print(self, as_json: bool) -> ExitCode {
        let code = self.code();
        let text = if as_json { json_line(&self.json()) } else { self.text(std::io::stdout().is_terminal()) };
        if let Err(failed) = output::write_stdout(&text) {
            return failed;
        }
        match &self {
            _ if as_json => {}
            Outcome::Absent { key } => output::write_stderr(&format!("rallypoint store: {key} is absent")),
            Outcome::Empty { key } => {
                output::write_stderr(&format!("rallypoint store: queue {key} is empty"))
            }
            _ => {}
        }
        ExitCode::from(code)
    }

    fn code(&self) -> u8 {
        match self {
            Outcome::Absent { .. } | Outcome::Empty { .. } | Outcome::Deleted { count: 0 } => ABSENT,
            Outcome::Presence(states) if states.iter().any(|(is_present, _)| !is_present) => ABSENT,
            Outcome::OtherValue { .. } => OTHER_VALUE,
            _ => 0,
        }
    }

    /// Returns the text that is printed without `--json`. If standard output is a terminal, control characters in
    /// names and values are escaped, except in a value with `--raw`.
    fn text(&self, terminal: bool) -> Vec<u8> {
        let name = |key: &str| match terminal {
            true => output::escape_control(key.as_bytes(), &[]),
            false => key.to_owned(),
        };
        match self {
            Outcome::Done { .. } | Outcome::Waited | Outcome::Absent { .. } | Outcome::Empty { .. } => {
                Vec::new()
            }
            Outcome::Value { value, raw: true, .. } => value.clone(),
            Outcome::Value { key, value, .. } | Outcome::OtherValue { key, value } => match terminal {
                true => {
                    let state = state::describe(key, value, now());
                    let text = state.as_deref().map_or(&value[..], str::as_bytes);
                    // Line feeds and tabs are kept, because a value can have several lines.
                    let text = output::escape_control(text, &['\n', '\t']);
                    let end = if state.is_some() { "" } else { "\n" };
                    format!("{text}{end}").into_bytes()
                }
                false => [value, &b"\n"[..]].concat(),
            },
            Outcome::Number { number, .. } => format!("{number}\n").into_bytes(),
            Outcome::Deleted { count } | Outcome::Cleared { count } => format!("{count}\n").into_bytes(),
            Outcome::Presence(states) => {
                let line = |(is_present, key): &(bool, String)| {
                    format!("{} {}\n", if *is_present { "present" } else { "absent " }, name(key))
                };
                states.iter().map(line).collect::<String>().into_bytes()
            }
            Outcome::Keys(keys) => {
                keys.iter().map(|key| format!("{}\n", name(key))).collect::<String>().into_bytes()
            }
            Outcome::Pong { time, identity } => {
                let server = identity.as_deref().map_or("not a rallypoint server".into(), |identity| {
                    format!("rallypoint, {}", name(identity))
                });
                format!("answered in {} µs ({server})\n", time.as_micros()).into_bytes()
            }
        }
    }

    fn json(&self) -> Value {
        match self {
            Outcome::Done { key } => json!({"key": key, "stored": true}),
            Outcome::Waited => json!({"waited": true}),
            Outcome::Value { key, value, .. } => with_value(json!({"key": key}), value),
            Outcome::OtherValue { key, value } => with_value(json!({"key": key, "stored": false}), value),
            Outcome::Absent { key } => json!({"absent": [key]}),
            Outcome::Empty { key } => json!({"key": key, "empty": true}),
            Outcome::Number { name, number } => json!({*name: number}),
            Outcome::Deleted { count } | Outcome::Cleared { count } => json!({"deleted": count}),
            Outcome::Presence(states) => {
                let keys_where = |is_wanted| {
                    states
                        .iter()
                        .filter(|(is_present, _)| *is_present == is_wanted)
                        .map(|(_, key)| key)
                        .collect::<Vec<_>>()
                };
                json!({"present": keys_where(true), "absent": keys_where(false)})
            }
            Outcome::Keys(keys) => json!({"keys": keys}),
            Outcome::Pong { time, identity } => {
                json!({"microseconds": time.as_micros() as u64, "server": identity})
            }
        }
    }
}

fn now() -> WallTime {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime::UNIX_EPOCH.checked_add(elapsed).unwrap_or(WallTime::MAX)
}

/// Returns a JSON object as one line. Escapes the control characters U+007F to U+009F, which JSON allows in strings
/// but which terminals interpret.
fn json_line(object: &Value) -> Vec<u8> {
    let mut line = String::new();
    for c in object.to_string().chars() {
        match c.is_control() {
            true => line.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => line.push(c),
        }
    }
    line.push('\n');
    line.into_bytes()
}

/// Adds a value to a JSON object: as `value` if it is UTF-8, or else in hexadecimal as `value_hex`.
fn with_value(mut object: Value, value: &[u8]) -> Value {
    match std::str::from_utf8(value) {
        Ok(text) => object["value"] = text.into(),
        Err(_) => {
            let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            object["value_hex"] = hex.into();
        }
    }
    object
}

/// Prints an error with a hint, and returns its exit code.
pub(super) fn print_error(error: &StoreError, endpoint: &Endpoint, as_json: bool) -> ExitCode {
    let fault = error.connection_fault();
    let op = error.context().and_then(|context| context.op);
    let (code, kind, hint) = match error.failure() {
        Some(Failure::Timeout(Awaited::Keys(_))) => {
            (TIMEOUT, "timeout", "use a longer --timeout; `list` prints the keys")
        }
        Some(Failure::Timeout(_)) => (TIMEOUT, "timeout", "use a longer --timeout"),
        Some(Failure::NoReply) => (
            TIMEOUT,
            "timeout",
            "check whether the server is stopped or overloaded, and whether the network drops replies",
        ),
        Some(Failure::Unreachable(_)) => {
            (UNREACHABLE, "unreachable", fault.as_ref().map_or("", ConnectionFault::hint))
        }
        Some(Failure::ConnectionLost(_) | Failure::Reset(_)) => {
            (UNREACHABLE, "unreachable", "check whether the server or its job was stopped or restarted")
        }
        Some(Failure::Indeterminate(_)) if op == Some(Op::Barrier) => (
            UNREACHABLE,
            "indeterminate",
            "other clients may have passed the barrier; use another key for the next barrier",
        ),
        Some(Failure::Indeterminate(_)) => (
            UNREACHABLE,
            "indeterminate",
            "before you repeat the operation, read the key to check whether it was carried out",
        ),
        Some(Failure::Protocol(..)) => (
            FAILURE,
            "protocol",
            "check that this is the port of a TCPStore, such as the MASTER_PORT of a torch job",
        ),
        Some(Failure::Unsupported(_)) => (FAILURE, "unsupported", ""),
        Some(Failure::TooLarge { what: Oversized::Reply, .. }) => {
            (FAILURE, "failed", "the reply is longer than this command accepts; request less data at a time")
        }
        Some(Failure::TooLarge { .. }) => {
            (USAGE, "usage", "store the value in parts, or store the path of a file")
        }
        None if matches!(error, StoreError::InvalidArgument(_)) => {
            (USAGE, "usage", "see `rallypoint store --help`")
        }
        _ => (FAILURE, "failed", ""),
    };
    if as_json {
        let failure = json!({"error": kind, "message": error.to_string(), "endpoint": endpoint.to_string()});
        let _ = output::write_stdout(json_line(&failure));
    }
    output::write_stderr_lines(&format!("rallypoint store: {error}"));
    if !hint.is_empty() {
        output::write_stderr(&format!("hint: {hint}"));
    }
    ExitCode::from(code)
}
