//! Runs many nodes of one job in one process. Measures the time until all of them are in a round, the number of
//! compare-and-sets, and the median and longest time until the other nodes are notified that one node rejoins.
//!
//! `many_nodes NODES [ENDPOINT]` prints one line of JSON. Without an endpoint, the nodes use a server in this process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    C10dBackend, DynamicRendezvousHandler, NodeDesc, RendezvousBackend, RendezvousHandler, Result, Settings,
    Signal, Token, Written,
};
use rallypoint_store::{Endpoint, Store, TcpStore, TcpStoreOptions, TcpStoreServer};

/// A backend that counts compare-and-sets.
struct CountingBackend(C10dBackend);

static WRITES: AtomicUsize = AtomicUsize::new(0);
/// The time of the first successful compare-and-set after `measure_wakeups` has cleared this value.
static FIRST_CHANGE: Mutex<Option<Instant>> = Mutex::new(None);

impl RendezvousBackend for CountingBackend {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn state(&self) -> Result<Option<(Vec<u8>, Token)>> {
        self.0.state()
    }
    fn set_state(&self, state: &[u8], token: &[u8]) -> Result<Written> {
        WRITES.fetch_add(1, Ordering::Relaxed);
        let written = self.0.set_state(state, token)?;
        if written.won {
            FIRST_CHANGE
                .lock()
                .expect("no thread panics while it has the lock")
                .get_or_insert_with(Instant::now);
        }
        Ok(written)
    }
    fn announce(&self, round: u64, node: &NodeDesc) -> Result<()> {
        self.0.announce(round, node)
    }
    fn announced(&self, round: u64) -> Result<Vec<NodeDesc>> {
        self.0.announced(round)
    }
    fn retract(&self, round: u64, nodes: &[NodeDesc]) -> Result<()> {
        self.0.retract(round, nodes)
    }
    fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }
    fn wait(&self, signal: Signal, timeout: Duration) -> bool {
        self.0.wait(signal, timeout)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let nodes: u64 = arguments.next().ok_or("usage: many_nodes NODES [ENDPOINT]")?.parse()?;
    let server = TcpStoreServer::bind("127.0.0.1", 0)?;
    let endpoint = match arguments.next() {
        Some(endpoint) => endpoint.parse()?,
        None => Endpoint::new("127.0.0.1", server.port()),
    };
    let run_id = format!("many-nodes-{}", std::process::id());
    let mut handlers = Vec::new();
    for _ in 0..nodes {
        let options = TcpStoreOptions::new(endpoint.clone()).timeout(Duration::from_secs(60));
        let store: Arc<dyn Store> = Arc::new(TcpStore::open(options)?);
        let backend = Arc::new(CountingBackend(C10dBackend::new(Arc::clone(&store), &run_id)?));
        let settings = Settings::new(&run_id, nodes, nodes);
        handlers.push(Arc::new(DynamicRendezvousHandler::new(backend, store, "127.0.0.1", settings)?));
    }
    let start_barrier = Arc::new(Barrier::new(nodes as usize + 1));
    let joining: Vec<_> = handlers
        .iter()
        .map(|handler| {
            let (handler, start_barrier) = (Arc::clone(handler), Arc::clone(&start_barrier));
            std::thread::spawn(move || {
                start_barrier.wait();
                handler.next_rendezvous().map(|round| round.rank)
            })
        })
        .collect();
    start_barrier.wait();
    let start = Instant::now();
    let mut ranks = Vec::new();
    for node in joining {
        ranks.push(node.join().expect("no node panics")?);
    }
    let seconds = start.elapsed().as_secs_f64();
    ranks.sort_unstable();
    if ranks != (0..nodes).collect::<Vec<_>>() {
        return Err("the ranks are not consecutive from 0".into());
    }
    let writes = WRITES.load(Ordering::Relaxed);
    let wakeups = measure_wakeups(&handlers);
    let (median, last) = (wakeups[wakeups.len() / 2], wakeups[wakeups.len() - 1]);
    println!(
        "{{\"nodes\": {nodes}, \"seconds\": {seconds:.6}, \"writes\": {writes}, \"woken\": {median:.6}, \
         \"woken_last\": {last:.6}}}"
    );
    // The process exits without dropping the handlers. Dropping them would stop their heartbeat threads one by one.
    std::process::exit(0);
}

/// Lets the first node rejoin. Returns, for each other node, the seconds between that change of the state and the
/// node's wake-up, sorted.
fn measure_wakeups(handlers: &[Arc<DynamicRendezvousHandler>]) -> Vec<f64> {
    let Some((first, waiting_handlers)) = handlers.split_first() else { return vec![0.0] };
    // A handler whose last round trip took more than 50 ms sleeps instead of waiting for signals. After the join, most
    // handlers are in that state. So wait until their cached states have expired, and then read each membership, as an
    // agent does before each wait. That measures a new, short round trip.
    std::thread::sleep(Duration::from_secs(1));
    for handler in waiting_handlers {
        let _ = handler.membership();
    }
    let ready = Arc::new(Barrier::new(handlers.len()));
    let (sender, receiver) = std::sync::mpsc::channel();
    for handler in waiting_handlers {
        let (handler, ready, sender) = (Arc::clone(handler), Arc::clone(&ready), sender.clone());
        std::thread::spawn(move || {
            ready.wait();
            handler.wait_for_change(Duration::from_secs(30));
            let _ = sender.send(Instant::now());
            // Ending a thread costs more than waking it, and would delay the other threads.
            loop {
                std::thread::park();
            }
        });
    }
    ready.wait();
    // All threads need time to start waiting. A heartbeat does not end a wait, because `wait_for_change` only waits for
    // the signal that a node wants the next round.
    std::thread::sleep(Duration::from_millis(500));
    *FIRST_CHANGE.lock().expect("no thread panics while it has the lock") = None;
    let first = Arc::clone(first);
    std::thread::spawn(move || first.next_rendezvous());
    // Sleep before receiving. Every message would wake a blocked receiver, and those wake-ups would delay the other
    // threads.
    std::thread::sleep(Duration::from_millis(300));
    let wakeups: Vec<Instant> = receiver.iter().take(waiting_handlers.len()).collect();
    let changed = FIRST_CHANGE
        .lock()
        .expect("no thread panics while it has the lock")
        .expect("the rejoining node has changed the state");
    let mut delays: Vec<_> =
        wakeups.iter().map(|at| at.saturating_duration_since(changed).as_secs_f64()).collect();
    delays.sort_by(f64::total_cmp);
    if delays.is_empty() {
        delays.push(0.0);
    }
    delays
}
