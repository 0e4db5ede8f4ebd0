//! The exit barrier: where the nodes of a round meet when their work is done, because one of them hosts the store. At the
//! keys of torch's agents, who may be among them. What a node does when the others don't come is its launcher's to say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::CALL_TIMEOUT;
use rallypoint_store::{Failure, Result, Store, StoreError};

use crate::handler::{RendezvousHandler, RendezvousInfo};
use crate::key_wait::KeyWait;

/// How many nodes of a round have no more workers running; torch's agents count themselves there when theirs have ended.
const FINISHED: &str = "torchelastic/agent/terminal_state/num_members";
/// There when all have.
const LAST: &str = "torchelastic/agent/terminal_state/last_member";
/// How many of those who have none never had any.
const IDLE: &str = "rallypoint.end/idle";
/// There if somebody's work has failed.
const FAILED: &str = "rallypoint.end/failed";
/// How many of ours are counted there. Each also says so under its rank, for those who ask after one that is gone: torch's
/// agents are only counted.
const REPORTED: &str = "rallypoint.end/came";
/// How many of ours have heard that all have come, and that all have heard.
const ACKNOWLEDGED: &str = "rallypoint.end/heard";
const ALL_ACKNOWLEDGED: &str = "rallypoint.end/all_heard";

/// How long the store's host stays for nodes that have not read that all have finished; torch's agents don't report that they
/// have. Also the timeout of calls that a node makes after it has read it: the store's host may be gone by then.
const LINGER_GRACE: Duration = Duration::from_secs(1);
/// How long a node stays if all nodes of the round are ours, because ours say that they have heard.
const OURS_LINGER_GRACE: Duration = Duration::from_secs(10);
/// How often a node that waits asks whether it still should.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How a round ended, as far as a node has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundEnd {
    /// All nodes have done their work.
    Finished,
    /// All nodes have ended, and somebody's work has failed.
    Failed,
    /// Not all have ended, and this node waits no longer.
    Incomplete,
    /// The store went before this node heard. It goes with its host, who goes when all have finished.
    StoreLost,
}

/// The exit barrier of a round.
pub struct ExitBarrier {
    store: Arc<dyn Store>,
    rank: u64,
    world_size: i64,
    outage_timeout: Duration,
}

impl ExitBarrier {
    /// That of this round.
    pub fn of(round: &RendezvousInfo) -> ExitBarrier {
        let (store, world_size) = (Arc::clone(&round.store), round.world_size as i64);
        let outage_timeout = store.timeout().unwrap_or(Duration::MAX);
        ExitBarrier { store, rank: round.rank, world_size, outage_timeout }
    }

    /// The same, whose store has only so long for each answer.
    pub fn with_timeout(&self, timeout: Duration) -> ExitBarrier {
        let store = Arc::from(self.store.with_timeout(Some(timeout)));
        ExitBarrier { store, outage_timeout: timeout, ..*self }
    }

    /// The same with a limit for how long the store may be away while a node waits. It is the timeout of the store's calls
    /// unless this says otherwise.
    pub fn with_outage_timeout(self, outage_timeout: Duration) -> ExitBarrier {
        ExitBarrier { outage_timeout, ..self }
    }

    /// How many nodes have ended so far, or never had anything to do.
    pub fn count_ended(&self) -> Result<i64> {
        self.store.add(FINISHED, 0)
    }

    /// This node has ended, with a failure. The others need not wait for it, and the rendezvous is not closed.
    pub fn fail(&self) -> Result<()> {
        self.store.set(FAILED, b"1")?;
        match self.count()? {
            true => self.release(),
            false => Ok(()),
        }
    }

    /// This node has not ended after all. Where rounds don't change it would count twice.
    pub fn retract(&self) -> Result<()> {
        self.store.add(FINISHED, -1).map(drop)
    }

    /// This node has done its work: waits until all have ended, at most for so long, or until `give_up` has a reason not to;
    /// it is asked twice a second. The last one closes the rendezvous if nobody has failed. Who `stays` waits a moment
    /// longer, until all have heard: the host of the store, with which it would go.
    pub fn finish(
        &self,
        handler: &dyn RendezvousHandler,
        timeout: Duration,
        lingers: bool,
        mut give_up: impl FnMut() -> Result<Option<String>>,
    ) -> RoundEnd {
        let start = Instant::now();
        let mut reported_to = None;
        let end = loop {
            match self.report_and_count(handler, &mut reported_to) {
                Ok(true) => break Ok(None),
                Ok(false) => break self.wait(timeout.saturating_sub(start.elapsed()), &mut give_up),
                Err(error) if is_unsent(&error) && start.elapsed() < self.outage_timeout => {}
                Err(error) => break Err(error),
            }
            match give_up() {
                Ok(None) => {}
                reason => break reason,
            }
        };
        match end {
            Ok(None) => {
                let store_at_end = self.with_timeout(LINGER_GRACE);
                let failed = store_at_end.store.check(&[FAILED]).unwrap_or(false);
                // It has heard itself; the rest is courtesy.
                let _ = store_at_end.acknowledge(lingers);
                if failed { RoundEnd::Failed } else { RoundEnd::Finished }
            }
            Ok(Some(reason)) => {
                tracing::warn!("not all nodes have finished: {reason}");
                RoundEnd::Incomplete
            }
            Err(error) => {
                tracing::info!("did not hear whether all nodes have finished: {error}");
                RoundEnd::StoreLost
            }
        }
    }

    /// Reports and counts that this node has ended. Returns whether it is the last node. `reported_to` is the generation of
    /// the store that has the report.
    fn report_and_count(
        &self,
        handler: &dyn RendezvousHandler,
        reported_to: &mut Option<u64>,
    ) -> Result<bool> {
        self.report_to(reported_to);
        let is_last = self.count()?;
        // The store may have been replaced by an empty one in between. Without the report, the other nodes would take the
        // count for that of a node of torch's.
        self.report_to(reported_to);
        if !is_last {
            return Ok(false);
        }
        // Now, while whoever hosts the store is still waiting. All have finished, so nobody joins again.
        if !self.store.check(&[FAILED]).unwrap_or(false)
            && let Err(error) = handler.set_closed()
        {
            tracing::warn!("could not close the rendezvous: {error}");
        }
        // A host that wakes up may be gone before this is answered; that all have come is known here without it.
        let _ = self.with_timeout(CALL_TIMEOUT).release();
        Ok(true)
    }

    /// Reports under the name of this node that it has ended, unless this generation of the store has the report.
    fn report_to(&self, generation: &mut Option<u64>) {
        if *generation == Some(self.store.generation()) {
            return;
        }
        let reported = report_ended(&*self.store, self.rank);
        if let Err(error) = &reported {
            tracing::debug!("could not report that this node has finished: {error}");
        }
        // The count of a report whose answer was lost must not be repeated.
        if !reported.is_err_and(|error| is_unsent(&error)) {
            *generation = Some(self.store.generation());
        }
    }

    /// Counts this node; whether it is the last.
    fn count(&self) -> Result<bool> {
        Ok(self.store.add(FINISHED, 1)? >= self.world_size)
    }

    fn release(&self) -> Result<()> {
        self.store.set(LAST, b"<val_ignored>")
    }

    /// Waits until all have come; if not, why nobody waits for them any longer.
    fn wait(
        &self,
        timeout: Duration,
        mut give_up: impl FnMut() -> Result<Option<String>>,
    ) -> Result<Option<String>> {
        let start = Instant::now();
        let (mut last_answer, mut generation) = (start, self.store.generation());
        let mut wait = KeyWait::new(&*self.store, &[LAST], CHECK_INTERVAL);
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match wait.poll(left) {
                Ok(true) => return Ok(None),
                Ok(false) => last_answer = Instant::now(),
                Err(error)
                    if error.is_outage()
                        && last_answer.elapsed() < self.outage_timeout
                        && !left.is_zero() => {}
                Err(error) => return Err(error),
            }
            if left.is_zero() {
                return Ok(Some(format!("this node has waited for {} s", timeout.as_secs())));
            }
            if let Some(reason) = give_up()? {
                return Ok(Some(reason));
            }
            // A restarted store has lost the count, so every node that waits counts itself again.
            if self.store.generation() != generation {
                generation = self.store.generation();
                report_ended(&*self.store, self.rank)?;
                if self.count()? {
                    self.release()?;
                }
            }
        }
    }

    /// Says that this node has heard.
    fn acknowledge(&self, lingers: bool) -> Result<()> {
        match self.store.add(ACKNOWLEDGED, 1)? >= self.world_size {
            true => self.store.set(ALL_ACKNOWLEDGED, b"1"),
            false if lingers => {
                let all_are_ours = count_reported_ended(&*self.store)? >= self.world_size;
                let timeout = if all_are_ours { OURS_LINGER_GRACE } else { LINGER_GRACE };
                self.store.wait_for(&[ALL_ACKNOWLEDGED], Some(timeout))
            }
            false => Ok(()),
        }
    }
}

/// Whether a call surely had no effect because there was no connection, so that even a count may be sent again.
fn is_unsent(error: &StoreError) -> bool {
    matches!(error.failure(), Some(Failure::Unreachable(_)))
}

/// This node, one of ours, has ended and is about to be counted as such.
pub fn report_ended(store: &dyn Store, rank: u64) -> Result<()> {
    store.set(&report_key(rank), b"1")?;
    store.add(REPORTED, 1).map(drop)
}

/// Whether the node of that rank has said so.
pub fn has_reported_ended(store: &dyn Store, rank: u64) -> Result<bool> {
    store.check(&[&report_key(rank)])
}

/// How many have said so.
pub fn count_reported_ended(store: &dyn Store) -> Result<i64> {
    store.add(REPORTED, 0)
}

fn report_key(rank: u64) -> String {
    format!("{REPORTED}/{rank}")
}

/// This node has no workers, so nobody has to wait for them: it counts as one whose have ended.
pub fn count_as_idle(store: &dyn Store) -> Result<()> {
    store.add(IDLE, 1)?;
    store.add(FINISHED, 1).map(drop)
}

/// How many nodes of the round of this store had workers and have none any more.
pub(crate) fn count_finished(store: &dyn Store) -> Result<i64> {
    let count = |key: &str| match store.check(&[key])? {
        true => store.add(key, 0),
        false => Ok(0),
    };
    // In this order: who has none is counted as such first.
    let finished = count(FINISHED)?;
    Ok(finished - count(IDLE)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rallypoint_store::{HashStore, PrefixStore, StoreKind};

    use super::*;
    use crate::error::Result as RendezvousResult;
    use crate::{Membership, RendezvousStoreInfo};

    /// A store that is replaced by an empty one just before the first count arrives.
    struct Replaced(Mutex<(HashStore, u64)>);

    impl Replaced {
        fn store(&self) -> HashStore {
            self.0.lock().unwrap().0.clone()
        }
    }

    impl Store for Replaced {
        fn set(&self, key: &str, value: &[u8]) -> Result<()> {
            self.store().set(key, value)
        }
        fn get(&self, key: &str) -> Result<Vec<u8>> {
            self.store().get(key)
        }
        fn add(&self, key: &str, delta: i64) -> Result<i64> {
            let mut inner = self.0.lock().unwrap();
            if key.ends_with(FINISHED) && inner.1 == 0 {
                *inner = (HashStore::new(), 1);
            }
            inner.0.add(key, delta)
        }
        fn check(&self, keys: &[&str]) -> Result<bool> {
            self.store().check(keys)
        }
        fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
            self.store().wait_for(keys, timeout)
        }
        fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
            self.store().compare_set(key, expected, desired)
        }
        fn delete_key(&self, key: &str) -> Result<bool> {
            self.store().delete_key(key)
        }
        fn num_keys(&self) -> Result<u64> {
            self.store().num_keys()
        }
        fn timeout(&self) -> Option<Duration> {
            self.store().timeout()
        }
        fn set_timeout(&self, timeout: Option<Duration>) {
            self.store().set_timeout(timeout);
        }
        fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
            self.store().with_timeout(timeout)
        }
        fn clone_store(&self) -> Result<Box<dyn Store>> {
            self.store().clone_store()
        }
        fn generation(&self) -> u64 {
            self.0.lock().unwrap().1
        }
        fn kind(&self) -> StoreKind {
            StoreKind::Hash
        }
    }

    struct Handler;

    impl RendezvousHandler for Handler {
        fn backend(&self) -> &str {
            "test"
        }
        fn run_id(&self) -> &str {
            "job"
        }
        fn next_rendezvous(&self) -> RendezvousResult<RendezvousInfo> {
            unreachable!("the node has finished")
        }
        fn set_closed(&self) -> RendezvousResult<()> {
            Ok(())
        }
        fn membership(&self) -> RendezvousResult<Membership> {
            Ok(Membership::default())
        }
    }

    #[test]
    fn a_node_that_a_new_store_counts_has_also_reported_to_it() {
        let store = Arc::new(Replaced(Mutex::new((HashStore::new(), 0))));
        let round = RendezvousInfo {
            store: Arc::new(PrefixStore::new("round", store.clone())),
            rank: 1,
            world_size: 2,
            bootstrap_store_info: RendezvousStoreInfo { master_addr: "host".into(), master_port: 1 },
            use_agent_store: true,
            round: 0,
            participants: Vec::new(),
        };
        let end = ExitBarrier::of(&round).finish(&Handler, Duration::ZERO, false, || Ok(None));
        assert_eq!(end, RoundEnd::Incomplete);
        let store = PrefixStore::new("round", Arc::new(store.store()));
        assert_eq!((store.add(FINISHED, 0).unwrap(), count_reported_ended(&store).unwrap()), (1, 1));
        assert!(has_reported_ended(&store, 1).unwrap());
    }
}
