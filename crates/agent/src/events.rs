//! Events in torch's format: one line of JSON per event.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::config::{EventLog, LaunchConfig};
use crate::disk::{FirstError, is_disk_full};
use crate::error::{AgentError, Result};
use crate::formation::Formation;
use crate::worker::entry_point_name;

/// The event log.
pub(crate) struct Events {
    sink: Option<Sink>,
    error: FirstError,
    run_id: String,
    role: String,
    backend: String,
    entry_point: String,
    start: Instant,
    pub(crate) hostname: String,
    /// The round of the last start. As in torch, there is none before the first start.
    pub(crate) formation: Option<Arc<Formation>>,
}

enum Sink {
    Console(Console),
    File(File, PathBuf),
}

/// Standard error as an event log. A thread writes the lines, so that the agent continues if the reader of standard
/// error stops reading.
struct Console {
    lines: Option<SyncSender<String>>,
    ended: Receiver<()>,
}

impl Console {
    /// The number of lines that may be queued. Further lines are lost.
    const MAX_LINES: usize = 1024;
    /// How long the agent waits at its end until the last lines are written.
    const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

    fn start() -> Console {
        let (lines, queue) = sync_channel::<String>(Console::MAX_LINES);
        let (end, ended) = sync_channel(1);
        std::thread::spawn(move || {
            for line in queue {
                // There is no other place to report that standard error is closed.
                let _ = std::io::stderr().lock().write_all(line.as_bytes());
            }
            let _ = end.send(());
        });
        Console { lines: Some(lines), ended }
    }

    fn write(&self, line: String) -> std::io::Result<()> {
        let lines = self.lines.as_ref().ok_or(std::io::ErrorKind::BrokenPipe)?;
        lines.try_send(line).map_err(|_| std::io::Error::other("standard error is not read"))
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.ended.recv_timeout(Console::LAST_LINES_TIMEOUT);
    }
}

/// The worker of an event.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WorkerEvent<'a> {
    pub(crate) local_rank: u32,
    pub(crate) pid: u32,
    pub(crate) exit_code: Option<i32>,
    pub(crate) raw_error: Option<&'a str>,
}

impl Events {
    pub(crate) fn open(config: &LaunchConfig, start: Instant) -> Result<Events> {
        let error = FirstError::default();
        let sink = match &config.events {
            EventLog::None => None,
            EventLog::Console => Some(Sink::Console(Console::start())),
            EventLog::File(path) => match File::options().create(true).append(true).open(path) {
                Ok(file) => Some(Sink::File(file, path.clone())),
                Err(source) if is_disk_full(&source) => {
                    error.report(format!("cannot create the event log {path:?}: {source}; events are lost"));
                    None
                }
                Err(source) => {
                    return Err(AgentError::File { doing: "open the event log", path: path.clone(), source });
                }
            },
        };
        // The host name is only needed if events are written.
        let hostname = if sink.is_some() { crate::host::full_name() } else { String::new() };
        Ok(Events {
            sink,
            error,
            run_id: config.rendezvous.run_id.clone(),
            role: config.role.clone(),
            backend: config.rendezvous.backend.clone(),
            entry_point: entry_point_name(config),
            start,
            hostname,
            formation: None,
        })
    }

    /// Records how long a step of the agent took.
    pub(crate) fn record_duration(&mut self, state: &str, took: Duration) {
        self.record(state, None, None, Some(took));
    }

    /// Records the end of the agent.
    pub(crate) fn record_agent(&mut self, state: &str, raw_error: Option<&str>) {
        self.record(state, None, raw_error, None);
    }

    /// Records the start or the end of a worker.
    pub(crate) fn record_worker(&mut self, state: &str, worker: WorkerEvent<'_>) {
        self.record(state, Some(worker), worker.raw_error, None);
    }

    fn record(
        &mut self,
        state: &str,
        worker: Option<WorkerEvent<'_>>,
        raw_error: Option<&str>,
        took: Option<Duration>,
    ) {
        if self.sink.is_none() {
            return;
        }
        let mut line = self.event(state, worker, raw_error, took).to_string();
        line.push('\n');
        let written = match &mut self.sink {
            Some(Sink::File(file, path)) => {
                file.write_all(line.as_bytes()).map_err(|error| (format!("{path:?}"), error))
            }
            Some(Sink::Console(console)) => {
                console.write(line).map_err(|error| ("on standard error".into(), error))
            }
            None => Ok(()),
        };
        if let Err((target, error)) = written {
            let text = format!("cannot write the event log {target}: {error}; the workers keep running");
            self.error.report(text);
        }
    }

    /// Returns why events are missing, if there was an error.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.get()
    }

    fn event(
        &self,
        state: &str,
        worker: Option<WorkerEvent<'_>>,
        raw_error: Option<&str>,
        took: Option<Duration>,
    ) -> Value {
        let formation = self.formation.as_deref();
        let mut extra = json!({
            "group_world_size": formation.map(|formation| formation.round.world_size),
            "entry_point": self.entry_point,
        });
        if let (Some(worker), Some(formation)) = (worker, formation) {
            extra["local_rank"] = json!([worker.local_rank]);
            extra["role_rank"] = json!([formation.role_rank(worker.local_rank)]);
            extra["role_world_size"] = json!([formation.ranks.role_world_size]);
            extra["exit_code"] = json!([worker.exit_code]);
            // Torch sets this field for failures only. Other events have the process id only in `worker_id`.
            extra["worker_pid"] = json!([worker.exit_code.map(|_| worker.pid)]);
        }
        json!({
            "name": format!("torchelastic.worker.status.{state}"),
            "source": if worker.is_some() { "WORKER" } else { "AGENT" },
            "timestamp": 0,
            "metadata": {
                "run_id": self.run_id,
                "global_rank": worker.zip(formation).map(|(worker, formation)| formation.rank(worker.local_rank)),
                "group_rank": formation.map(|formation| formation.round.rank),
                "worker_id": worker.map(|worker| worker.pid.to_string()),
                "role": self.role,
                "hostname": self.hostname,
                "state": state,
                "total_run_time": self.start.elapsed().as_secs(),
                "rdzv_backend": self.backend,
                "raw_error": raw_error,
                "metadata": extra.to_string(),
                "agent_restarts": formation.map_or(0, |formation| formation.restarts),
                "duration_ms": took.map(|took| took.as_secs_f64() * 1e3),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::config;
    use crate::formation::tests::formation;

    fn events(dir: &std::path::Path) -> Events {
        let config = LaunchConfig { events: EventLog::File(dir.join("events")), ..config(2) };
        let mut events = Events::open(&config, Instant::now()).unwrap();
        events.formation = Some(Arc::new(formation()));
        events
    }

    #[test]
    fn a_workers_event_has_torchs_fields() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = events(dir.path());
        let worker = WorkerEvent { local_rank: 1, pid: 77, exit_code: Some(-9), raw_error: Some("{}") };
        events.record_worker("FAILED", worker);
        events.record_duration("RENDEZVOUS", Duration::from_millis(1500));
        let lines = std::fs::read_to_string(dir.path().join("events")).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["name"], "torchelastic.worker.status.FAILED");
        assert_eq!(lines[0]["source"], "WORKER");
        let metadata = &lines[0]["metadata"];
        assert_eq!(metadata["global_rank"], 5);
        assert_eq!(metadata["group_rank"], 1);
        assert_eq!(metadata["worker_id"], "77");
        let extra: Value = serde_json::from_str(metadata["metadata"].as_str().unwrap()).unwrap();
        assert_eq!(extra["role_rank"], json!([3]));
        assert_eq!(extra["exit_code"], json!([-9]));
        assert_eq!(lines[1]["source"], "AGENT");
        assert_eq!(lines[1]["metadata"]["duration_ms"], 1500.0);
        assert_eq!(lines[1]["metadata"]["worker_id"], Value::Null);
    }

    #[test]
    fn an_event_log_that_cannot_be_opened_is_an_error_before_anything_starts() {
        let config = LaunchConfig { events: EventLog::File("/proc/none".into()), ..config(1) };
        let error = Events::open(&config, Instant::now()).err().unwrap().to_string();
        assert!(error.contains("event log") && error.contains("/proc/none"), "{error}");
    }
}
