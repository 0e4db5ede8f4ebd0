//! Where nodes meet when their commands have ended, because one of them hosts the store: at the keys of torch's agents,
//! who may be among them. Nobody's exit code depends on it.

use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    FINISHED_KEY as COUNT, NodeDesc, RendezvousHandler, RendezvousInfo, count_as_idle,
};
use rallypoint_store::{Result, Store, StoreError};

/// How many of ours have come. Each also says so under its own name, for those who ask after one that is gone.
const OURS: &str = "rallypoint.end/came";
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

fn came(rank: u64) -> String {
    format!("{OURS}/{rank}")
}

/// This node has come, or is about to be counted as such.
fn say_that_it_comes(store: &dyn Store, rank: u64) -> Result<()> {
    store.set(&came(rank), b"1")?;
    store.add(OURS, 1).map(drop)
}

/// This node runs no command, so it has finished as it comes. To be said before it says how many workers it has: nobody
/// has workers before all have said that, so the last to finish is one that has.
pub(super) fn come_without_workers(store: &dyn Store, rank: u64) -> Result<()> {
    say_that_it_comes(store, rank)?;
    count_as_idle(store)
}

/// The command has failed here. The others need not wait for it; whether the job goes on is not theirs to say.
pub(super) fn fail(round: &RendezvousInfo) {
    let store = round.store.with_timeout(SAY);
    let say = || {
        store.set(FAILED, b"1")?;
        say_that_it_comes(&*store, round.rank)?;
        match store.add(COUNT, 1)? == round.world_size as i64 {
            true => store.set(LAST, b"<val_ignored>"),
            false => Ok(()),
        }
    };
    if let Err(error) = say() {
        tracing::debug!("could not tell the others that the command has failed: {error}");
    }
}

/// The command has succeeded here: waits until it has ended everywhere, or those where it has not are gone, or it is told
/// to end. The last one closes the rendezvous if all have succeeded; whether somebody did not, so that this node is to
/// leave.
pub(super) fn finish(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    is_told: impl Fn() -> bool,
) -> bool {
    match meet(handler, round, is_told) {
        Ok(None) => {
            let failed = round.store.check(&[FAILED]).unwrap_or(false);
            linger(round);
            failed
        }
        Ok(Some(why)) => {
            tracing::warn!("not all nodes have finished: {why}");
            true
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

/// Whether all have come: if not, why nobody waits for them any longer.
fn meet(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    is_told: impl Fn() -> bool,
) -> Result<Option<String>> {
    let store = &*round.store;
    say_that_it_comes(store, round.rank)?;
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
            other => return other.map(|()| None),
        }
        // What can't be found out now is asked again; if the store is gone, that is seen above.
        if handler.is_round_over().unwrap_or(false) {
            return Ok(Some("others have left the round and start over".into()));
        }
        let gone = handler.gone_from_round().unwrap_or_default();
        if !gone.is_empty() && is_all_that_will_come(round, &gone)? {
            let gone: Vec<_> = gone.iter().map(|node| format!("{} (pid {})", node.addr, node.pid)).collect();
            return Ok(Some(format!("gone from the round: {}", gone.join(", "))));
        }
    }
}

/// Whether everybody has come but those who are gone and will not. Torch's agents say nothing while they wait here, so
/// that they are taken for dead; of those who are gone as many have come as were counted and are not ours.
fn is_all_that_will_come(round: &RendezvousInfo, gone: &[NodeDesc]) -> Result<bool> {
    let store = &*round.store;
    let (all, ours) = (store.add(COUNT, 0)?, store.add(OURS, 0)?);
    let mut silent = 0;
    for (node, rank) in round.participants.iter().zip(0..) {
        if gone.contains(node) && !store.check(&[&came(rank)])? {
            silent += 1;
        }
    }
    let never = silent - (all - ours).clamp(0, silent);
    Ok(never > 0 && all + never >= round.world_size as i64)
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
