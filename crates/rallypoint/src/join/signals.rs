//! What a signal does to a node, at every stage of its life: before it is in anything it ends at once, while it waits it
//! leaves, and while its command runs the command gets it. A store that does not answer holds up none of this for long.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rallypoint_rendezvous::RendezvousHandler;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{live_line, output};

/// How long a node that was told to end may take to leave. Leaving itself takes at most five seconds.
const GRACE: Duration = Duration::from_secs(6);
/// How long where there is nothing to leave.
const NOTHING_TO_LEAVE: Duration = Duration::from_millis(500);

/// Listens to signals.
pub(super) struct Listener {
    stage: Arc<Stage>,
    /// The signals that have come.
    pub(super) signalled: Receiver<i32>,
}

#[derive(Default)]
struct Stage {
    /// What is to be interrupted; nothing as long as there is no handler.
    handler: OnceLock<Arc<dyn RendezvousHandler>>,
    /// The command runs.
    running: AtomicBool,
    /// The first signal that came; 0 if none has.
    first: AtomicI32,
    /// It was told to end, and not only to pass a signal on.
    ending: AtomicBool,
}

impl Listener {
    pub(super) fn start() -> std::io::Result<Listener> {
        // Whoever started this under `nohup` wants it to outlive the terminal.
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGQUIT].into_iter().chain(hang_up))?;
        let (send, signalled) = channel();
        let stage = Arc::new(Stage::default());
        let (told, tells) = channel();
        let watched = Arc::clone(&stage);
        std::thread::spawn(move || watched.end_in_time(&tells));
        let here = Arc::clone(&stage);
        std::thread::spawn(move || signals.forever().for_each(|signal| here.handle(signal, &send, &told)));
        Ok(Listener { stage, signalled })
    }

    /// Sets the handler that a signal interrupts.
    pub(super) fn set_handler(&self, handler: Arc<dyn RendezvousHandler>) {
        let _ = self.stage.handler.set(handler);
    }

    /// Whether the command runs, and gets the signals.
    pub(super) fn set_running(&self, running: bool) {
        self.stage.running.store(running, Ordering::SeqCst);
    }

    /// The first signal that came.
    pub(super) fn first(&self) -> i32 {
        self.stage.first.load(Ordering::SeqCst)
    }
}

impl Stage {
    fn handle(&self, signal: i32, signalled: &Sender<i32>, told: &Sender<i32>) {
        let _ = self.first.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
        // First the signal, then what ends the wait: who wakes up must find it.
        let _ = signalled.send(signal);
        let Some(handler) = self.handler.get() else { end(signal) };
        if self.running.load(Ordering::SeqCst) {
            return;
        }
        if self.ending.swap(true, Ordering::SeqCst) {
            output::complain_in_passing("rallypoint join: told to end again; this node ends without leaving");
            end(signal);
        }
        handler.interrupt();
        let _ = told.send(signal);
    }

    /// Ends this process if it was told to and doesn't.
    fn end_in_time(&self, tells: &Receiver<i32>) {
        while let Ok(signal) = tells.recv() {
            let is_static = self.handler.get().is_some_and(|handler| handler.backend() == "static");
            let grace = if is_static { NOTHING_TO_LEAVE } else { GRACE };
            let timed_out = tells.recv_timeout(grace) == Err(RecvTimeoutError::Timeout);
            if timed_out && !self.running.load(Ordering::SeqCst) {
                if !is_static {
                    output::complain_in_passing(
                        "rallypoint join: the store does not answer; this node ends without leaving",
                    );
                }
                end(signal);
            }
        }
    }
}

/// Whether this process was started with that signal ignored. The kernel tells; where it doesn't, nothing is.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

fn end(signal: i32) -> ! {
    live_line::end();
    std::process::exit(128 + signal)
}
