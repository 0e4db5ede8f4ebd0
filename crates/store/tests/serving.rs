//! Tests of servers that run in the process of their clients: where they listen, how stores share them, and when they
//! stop.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rallypoint_store::{
    Endpoint, Failure, Limits, Listen, Oversized, ServerOptions, Store, StoreError, TcpStore,
    TcpStoreOptions, TcpStoreServer,
};
use rallypoint_testkit::Port;

use rallypoint_testkit::{CALL_TIMEOUT, eventually};

fn start(listen: Vec<Listen>) -> Result<TcpStoreServer, StoreError> {
    TcpStoreServer::start(ServerOptions::new(listen))
}

fn has_ipv6() -> bool {
    TcpListener::bind("[::1]:0").is_ok()
}

/// Returns whether a server at this address stores a value.
fn is_serving(host: &str, port: u16) -> bool {
    let endpoint = Endpoint::new(host, port);
    // Without this check, the client would retry a refused connection until its timeout.
    let is_listening =
        endpoint.resolve_within(None).unwrap().iter().any(|address| TcpStream::connect(address).is_ok());
    let options = TcpStoreOptions::new(endpoint).timeout(Duration::from_secs(2));
    is_listening && TcpStore::open(options).is_ok_and(|store| store.set("k", b"v").is_ok())
}

#[test]
fn port_0_selects_a_free_port() {
    let (first, second) =
        (TcpStoreServer::bind("127.0.0.1", 0).unwrap(), TcpStoreServer::bind("127.0.0.1", 0).unwrap());
    assert_ne!(first.port(), 0);
    assert_ne!(first.port(), second.port());
    assert_ne!(first.instance(), second.instance());
    assert!(is_serving("127.0.0.1", first.port()) && is_serving("127.0.0.1", second.port()));
}

#[test]
fn a_server_binds_only_the_requested_address() {
    let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
    let ipv4 = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    assert_eq!(ipv4.addresses(), [SocketAddr::from((localhost, ipv4.port()))]);
    assert!(is_serving("127.0.0.1", ipv4.port()));
    assert!(TcpStream::connect(("127.0.0.2", ipv4.port())).is_err());
    let any_ipv4 = TcpStoreServer::bind("0.0.0.0", 0).unwrap();
    assert!(is_serving("127.0.0.2", any_ipv4.port()));
    if !has_ipv6() {
        return println!("skipped the rest: this machine has no IPv6");
    }
    assert!(TcpStream::connect(("::1", ipv4.port())).is_err());
    assert!(TcpStream::connect(("::1", any_ipv4.port())).is_err());
    let ipv6 = TcpStoreServer::bind("::1", 0).unwrap();
    assert_eq!(ipv6.addresses(), [SocketAddr::from((Ipv6Addr::LOCALHOST, ipv6.port()))]);
    assert!(is_serving("::1", ipv6.port()) && is_serving("[::1]", ipv6.port()));
    assert!(TcpStream::connect(("127.0.0.1", ipv6.port())).is_err());
}

#[test]
fn an_empty_host_means_all_ipv4_and_ipv6_addresses() {
    let server = TcpStoreServer::bind("", 0).unwrap();
    assert_eq!(server.addresses().len(), 1);
    assert!(is_serving("127.0.0.1", server.port()) && is_serving("127.0.0.2", server.port()));
    if has_ipv6() {
        assert!(is_serving("::1", server.port()));
    }
}

#[test]
fn several_addresses_serve_one_store() {
    let listen = vec![Listen::at("127.0.0.1", 0), Listen::at("127.0.0.2", 0)];
    let server = start(listen).unwrap();
    let [first, second] = server.addresses() else { panic!("{:?}", server.addresses()) };
    let store = TcpStore::connect(&first.ip().to_string(), first.port()).unwrap();
    let other = TcpStore::connect(&second.ip().to_string(), second.port()).unwrap();
    store.set("k", b"v").unwrap();
    assert_eq!(other.get("k").unwrap(), b"v");
}

#[test]
fn a_server_can_use_a_socket_that_already_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // This client may connect before the server starts, because the socket already listens.
    let early = std::thread::spawn(move || is_serving("127.0.0.1", address.port()));
    let server = start(vec![Listen::Socket(listener)]).unwrap();
    assert_eq!(server.addresses(), [address]);
    assert!(early.join().unwrap());
    // A store that starts its own server can use a listening socket as well.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let store = TcpStore::open(
        TcpStoreOptions::new(Endpoint::new("127.0.0.1", 1))
            .is_master(true)
            .listen(Some(Listen::Socket(listener))),
    )
    .unwrap();
    assert_eq!(store.port(), port);
    assert!(is_serving("127.0.0.1", port));
}

#[test]
fn a_server_without_an_available_address_fails_to_start() {
    assert!(matches!(start(vec![]).unwrap_err(), StoreError::InvalidArgument(_)));
    // This address is reserved for documentation, so no machine has it.
    let error = TcpStoreServer::bind("192.0.2.1", 0).unwrap_err();
    assert!(matches!(error, StoreError::Listen { .. }), "{error:?}");
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
}

#[test]
fn a_server_that_cannot_bind_every_address_binds_none() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let reserved = Port::reserve();
    let ports = [reserved.number, taken.local_addr().unwrap().port()];
    let error = start(ports.map(|port| Listen::at("127.0.0.1", port)).into()).unwrap_err();
    assert!(error.is_address_in_use(), "{error:?}");
    reserved.listen(|port| TcpStoreServer::bind("127.0.0.1", port));
}

#[test]
fn a_dropped_server_closes_every_connection_and_releases_its_port() {
    let reserved = Port::reserve();
    let port = reserved.number;
    let server = TcpStoreServer::bind("127.0.0.1", port).unwrap();
    let store = TcpStore::connect("127.0.0.1", port).unwrap();
    store.set_timeout(Some(Duration::from_secs(2)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("missing"));
        store.set("k", b"v").unwrap();
        drop(server);
        let error = waiting.join().unwrap().unwrap_err();
        // The failure depends on whether the client had sent the request when the server was dropped.
        assert!(
            matches!(error.failure(), Some(Failure::ConnectionLost(_) | Failure::Unreachable(_))),
            "{error:?}"
        );
    });
    eventually("the port is closed", || TcpStream::connect(("127.0.0.1", port)).is_err());
    reserved.listen(|port| TcpStoreServer::bind("127.0.0.1", port));
}

#[test]
fn a_server_stops_when_the_master_store_and_its_clones_are_dropped() {
    let master = TcpStore::serve("127.0.0.1", 0).unwrap();
    let port = master.port();
    let clone = master.clone_store().unwrap();
    master.set("k", b"v").unwrap();
    drop(master);
    assert_eq!(clone.get("k").unwrap(), b"v");
    assert!(is_serving("127.0.0.1", port));
    drop(clone);
    eventually("the port is closed", || TcpStream::connect(("127.0.0.1", port)).is_err());
}

fn tenant(port: u16, timeout: Duration) -> TcpStore {
    try_tenant(port, timeout).unwrap()
}

fn try_tenant(port: u16, timeout: Duration) -> Result<TcpStore, StoreError> {
    TcpStore::open(tenant_options(port).timeout(timeout))
}

fn tenant_options(port: u16) -> TcpStoreOptions {
    TcpStoreOptions::new(Endpoint::new("127.0.0.1", port)).is_master(true).multi_tenant(true)
}

#[test]
fn tenants_of_one_process_share_the_server_of_a_port() {
    let reserved = Port::reserve();
    let port = reserved.number;
    let first = tenant(port, CALL_TIMEOUT);
    let tenants: Vec<_> = (0..4).map(|_| tenant(port, CALL_TIMEOUT)).collect();
    first.set("k", b"v").unwrap();
    for other in &tenants {
        assert_eq!(other.get("k").unwrap(), b"v");
        assert_eq!(other.server_identity(), first.server_identity());
    }
    // The server runs as long as any of its tenants exists.
    drop(first);
    assert_eq!(tenants[3].get("k").unwrap(), b"v");
    // A store without `multi_tenant` does not share the server, so it finds the port in use.
    let error = TcpStore::serve("127.0.0.1", port).unwrap_err();
    assert!(error.is_address_in_use(), "{error:?}");
    drop(tenants);
    let again = reserved.listen(|port| try_tenant(port, CALL_TIMEOUT));
    assert!(!again.check(&["k"]).unwrap(), "the server outlived its last tenant");
}

#[test]
fn concurrent_tenants_start_one_server() {
    let reserved = Port::reserve();
    let port = reserved.number;
    let tenants: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| tenant(port, CALL_TIMEOUT))).collect();
        threads.into_iter().map(|tenant| tenant.join().unwrap()).collect()
    });
    for tenant in &tenants {
        tenant.add("n", 1).unwrap();
    }
    assert_eq!(tenants[0].get("n").unwrap(), b"8");
}

/// Returns the server of this process on a port, with the default limits.
fn shared(host: &str, port: u16) -> Result<Arc<TcpStoreServer>, StoreError> {
    TcpStoreServer::shared(host, port, TcpStoreServer::default_limits())
}

/// Returns the reason why a running server cannot be shared.
fn mismatch(shared: Result<Arc<TcpStoreServer>, StoreError>) -> String {
    let error = shared.unwrap_err().to_string();
    error.split_once(" differently: ").expect(&error).1.to_owned()
}

#[test]
fn a_server_is_shared_if_it_listens_on_the_requested_address() {
    let wildcard = shared("0.0.0.0", 0).unwrap();
    for host in ["0.0.0.0", "127.0.0.1", "127.0.0.2", "localhost", "::ffff:127.0.0.1"] {
        let found = shared(host, wildcard.port());
        assert_eq!(found.unwrap().instance(), wildcard.instance(), "{host}");
    }
    let wildcard = shared("", 0).unwrap();
    for host in ["", "*", "0.0.0.0", "127.0.0.1", "localhost"] {
        let found = shared(host, wildcard.port());
        assert_eq!(found.unwrap().instance(), wildcard.instance(), "{host}");
    }
    let local = shared("localhost", 0).unwrap();
    for host in ["localhost".to_owned(), local.addresses()[0].ip().to_string()] {
        let found = shared(&host, local.port());
        assert_eq!(found.unwrap().instance(), local.instance(), "{host}");
    }
}

#[test]
fn a_server_on_another_address_is_not_shared() {
    let local = shared("127.0.0.1", 0).unwrap();
    for (host, requested) in [("0.0.0.0", "0.0.0.0"), ("127.0.0.2", "127.0.0.2"), ("::1", "::1"), ("", "*")] {
        let expected = format!("it listens on {}, not on {requested}", local.addresses()[0]);
        assert_eq!(mismatch(shared(host, local.port())), expected);
    }
    let error = shared("0.0.0.0", local.port()).unwrap_err().to_string();
    let port = local.port();
    assert_eq!(
        error,
        format!(
            "cannot listen on 0.0.0.0:{port}: this process already serves port {port} differently: it listens on 127.0.0.1:{port}, not on 0.0.0.0"
        )
    );
    // A store that requests the server gets the same error, and the running server is not affected.
    let options = TcpStoreOptions::new(Endpoint::new("0.0.0.0", port)).is_master(true).multi_tenant(true);
    assert!(matches!(TcpStore::open(options), Err(StoreError::Listen { .. })));
    assert!(is_serving("127.0.0.1", port));
}

#[test]
fn a_server_with_other_limits_is_not_shared() {
    let mut limits = TcpStoreServer::default_limits();
    (limits.value_len, limits.keys) = (1 << 20, 1_000);
    let first = tenant_with(0, limits.clone()).unwrap();
    let server = first.server().unwrap();
    // The limits apply to every client of the server.
    let too_large = refused_set(first.port(), 2 << 20);
    assert!(
        matches!(
            too_large.failure(),
            Some(Failure::TooLarge { what: Oversized::Value, limit: 1_048_576, .. })
        ),
        "{too_large}"
    );
    // Limits that only clients use may differ.
    let mut same = limits.clone();
    (same.reply_len, same.record_key_len) = (1 << 10, 1 << 10);
    assert_eq!(tenant_with(first.port(), same).unwrap().server().unwrap().instance(), server.instance());

    let mut other_limits = limits;
    other_limits.value_len = 2 << 20;
    let found = mismatch(TcpStoreServer::shared("127.0.0.1", first.port(), other_limits.clone()));
    assert_eq!(found, "it has other limits: value_len is 1MiB, not 2MiB");
    let error = tenant_with(first.port(), other_limits).unwrap_err().to_string();
    assert!(error.ends_with("differently: it has other limits: value_len is 1MiB, not 2MiB"), "{error}");
}

fn tenant_with(port: u16, limits: Limits) -> Result<TcpStore, StoreError> {
    TcpStore::open(tenant_options(port).limits(limits))
}

/// Sets a value that exceeds the limit of the server, and returns the error.
fn refused_set(port: u16, len: usize) -> StoreError {
    TcpStore::connect("127.0.0.1", port).unwrap().set("k", &vec![7; len]).unwrap_err()
}

#[test]
fn a_server_reports_its_stats_until_it_is_stopped() {
    let mut server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let stats = server.stats_query();
    let before = stats(CALL_TIMEOUT).unwrap();
    assert_eq!((before.connections, before.keys, before.bytes), (0, 0, 0));
    assert!(before.max_connections > 0 && before.out_of_files == 0);
    let store = TcpStore::open(TcpStoreOptions::new(Endpoint::new("127.0.0.1", server.port()))).unwrap();
    store.set("key", &[7; 1000]).unwrap();
    let after = stats(CALL_TIMEOUT).unwrap();
    assert_eq!((after.connections, after.keys), (1, 1));
    assert!((1000..2000).contains(&after.bytes), "{after:?}");
    server.stop();
    assert_eq!(stats(Duration::from_millis(100)), None);
}

#[test]
fn a_client_applies_the_value_limit_of_its_server() {
    for (value_len, len, fits) in
        [(1 << 20, 2 << 20, false), (1 << 20, 1 << 20, true), (16 << 20, 9 << 20, true)]
    {
        let mut limits = TcpStoreServer::default_limits();
        limits.value_len = value_len;
        let listen = vec![Listen::at("127.0.0.1", 0)];
        let server = TcpStoreServer::start(ServerOptions::new(listen).limits(limits)).unwrap();
        let store = TcpStore::connect("127.0.0.1", server.port()).unwrap();
        match store.set("key", &vec![7; len]) {
            Ok(()) => assert!(fits, "{len} of {value_len}"),
            Err(StoreError::Call {
                failure: Failure::TooLarge { what: Oversized::Value, limit, .. },
                ..
            }) => {
                assert!(!fits && limit == value_len, "{limit}")
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(server.stats().accepted, 1, "the client reconnected");
        assert_eq!(store.num_keys().unwrap(), u64::from(fits));
    }
}

#[test]
fn a_new_server_can_bind_the_port_of_a_dropped_server() {
    let first = TcpStoreServer::bind("", 0).unwrap();
    let port = first.port();
    let store = TcpStore::connect("127.0.0.1", port).unwrap();
    store.set("k", b"v").unwrap();
    drop(first);
    // The closed connection stays in TIME_WAIT for 60 s, which must not prevent the bind. Binding may still fail for a
    // short time, because a process that another test is starting has a copy of the listening socket until it executes
    // its own program.
    let second = Mutex::new(None);
    eventually("another server can bind the port", || {
        *second.lock().unwrap() = TcpStoreServer::bind("", port).ok();
        second.lock().unwrap().is_some()
    });
    assert!(matches!(store.get("k").unwrap_err().failure(), Some(Failure::Reset(_))));
}
