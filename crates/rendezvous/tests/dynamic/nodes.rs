//! A job for tests, whose backends count reads and writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rallypoint_core::rendezvous::{State, cell};
use rallypoint_rendezvous::{
    C10dBackend, DynamicRendezvousHandler, NodeDesc, RendezvousBackend, RendezvousHandler, RendezvousInfo,
    Result, Settings, Signal, Token, WallTime, Written,
};
use rallypoint_store::{Endpoint, Store, TcpStore, TcpStoreOptions, TcpStoreServer};

/// A job with its own server.
pub(crate) struct Job {
    pub(crate) server: TcpStoreServer,
    pub(crate) settings: Settings,
    pub(crate) counts: Arc<Counts>,
    /// The latency that is added to each read and write of the state and of announcements. Retractions have none.
    pub(crate) latency: Duration,
    /// Whether nodes wait for signals without polling the state.
    pub(crate) never_polls: bool,
}

/// The timeout of a node that never polls and waits for a signal. Only a failing test takes this long.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The driver waits for a signal in steps of at most this length. A wait whose first step is shorter is not a poll but
/// a backoff, or a delay in which other nodes write first. Such a wait may end without a signal.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The numbers of calls to all backends of a job.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: AtomicUsize,
    pub(crate) writes: AtomicUsize,
}

/// A backend that counts calls and adds latency.
struct CountingBackend {
    inner: C10dBackend,
    counts: Arc<Counts>,
    latency: Duration,
    never_polls: bool,
}

impl RendezvousBackend for CountingBackend {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn state(&self) -> Result<Option<(Vec<u8>, Token)>> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.latency);
        self.inner.state()
    }
    fn set_state(&self, state: &[u8], token: &[u8]) -> Result<Written> {
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.latency);
        self.inner.set_state(state, token)
    }
    fn announce(&self, round: u64, node: &NodeDesc) -> Result<()> {
        std::thread::sleep(self.latency);
        self.inner.announce(round, node)
    }
    fn announced(&self, round: u64) -> Result<Vec<NodeDesc>> {
        std::thread::sleep(self.latency);
        self.inner.announced(round)
    }
    fn retract(&self, round: u64, nodes: &[NodeDesc]) -> Result<()> {
        self.inner.retract(round, nodes)
    }
    fn signal(&self, signal: Signal) {
        self.inner.signal(signal);
    }
    fn wait(&self, signal: Signal, timeout: Duration) -> bool {
        if !self.never_polls || timeout < MIN_POLL_INTERVAL {
            return self.inner.wait(signal, timeout);
        }
        assert!(self.inner.wait(signal, SIGNAL_TIMEOUT), "no {signal:?} within {SIGNAL_TIMEOUT:?}");
        true
    }
    fn remove_rounds(&self, round: u64, timeout: Duration) -> bool {
        self.inner.remove_rounds(round, timeout)
    }
    fn within(&self, timeout: Duration) -> Option<Box<dyn RendezvousBackend>> {
        let (inner, counts) = (self.inner.with_timeout(timeout), Arc::clone(&self.counts));
        Some(Box::new(CountingBackend { inner, counts, ..*self }))
    }
}

impl Job {
    pub(crate) fn new(min_nodes: u64, max_nodes: u64) -> Job {
        let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
        let mut settings = Settings::new("job", min_nodes, max_nodes);
        settings.join_timeout = Duration::from_secs(60);
        Job { server, settings, counts: Arc::default(), latency: Duration::ZERO, never_polls: false }
    }

    /// Returns the number of compare-and-sets so far.
    pub(crate) fn writes(&self) -> usize {
        self.counts.writes.load(Ordering::Relaxed)
    }

    /// Returns the number of reads of the state so far.
    pub(crate) fn reads(&self) -> usize {
        self.counts.reads.load(Ordering::Relaxed)
    }

    /// Returns the state that the nodes share, or an empty one if no node has written it. Waits until the key of the
    /// state exists.
    pub(crate) fn state(&self) -> State {
        let value = self.store().get("torch.rendezvous.job").unwrap();
        cell::read(&value, &rallypoint_store::Limits::default()).unwrap().unwrap_or_default()
    }

    /// Returns the number of spares.
    pub(crate) fn spares(&self) -> usize {
        self.state().redundancy_list.len()
    }

    /// Returns a new client of the job's store.
    pub(crate) fn store(&self) -> TcpStore {
        let endpoint = Endpoint::new("127.0.0.1", self.server.port());
        TcpStore::open(TcpStoreOptions::new(endpoint).timeout(Duration::from_secs(20))).unwrap()
    }

    pub(crate) fn node(&self) -> Arc<DynamicRendezvousHandler> {
        self.node_with(self.settings.clone())
    }

    pub(crate) fn node_with(&self, settings: Settings) -> Arc<DynamicRendezvousHandler> {
        Arc::new(self.handler(settings))
    }

    /// Creates a node whose wall clock has this offset. The test may change the offset later.
    pub(crate) fn node_with_clock_offset(&self, seconds: Arc<AtomicI64>) -> Arc<DynamicRendezvousHandler> {
        let clock = move || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
            WallTime::from_micros(now + seconds.load(Ordering::Relaxed) * 1_000_000).unwrap()
        };
        Arc::new(self.handler(self.settings.clone()).with_wall_clock(Arc::new(clock)))
    }

    /// Creates a node whose state is in another store.
    pub(crate) fn node_over(&self, store: &Arc<dyn Store>) -> Arc<DynamicRendezvousHandler> {
        Arc::new(self.handler_over(Arc::clone(store), "127.0.0.1", self.settings.clone()))
    }

    /// Creates a node with another address. Nodes are ordered by address first, so this decides which node is rank 0.
    pub(crate) fn node_at(&self, addr: &str) -> Arc<DynamicRendezvousHandler> {
        Arc::new(self.handler_over(Arc::new(self.store()), addr, self.settings.clone()))
    }

    fn handler(&self, settings: Settings) -> DynamicRendezvousHandler {
        self.handler_over(Arc::new(self.store()), "127.0.0.1", settings)
    }

    fn handler_over(
        &self,
        store: Arc<dyn Store>,
        addr: &str,
        settings: Settings,
    ) -> DynamicRendezvousHandler {
        let backend = CountingBackend {
            inner: C10dBackend::new(Arc::clone(&store), &settings.run_id).unwrap(),
            counts: Arc::clone(&self.counts),
            latency: self.latency,
            never_polls: self.never_polls,
        };
        DynamicRendezvousHandler::new(Arc::new(backend), store, addr, settings).unwrap()
    }

    pub(crate) fn nodes(&self, count: usize) -> Vec<Arc<DynamicRendezvousHandler>> {
        (0..count).map(|_| self.node()).collect()
    }
}

/// Starts a thread in which a node joins.
pub(crate) fn join(node: &Arc<DynamicRendezvousHandler>) -> JoinHandle<Result<RendezvousInfo>> {
    let node = Arc::clone(node);
    std::thread::spawn(move || node.next_rendezvous())
}

/// Lets these nodes join in parallel, and returns their rounds.
pub(crate) fn join_all(nodes: &[Arc<DynamicRendezvousHandler>]) -> Vec<RendezvousInfo> {
    let joining: Vec<_> = nodes.iter().map(join).collect();
    joining.into_iter().map(|node| node.join().unwrap().unwrap()).collect()
}

/// Asserts that all nodes are in the same round, with consecutive ranks and the same address of the workers' store.
pub(crate) fn assert_agree(rounds: &[RendezvousInfo]) {
    let first = &rounds[0];
    let mut ranks: Vec<_> = rounds.iter().map(|info| info.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..rounds.len() as u64).collect::<Vec<_>>());
    for info in rounds {
        assert_eq!(info.world_size, rounds.len() as u64);
        assert_eq!(info.round, first.round);
        assert_eq!(info.participants, first.participants);
        assert_eq!(info.bootstrap_store_info, first.bootstrap_store_info);
    }
}
