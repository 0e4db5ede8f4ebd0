//! Tests of `create_c10d_store`: one process serves, the others connect, and all of them have arrived when the call
//! returns.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use rallypoint_rendezvous::{C10dStoreOptions, create_c10d_store, reserve_port};
use rallypoint_store::{Awaited, Failure, Result, Store, StoreError, TcpStore};
use rallypoint_testkit::{CALL_TIMEOUT, Port, assert_blocked_for, fails_in_time};

fn options(server_port: Option<u16>, world_size: u64) -> C10dStoreOptions {
    C10dStoreOptions::new("127.0.0.1", server_port).world_size(world_size).timeout(CALL_TIMEOUT)
}

/// Calls `create_c10d_store` as the process with this rank. Rank 0 serves the store.
fn create(rank: u64, options: &C10dStoreOptions) -> Result<TcpStore> {
    create_c10d_store(&options.clone().is_server(rank == 0))
}

#[test]
fn four_processes_connect_at_a_given_port() {
    let port = Port::reserve();
    let options = options(Some(port.number), 4);
    std::thread::scope(|scope| {
        // The server starts last, and the ranks that start earlier wait for it.
        let ranks: Vec<_> = (0..4)
            .rev()
            .map(|rank| {
                let options = &options;
                scope.spawn(move || {
                    let store = create(rank, options).unwrap();
                    // The counter includes all ranks, because all of them have arrived.
                    assert_eq!(store.get("_tcp_store/num_members/num_members").unwrap(), b"4");
                    assert_eq!(store.timeout(), Some(CALL_TIMEOUT));
                    assert_eq!(store.server().is_some(), rank == 0);
                    store.add("sum", rank as i64).unwrap();
                    store.barrier("done", 4).unwrap();
                    assert_eq!(store.get("sum").unwrap(), b"6");
                    // Return the store, because the server must run until all ranks are done.
                    store
                })
            })
            .collect();
        let stores: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert_eq!(stores.len(), 4);
    });
}

#[test]
fn a_world_of_one_chooses_a_free_port() {
    let stores: Vec<_> = (0..4).map(|_| create(0, &options(None, 1)).unwrap()).collect();
    for (n, store) in stores.iter().enumerate() {
        assert_ne!(store.port(), 0);
        store.set("n", &[n as u8]).unwrap();
    }
    for (n, store) in stores.iter().enumerate() {
        assert_eq!(store.get("n").unwrap(), [n as u8]);
    }
}

#[test]
fn a_missing_port_is_refused_unless_the_server_is_the_only_process() {
    for (rank, world_size) in [(0, 2), (1, 2), (1, 1)] {
        let error = create(rank, &options(None, world_size)).unwrap_err();
        assert!(matches!(error, StoreError::InvalidArgument(_)), "{error:?}");
        assert!(error.to_string().contains("server_port must be specified"), "{error}");
    }
}

#[test]
fn a_port_in_use_is_retried_and_then_named() {
    let taken = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
    let port = taken.local_addr().unwrap().port();
    let started = std::time::Instant::now();
    let error = create(0, &options(Some(port), 1)).unwrap_err();
    assert!(error.is_address_in_use(), "{error:?}");
    let StoreError::Listen { address, .. } = &error else { panic!("{error:?}") };
    assert!(address.ends_with(&format!(":{port}")), "{error}");
    assert!(error.to_string().contains("address already in use"), "{error}");
    // Three attempts have two pauses, of at least 50 ms and 100 ms.
    assert!(started.elapsed() >= Duration::from_millis(150));
}

#[test]
fn a_port_that_becomes_free_in_time_is_used() {
    let taken = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
    let port = taken.local_addr().unwrap().port();
    let options = options(Some(port), 1).retries(1000_u32);
    std::thread::scope(|scope| {
        let creation = scope.spawn(|| create(0, &options).unwrap());
        assert_blocked_for(Duration::from_millis(100), &creation);
        drop(taken);
        assert_eq!(creation.join().unwrap().port(), port);
    });
}

#[test]
fn a_server_that_times_out_reports_how_many_workers_joined() {
    let timeout = Duration::from_millis(700);
    let error = fails_in_time(timeout, || {
        let port = Port::reserve();
        let options = options(Some(port.number), 4).timeout(timeout);
        std::thread::scope(|scope| {
            let (server, worker) = (scope.spawn(|| create(0, &options)), scope.spawn(|| create(1, &options)));
            worker.join().unwrap().expect_err("two of four are not enough");
            server.join().unwrap()
        })
    });
    assert!(matches!(error.awaited(), Some(Awaited::Workers { joined: 2, expected: 4 })), "{error:?}");
    assert!(error.to_string().contains("2 of 4 joined"), "{error}");
}

/// The server does not wait for workers, so the workers must report how many of them joined.
#[test]
fn a_worker_that_times_out_reports_how_many_workers_joined() {
    // After its timeout, a worker has 4 % of the timeout (400 ms) to read how many workers joined. That is enough on a
    // busy machine.
    let timeout = Duration::from_secs(10);
    for joined in [1, 2] {
        // Each attempt has its own store, because earlier workers stay counted.
        let error = fails_in_time(timeout, || {
            let server = TcpStore::serve("127.0.0.1", 0).unwrap();
            let options = options(Some(server.port()), 4).timeout(timeout);
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..joined).map(|_| scope.spawn(|| create(1, &options))).collect();
                workers.into_iter().map(|worker| worker.join().unwrap()).next_back().unwrap()
            })
        });
        let Some(Awaited::Workers { joined: reported, expected: 4 }) = error.awaited() else {
            panic!("{error:?}")
        };
        assert_eq!(*reported, joined);
        assert!(error.to_string().contains(&format!("{joined} of 4 joined")), "{error}");
    }
}

#[test]
fn a_worker_without_a_server_times_out() {
    let reserved = reserve_port().unwrap();
    let timeout = Duration::from_millis(400);
    let options = options(Some(reserved.port()), 2).timeout(timeout);
    let error = fails_in_time(timeout, || create(1, &options));
    assert!(matches!(error.failure(), Some(Failure::Unreachable(_))), "{error:?}");
}

#[test]
fn without_wait_for_workers_no_process_waits() {
    let port = Port::reserve();
    let options = options(Some(port.number), 4).wait_for_workers(false);
    let server = create(0, &options).unwrap();
    let worker = create(1, &options).unwrap();
    assert_eq!(server.num_keys().unwrap(), 0, "no process is counted");
    worker.set("k", b"v").unwrap();
    assert_eq!(server.get("k").unwrap(), b"v");
}

#[test]
fn a_server_at_a_loopback_address_listens_there_only() {
    for (host, address) in
        [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("127.0.0.2", "127.0.0.2")]
    {
        let store = create(0, &C10dStoreOptions::new(host, None)).unwrap();
        assert!(std::net::TcpStream::connect((address, store.port())).is_ok(), "{host}");
        let listening: Vec<IpAddr> = store.server().unwrap().addresses().iter().map(SocketAddr::ip).collect();
        let expected = [address.parse().unwrap(), IpAddr::from(Ipv6Addr::LOCALHOST)];
        assert!(listening.iter().all(|address| expected.contains(address)), "{host}: {listening:?}");
    }
}
