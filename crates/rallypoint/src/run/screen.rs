//! What people see of an agent: on a terminal, what it waits for and then its world; elsewhere both are in the log.

use std::io::IsTerminal;
use std::sync::Arc;

use rallypoint_agent::{Onlooker, World};
use rallypoint_rendezvous::Observer;

use crate::live_line;
use crate::output;
use crate::progress::Progress;

/// Shows it.
pub(super) struct Screen {
    progress: Arc<Progress>,
}

impl Screen {
    pub(super) fn new(run_id: &str) -> Arc<Screen> {
        Arc::new(Screen { progress: Arc::new(Progress::new(run_id)) })
    }
}

impl Onlooker for Screen {
    fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.progress) as _
    }

    fn formed(&self, world: Option<&World>) {
        self.progress.end();
        match world {
            Some(world) if std::io::stderr().is_terminal() => output::complain(&world.to_string()),
            Some(world) => tracing::info!("{world}"),
            // A thread that still waits must not draw the line again.
            None => live_line::end(),
        }
    }
}
