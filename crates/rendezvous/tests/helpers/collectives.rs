//! Tests of collective operations: every rank gets the values of all ranks, or an error that names exactly the missing
//! ranks.

use std::time::{Duration, Instant};

use rallypoint_rendezvous::{Barrier, barrier, get_all, synchronize};
use rallypoint_store::{
    Awaited, Endpoint, Failure, HashStore, Result, Store, StoreError, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};
use rallypoint_testkit::{CALL_TIMEOUT, fails_in_time, fails_within};

const SHORT_TIMEOUT: Duration = Duration::from_millis(250);
/// Long enough for several ranks to arrive, even on a busy machine.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(1);

fn client(server: &TcpStoreServer) -> TcpStore {
    let endpoint = Endpoint::new("127.0.0.1", server.port());
    TcpStore::open(TcpStoreOptions::new(endpoint).timeout(CALL_TIMEOUT)).unwrap()
}

/// Runs `act` for these ranks in parallel, each with its own client. Returns the results in the order of `ranks`.
fn run_ranks<T: Send>(ranks: &[u64], act: impl Fn(&dyn Store, u64) -> T + Sync) -> Vec<T> {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    run_ranks_at(&server, ranks, act)
}

fn run_ranks_at<T: Send>(
    server: &TcpStoreServer,
    ranks: &[u64],
    act: impl Fn(&dyn Store, u64) -> T + Sync,
) -> Vec<T> {
    run_ranks_with(|| client(server), ranks, act)
}

/// Like [`run_ranks`], over a store in this process. The timeout error of such a store always contains the missing
/// keys. The timeout error of a client lacks them if its server replies too late, which may happen on a busy machine.
fn run_locally<T: Send>(ranks: &[u64], act: impl Fn(&dyn Store, u64) -> T + Sync) -> Vec<T> {
    let store = HashStore::new();
    run_ranks_with(|| store.clone(), ranks, act)
}

fn run_ranks_with<S: Store, T: Send>(
    client: impl Fn() -> S,
    ranks: &[u64],
    act: impl Fn(&dyn Store, u64) -> T + Sync,
) -> Vec<T> {
    let start = std::sync::Barrier::new(ranks.len());
    std::thread::scope(|scope| {
        let (act, start) = (&act, &start);
        let rank = |&rank| {
            let store = client();
            scope.spawn(move || {
                start.wait();
                act(&store, rank)
            })
        };
        let threads: Vec<_> = ranks.iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn missing_ranks<T: std::fmt::Debug>(result: Result<T>) -> Vec<u64> {
    match result.unwrap_err() {
        StoreError::Call { failure: Failure::Timeout(Awaited::Ranks { missing, .. }), context } => {
            assert!(context.waited >= SHORT_TIMEOUT, "{context:?}");
            missing
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_rank_gets_the_values_of_all_ranks() {
    let got = run_ranks(&[0, 1, 2, 3, 4, 5, 6, 7], |store, rank| {
        synchronize(store, format!("from {rank}").as_bytes(), rank, 8, "data", CALL_TIMEOUT).unwrap()
    });
    let all: Vec<_> = (0..8).map(|rank| format!("from {rank}").into_bytes()).collect();
    assert_eq!(got, vec![all; 8]);
}

#[test]
fn rank_0_leaves_last_and_the_keys_are_torchs() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    run_ranks_at(&server, &[0, 1, 2], |store, rank| {
        store.set(&format!("k{rank}"), &[rank as u8]).unwrap();
        assert_eq!(get_all(store, rank, "k", 3, CALL_TIMEOUT).unwrap(), [[0], [1], [2]]);
        if rank == 0 {
            assert_eq!(store.get("k/finished/num_members").unwrap(), b"3");
        }
    });
    let store = client(&server);
    assert_eq!(store.get("k/finished/last_member").unwrap(), b"<val_ignored>");
    let mut keys = store.list_keys().unwrap();
    keys.sort();
    assert_eq!(keys, ["k/finished/last_member", "k/finished/num_members", "k0", "k1", "k2"]);
}

#[test]
fn an_incomplete_exchange_names_the_missing_ranks_in_time() {
    let results = run_locally(&[1, 3], |store, rank| synchronize(store, b"x", rank, 5, "k", ARRIVAL_TIMEOUT));
    for result in results {
        assert_eq!(missing_ranks(result), [0, 2, 4]);
    }
    run_locally(&[0], |store, rank| {
        let error = fails_in_time(SHORT_TIMEOUT, || synchronize(store, b"x", rank, 3, "k", SHORT_TIMEOUT));
        assert!(error.to_string().contains("1 of 3 ranks arrived, missing: 1, 2"), "{error}");
    });
}

const MANY_RANKS: u64 = 20_000;

/// Sets these keys, as other ranks would.
fn set_all(store: &dyn Store, keys: impl Iterator<Item = String>) {
    let keys: Vec<_> = keys.collect();
    store.multi_set(&keys.iter().map(|key| (key.as_str(), &b"1"[..])).collect::<Vec<_>>()).unwrap();
}

#[test]
fn an_exchange_of_many_ranks_names_exactly_the_missing_ones() {
    let absent = [0, 299, 300, 8_191, 8_192, 16_384, 19_999];
    run_locally(&[7], |store, rank| {
        set_all(store, (0..MANY_RANKS).filter(|rank| !absent.contains(rank)).map(|rank| format!("k{rank}")));
        let error = fails_within(SHORT_TIMEOUT, ARRIVAL_TIMEOUT, || {
            synchronize(store, b"x", rank, MANY_RANKS, "k", SHORT_TIMEOUT)
        });
        assert!(error.to_string().contains("19993 of 20000 ranks arrived, missing: 0, 299, 300,"), "{error}");
        assert_eq!(missing_ranks::<()>(Err(error)), absent);
    });
}

#[test]
fn a_barrier_of_many_ranks_names_exactly_the_missing_ones_in_time() {
    // Most ranks are missing, and the present ones are spread among them.
    let has_arrived = |rank: &u64| rank % 100 == 7;
    run_locally(&[7], |store, rank| {
        set_all(store, (0..MANY_RANKS).filter(has_arrived).map(|rank| format!("b{rank}/TRACE")));
        let timeout = Duration::from_secs(2);
        let at = Barrier::new("b", MANY_RANKS).timeout(timeout).rank(rank);
        let error = fails_within(timeout, ARRIVAL_TIMEOUT, || {
            store.set("b/num_members", b"199").unwrap();
            barrier(store, &at)
        });
        let absent: Vec<_> = (0..MANY_RANKS).filter(|rank| !has_arrived(rank)).collect();
        assert_eq!(missing_ranks::<()>(Err(error)), absent);
    });
}

/// Rank 0 waits for ranks that have not read all values, up to its timeout.
#[test]
fn rank_0_waits_for_the_other_ranks_until_its_timeout() {
    run_ranks(&[0], |store, rank| {
        store.multi_set(&[("k1", b"x"), ("k2", b"y")]).unwrap();
        let started = Instant::now();
        let error = synchronize(store, b"x", rank, 3, "k", SHORT_TIMEOUT).unwrap_err();
        assert!(started.elapsed() >= SHORT_TIMEOUT);
        assert!(error.to_string().contains("k/finished/last_member"), "{error}");
    });
}

#[test]
fn a_barrier_releases_all_ranks_when_the_last_one_arrives() {
    let arrived = std::sync::atomic::AtomicU64::new(0);
    run_ranks(&[0, 1, 2, 3, 4], |store, rank| {
        use std::sync::atomic::Ordering::SeqCst;
        arrived.fetch_add(1, SeqCst);
        // Some callers pass their rank and some do not, because torch allows both.
        let rank = (rank % 2 == 0).then_some(rank);
        barrier(store, &Barrier::new("b", 5).timeout(CALL_TIMEOUT).rank(rank)).unwrap();
        assert_eq!(arrived.load(SeqCst), 5);
    });
}

#[test]
fn an_incomplete_barrier_names_exactly_the_missing_ranks_on_every_rank() {
    for present in [&[0, 2, 5][..], &[1, 2, 3], &[5], &[0, 1, 2, 3, 4]] {
        let errors = run_ranks(present, |store, rank| {
            barrier(store, &Barrier::new("b", 6).timeout(ARRIVAL_TIMEOUT).rank(rank))
        });
        let absent: Vec<u64> = (0..6).filter(|rank| !present.contains(rank)).collect();
        for error in errors {
            assert_eq!(missing_ranks(error), absent, "{present:?}");
        }
    }
}

/// Every rank that arrived has set its trace key, so no rank waits for more trace keys.
#[test]
fn a_barrier_of_our_ranks_needs_no_time_for_tracing() {
    run_locally(&[1], |store, rank| {
        let at = Barrier::new("b", 3).timeout(SHORT_TIMEOUT).rank(rank);
        let error = fails_in_time(SHORT_TIMEOUT, || barrier(store, &at));
        assert!(error.to_string().contains("1 of 3 ranks arrived, missing: 0, 2"), "{error}");
    });
}

/// Torch's ranks wait for the key `b/TRACING_GATE` before they return the timeout.
#[test]
fn only_rank_0_opens_the_tracing_gate_after_a_timeout() {
    for rank in [0, 1] {
        run_locally(&[rank], |store, rank| {
            let at = Barrier::new("b", 3).timeout(SHORT_TIMEOUT).rank(rank);
            barrier(store, &at).unwrap_err();
            assert_eq!(store.check(&["b/TRACING_GATE"]).unwrap(), rank == 0);
        });
    }
}

/// A caller that arrived without passing its rank can't be named. The other callers wait for its trace key until the
/// trace timeout.
#[test]
fn a_barrier_with_unknown_ranks_is_traced_until_the_trace_timeout() {
    let at = Barrier::new("b", 3).timeout(ARRIVAL_TIMEOUT).trace_timeout(SHORT_TIMEOUT);
    let errors = run_locally(&[0, 1], |store, rank| match rank {
        0 => {
            let started = Instant::now();
            let error = barrier(store, &at.clone().rank(0)).unwrap_err();
            assert!(started.elapsed() >= ARRIVAL_TIMEOUT + SHORT_TIMEOUT);
            error
        }
        _ => barrier(store, &at).unwrap_err(),
    });
    assert!(
        matches!(errors[0].awaited(), Some(Awaited::Ranks { missing, .. }) if missing == &[1, 2]),
        "{errors:?}"
    );
    assert!(errors[1].awaited().is_some(), "{errors:?}");
}

#[test]
fn invalid_ranks_and_world_sizes_are_refused_and_nothing_is_written() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let store = client(&server);
    for (rank, world_size) in [(3, 3), (7, 3), (0, 0)] {
        let at = Barrier::new("b", world_size).rank(rank);
        for error in [
            synchronize(&store, b"x", rank, world_size, "k", SHORT_TIMEOUT).unwrap_err(),
            get_all(&store, rank, "k", world_size, SHORT_TIMEOUT).unwrap_err(),
            barrier(&store, &at).unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::InvalidArgument(_)), "{error:?}");
        }
    }
    let error = barrier(&store, &Barrier::new("b", 0)).unwrap_err();
    assert!(matches!(error, StoreError::InvalidArgument(_)), "{error:?}");
    assert_eq!(store.num_keys().unwrap(), 0);
}
