//! Reports what a node waits for: on the live line if standard error is a terminal, or else in the log, once per
//! change.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rallypoint_rendezvous::{
    Connecting, NativeWaiting, NodeDesc, Observer, Reason, StaticWaiting, Waiting, describe_node,
};
use rallypoint_store::Endpoint;

use crate::live_line;

/// Reports what a node waits for.
pub(crate) struct Progress {
    run_id: String,
    is_terminal: bool,
    /// The last summary in the log, or `None` if none was logged since the last call of `end`.
    logged: Mutex<Option<String>>,
}

/// The maximum number of nodes that a message names. Further nodes are only counted.
const MAX_NAMED_NODES: usize = 8;

impl Progress {
    pub(crate) fn new(run_id: &str) -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        Progress { run_id: run_id.into(), is_terminal, logged: Mutex::default() }
    }

    /// Clears the live line and forgets the last summary. The caller calls this when the node no longer waits.
    pub(crate) fn end(&self) {
        live_line::clear();
        *self.logged.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Shows `line` on a terminal, or logs `summary` followed by `wait_end` if the summary has changed. `wait_end`
    /// contains the remaining time. It is not compared, because it changes every second.
    fn report(&self, kind: &str, summary: String, line: String, wait_end: &str) {
        match self.is_terminal {
            true => self.show(line, None),
            false => self.log(kind, summary, wait_end),
        }
    }

    /// Logs the summary, unless it is equal to the last one in the log.
    fn log(&self, kind: &str, summary: String, wait_end: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.as_deref() != Some(&summary) {
            tracing::info!("waiting in the {kind} '{}': {summary}{wait_end}", self.run_id);
            *logged = Some(summary);
        }
    }

    /// Shows a live line, with details below it.
    fn show(&self, line: String, details: Option<String>) {
        live_line::show(format!("{}: {line}", self.run_id), details);
    }
}

impl Observer for Progress {
    fn connecting(&self, connecting: &Connecting<'_>) {
        let Connecting { peer, endpoint, fault, .. } = connecting;
        let wait_end = connecting.timeout_suffix();
        if self.is_terminal {
            let line = format!("no reply yet from {peer} at {endpoint}{wait_end}");
            self.show(line, Some(live_line::fault_details(fault)));
        } else if connecting.waited >= Connecting::LOG_GRACE {
            let wait_end = format!("{wait_end}\nhint: {}", fault.hint());
            self.log("rendezvous", connecting.to_string(), &wait_end);
        }
    }

    fn connected(&self, endpoint: &Endpoint, is_host: bool) {
        match is_host {
            true => tracing::info!("this node hosts the store at {endpoint}"),
            false => tracing::info!("connected to the store at {endpoint}"),
        }
    }

    fn static_waiting(&self, waiting: &StaticWaiting<'_>) {
        let StaticWaiting { endpoint, joined, world_size, left, .. } = waiting;
        let summary = format!("{joined} of {world_size} nodes have joined at {endpoint}");
        let wait_end = format!("; gives up in {} s (timeout)", left.as_secs_f64().ceil());
        self.report("static rendezvous", summary.clone(), format!("{summary}{wait_end}"), &wait_end);
    }

    fn native_waiting(&self, waiting: &NativeWaiting<'_>) {
        let seconds = |time: Duration| time.as_secs_f64().ceil();
        let wait_end = match (waiting.ends_in, waiting.left) {
            (Some(left), _) => format!("; continues in {} s", seconds(left)),
            (None, Some(left)) => format!("; gives up in {} s (join_timeout)", seconds(left)),
            (None, None) => String::new(),
        };
        self.report("rendezvous", waiting.state.into(), format!("{}{wait_end}", waiting.state), &wait_end);
    }

    fn waiting(&self, waiting: &Waiting<'_>) {
        // A node with one of these reasons does not wait. It acts immediately.
        if let Reason::NotJoined { .. } | Reason::Nothing | Reason::HeartbeatDue | Reason::Leaving =
            waiting.reason
        {
            return;
        }
        // The join timeout has expired. The error that the node exits with reports it.
        if waiting.reason.is_join_timeout() {
            return;
        }
        let (summary, wait_end) = (summary(waiting), wait_end(waiting));
        // A narrow terminal cuts off the end of the line, so the remaining time comes before the participants.
        self.report(
            "rendezvous",
            summary,
            format!("{}{wait_end}{}", reason(waiting), participants(waiting)),
            &wait_end,
        );
    }
}

/// Returns the reason and the participants. This text contains no times, so it changes only when the state changes.
fn summary(waiting: &Waiting<'_>) -> String {
    format!("{}{}", reason(waiting), participants(waiting))
}

fn reason(waiting: &Waiting<'_>) -> String {
    match waiting.reason {
        Reason::LastCall { have, max_nodes, .. } => {
            format!("{have} of at most {max_nodes} nodes have joined, last call for more")
        }
        reason => reason.to_string(),
    }
}

/// Returns the names of the participants and of the missing nodes.
fn participants(waiting: &Waiting<'_>) -> String {
    let participants: Vec<&NodeDesc> =
        waiting.state.map(|state| state.participants.keys().collect()).unwrap_or_default();
    let mut names: Vec<_> =
        participants.iter().take(MAX_NAMED_NODES).map(|node| describe_node(node)).collect();
    if participants.len() > MAX_NAMED_NODES {
        names.push(format!("and {} more", participants.len() - MAX_NAMED_NODES));
    }
    // A round that is under way may list nodes that have died since.
    let label = if matches!(waiting.reason, Reason::RoundUnderWay { .. }) { "its nodes" } else { "joined" };
    let names = if names.is_empty() { String::new() } else { format!("; {label}: {}", names.join(", ")) };
    format!("{names}{}", waiting.missing.describe(MAX_NAMED_NODES))
}

/// Returns the event that ends the wait, and the time until then.
fn wait_end(waiting: &Waiting<'_>) -> String {
    let seconds = |time: Duration| time.as_secs_f64().ceil();
    let left = seconds(waiting.left);
    match waiting.reason {
        Reason::Spare { .. } => "; until a node leaves or the job ends".into(),
        Reason::LastCall { left, setting, .. } => format!("; starts in {} s ({setting})", seconds(*left)),
        _ => format!("; gives up in {left} s (join_timeout)"),
    }
}
