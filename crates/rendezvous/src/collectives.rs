//! Collective operations over a store: ranks exchange values, or wait until all ranks have arrived.
//!
//! The keys are those of torch's elastic helpers, so torch's ranks and ours can take part together. A key prefix can be
//! used for only one operation.

use std::time::Duration;

use rallypoint_core::client::{Backoff, Deadline};
use rallypoint_store::{
    Awaited, Context, Failure, Result, Store, StoreError, StoreKind, arrive_at_barrier, now, pause, setters,
};

/// The value that the last rank to arrive at a barrier stores under the key `last_member`, as in torch's helpers.
pub(crate) const LAST_MEMBER_VALUE: &[u8] = b"<val_ignored>";

/// Sets `{prefix}{rank}` to `data` and returns the values of all ranks, in the order of the ranks.
///
/// Rank 0 returns only after all ranks have read the values. It usually hosts the store, which must run until then.
///
/// # Errors
///
/// Fails with `StoreError::InvalidArgument` if `rank` is not below `world_size`. Fails with a timeout that names the
/// missing ranks if their values do not arrive in time.
pub fn synchronize(
    store: &dyn Store,
    data: &[u8],
    rank: u64,
    world_size: u64,
    prefix: &str,
    timeout: impl Into<Option<Duration>>,
) -> Result<Vec<Vec<u8>>> {
    check_rank(rank, world_size, prefix)?;
    let timeout = timeout.into();
    let deadline = Deadline::after(now(), timeout).or_canceled(store.cancellation());
    store.with_timeout(timeout).set(&format!("{prefix}{rank}"), data)?;
    collect(store, rank, prefix, world_size, &deadline)
}

/// Waits for the values of `{prefix}0` … `{prefix}{world_size - 1}` and returns them. Rank 0 returns only after all
/// ranks have read the values.
///
/// # Errors
///
/// Fails with `StoreError::InvalidArgument` if `rank` is not below `world_size`. Fails with a timeout that names the
/// missing ranks if their values do not arrive in time.
pub fn get_all(
    store: &dyn Store,
    rank: u64,
    prefix: &str,
    world_size: u64,
    timeout: impl Into<Option<Duration>>,
) -> Result<Vec<Vec<u8>>> {
    check_rank(rank, world_size, prefix)?;
    let deadline = Deadline::after(now(), timeout.into()).or_canceled(store.cancellation());
    collect(store, rank, prefix, world_size, &deadline)
}

fn collect(
    store: &dyn Store,
    rank: u64,
    prefix: &str,
    world_size: u64,
    deadline: &Deadline,
) -> Result<Vec<Vec<u8>>> {
    let keys: Vec<_> = (0..world_size).map(|rank| format!("{prefix}{rank}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let waited = store.wait_for(&keys, deadline.left(now()));
    waited.map_err(|error| name_missing_ranks(error, prefix, world_size, deadline))?;
    let values = store.with_timeout(deadline.left(now())).multi_get(&keys)?;
    let finished = format!("{prefix}/finished");
    let last = arrive_at_barrier(store, world_size, &finished, LAST_MEMBER_VALUE, deadline)?;
    if rank == 0 {
        store.wait_for(&[&last], deadline.left(now()))?;
    }
    Ok(values)
}

/// A barrier of `world_size` callers at a key prefix. It can be used once.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Barrier<'a> {
    prefix: &'a str,
    world_size: u64,
    timeout: Option<Duration>,
    rank: Option<u64>,
    trace_timeout: Duration,
}

impl<'a> Barrier<'a> {
    /// Creates a barrier without a rank. The timeouts are torch's: 300 s, and 10 s to find out which ranks are missing.
    pub fn new(prefix: &'a str, world_size: u64) -> Barrier<'a> {
        let (timeout, trace_timeout) = (Some(Duration::from_secs(300)), Duration::from_secs(10));
        Barrier { prefix, world_size, timeout, rank: None, trace_timeout }
    }

    setters! {
        /// Sets how long to wait. `None` means no timeout.
        timeout: Option<Duration>;
        /// Sets the rank of this caller. With it, a timeout names the missing ranks.
        rank: Option<u64>;
        /// Sets how long to wait, after a timeout, for ranks to report that they have arrived. Only torch's ranks need
        /// that time, because our ranks report their arrival immediately.
        trace_timeout: Duration;
    }
}

/// Waits until all callers have arrived at the barrier.
///
/// # Errors
///
/// Fails with `StoreError::InvalidArgument` if the rank is not below the world size, and with a timeout if not all
/// callers arrive in time. With a rank, the timeout names the missing ranks.
pub fn barrier(store: &dyn Store, barrier: &Barrier<'_>) -> Result<()> {
    let Barrier { prefix, world_size, timeout, rank, trace_timeout } = *barrier;
    check_rank(rank.unwrap_or(0), world_size, prefix)?;
    let deadline = Deadline::after(now(), timeout).or_canceled(store.cancellation());
    if let Some(rank) = rank {
        // Torch's ranks set this key only after a timeout. Ours set it when they arrive, so the missing ranks are known
        // immediately.
        store.with_timeout(timeout).set(&trace_key(prefix, rank), b"1")?;
    }
    let last = arrive_at_barrier(store, world_size, prefix, LAST_MEMBER_VALUE, &deadline)?;
    let error = match store.wait_for(&[&last], deadline.left(now())) {
        Err(error) if error.awaited().is_some() && rank.is_some() => error,
        other => return other,
    };
    let waited = deadline.waited(now());
    let trace_deadline = Deadline::after(now(), Some(trace_timeout)).or_canceled(store.cancellation());
    // An error while searching for the missing ranks must not hide the timeout.
    let Ok(missing) = find_missing(store, prefix, world_size, &trace_deadline) else { return Err(error) };
    let store = store.with_timeout(trace_deadline.grace(now()).left(now()));
    if rank == Some(0) {
        // Torch's ranks wait for this key before they return the timeout.
        let _ = store.set(&format!("{prefix}/TRACING_GATE"), b"1");
    }
    if store.check(&[&last]).unwrap_or(false) {
        return Ok(());
    }
    if missing.is_empty() {
        return Err(error);
    }
    Err(ranks_missing(prefix, world_size, missing, waited))
}

/// Returns the ranks that have not set their trace key. Torch's ranks may need time to set it, so this function waits
/// until `deadline` for the trace keys of all ranks that were counted at the barrier.
fn find_missing(store: &dyn Store, prefix: &str, world_size: u64, deadline: &Deadline) -> Result<Vec<u64>> {
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));
    let mut missing: Vec<u64> = (0..world_size).collect();
    loop {
        let trace_keys: Vec<_> = missing.iter().map(|rank| trace_key(prefix, *rank)).collect();
        let mut present = are_present(store, &trace_keys, deadline)?.into_iter();
        missing.retain(|_| present.next() == Some(false));
        let store = store.with_timeout(deadline.grace(now()).left(now()));
        let arrived = store.add(&format!("{prefix}/num_members"), 0)?;
        if (world_size - missing.len() as u64) as i64 >= arrived || deadline.has_passed(now()) {
            return Ok(missing);
        }
        pause(&mut backoff, deadline);
    }
}

/// Returns which of these keys exist. If a wait for all keys times out, its error contains which of them exist. One
/// such wait takes fewer round trips than one check per key.
fn are_present(store: &dyn Store, keys: &[String], deadline: &Deadline) -> Result<Vec<bool>> {
    let names: Vec<_> = keys.iter().map(String::as_str).collect();
    match store.wait_for(&names, Some(Duration::from_millis(1))) {
        Ok(()) => return Ok(vec![true; keys.len()]),
        Err(error) => {
            if let Some(Awaited::Keys(Some(present))) = error.awaited() {
                return Ok(present.clone());
            }
        }
    }
    // The error of a store that is implemented in Python does not contain which keys exist.
    let left = || deadline.grace(now()).left(now());
    names.iter().map(|name| store.with_timeout(left()).check(&[name])).collect()
}

fn trace_key(prefix: &str, rank: u64) -> String {
    format!("{prefix}{rank}/TRACE")
}

fn check_rank(rank: u64, world_size: u64, prefix: &str) -> Result<()> {
    let problem = match world_size {
        0 => format!("world size 0 for {prefix}; it must be at least 1"),
        _ if rank < world_size => return Ok(()),
        _ => format!(
            "rank {rank} at {prefix:?} with a world size of {world_size}; ranks go from 0 to {}",
            world_size - 1
        ),
    };
    Err(StoreError::InvalidArgument(problem))
}

/// Converts a timeout on the keys of ranks to an error that names the missing ranks. Returns the error unchanged if it
/// does not contain which keys exist.
fn name_missing_ranks(error: StoreError, prefix: &str, world_size: u64, deadline: &Deadline) -> StoreError {
    match error.awaited() {
        Some(Awaited::Keys(Some(present))) => {
            let missing =
                (0..).zip(present).filter(|(_, is_present)| !**is_present).map(|(rank, _)| rank).collect();
            ranks_missing(prefix, world_size, missing, deadline.waited(now()))
        }
        _ => error,
    }
}

fn ranks_missing(prefix: &str, world_size: u64, missing: Vec<u64>, waited: Duration) -> StoreError {
    let context = Context::new(StoreKind::Prefix, prefix).after(waited);
    context.failed(Failure::Timeout(Awaited::Ranks { world_size, missing }))
}

#[cfg(test)]
mod tests {
    use rallypoint_store::HashStore;

    use super::*;

    #[test]
    fn every_rank_gets_all_values_and_arrives_at_the_final_barrier() {
        let store = HashStore::new();
        let timeout = Duration::from_secs(10);
        let got = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..4u64)
                .map(|rank| {
                    let store = &store;
                    scope.spawn(move || synchronize(store, &[rank as u8], rank, 4, "k", timeout).unwrap())
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(got, vec![vec![vec![0], vec![1], vec![2], vec![3]]; 4]);
        assert_eq!(store.get("k/finished/num_members").unwrap(), b"4");
        assert_eq!(store.get("k/finished/last_member").unwrap(), b"<val_ignored>");
    }

    #[test]
    fn an_exchange_that_times_out_names_the_missing_ranks() {
        let store = HashStore::new();
        store.set("k2", b"x").unwrap();
        let error = synchronize(&store, b"y", 1, 4, "k", Duration::from_millis(20)).unwrap_err();
        assert!(
            matches!(error.awaited(), Some(Awaited::Ranks { missing, .. }) if missing == &[0, 3]),
            "{error}"
        );
        assert!(error.to_string().contains("2 of 4 ranks arrived, missing: 0, 3"), "{error}");
    }

    #[test]
    fn a_barrier_that_times_out_names_exactly_the_missing_ranks_on_every_rank() {
        let store = HashStore::new();
        std::thread::scope(|scope| {
            for rank in [0, 2, 4] {
                let store = &store;
                scope.spawn(move || {
                    // Long enough for all three ranks to arrive, even on a busy machine.
                    let at = Barrier::new("b", 5).rank(rank).timeout(Duration::from_secs(1));
                    let error = barrier(store, &at).unwrap_err();
                    assert!(
                        matches!(error.awaited(), Some(Awaited::Ranks { missing, .. }) if missing == &[1, 3]),
                        "{error}"
                    );
                });
            }
        });
        assert!(store.check(&["b/TRACING_GATE", "b0/TRACE"]).unwrap());
    }

    #[test]
    fn a_barrier_releases_all_ranks_when_the_last_one_arrives() {
        let store = HashStore::new();
        std::thread::scope(|scope| {
            for rank in 0..5 {
                let store = &store;
                let at = Barrier::new("b", 5).rank(rank);
                scope.spawn(move || barrier(store, &at).unwrap());
            }
        });
        assert_eq!(store.get("b/num_members").unwrap(), b"5");
    }

    #[test]
    fn a_rank_outside_the_world_is_refused() {
        let error = get_all(&HashStore::new(), 4, "k", 4, Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("ranks go from 0 to 3"), "{error}");
    }
}
