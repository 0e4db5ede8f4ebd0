//! Watches the other nodes while the workers run. One thread waits for announcements, another one polls the membership
//! of the rendezvous.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rallypoint_core::supervise::Reports;
use rallypoint_rendezvous::{Membership, RendezvousError, RendezvousHandler, RendezvousInfo};
use rallypoint_store::{PrefixStore, Store};

use crate::announcements::{Announcement, listen};
use crate::reports::read_reports;

/// The bounds of the interval for polling the membership. Short intervals do not load the store, because a handler
/// caches the state for up to 1 s.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A message of the threads that watch the other nodes.
#[derive(Debug)]
pub(crate) enum Observation {
    /// The membership of the rendezvous, and the reports of the nodes if the store replied.
    Membership(Box<Membership>, Option<Reports>),
    /// The membership can't be read.
    StoreLost(RendezvousError),
    /// Another node has announced a restart or a failure.
    Announced(Announcement),
}

/// A handle to the two threads. After it is dropped, they end within 1 s. During an outage of the store they end when
/// their call times out, which takes up to 10 s.
pub(crate) struct RoundWatch {
    /// Whether announcements are still delivered.
    is_listening: Arc<AtomicBool>,
    /// Whether the membership is still polled.
    is_polling: Arc<AtomicBool>,
    /// The store for announcements about this start of the workers.
    pub(crate) announcements_store: Arc<dyn Store>,
}

impl RoundWatch {
    /// Starts the threads. `epoch` is the number of earlier starts in this round. In a static rendezvous all starts are
    /// in the same round, so `epoch` separates old announcements from new ones.
    pub(crate) fn start(
        handler: &Arc<dyn RendezvousHandler>,
        round: &RendezvousInfo,
        epoch: u64,
        interval: Duration,
        deliver: impl Fn(Observation) + Clone + Send + 'static,
    ) -> RoundWatch {
        let is_listening = Arc::new(AtomicBool::new(true));
        let announcements_store: Arc<dyn Store> = match epoch {
            0 => round.store.clone(),
            epoch => Arc::new(PrefixStore::new(format!("rallypoint.start.{epoch}"), round.store.clone())),
        };
        let (deliver_announcement, keep_listening, announcements, own_rank) =
            (deliver.clone(), Arc::clone(&is_listening), Arc::clone(&announcements_store), round.rank);
        spawn("announcements", move || {
            listen(
                &*announcements,
                own_rank,
                || keep_listening.load(Ordering::SeqCst),
                |announcement| deliver_announcement(Observation::Announced(announcement)),
            );
        });
        let is_polling = Arc::new(AtomicBool::new(true));
        let (keep_polling, handler, round) = (Arc::clone(&is_polling), Arc::clone(handler), round.clone());
        let interval = interval.clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
        spawn("membership", move || {
            let mut was_unchanged = true;
            while keep_polling.load(Ordering::SeqCst) {
                handler.wait_for_change(interval);
                if !keep_polling.load(Ordering::SeqCst) {
                    return;
                }
                let membership = match handler.membership() {
                    Ok(membership) => membership,
                    Err(error) => return deliver(Observation::StoreLost(error)),
                };
                let is_unchanged = membership.is_intact() && !membership.is_closed;
                // The supervisor decides what to do. It must also be notified when the membership is intact again.
                if !is_unchanged || !was_unchanged {
                    let has_ended =
                        membership.end.is_some() || membership.has_finished || membership.has_failed;
                    let reports =
                        if is_unchanged || has_ended { None } else { read_reports(&round, &membership).ok() };
                    deliver(Observation::Membership(membership.into(), reports));
                }
                was_unchanged = is_unchanged;
            }
        });
        RoundWatch { is_listening, is_polling, announcements_store }
    }

    /// Stops polling the membership, because this node leaves the round. Announcements are still delivered.
    pub(crate) fn stop_polling(&self) {
        self.is_polling.store(false, Ordering::SeqCst);
    }
}

impl Drop for RoundWatch {
    fn drop(&mut self) {
        self.stop_polling();
        self.is_listening.store(false, Ordering::SeqCst);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(work) {
        tracing::warn!("cannot watch the other nodes: {error}");
    }
}
