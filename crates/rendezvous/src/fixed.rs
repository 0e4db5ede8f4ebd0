//! The static rendezvous: the user chooses the group rank of each node, rank 0 hosts the store, and the other nodes
//! connect to it. There is one round, and its members never change. In this module, *rank* is the group rank of a node.
//!
//! In addition to what torch does, every node stores which rank and which number of nodes it was started with. Nodes
//! that contradict each other fail with an error instead of waiting until their timeout.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_core::counted;
use rallypoint_core::rendezvous::{Membership, NodeDesc, Settings};
use rallypoint_store::{
    Cancellation, Endpoint, Exchange, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions, sleep,
};

use crate::endpoint::{check_specified, split_rendezvous_endpoint};
use crate::error::{RendezvousError, Result};
use crate::exit_barrier::count_finished;
use crate::handler::{RendezvousHandler, RendezvousInfo};
use crate::machine::{is_loopback, is_this_machine, listen_host};
use crate::observer::{ConnectReporter, Observer, StaticWaiting};
use crate::options::STATIC_OPTIONS;
use crate::parameters::{RendezvousParameters, unknown_options};
use crate::store_info::RendezvousStoreInfo;

/// The default of the option `timeout`.
const DEFAULT_TIMEOUT_SECONDS: i64 = 600;
/// The largest number of nodes. A larger number is refused as a mistake.
const MAX_NODES: u64 = 1_000_000;
/// The key that contains the number of nodes.
const WORLD_SIZE_KEY: &str = "world";
/// How long a second rank 0 waits for the first one to store its claim.
const RANK_0_TIMEOUT: Duration = Duration::from_secs(2);
/// How long rank 0 waits after a conflict before it fails, so that the other nodes can read the conflict from its
/// store.
const CONFLICT_GRACE: Duration = Duration::from_secs(1);
/// Interval for checking whether all nodes have joined and whether a node has reported a conflict.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval for checking that rank 0's store still replies.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the store may be unreachable before it counts as lost.
const STORE_LOST_TIMEOUT: Duration = Duration::from_secs(30);

/// The handler of one node in a static rendezvous.
pub struct StaticRendezvousHandler {
    run_id: String,
    endpoint: Endpoint,
    rank: u64,
    world_size: u64,
    timeout: Duration,
    local_addr: Option<String>,
    /// Distinguishes this node from another one with the same rank.
    nonce: u64,
    store: Mutex<Option<Arc<TcpStore>>>,
    last_check: Mutex<StoreCheck>,
    interrupted: AtomicBool,
    cancellation: Option<Arc<dyn Cancellation>>,
    observer: Option<Arc<dyn Observer>>,
}

/// The last check of rank 0's store.
#[derive(Default)]
struct StoreCheck {
    at: Option<Instant>,
    /// Whether at least one node had finished at that time.
    has_finished_nodes: bool,
}

/// Creates the handler of one node. The option `rank` contains the rank of the node.
///
/// # Errors
///
/// Fails with [`RendezvousError::Parameters`] if `parameters` are invalid.
pub fn create_static_handler(parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>> {
    Ok(Box::new(StaticRendezvousHandler::create(parameters)?))
}

impl StaticRendezvousHandler {
    /// Creates the handler of one node. The option `rank` contains the rank of the node.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if `parameters` are invalid.
    pub fn create(parameters: &RendezvousParameters) -> Result<StaticRendezvousHandler> {
        let mut errors = unknown_options(parameters.config.keys(), &STATIC_OPTIONS.map(|option| option.name));
        errors.extend(parameters.check_names());
        let mut get = |read: Result<Option<i64>>| {
            read.unwrap_or_else(|error| {
                errors.push(error.to_string());
                None
            })
        };
        let rank = get(parameters.get_as_int("rank"));
        let timeout = get(parameters.get_as_int("timeout")).unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        let world_size = parameters.max_nodes;
        match rank {
            // Torch's message, word for word.
            None if parameters.get("rank").is_none() => errors.push(
                "rank is absent in RendezvousParameters.Try add --node-rank to the cmd request".to_owned(),
            ),
            None => {}
            // Torch accepts any rank, and then all nodes wait for a rank that no node has.
            Some(rank) if rank < 0 || rank as u64 >= world_size => errors.push(format!(
                "the node rank {rank} is out of range for {}: it must be from 0 to {}",
                counted(world_size, "node"),
                world_size - 1
            )),
            Some(_) => {}
        }
        if world_size > MAX_NODES {
            errors.push(format!(
                "a static rendezvous can't have {world_size} nodes; the maximum is {MAX_NODES}"
            ));
        }
        if timeout <= 0 {
            errors.push(format!("timeout ({timeout}) must be positive."));
        } else if Duration::from_secs(timeout as u64) > Settings::MAX_TIMEOUT {
            errors.push(format!("timeout ({timeout}s) is longer than a century."));
        }
        let text = parameters.endpoint.trim();
        if text.is_empty() {
            // Torch's message, word for word.
            errors.push(
                "endpoint is absent in RendezvousParametersTry add --master-port and --master-addr to the cmd request"
                    .to_owned(),
            );
        }
        let endpoint = match split_rendezvous_endpoint(text) {
            Ok((host, Some(port))) => {
                let endpoint = Endpoint { host, port };
                errors.extend(check_specified(&endpoint));
                Some(endpoint)
            }
            Ok(_) if text.is_empty() => None,
            Ok(_) => {
                errors.push(format!("Port is absent in endpoint: {text}. Try launching with --master-port"));
                None
            }
            Err(error) => {
                errors.push(error.to_string());
                None
            }
        };
        match (endpoint, rank) {
            (Some(endpoint), Some(rank)) if errors.is_empty() => Ok(StaticRendezvousHandler {
                run_id: parameters.run_id.clone(),
                endpoint,
                rank: rank as u64,
                world_size,
                timeout: Duration::from_secs(timeout as u64),
                local_addr: parameters.local_addr.clone(),
                nonce: RandomState::new().build_hasher().finish(),
                store: Mutex::default(),
                last_check: Mutex::default(),
                interrupted: AtomicBool::new(false),
                cancellation: None,
                observer: None,
            }),
            _ => Err(RendezvousError::Parameters(errors)),
        }
    }

    /// Returns another handle to the store of the rendezvous, or `None` until `next_rendezvous` has returned a round.
    /// Blocks while a call of `next_rendezvous` is pending.
    pub fn store(&self) -> Option<TcpStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).as_deref().cloned()
    }

    /// Sets the cancellation, which makes pending calls return early.
    pub fn with_cancellation(self, cancellation: Option<Arc<dyn Cancellation>>) -> StaticRendezvousHandler {
        StaticRendezvousHandler { cancellation, ..self }
    }

    /// Sets the observer, which is notified while the node waits.
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> StaticRendezvousHandler {
        self.observer = Some(observer);
        self
    }

    fn report_waiting(&self, joined: i64, start: Instant) {
        if let Some(observer) = &self.observer {
            let left = self.timeout.saturating_sub(start.elapsed());
            let (endpoint, world_size) = (&self.endpoint, self.world_size);
            observer.static_waiting(&StaticWaiting { endpoint, joined, world_size, left });
        }
    }

    fn failed(&self, source: StoreError) -> RendezvousError {
        RendezvousError::Connection { run_id: self.run_id.clone(), source }
    }

    fn conflict(&self, conflict: String) -> RendezvousError {
        RendezvousError::Conflict { run_id: self.run_id.clone(), conflict }
    }

    /// Opens the store and waits until all nodes have joined.
    fn join(&self) -> Result<TcpStore> {
        let start = Instant::now();
        if self.rank == 0
            && let Err(error) = self.endpoint.resolve_within(None)
        {
            // Only warn: rank 0 can listen without resolving the name, and other nodes may be able to resolve it.
            tracing::warn!("this node hosts the store, but other nodes may not find it: {error}");
        }
        let store = match self.open(start) {
            Ok(store) => store,
            Err(error) if error.is_address_in_use() && self.rank == 0 => self.connect_to_other_rank_0()?,
            Err(source) => return Err(self.failed(source)),
        };
        let addr = self.local_addr.clone().or_else(|| {
            let address = store.local_address().map(|address| address.ip().to_canonical());
            address.map(|ip| ip.to_string())
        });
        let joined = self.join_at(&store, addr, start);
        if self.rank == 0 && matches!(joined, Err(RendezvousError::Conflict { .. })) {
            // The other nodes read the conflict from the store, which is lost when this node exits.
            sleep(CONFLICT_GRACE, self.cancellation.as_ref());
        }
        joined.map(|()| store)
    }

    /// Stores the claims of this node, which are its number of nodes and its rank, and waits until all nodes have
    /// joined.
    fn join_at(&self, store: &TcpStore, addr: Option<String>, start: Instant) -> Result<()> {
        let me = format!("{} (pid {})", addr.as_deref().unwrap_or("?"), std::process::id());
        let claims = PrefixStore::new(format!("rallypoint.static/{}", self.run_id), Arc::new(store.clone()));
        self.claim(&claims, WORLD_SIZE_KEY, &self.world_size.to_string(), &me, |stored, by| {
            format!(
                "node rank {} at {me} was started for {}, but {by} for {stored}; start all nodes with the same --nnodes",
                self.rank,
                counted(self.world_size, "node")
            )
        })?;
        let rank = format!("rank/{}", self.rank);
        self.claim(&claims, &rank, &format!("{:016x}", self.nonce), &me, |_, by| {
            format!(
                "node rank {} was given twice: to {by} and to {me}; give each node a --node-rank of its own",
                self.rank
            )
        })?;
        let mut joined = store.count_worker().map_err(|source| self.failed(source))?;
        let mut logged = None;
        while joined < self.world_size as i64 {
            self.check_conflicts(&claims)?;
            if self.interrupted.load(Ordering::SeqCst) || !sleep(Duration::ZERO, self.cancellation.as_ref()) {
                return Err(RendezvousError::Interrupted { run_id: self.run_id.clone() });
            }
            if logged != Some(joined) && self.observer.is_none() {
                logged = Some(joined);
                let (run_id, world_size) = (&self.run_id, self.world_size);
                tracing::info!(
                    "waiting in the static rendezvous '{run_id}': {joined} of {world_size} nodes have joined"
                );
            }
            self.report_waiting(joined, start);
            if start.elapsed() >= self.timeout {
                return Err(self.timeout_error(&claims, joined, start.elapsed()));
            }
            sleep(POLL_INTERVAL, self.cancellation.as_ref());
            joined = store.workers().map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    fn open(&self, start: Instant) -> Result<TcpStore, StoreError> {
        let host = match self.rank {
            0 if is_loopback(&self.endpoint.host) || is_this_machine(&self.endpoint.host) => {
                listen_host(&self.endpoint.host)
            }
            0 => String::new(),
            _ => self.endpoint.host.clone(),
        };
        let options = TcpStoreOptions::new(Endpoint { host, port: self.endpoint.port })
            .is_master(self.rank == 0)
            .multi_tenant(true)
            .timeout(self.timeout)
            .cancellation(self.cancellation.clone());
        if self.rank == 0 {
            return TcpStore::open(options);
        }
        let mut reporter = ConnectReporter {
            run_id: &self.run_id,
            peer: "rank 0",
            endpoint: &self.endpoint,
            setting: "timeout",
            start,
            timeout: self.timeout,
            observer: self.observer.as_deref().map(|observer| observer as &dyn Observer),
            logged: None,
        };
        TcpStore::open_reporting(options, &mut |fault| reporter.report(fault))
    }

    /// Connects to the server that already listens at the endpoint, if it belongs to another rank 0 of this job.
    /// Otherwise fails with the error that the address is in use.
    fn connect_to_other_rank_0(&self) -> Result<TcpStore> {
        let options = TcpStoreOptions::new(self.endpoint.clone())
            .timeout(RANK_0_TIMEOUT)
            .cancellation(self.cancellation.clone());
        let rank_0 = format!("rallypoint.static/{}/rank/0", self.run_id);
        // The other rank 0 may have opened its store without having stored its claim yet.
        match TcpStore::open(options)
            .and_then(|store| store.wait_for(&[&rank_0], Some(RANK_0_TIMEOUT)).map(|()| store))
        {
            Ok(store) => Ok(store),
            _ => Err(self.failed(StoreError::Listen {
                address: self.endpoint.to_string(),
                error: std::io::ErrorKind::AddrInUse.into(),
            })),
        }
    }

    /// Stores `claim` and the name of this node under `key`, unless the key exists. If the stored claim differs:
    ///
    /// - Before all nodes have joined, this node and every node that waits for the others to join fail with
    ///   `RendezvousError::Conflict`.
    /// - Afterwards, a claim on a rank replaces the stored claim, because a restarted node has a new nonce.
    /// - Afterwards, a claim on the number of nodes fails with `Conflict`, on this node only.
    fn claim(
        &self,
        claims: &PrefixStore,
        key: &str,
        claim: &str,
        me: &str,
        describe_conflict: impl Fn(&str, &str) -> String,
    ) -> Result<()> {
        let desired = format!("{claim}\n{me}");
        let stored =
            match claims.compare_exchange(key, b"", desired.as_bytes()).map_err(|e| self.failed(e))? {
                Exchange::Stored => return Ok(()),
                Exchange::Mismatch(stored) => String::from_utf8_lossy(&stored).into_owned(),
                Exchange::Absent => return Ok(()),
            };
        let (stored_claim, by) = stored.split_once('\n').unwrap_or((&stored, "another node"));
        if stored_claim == claim {
            return Ok(());
        }
        let conflict = describe_conflict(stored_claim, by);
        match claims.check(&["met"]).map_err(|error| self.failed(error))? {
            // All nodes have joined, so this node probably was restarted. It may replace the claim on its rank. If its
            // number of nodes differs, only this node fails, because the other nodes have started.
            true if key == WORLD_SIZE_KEY => Err(self.conflict(conflict)),
            true => claims.set(key, desired.as_bytes()).map_err(|error| self.failed(error)),
            false => {
                claims.set("conflict", conflict.as_bytes()).map_err(|error| self.failed(error))?;
                Err(self.conflict(conflict))
            }
        }
    }

    fn check_conflicts(&self, claims: &PrefixStore) -> Result<()> {
        match claims.check(&["conflict"]).map_err(|error| self.failed(error))? {
            false => Ok(()),
            true => {
                let conflict = claims.get("conflict").map_err(|error| self.failed(error))?;
                let conflict: String = String::from_utf8_lossy(&conflict).chars().take(500).collect();
                Err(self.conflict(conflict))
            }
        }
    }

    /// Returns the nodes in the order of their ranks, or an empty list if a node has stored no claim. Nodes that run
    /// torch's launcher store no claims.
    fn participants(&self, store: &Arc<dyn Store>) -> Result<Vec<NodeDesc>> {
        let claims = PrefixStore::new(format!("rallypoint.static/{}", self.run_id), Arc::clone(store));
        let keys: Vec<_> = (0..self.world_size).map(|rank| format!("rank/{rank}")).collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let read = || match claims.check(&keys)? {
            true => claims.multi_get(&keys),
            false => Ok(Vec::new()),
        };
        let values = read().map_err(|source| self.failed(source))?;
        let node = |claim: &Vec<u8>| {
            let text = std::str::from_utf8(claim).ok()?;
            let (addr, pid) = text.split_once('\n')?.1.strip_suffix(')')?.rsplit_once(" (pid ")?;
            Some(NodeDesc::new(addr, pid.parse().ok()?, 0))
        };
        Ok(values.iter().map(node).collect::<Option<_>>().unwrap_or_default())
    }

    fn timeout_error(&self, claims: &PrefixStore, joined: i64, waited: Duration) -> RendezvousError {
        let is_missing = |rank: &u64| !claims.check(&[&format!("rank/{rank}")]).unwrap_or(false);
        let missing: Vec<_> = (0..self.world_size).filter(is_missing).take(64).collect();
        RendezvousError::StaticTimeout {
            run_id: self.run_id.clone(),
            joined,
            world_size: self.world_size,
            missing,
            waited,
        }
    }
}

impl RendezvousHandler for StaticRendezvousHandler {
    fn backend(&self) -> &str {
        "static"
    }

    fn run_id(&self) -> &str {
        &self.run_id
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if store.is_none() {
            let joined = self.join()?;
            if self.rank == 0 {
                let all_joined_key = format!("rallypoint.static/{}/met", self.run_id);
                joined.set(&all_joined_key, b"1").map_err(|source| self.failed(source))?;
            }
            *store = Some(Arc::new(joined));
        }
        let store: Arc<dyn Store> = Arc::clone(store.as_ref().expect("the store was just created")) as _;
        let participants = self.participants(&store)?;
        Ok(RendezvousInfo {
            store: Arc::new(PrefixStore::new(self.run_id.clone(), store)),
            rank: self.rank,
            world_size: self.world_size,
            bootstrap_store_info: RendezvousStoreInfo {
                master_addr: self.endpoint.host.clone(),
                master_port: self.endpoint.port,
            },
            use_agent_store: true,
            round: 0,
            lost: 0,
            participants,
        })
    }

    /// Returns round 0 without any nodes, or an empty membership before this node has joined.
    ///
    /// Fails if the store is unreachable, because rank 0 was then lost. If the last check found a finished node, an
    /// unreachable store is not an error: all nodes may have finished since then, and rank 0 may have exited.
    fn membership(&self) -> Result<Membership> {
        let Some(store) = self.store() else { return Ok(Membership::default()) };
        let membership = Membership { round: Some(0), ..Membership::default() };
        let mut last_check = self.last_check.lock().unwrap_or_else(PoisonError::into_inner);
        if self.rank == 0 || last_check.at.is_some_and(|at| at.elapsed() < STORE_CHECK_INTERVAL) {
            return Ok(membership);
        }
        let round =
            PrefixStore::new(self.run_id.clone(), Arc::from(store.with_timeout(Some(STORE_LOST_TIMEOUT))));
        match count_finished(&round) {
            Ok(nodes) => last_check.has_finished_nodes = nodes > 0,
            Err(_) if last_check.has_finished_nodes => {}
            Err(source) => return Err(self.failed(source)),
        }
        last_check.at = Some(Instant::now());
        Ok(membership)
    }

    fn set_closed(&self) -> Result<()> {
        Ok(())
    }

    fn hosts_store(&self) -> bool {
        self.rank == 0
    }

    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }
}
