//! What a node waits for, said while it waits: as a live line on a terminal, in a log once for every change.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rallypoint_rendezvous::{NodeDesc, Observer, Reason, Waiting};

/// Tells it.
pub(crate) struct Progress {
    run_id: String,
    bar: Option<ProgressBar>,
    /// What was logged last, without what changes by itself.
    logged: Mutex<Option<String>>,
}

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
            bar.set_message("");
            bar.finish_and_clear();
            bar.reset();
        }
        *self.logged.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Observer for Progress {
    fn waiting(&self, waiting: &Waiting<'_>) {
        // Steps on the way are nothing to tell of.
        if matches!(waiting.reason, Reason::NotJoined { .. } | Reason::Nothing | Reason::HeartbeatDue) {
            return;
        }
        let (what, until) = (what(waiting), until(waiting));
        match &self.bar {
            Some(bar) => {
                // What ends the wait first: a narrow terminal cuts the rest.
                bar.set_message(format!("{}: {}{until}{}", self.run_id, reason(waiting), who(waiting)));
                bar.tick();
            }
            None => {
                let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
                if logged.as_deref() != Some(&what) {
                    tracing::info!("waiting in the rendezvous '{}': {what}{until}", self.run_id);
                    *logged = Some(what);
                }
            }
        }
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
    let missing = match waiting.missing.as_slice() {
        [] => String::new(),
        missing if missing.len() > NAMED => {
            format!("; not here: {} and {} more", missing[..NAMED].join(", "), missing.len() - NAMED)
        }
        missing => format!("; not here: {}", missing.join(", ")),
    };
    format!("{names}{missing}")
}

/// What ends the wait, and when.
fn until(waiting: &Waiting<'_>) -> String {
    let seconds = |time: Duration| time.as_secs_f64().ceil();
    let left = seconds(waiting.settings.join_timeout.saturating_sub(waiting.waited));
    match waiting.reason {
        Reason::Spare { .. } => "; until a node leaves or the job ends".into(),
        Reason::LastCall { left, .. } => format!("; starts in {} s (last_call_timeout)", seconds(*left)),
        _ => format!("; gives up in {left} s (join_timeout)"),
    }
}
