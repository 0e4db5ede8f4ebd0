//! Shows what the agent waits for, and each round that it joins, on the terminal or in the log.

use std::io::IsTerminal;
use std::sync::Arc;

use rallypoint_agent::LaunchObserver;
use rallypoint_rendezvous::Observer;

use crate::live_line;
use crate::output;
use crate::progress::Progress;

pub(super) struct RunObserver(Arc<Progress>);

impl RunObserver {
    pub(super) fn new(run_id: &str) -> RunObserver {
        RunObserver(Arc::new(Progress::new(run_id)))
    }
}

impl LaunchObserver for RunObserver {
    fn rendezvous(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.0) as _
    }

    fn formed(&self, description: &str) {
        self.0.end();
        match std::io::stderr().is_terminal() {
            true => output::write_stderr(description),
            false => tracing::info!("{description}"),
        }
    }

    fn ended(&self) {
        // Threads of the agent may still wait. They must not draw the live line again.
        live_line::end();
    }
}
