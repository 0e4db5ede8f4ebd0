//! What a node waits for, said while it waits: as a live line on a terminal, in a log once for every change.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rallypoint_rendezvous::{Gathering, NodeDesc, Observer, Reason, Waiting};

/// Tells it.
pub(crate) struct Progress {
    run_id: String,
    bar: Option<ProgressBar>,
    /// What was logged last, without what changes by itself.
    logged: Mutex<Option<String>>,
}

/// How often the line moves while nothing else does.
const TICK: Duration = Duration::from_millis(100);
/// So many nodes are named; a crowd is only counted.
const NAMED: usize = 8;

impl Progress {
    pub(crate) fn new(run_id: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Progress { run_id: run_id.into(), bar, logged: Mutex::default() }
    }

    /// It waits no longer.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.disable_steady_tick();
            bar.set_message("");
            bar.finish_and_clear();
            bar.reset();
        }
        *self.logged.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// `what` changes when something happens, the rest by itself; a narrow terminal cuts the end of the line.
    fn tell(&self, kind: &str, what: String, line: String, until: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(format!("{}: {line}", self.run_id));
                bar.tick();
            }
            None => {
                let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
                if logged.as_deref() != Some(&what) {
                    tracing::info!("waiting in the {kind} '{}': {what}{until}", self.run_id);
                    *logged = Some(what);
                }
            }
        }
    }
}

impl Observer for Progress {
    fn gathering(&self, gathering: &Gathering<'_>) {
        let Gathering { joined, world_size, endpoint, left, .. } = gathering;
        let what = match joined {
            None => format!("no answer yet from rank 0 at {endpoint}"),
            Some(joined) => format!("{joined} of {world_size} nodes are here"),
        };
        let until = format!("; gives up in {} s (timeout)", left.as_secs_f64().ceil());
        if let (Some(bar), None) = (&self.bar, joined) {
            // Nobody calls while the connection is being made.
            bar.enable_steady_tick(TICK);
        }
        self.tell("static rendezvous", what.clone(), format!("{what}{until}"), &until);
    }

    fn waiting(&self, waiting: &Waiting<'_>) {
        // Steps on the way are nothing to tell of.
        if matches!(waiting.reason, Reason::NotJoined { .. } | Reason::Nothing | Reason::HeartbeatDue) {
            return;
        }
        // It waits no longer; the error says so.
        if waiting.reason.is_join_timeout() {
            return;
        }
        let (what, until) = (what(waiting), until(waiting));
        // What ends the wait before who is here.
        self.tell("rendezvous", what, format!("{}{until}{}", reason(waiting), who(waiting)), &until);
    }
}

/// What is waited for and who is here; it changes when something happens.
fn what(waiting: &Waiting<'_>) -> String {
    format!("{}{}", reason(waiting), who(waiting))
}

fn reason(waiting: &Waiting<'_>) -> String {
    match waiting.reason {
        Reason::LastCall { have, most, .. } => {
            format!("{have} of at most {most} nodes are here, last call for more")
        }
        reason => reason.to_string(),
    }
}

/// Who is here, and who is not.
fn who(waiting: &Waiting<'_>) -> String {
    let here: Vec<&NodeDesc> =
        waiting.state.map(|state| state.participants.keys().collect()).unwrap_or_default();
    let mut names: Vec<_> = here
        .iter()
        .take(NAMED)
        .map(|node| format!("{} (pid {})", node.addr.escape_debug(), node.pid))
        .collect();
    if here.len() > NAMED {
        names.push(format!("and {} more", here.len() - NAMED));
    }
    let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    format!("{names}{}", waiting.missing.describe(NAMED))
}

/// What ends the wait, and when.
fn until(waiting: &Waiting<'_>) -> String {
    let seconds = |time: Duration| time.as_secs_f64().ceil();
    let left = seconds(waiting.left);
    match waiting.reason {
        Reason::Spare { .. } => "; until a node leaves or the job ends".into(),
        Reason::LastCall { left, .. } => format!("; starts in {} s (last_call_timeout)", seconds(*left)),
        _ => format!("; gives up in {left} s (join_timeout)"),
    }
}
