//! Waits at the exit barrier until all nodes have finished. The supervisor decides when to stop waiting.

use std::time::Duration;

use rallypoint_rendezvous::{ExitBarrier, RendezvousHandler, RendezvousInfo, RoundEnd, report_ended};
use rallypoint_store::Store;

/// The timeout of the exit barrier, which is also torch's.
pub(crate) const EXIT_BARRIER_TIMEOUT: Duration = Duration::from_secs(300);
/// The timeout of the call that removes this node from the count of finished nodes.
const RETRACT_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of each call that reports a failure.
const FAIL_TIMEOUT: Duration = Duration::from_secs(2);

/// Reports that this node has finished, and waits until all nodes have finished or `is_wanted` returns false.
pub(crate) fn finish(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    is_wanted: impl Fn() -> bool,
) -> RoundEnd {
    let timeout = EXIT_BARRIER_TIMEOUT;
    // Workers survive an outage of the store, so their node must survive it, too.
    ExitBarrier::of(round).with_outage_timeout(timeout).finish(
        handler,
        timeout,
        handler.hosts_store(),
        is_wanted,
    )
}

/// Reports that the workers of this node have failed. The other nodes don't wait for this node and continue with the
/// job.
pub(crate) fn fail(round: &RendezvousInfo) {
    let reported = report_ended(&*round.store.with_timeout(Some(FAIL_TIMEOUT)), round.rank);
    let barrier = ExitBarrier::of(round).with_timeout(FAIL_TIMEOUT);
    if let Err(error) = reported.and_then(|()| barrier.fail()) {
        tracing::debug!(
            "could not report to the other nodes that the workers of this node have failed: {error}"
        );
    }
}

/// Removes this node from the count of finished nodes, because it starts its workers again. A thread does that, because
/// the store may not reply any more.
pub(crate) fn retract(round: &RendezvousInfo) {
    let barrier = ExitBarrier::of(round);
    std::thread::spawn(move || {
        if let Err(error) = barrier.with_timeout(RETRACT_TIMEOUT).retract() {
            tracing::debug!("could not remove this node from the count of finished nodes: {error}");
        }
    });
}
