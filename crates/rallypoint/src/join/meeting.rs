//! Where nodes meet when their commands have ended, because one of them hosts the store: at the keys of torch's agents,
//! who may be among them. Nobody's exit code depends on it.

use std::time::{Duration, Instant};

use rallypoint_rendezvous::{RendezvousHandler, RendezvousInfo};
use rallypoint_store::{Result, Store, StoreError};

/// How many have come.
const COUNT: &str = "torchelastic/agent/terminal_state/num_members";
/// There when all have.
const LAST: &str = "torchelastic/agent/terminal_state/last_member";
/// There if a command has failed.
const FAILED: &str = "rallypoint.end/failed";
/// How many have heard that all have come, and that all have heard.
const HEARD: &str = "rallypoint.end/heard";
const ALL_HEARD: &str = "rallypoint.end/all_heard";

/// How long a node that has finished waits for the others, as torch's agents do.
const MOST: Duration = Duration::from_secs(300);
/// How long it stays after that, for those who have not heard. Torch's agents don't say that they have.
const LINGER: Duration = Duration::from_secs(1);
/// How long a node whose command has failed may take to say so.
const SAY: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(500);

/// This node runs no command, so it has finished as it comes. To be said before it says how many workers it has: nobody
/// has workers before all have said that, so the last to finish is one that has.
pub(super) fn count_as_finished(store: &dyn Store) -> Result<()> {
    store.add(COUNT, 1).map(drop)
}

/// The command has failed here. The others need not wait for it; whether the job goes on is not theirs to say.
pub(super) fn fail(round: &RendezvousInfo) {
    let store = round.store.with_timeout(SAY);
    let say = || {
        store.set(FAILED, b"1")?;
        match store.add(COUNT, 1)? == round.world_size as i64 {
            true => store.set(LAST, b"<val_ignored>"),
            false => Ok(()),
        }
    };
    if let Err(error) = say() {
        tracing::debug!("could not tell the others that the command has failed: {error}");
    }
}

/// The command has succeeded here: waits until it has ended everywhere, or it is told to end. The last one closes the
/// rendezvous if all have succeeded; whether somebody did not, so that this node is to leave.
pub(super) fn finish(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    is_told: impl Fn() -> bool,
) -> bool {
    match meet(handler, round, is_told) {
        Ok(()) => {
            let failed = round.store.check(&[FAILED]).unwrap_or(false);
            linger(round);
            failed
        }
        Err(error @ StoreError::Timeout { .. }) => {
            tracing::warn!("not all nodes have finished: {error}");
            true
        }
        Err(error) => {
            // It goes with its host, who goes when all have finished.
            tracing::info!("did not hear whether all nodes have finished: {error}");
            false
        }
    }
}

fn meet(handler: &dyn RendezvousHandler, round: &RendezvousInfo, is_told: impl Fn() -> bool) -> Result<()> {
    let store = &*round.store;
    if store.add(COUNT, 1)? == round.world_size as i64 {
        // Now, while whoever hosts the store is still waiting. All have finished, so nobody joins again.
        if !store.check(&[FAILED])?
            && let Err(error) = handler.set_closed()
        {
            tracing::warn!("could not close the rendezvous: {error}");
        }
        store.set(LAST, b"<val_ignored>")?;
    }
    let deadline = Instant::now() + MOST;
    loop {
        match store.wait_for(&[LAST], LOOK) {
            Err(StoreError::Timeout { .. }) if Instant::now() < deadline && !is_told() => {}
            other => return other,
        }
    }
}

/// Stays until all have heard, so that the store does not go before.
fn linger(round: &RendezvousInfo) {
    let store = round.store.with_timeout(LINGER);
    let heard = || match store.add(HEARD, 1)? == round.world_size as i64 {
        true => store.set(ALL_HEARD, b"1"),
        false => store.wait_for(&[ALL_HEARD], LINGER),
    };
    // It has heard itself; the rest is courtesy.
    let _ = heard();
}
