//! What a node that ran a command does at the exit barrier, and when it waits no longer for the others. Nobody's exit code
//! depends on it.

use std::time::Duration;

use rallypoint_rendezvous::{
    ExitBarrier, NodeDesc, RendezvousHandler, RendezvousInfo, RoundEnd, count_as_idle,
    has_said_that_it_ended, ours_that_ended, say_that_it_ended,
};
use rallypoint_store::{Result, Store, StoreError};

/// How long a node that has finished waits for the others, as torch's agents do.
const MOST: Duration = Duration::from_secs(300);
/// How long a node whose command has failed may take to say so.
const SAY: Duration = Duration::from_secs(2);

/// This node runs no command, so it has finished as it comes. To be said before it says how many workers it has: nobody
/// has workers before all have said that, so the last to finish is one that has.
pub(super) fn come_without_workers(store: &dyn Store, rank: u64) -> Result<()> {
    say_that_it_ended(store, rank)?;
    count_as_idle(store)
}

/// The command has failed here. The others need not wait for it; whether the job goes on is not theirs to say.
pub(super) fn fail(round: &RendezvousInfo) {
    let said = say_that_it_ended(&*round.store.with_timeout(Some(SAY)), round.rank);
    if let Err(error) = said.and_then(|()| ExitBarrier::of(round).with_timeout(SAY).fail()) {
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
    if let Err(error) = say_that_it_ended(&*round.store, round.rank) {
        tracing::info!("could not tell the others that the command has ended: {error}");
        // A store that is gone can't be told that this node leaves.
        return matches!(error, StoreError::Timeout { .. });
    }
    let barrier = ExitBarrier::of(round);
    let give_up = || match is_told() {
        true => Ok(Some("this node was told to end".into())),
        false => nobody_else_comes(handler, round, &barrier),
    };
    match barrier.finish(handler, MOST, true, give_up) {
        RoundEnd::Finished | RoundEnd::Unheard => false,
        RoundEnd::Failed | RoundEnd::Incomplete => true,
    }
}

/// Why those who have not come will not, if that is so.
fn nobody_else_comes(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    barrier: &ExitBarrier,
) -> Result<Option<String>> {
    // What can't be found out now is asked again; if the store is gone, that is seen at the barrier.
    let seen = handler.membership().unwrap_or_default();
    if seen.is_round_over {
        return Ok(Some("others have left the round and start over".into()));
    }
    let gone: Vec<_> = round.participants.iter().filter(|node| seen.is_gone(node)).cloned().collect();
    if gone.is_empty() || !is_all_that_will_come(round, barrier, &gone)? {
        return Ok(None);
    }
    let gone: Vec<_> = gone.iter().map(|node| format!("{} (pid {})", node.addr, node.pid)).collect();
    Ok(Some(format!("gone from the round: {}", gone.join(", "))))
}

/// Whether everybody has come but those who are gone and will not. Torch's agents say nothing while they wait here, so
/// that they are taken for dead; of those who are gone as many have come as were counted and are not ours.
fn is_all_that_will_come(round: &RendezvousInfo, barrier: &ExitBarrier, gone: &[NodeDesc]) -> Result<bool> {
    let store = &*round.store;
    let (all, ours) = (barrier.ended()?, ours_that_ended(store)?);
    let mut silent = 0;
    for (node, rank) in round.participants.iter().zip(0..) {
        if gone.contains(node) && !has_said_that_it_ended(store, rank)? {
            silent += 1;
        }
    }
    let never = silent - (all - ours).clamp(0, silent);
    Ok(never > 0 && all + never >= round.world_size as i64)
}
