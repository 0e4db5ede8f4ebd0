//! What happens around a node while its workers run: nodes come, go, restart, fail, close the rendezvous, or lose it. Seen
//! by two threads that wait for it, and handed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{RendezvousError, RendezvousHandler, RendezvousInfo};
use rallypoint_store::{PrefixStore, Store};

use crate::finishing::finished;
use crate::lost::{Lost, lost};
use crate::news::{Tiding, listen, listening};

/// A state that can't be read need not be looked at more often.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(10);
/// How long a node that left may take to come back; the state is at most a second old.
const RETURN: Duration = Duration::from_millis(1200);

/// Something that was seen.
#[derive(Debug)]
pub(crate) enum Sight {
    /// So many nodes wait for the next round; whether there are some among them that were in this one.
    Waiting(u64, bool),
    /// The other nodes have dropped this one.
    Dropped,
    /// A node of torch's waits for the next one because its workers have failed.
    Returned,
    /// These are no longer in this one, and had not finished.
    Gone(Lost),
    /// The rendezvous is closed, and so many have finished.
    Closed(u64),
    /// The rendezvous can't be looked at.
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
        let interval = interval.clamp(SHORTEST, LONGEST);
        spawn(
            "membership",
            Box::new(move || {
                let (mut gone_since, mut told) = (None, false);
                while is_wanted.load(Ordering::SeqCst) {
                    handler.wait_for_change(interval);
                    if !is_wanted.load(Ordering::SeqCst) {
                        return;
                    }
                    match look(&*handler, &round) {
                        Ok(None) => gone_since = None,
                        // Seen once may be by a hair's breadth: see `lost`.
                        Ok(Some(Sight::Gone(..))) if gone_since.is_none() => {
                            gone_since = Some(Instant::now())
                        }
                        // Who starts over leaves before it waits: that takes a moment.
                        Ok(Some(Sight::Gone(..)))
                            if gone_since.is_some_and(|since| since.elapsed() < RETURN)
                                && !handler.gone_for_good().unwrap_or(false) => {}
                        Ok(Some(sight)) => {
                            told = told || tell_gone(&*handler, &round, &sight);
                            hand_on(sight);
                        }
                        Err(error) => return hand_on(Sight::Lost(error)),
                    }
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

/// Says who is gone and why, if somebody is; whether that was so. What comes of it is said where it is decided.
fn tell_gone(handler: &dyn RendezvousHandler, round: &RendezvousInfo, sight: &Sight) -> bool {
    let matters = match sight {
        Sight::Gone(_) => true,
        // Another may have been quicker to start over without them.
        Sight::Waiting(..) => lost(handler, round).is_ok_and(|lost| lost.count > 0),
        _ => false,
    };
    let gone = if matters { handler.describe_gone().ok().flatten() } else { None };
    if let Some(gone) = &gone {
        tracing::warn!("gone from round {}: {gone}", round.round);
    }
    gone.is_some()
}

/// Whether this node is no longer in its round.
fn is_dropped(handler: &dyn RendezvousHandler, round: &RendezvousInfo) -> Result<bool, RendezvousError> {
    let gone = handler.gone_from_round()?;
    Ok(round.participants.get(round.rank as usize).is_some_and(|me| gone.contains(me)))
}

fn look(handler: &dyn RendezvousHandler, round: &RendezvousInfo) -> Result<Option<Sight>, RendezvousError> {
    // Ours say so when they have failed.
    let has_torch = || listening(&*round.store).is_ok_and(|ours| ours < round.world_size);
    if handler.is_closed()? {
        // A store that does not say how many have finished is asked again at the next look.
        return Ok(finished(round).ok().map(Sight::Closed));
    }
    match handler.num_nodes_waiting()? {
        0 => {}
        _ if is_dropped(handler, round)? => return Ok(Some(Sight::Dropped)),
        _ if handler.num_nodes_returned()? > 0 && has_torch() => return Ok(Some(Sight::Returned)),
        waiting => return Ok(Some(Sight::Waiting(waiting, handler.is_round_over()?))),
    }
    let lost = lost(handler, round)?;
    Ok((lost.count > 0).then_some(Sight::Gone(lost)))
}
