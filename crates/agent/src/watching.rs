//! What happens around a node while its workers run: nodes come, go, restart, fail, close the rendezvous, or lose it. Seen
//! by two threads that wait for it, and handed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rallypoint_core::supervise::Reports;
use rallypoint_rendezvous::{Membership, RendezvousError, RendezvousHandler, RendezvousInfo};
use rallypoint_store::{PrefixStore, Store};

use crate::news::{Tiding, listen};
use crate::reports::read_reports;

/// The longest and shortest interval between two looks at the membership. A handler reads it at most once per second.
const MAX_LOOK_INTERVAL: Duration = Duration::from_secs(1);
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Something that was seen.
#[derive(Debug)]
pub(crate) enum Sight {
    /// The membership of the rendezvous, and what the nodes of the round have reported if the store answered.
    Membership(Box<Membership>, Option<Reports>),
    /// The membership can't be read.
    Lost(RendezvousError),
    /// Another node has said something.
    Heard(Tiding),
}

/// Two threads that look, until it is dropped. They notice that within a second, and nobody waits for it.
pub(crate) struct Watching {
    wanted: Arc<AtomicBool>,
    /// The members of the round are of interest.
    looking: Arc<AtomicBool>,
    /// Where this node and those that watch the same start tell each other something.
    pub(crate) board: Arc<dyn Store>,
}

impl Watching {
    /// `epoch` counts the starts in one round: where rounds don't change, it tells old news from new.
    pub(crate) fn start(
        handler: &Arc<dyn RendezvousHandler>,
        round: &RendezvousInfo,
        epoch: u64,
        interval: Duration,
        hand_on: impl Fn(Sight) + Clone + Send + 'static,
    ) -> Watching {
        let wanted = Arc::new(AtomicBool::new(true));
        let board: Arc<dyn Store> = match epoch {
            0 => Arc::clone(&round.store),
            epoch => {
                Arc::new(PrefixStore::new(format!("rallypoint.start.{epoch}"), Arc::clone(&round.store)))
            }
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
            if let Err(error) = spawned {
                tracing::warn!("this node will not see what the others do: {error}");
            }
        };
        let (tell, is_wanted, news) = (hand_on.clone(), Arc::clone(&wanted), Arc::clone(&board));
        spawn(
            "news",
            Box::new(move || {
                listen(&*news, || is_wanted.load(Ordering::SeqCst), |tiding| tell(Sight::Heard(tiding)))
            }),
        );
        let looking = Arc::new(AtomicBool::new(true));
        let (is_wanted, handler, round) = (Arc::clone(&looking), Arc::clone(handler), round.clone());
        let interval = interval.clamp(MIN_LOOK_INTERVAL, MAX_LOOK_INTERVAL);
        spawn(
            "membership",
            Box::new(move || {
                let mut was_calm = true;
                while is_wanted.load(Ordering::SeqCst) {
                    handler.wait_for_change(interval);
                    if !is_wanted.load(Ordering::SeqCst) {
                        return;
                    }
                    let seen = match handler.membership() {
                        Ok(seen) => seen,
                        Err(error) => return hand_on(Sight::Lost(error)),
                    };
                    let is_calm = seen.is_intact() && !seen.is_closed;
                    // What follows from it is decided by the supervisor, which also has to know when all is well again.
                    if !is_calm || !was_calm {
                        let reports = if is_calm { None } else { read_reports(&round, &seen).ok() };
                        hand_on(Sight::Membership(seen.into(), reports));
                    }
                    was_calm = is_calm;
                }
            }),
        );
        Watching { wanted, looking, board }
    }

    /// This node leaves the round; only what others say about it is still of interest.
    pub(crate) fn stop_looking(&self) {
        self.looking.store(false, Ordering::SeqCst);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop_looking();
        self.wanted.store(false, Ordering::SeqCst);
    }
}
