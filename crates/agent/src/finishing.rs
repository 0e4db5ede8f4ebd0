//! Where nodes meet when their workers have done their work, because one of them hosts the store: at the keys of torch's
//! agents, who may be among them.

use std::time::{Duration, Instant};

use rallypoint_rendezvous::{RendezvousHandler, RendezvousInfo};
use rallypoint_store::{Result, Store, StoreError};

/// How many have come.
const COUNT: &str = "torchelastic/agent/terminal_state/num_members";
/// There when all have.
const LAST: &str = "torchelastic/agent/terminal_state/last_member";
/// There if the command of a `rallypoint join` has failed.
const FAILED: &str = "rallypoint.end/failed";
/// How many of ours have heard that all have come, and that all have heard.
const HEARD: &str = "rallypoint.end/heard";
const ALL_HEARD: &str = "rallypoint.end/all_heard";

/// How long the host of the store stays for those who have not heard. Torch's agents don't say that they have.
const LINGER: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(500);

/// How a round ended, as far as a node has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoundEnd {
    /// All nodes have done their work.
    Finished,
    /// All nodes have ended, and somebody's work has failed.
    Failed,
    /// Not all have ended, and this node waits no longer.
    Incomplete,
    /// The store went before this node heard.
    Unheard,
}

/// How many nodes have finished so far.
pub(crate) fn finished(store: &dyn Store) -> Result<u64> {
    Ok(store.with_timeout(LINGER).add(COUNT, 0)?.max(0) as u64)
}

/// This node has finished: waits until all have, at most for so long, or until nobody wants to know.
pub(crate) fn finish(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    most: Duration,
    is_wanted: impl Fn() -> bool,
) -> RoundEnd {
    match meet(handler, round, most, is_wanted) {
        Ok(()) => {
            let failed = round.store.check(&[FAILED]).unwrap_or(false);
            say_goodbye(handler, round);
            if failed { RoundEnd::Failed } else { RoundEnd::Finished }
        }
        Err(error @ StoreError::Timeout { .. }) => {
            tracing::warn!("not all nodes have finished: {error}");
            RoundEnd::Incomplete
        }
        Err(error) => {
            tracing::warn!("did not hear whether all nodes have finished: {error}");
            RoundEnd::Unheard
        }
    }
}

fn meet(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    most: Duration,
    is_wanted: impl Fn() -> bool,
) -> Result<()> {
    let store = &*round.store;
    if store.add(COUNT, 1)? >= round.world_size as i64 {
        // Now, while whoever hosts the store is still waiting. All have finished, so nobody joins again.
        if !store.check(&[FAILED]).unwrap_or(false)
            && let Err(error) = handler.set_closed()
        {
            tracing::warn!("could not close the rendezvous: {error}");
        }
        // A host that wakes up may be gone before this is answered; that all have finished is known here without it.
        let _ = store.set(LAST, b"<val_ignored>");
        return Ok(());
    }
    let start = Instant::now();
    loop {
        let left = most.saturating_sub(start.elapsed());
        match store.wait_for(&[LAST], LOOK.min(left).max(Duration::from_millis(1))) {
            Err(StoreError::Timeout { .. }) if !left.is_zero() && is_wanted() => {}
            other => return other,
        }
    }
}

/// Says that this node has heard; the host of the store stays until all have.
fn say_goodbye(handler: &dyn RendezvousHandler, round: &RendezvousInfo) {
    let store = round.store.with_timeout(LINGER);
    let heard = || match store.add(HEARD, 1)? >= round.world_size as i64 {
        true => store.set(ALL_HEARD, b"1"),
        false if handler.hosts_store() => store.wait_for(&[ALL_HEARD], LINGER),
        false => Ok(()),
    };
    // It has heard itself; the rest is courtesy.
    let _ = heard();
}

/// This node has not finished after all. Where rounds don't change it would count twice.
pub(crate) fn take_back(round: &RendezvousInfo) {
    let store = std::sync::Arc::clone(&round.store);
    std::thread::spawn(move || {
        if let Err(error) = store.with_timeout(LINGER).add(COUNT, -1) {
            tracing::debug!("could not take back that this node has finished: {error}");
        }
    });
}
