//! The exit barrier: nodes whose workers have ended wait until all nodes of the round have ended. If the host of the
//! store exited earlier, the other nodes would lose the store.
//!
//! The barrier uses the keys of torch's agents, which may be in the same round. A node has *ended* when none of its
//! workers runs any more. The launcher decides what a node does if other nodes don't end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::CALL_TIMEOUT;
use rallypoint_store::{Failure, Result, Store, StoreError};

use crate::handler::{RendezvousHandler, RendezvousInfo};
use crate::key_wait::KeyWait;

/// The number of nodes that have ended. Torch's agents count themselves under this key, too.
const ENDED_COUNT: &str = "torchelastic/agent/terminal_state/num_members";
/// Set when all nodes of the round have ended.
const ALL_ENDED: &str = "torchelastic/agent/terminal_state/last_member";
/// The number of ended nodes that never had a worker.
const IDLE_COUNT: &str = "rallypoint.end/idle";
/// Set if the workers of a node have failed.
const FAILED: &str = "rallypoint.end/failed";
/// The number of our nodes that have ended. Each node also sets this key with its group rank appended, so that other
/// nodes can check whether a lost node had ended. Torch's agents are only in `ENDED_COUNT`.
const REPORTED_COUNT: &str = "rallypoint.end/reported";
/// The number of acknowledgments. Each of our nodes adds one when it has read that all nodes have ended.
const ACKNOWLEDGED_COUNT: &str = "rallypoint.end/acknowledged";
/// Set when all nodes of the round have acknowledged that all nodes have ended.
const ALL_ACKNOWLEDGED: &str = "rallypoint.end/all_acknowledged";

/// How long the host of the store waits for acknowledgments if the round includes torch's agents, which send none.
///
/// Also the timeout of calls to the store after a node has read that all nodes have ended, because the host of the
/// store may have exited by then.
const LINGER_GRACE: Duration = Duration::from_secs(1);
/// How long the host of the store waits for acknowledgments if all nodes of the round are ours.
const OURS_LINGER_GRACE: Duration = Duration::from_secs(10);
/// Interval at which a waiting node checks whether to give up.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How a round ended, from the point of view of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundEnd {
    /// All nodes have ended, and none has failed.
    Finished,
    /// All nodes have ended, and at least one has failed.
    Failed,
    /// Not all nodes have ended, and this node has stopped waiting.
    Incomplete,
    /// The store was lost before this node read that all nodes have ended. That may be because all nodes have ended and
    /// the host of the store has exited.
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
    /// Returns the exit barrier of `round`.
    pub fn of(round: &RendezvousInfo) -> ExitBarrier {
        let (store, world_size) = (Arc::clone(&round.store), round.world_size as i64);
        let outage_timeout = store.timeout().unwrap_or(Duration::MAX);
        ExitBarrier { store, rank: round.rank, world_size, outage_timeout }
    }

    /// Returns a copy of this barrier with this timeout for each call to the store and for an outage of the store.
    pub fn with_timeout(&self, timeout: Duration) -> ExitBarrier {
        let store = Arc::from(self.store.with_timeout(Some(timeout)));
        ExitBarrier { store, outage_timeout: timeout, ..*self }
    }

    /// Sets how long an outage of the store may last while a node waits. The default is the timeout of the store's
    /// calls.
    pub fn with_outage_timeout(self, outage_timeout: Duration) -> ExitBarrier {
        ExitBarrier { outage_timeout, ..self }
    }

    /// Returns the number of nodes that have ended, including nodes without workers.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used.
    pub fn count_ended(&self) -> Result<i64> {
        self.store.add(ENDED_COUNT, 0)
    }

    /// Reports that this node has ended and its workers have failed. The other nodes don't wait for it, and the
    /// rendezvous stays open.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used.
    pub fn fail(&self) -> Result<()> {
        self.store.set(FAILED, b"1")?;
        match self.count()? {
            true => self.release(),
            false => Ok(()),
        }
    }

    /// Removes this node from the count of ended nodes, because it starts its workers again. In a static rendezvous,
    /// all starts of the workers are in the same round, so the node would otherwise be counted twice.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used.
    pub fn retract(&self) -> Result<()> {
        self.store.add(ENDED_COUNT, -1).map(drop)
    }

    /// Reports that this node has ended, and waits until all nodes have ended or `timeout` is over.
    ///
    /// While it waits, it calls `is_wanted` every 500 ms, and stops waiting if that returns false. The last node to end
    /// closes the rendezvous if no node has failed.
    ///
    /// With `lingers`, the call then waits up to 10 s until the other nodes have read that all nodes have ended. The
    /// host of the store needs that, because the store is lost when the host exits.
    pub fn finish(
        &self,
        handler: &dyn RendezvousHandler,
        timeout: Duration,
        lingers: bool,
        mut is_wanted: impl FnMut() -> bool,
    ) -> RoundEnd {
        let start = Instant::now();
        let mut reported_to = None;
        let end = loop {
            match self.report_and_count(handler, &mut reported_to) {
                Ok(true) => break Ok(true),
                Ok(false) => break self.wait(timeout.saturating_sub(start.elapsed()), &mut is_wanted),
                Err(error) if is_unsent(&error) && start.elapsed() < self.outage_timeout => {}
                Err(error) => break Err(error),
            }
            if !is_wanted() {
                break Ok(false);
            }
        };
        match end {
            Ok(true) => {
                let barrier = self.with_timeout(LINGER_GRACE);
                let failed = barrier.store.check(&[FAILED]).unwrap_or(false);
                // This node has read that all nodes have ended. The acknowledgment only helps the host of the store.
                let _ = barrier.acknowledge(lingers);
                if failed { RoundEnd::Failed } else { RoundEnd::Finished }
            }
            Ok(false) => RoundEnd::Incomplete,
            Err(error) => {
                tracing::info!("could not read whether all nodes have finished: {error}");
                RoundEnd::StoreLost
            }
        }
    }

    /// Reports that this node has ended, and counts this node. Returns whether it is the last node.
    ///
    /// `reported_to` is the generation of the store that has the report.
    fn report_and_count(
        &self,
        handler: &dyn RendezvousHandler,
        reported_to: &mut Option<u64>,
    ) -> Result<bool> {
        self.report_to(reported_to);
        let is_last = self.count()?;
        // The store may have been replaced by an empty one before the count. Without the report, the other nodes would
        // attribute the count to one of torch's nodes.
        self.report_to(reported_to);
        if !is_last {
            return Ok(false);
        }
        // Close the rendezvous before the release below, while the host of the store still waits. All nodes have ended,
        // so none joins again.
        if !self.store.check(&[FAILED]).unwrap_or(false)
            && let Err(error) = handler.set_closed()
        {
            tracing::warn!("could not close the rendezvous: {error}");
        }
        // This call wakes the host of the store, which may exit before it replies. This node does not need the reply.
        let _ = self.with_timeout(CALL_TIMEOUT).release();
        Ok(true)
    }

    /// Reports under this node's group rank that it has ended, unless this generation of the store has the report.
    fn report_to(&self, generation: &mut Option<u64>) {
        if *generation == Some(self.store.generation()) {
            return;
        }
        let reported = report_ended(&*self.store, self.rank);
        if let Err(error) = &reported {
            tracing::debug!("could not report that this node has finished: {error}");
        }
        // If the reply was lost, the report may have been counted, so it must not be repeated.
        if !reported.is_err_and(|error| is_unsent(&error)) {
            *generation = Some(self.store.generation());
        }
    }

    /// Counts this node. Returns whether it is the last node.
    fn count(&self) -> Result<bool> {
        Ok(self.store.add(ENDED_COUNT, 1)? >= self.world_size)
    }

    fn release(&self) -> Result<()> {
        self.store.set(ALL_ENDED, b"<val_ignored>")
    }

    /// Waits until all nodes have ended. Returns `false` if `timeout` passes first, or if `is_wanted` returns false.
    fn wait(&self, timeout: Duration, mut is_wanted: impl FnMut() -> bool) -> Result<bool> {
        let start = Instant::now();
        let (mut last_answer, mut generation) = (start, self.store.generation());
        let mut wait = KeyWait::new(&*self.store, &[ALL_ENDED], CHECK_INTERVAL);
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match wait.poll(left) {
                Ok(true) => return Ok(true),
                Ok(false) => last_answer = Instant::now(),
                Err(error)
                    if error.is_outage()
                        && last_answer.elapsed() < self.outage_timeout
                        && !left.is_zero() => {}
                Err(error) => return Err(error),
            }
            if left.is_zero() {
                tracing::warn!("not all nodes have finished within {} s", timeout.as_secs());
                return Ok(false);
            }
            if !is_wanted() {
                return Ok(false);
            }
            // A restarted store has lost the count, so every waiting node counts itself again.
            if self.store.generation() != generation {
                generation = self.store.generation();
                report_ended(&*self.store, self.rank)?;
                if self.count()? {
                    self.release()?;
                }
            }
        }
    }

    /// Reports that this node has read that all nodes have ended. With `lingers`, waits for the other nodes to report
    /// it.
    fn acknowledge(&self, lingers: bool) -> Result<()> {
        match self.store.add(ACKNOWLEDGED_COUNT, 1)? >= self.world_size {
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

/// Returns whether a call certainly had no effect because there was no connection. Such a call may be repeated even if
/// it is not idempotent.
fn is_unsent(error: &StoreError) -> bool {
    matches!(error.failure(), Some(Failure::Unreachable(_)))
}

/// Reports that the node with the group rank `rank` has ended. Call it before the node is counted at the
/// [`ExitBarrier`].
///
/// # Errors
///
/// Fails if the store can't be used.
pub fn report_ended(store: &dyn Store, rank: u64) -> Result<()> {
    store.set(&report_key(rank), b"1")?;
    store.add(REPORTED_COUNT, 1).map(drop)
}

/// Returns whether the node with this group rank has reported that it has ended.
///
/// # Errors
///
/// Fails if the store can't be used.
pub fn has_reported_ended(store: &dyn Store, rank: u64) -> Result<bool> {
    store.check(&[&report_key(rank)])
}

/// Returns the number of nodes that have reported that they have ended.
///
/// # Errors
///
/// Fails if the store can't be used.
pub fn count_reported_ended(store: &dyn Store) -> Result<i64> {
    store.add(REPORTED_COUNT, 0)
}

fn report_key(rank: u64) -> String {
    format!("{REPORTED_COUNT}/{rank}")
}

/// Counts this node as ended and idle, because it has no workers.
///
/// # Errors
///
/// Fails if the store can't be used.
pub fn count_as_idle(store: &dyn Store) -> Result<()> {
    store.add(IDLE_COUNT, 1)?;
    store.add(ENDED_COUNT, 1).map(drop)
}

/// Returns the number of nodes of this round that had workers and have ended.
pub(crate) fn count_finished(store: &dyn Store) -> Result<i64> {
    let count = |key: &str| match store.check(&[key])? {
        true => store.add(key, 0),
        false => Ok(0),
    };
    // Read `ENDED_COUNT` first, because an idle node is added to `IDLE_COUNT` first. A node that is added between the
    // two reads makes the result too small, never too large.
    let finished = count(ENDED_COUNT)?;
    Ok(finished - count(IDLE_COUNT)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rallypoint_store::{HashStore, PrefixStore, StoreKind};

    use super::*;
    use crate::error::Result as RendezvousResult;
    use crate::{Membership, RendezvousStoreInfo};

    /// A store that is replaced by an empty one when a node first counts itself as ended.
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
            if key.ends_with(ENDED_COUNT) && inner.1 == 0 {
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
    fn a_node_that_is_counted_in_a_replaced_store_is_also_reported_there() {
        let store = Arc::new(Replaced(Mutex::new((HashStore::new(), 0))));
        let round = RendezvousInfo {
            store: Arc::new(PrefixStore::new("round", store.clone())),
            rank: 1,
            world_size: 2,
            bootstrap_store_info: RendezvousStoreInfo { master_addr: "host".into(), master_port: 1 },
            use_agent_store: true,
            round: 0,
            lost: 0,
            participants: Vec::new(),
        };
        let end = ExitBarrier::of(&round).finish(&Handler, Duration::ZERO, false, || true);
        assert_eq!(end, RoundEnd::Incomplete);
        let store = PrefixStore::new("round", Arc::new(store.store()));
        assert_eq!((store.add(ENDED_COUNT, 0).unwrap(), count_reported_ended(&store).unwrap()), (1, 1));
        assert!(has_reported_ended(&store, 1).unwrap());
    }
}
