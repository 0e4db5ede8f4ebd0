//! What a node waits for, said while it waits: as a live line on a terminal, in a log once for every change.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rallypoint_rendezvous::{Gathering, NodeDesc, Observer, Reason, Waiting};

use crate::live_line;

/// Tells it.
pub(crate) struct Progress {
    run_id: String,
    is_terminal: bool,
    /// What was logged last, without what changes by itself.
    logged: Mutex<Option<String>>,
    /// No round was under way when it was last told.
    forming: AtomicBool,
}

/// So many nodes are named; a crowd is only counted.
const NAMED: usize = 8;

impl Progress {
    pub(crate) fn new(run_id: &str) -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        Progress {
            run_id: run_id.into(),
            is_terminal,
            logged: Mutex::default(),
            forming: AtomicBool::new(false),
        }
    }

    /// It waits no longer; whether it had only waited for others, with no round under way.
    pub(crate) fn end(&self) -> bool {
        live_line::clear();
        *self.logged.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.forming.swap(false, Ordering::Relaxed)
    }

    /// `what` changes when something happens, the rest by itself. The live line `moves` by itself if this is not called for a
    /// while.
    fn tell(&self, kind: &str, what: String, line: String, until: &str, moves: bool) {
        match self.is_terminal {
            true => live_line::show(format!("{}: {line}", self.run_id), moves),
            false => {
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
        // Nothing is told while the connection is being made.
        let moves = joined.is_none();
        self.tell("static rendezvous", what.clone(), format!("{what}{until}"), &until, moves);
    }

    fn waiting(&self, waiting: &Waiting<'_>) {
        let under_way = matches!(
            waiting.reason,
            Reason::Spare { .. } | Reason::RoundUnderWay { .. } | Reason::RoundBroken { .. }
        );
        self.forming.store(!under_way, Ordering::Relaxed);
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
        self.tell("rendezvous", what, format!("{}{until}{}", reason(waiting), who(waiting)), &until, false);
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
