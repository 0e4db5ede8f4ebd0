//! Error files in torch's format: a worker writes one for the agent, and the agent writes one for the process that
//! started it. An error file that can't be read or parsed never makes the agent fail.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::report::Failure;

/// The maximum number of bytes that are read from an error file. The rest is ignored.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What a worker has recorded about its failure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cause {
    /// The traceback, or the message if there is no traceback. May be empty.
    pub message: String,
    /// When the worker failed, in seconds since the epoch.
    pub timestamp: Option<i64>,
}

impl Cause {
    /// Reads a worker's error file. Returns `None` if the path is not a regular file or can't be read.
    pub(crate) fn read(path: &Path) -> Option<Cause> {
        // A device or a pipe is not read, because that could block.
        let text = path.is_file().then(|| read_text(path))??;
        Some(Cause::parse(&text))
    }

    fn parse(text: &str) -> Cause {
        let unreadable = |why: &str| {
            let message = format!("(the error file {why}; its content:)\n{}", text.trim_end());
            Cause { message, timestamp: None }
        };
        let Ok(value) = serde_json::from_str::<Value>(text) else { return unreadable("is not JSON") };
        match value.get("message") {
            Some(Value::String(message)) => {
                Cause { message: message.clone(), timestamp: value.get("timestamp").and_then(as_integer) }
            }
            Some(Value::Object(message)) => {
                let info = message.get("extraInfo");
                let trace = info.and_then(|info| info.get("py_callstack")).and_then(Value::as_str);
                let text = trace.or_else(|| message.get("message").and_then(Value::as_str));
                let timestamp = info.and_then(|info| info.get("timestamp")).and_then(as_integer);
                Cause { message: text.unwrap_or("<N/A>").to_owned(), timestamp }
            }
            _ => unreadable("has no message"),
        }
    }
}

/// Returns the integer in a JSON number, or in a JSON string.
fn as_integer(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_i64().or_else(|| value.as_f64().map(|number| number as i64)),
    }
}

fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes a worker's failure to the agent's error file `to`. Copies the worker's own error file if it is on this
/// machine and has a message. Otherwise, the content follows from `failure`. Adds the exit code, unless the `message`
/// of the copied file is a string, which has no field for it.
pub fn write_failure_file(failure: &Failure, to: &Path) {
    let recorded = failure.error_file.as_deref().and_then(|path| read_text(Path::new(path)));
    let recorded = recorded.and_then(|text| serde_json::from_str::<Map<String, Value>>(&text).ok());
    let mut content = recorded.filter(|recorded| recorded.contains_key("message")).unwrap_or_else(|| {
        let info = json!({"py_callstack": failure.message, "timestamp": failure.timestamp.to_string()});
        let message = failure.message.lines().next_back().unwrap_or_default();
        Map::from_iter([("message".into(), json!({"message": message, "extraInfo": info}))])
    });
    let code = failure.exit.as_python();
    if let (Some(Value::Object(message)), true) = (content.get_mut("message"), code != 0) {
        message.insert("errorCode".into(), code.into());
    }
    write(to, &Value::Object(content));
}

/// Writes an error of the agent itself to the agent's error file `to`.
pub fn write_error_file(message: &str, to: &Path) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let info = json!({"py_callstack": message, "timestamp": now.to_string()});
    write(to, &json!({"message": {"message": message, "extraInfo": info}}));
}

fn write(to: &Path, content: &Value) {
    if to.exists() {
        tracing::warn!("{} already exists and is replaced", to.display());
    }
    // Write to a temporary file first, because another process may read the error file at any time.
    let temporary = to.with_extension(format!("{}.part", std::process::id()));
    let written =
        std::fs::write(&temporary, content.to_string()).and_then(|()| std::fs::rename(&temporary, to));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&temporary);
        tracing::warn!("cannot write the error file {}: {error}", to.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Exit, tests::failure};

    fn cause(message: &str, timestamp: Option<i64>) -> Cause {
        Cause { message: message.into(), timestamp }
    }

    #[test]
    fn both_of_torchs_formats_are_parsed() {
        let file = r#"{"message": {"message": "E: x", "extraInfo": {"py_callstack": "Trace\nE: x", "timestamp": "12"}}}"#;
        assert_eq!(Cause::parse(file), cause("Trace\nE: x", Some(12)));
        assert_eq!(Cause::parse(r#"{"message": {"message": "x"}}"#), cause("x", None));
        assert_eq!(Cause::parse(r#"{"message": {}}"#), cause("<N/A>", None));
        assert_eq!(Cause::parse(r#"{"message": "x", "timestamp": 7}"#), cause("x", Some(7)));
        assert_eq!(Cause::parse(r#"{"message": "x", "more": 1}"#), cause("x", None));
    }

    #[test]
    fn a_file_in_another_format_is_quoted_unchanged() {
        for (file, why) in [("", "is not JSON"), ("{\"mess", "is not JSON"), ("[1]", "has no message")] {
            let read = Cause::parse(file);
            assert!(read.message.contains(why) && read.message.ends_with(file), "{read:?}");
            assert_eq!(read.timestamp, None);
        }
    }

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Cause::read(&dir.path().join("absent")), None);
        assert_eq!(Cause::read(Path::new("/dev/null")), None);
        assert_eq!(Cause::read(dir.path()), None);
    }

    #[test]
    fn the_agents_error_file_has_the_workers_message_and_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let (workers_file, agents_file) = (dir.path().join("error.json"), dir.path().join("agent.json"));
        let read = || serde_json::from_slice::<Value>(&std::fs::read(&agents_file).unwrap()).unwrap();
        let mut failure = failure(0, Exit::Signal(11));
        failure.error_file = Some(workers_file.to_string_lossy().into_owned());
        std::fs::write(&workers_file, r#"{"message": {"message": "m", "extraInfo": {}}, "x": 1}"#).unwrap();
        write_failure_file(&failure, &agents_file);
        assert_eq!(read(), json!({"message": {"message": "m", "extraInfo": {}, "errorCode": -11}, "x": 1}));
        std::fs::write(&workers_file, r#"{"message": "m"}"#).unwrap();
        write_failure_file(&failure, &agents_file);
        assert_eq!(read(), json!({"message": "m"}));
        std::fs::write(&workers_file, "rubbish").unwrap();
        write_failure_file(&failure, &agents_file);
        assert_eq!(read()["message"]["errorCode"], -11);
        write_error_file("no store", &agents_file);
        assert_eq!(read()["message"]["message"], "no store");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
    }
}
