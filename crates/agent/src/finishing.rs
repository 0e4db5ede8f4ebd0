//! What the agent does at the exit barrier: it waits until all nodes have finished, for as long as it wants to know. When it
//! no longer does is decided by the supervisor.

use std::time::{Duration, Instant};

use rallypoint_rendezvous::{ExitBarrier, RendezvousHandler, RendezvousInfo, RoundEnd};
use rallypoint_store::Result;

/// How long a node waits for the others after the rendezvous was closed. Those that failed have said so by then.
const CLOSED_GRACE: Duration = Duration::from_secs(5);
/// How long the store may take to answer what is not worth waiting for.
const ANSWER: Duration = Duration::from_secs(1);

/// How many nodes have finished so far.
pub(crate) fn finished(round: &RendezvousInfo) -> Result<u64> {
    Ok(ExitBarrier::of(round).with_timeout(ANSWER).ended()?.max(0) as u64)
}

/// This node has finished: waits until all have, at most for so long, or until nobody wants to know.
pub(crate) fn finish(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    most: Duration,
    is_wanted: impl Fn() -> bool,
) -> RoundEnd {
    let mut closed_since = None;
    let give_up = || {
        if !is_wanted() {
            return Ok(Some("this node no longer waits for them".into()));
        }
        // The last node to finish closes the rendezvous, and then the host of the store goes.
        if !handler.is_closed().unwrap_or(false) {
            return Ok(None);
        }
        let since = closed_since.get_or_insert_with(Instant::now);
        Ok((since.elapsed() >= CLOSED_GRACE).then(|| "the rendezvous is closed".into()))
    };
    // Workers outlive an outage of the store, so their node outlives it, too.
    ExitBarrier::of(round).with_outage_timeout(most).finish(handler, most, handler.hosts_store(), give_up)
}

/// This node has not finished after all. In the background, because the store may be gone.
pub(crate) fn take_back(round: &RendezvousInfo) {
    let barrier = ExitBarrier::of(round);
    std::thread::spawn(move || {
        if let Err(error) = barrier.with_timeout(ANSWER).take_back() {
            tracing::debug!("could not take back that this node has finished: {error}");
        }
    });
}
