//! The static rendezvous: ranks as the user gave them, rank 0 hosts, the others connect. There is one round, and nothing
//! changes afterwards.
//!
//! Beyond what torch does, every node writes down who it takes itself for, so that two nodes that contradict each other
//! are told so instead of waiting for somebody who never comes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_core::counted;
use rallypoint_core::rendezvous::{Membership, NodeDesc, Settings};
use rallypoint_store::{
    Cancellation, Endpoint, Exchange, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions, sleep,
};

use crate::endpoint::{check_reachable, split_rendezvous_endpoint};
use crate::error::{RendezvousError, Result};
use crate::exit_barrier::nodes_that_finished;
use crate::handler::{RendezvousHandler, RendezvousInfo};
use crate::machine::{is_loopback, is_this_machine, place_to_listen};
use crate::observer::{ConnectReporter, Gathering, Observer};
use crate::options::STATIC_OPTIONS;
use crate::parameters::{RendezvousParameters, unknown_options};
use crate::store_info::RendezvousStoreInfo;

/// How long to wait for the others unless told otherwise.
const TIMEOUT: i64 = 600;
/// More nodes than this were not meant.
const MOST_NODES: u64 = 1_000_000;
/// Under which key lies how many nodes there are.
const WORLD: &str = "world";
/// How long to look who else is there.
const BESIDE: Duration = Duration::from_secs(2);
/// How long a host stays after a contradiction, so that all hear of it.
const LINGER: Duration = Duration::from_secs(1);
/// How often a node looks whether all have come, and whether somebody has complained.
const LOOK: Duration = Duration::from_millis(50);
/// How often a node makes sure that rank 0's store is still there.
const CHECK: Duration = Duration::from_secs(1);
/// How long that may be away before it counts as lost.
const LOST: Duration = Duration::from_secs(30);

/// One node of a static rendezvous.
pub struct StaticRendezvousHandler {
    run_id: String,
    endpoint: Endpoint,
    rank: u64,
    world_size: u64,
    timeout: Duration,
    local_addr: Option<String>,
    /// Tells this node from any other that has its rank.
    nonce: u64,
    store: Mutex<Option<Arc<TcpStore>>>,
    checked: Mutex<Checked>,
    interrupted: AtomicBool,
    cancellation: Option<Arc<dyn Cancellation>>,
    observer: Option<Arc<dyn Observer>>,
}

/// What was last seen of rank 0's store.
#[derive(Default)]
struct Checked {
    at: Option<Instant>,
    /// Some had finished by then.
    finished: bool,
}

/// Makes a handler as `parameters` ask for. The option `rank` says which node this is.
pub fn create_static_handler(parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>> {
    Ok(Box::new(StaticRendezvousHandler::create(parameters)?))
}

impl StaticRendezvousHandler {
    /// A handler as `parameters` ask for.
    pub fn create(parameters: &RendezvousParameters) -> Result<StaticRendezvousHandler> {
        let mut wrong = unknown_options(parameters.config.keys(), &STATIC_OPTIONS.map(|option| option.name));
        wrong.extend(parameters.check_names());
        let mut take = |read: Result<Option<i64>>| {
            read.unwrap_or_else(|error| {
                wrong.push(error.to_string());
                None
            })
        };
        let rank = take(parameters.get_as_int("rank"));
        let timeout = take(parameters.get_as_int("timeout")).unwrap_or(TIMEOUT);
        let world_size = parameters.max_nodes;
        match rank {
            None if parameters.get("rank").is_none() => wrong.push(
                "rank is absent in RendezvousParameters.Try add --node-rank to the cmd request".to_owned(),
            ),
            None => {}
            // Torch takes any rank, and then everybody waits for one that nobody has.
            Some(rank) if rank < 0 || rank as u64 >= world_size => wrong.push(format!(
                "the node rank {rank} is not one of {}: it must be from 0 to {}",
                counted(world_size, "node"),
                world_size - 1
            )),
            Some(_) => {}
        }
        if world_size > MOST_NODES {
            wrong.push(format!(
                "a static rendezvous of {world_size} nodes can't be; the most is {MOST_NODES}"
            ));
        }
        if timeout <= 0 {
            wrong.push(format!("timeout ({timeout}) must be positive."));
        } else if Duration::from_secs(timeout as u64) > Settings::LONGEST {
            wrong.push(format!("timeout ({timeout}s) is longer than a century."));
        }
        let text = parameters.endpoint.trim();
        if text.is_empty() {
            wrong.push(
                "endpoint is absent in RendezvousParametersTry add --master-port and --master-addr to the cmd request"
                    .to_owned(),
            );
        }
        let endpoint = match split_rendezvous_endpoint(text) {
            Ok((host, Some(port))) => {
                let endpoint = Endpoint { host, port };
                wrong.extend(check_reachable(&endpoint));
                Some(endpoint)
            }
            Ok(_) if text.is_empty() => None,
            Ok(_) => {
                wrong.push(format!("Port is absent in endpoint: {text}. Try launching with --master-port"));
                None
            }
            Err(error) => {
                wrong.push(error.to_string());
                None
            }
        };
        match (endpoint, rank) {
            (Some(endpoint), Some(rank)) if wrong.is_empty() => Ok(StaticRendezvousHandler {
                run_id: parameters.run_id.clone(),
                endpoint,
                rank: rank as u64,
                world_size,
                timeout: Duration::from_secs(timeout as u64),
                local_addr: parameters.local_addr.clone(),
                nonce: RandomState::new().build_hasher().finish(),
                store: Mutex::default(),
                checked: Mutex::default(),
                interrupted: AtomicBool::new(false),
                cancellation: None,
                observer: None,
            }),
            _ => Err(RendezvousError::Parameters(wrong)),
        }
    }

    /// Another handle of the store in which the nodes have met; `None` before that.
    pub fn store(&self) -> Option<TcpStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).as_deref().cloned()
    }

    /// The same, whose calls are ended early by `cancellation`.
    pub fn with_cancellation(self, cancellation: Option<Arc<dyn Cancellation>>) -> StaticRendezvousHandler {
        StaticRendezvousHandler { cancellation, ..self }
    }

    /// The same, watched by somebody.
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> StaticRendezvousHandler {
        self.observer = Some(observer);
        self
    }

    fn tell(&self, joined: i64, start: Instant) {
        if let Some(observer) = &self.observer {
            let left = self.timeout.saturating_sub(start.elapsed());
            let (endpoint, world_size) = (&self.endpoint, self.world_size);
            observer.gathering(&Gathering { endpoint, joined, world_size, left });
        }
    }

    fn failed(&self, source: StoreError) -> RendezvousError {
        RendezvousError::Connection { run_id: self.run_id.clone(), source }
    }

    fn conflict(&self, conflict: String) -> RendezvousError {
        RendezvousError::Conflict { run_id: self.run_id.clone(), conflict }
    }

    /// Connects, or hosts, and meets the others.
    fn meet(&self) -> Result<TcpStore> {
        let start = Instant::now();
        if self.rank == 0
            && let Err(error) = self.endpoint.resolve_within(None)
        {
            // Only rank 0 need not reach it by that name; perhaps the others can.
            tracing::warn!("this node hosts the store, but the others may not find it: {error}");
        }
        let store = match self.open(start) {
            Ok(store) => store,
            Err(error) if error.is_address_in_use() && self.rank == 0 => self.open_beside()?,
            Err(source) => return Err(self.failed(source)),
        };
        let addr = self.local_addr.clone().or_else(|| {
            let address = store.local_address().map(|address| address.ip().to_canonical());
            address.map(|ip| ip.to_string())
        });
        let met = self.meet_at(&store, addr, start);
        if self.rank == 0 && matches!(met, Err(RendezvousError::Conflict { .. })) {
            // The others read the same from the store, which goes with this node.
            sleep(LINGER, self.cancellation.as_ref());
        }
        met.map(|()| store)
    }

    fn meet_at(&self, store: &TcpStore, addr: Option<String>, start: Instant) -> Result<()> {
        let me = format!("{} (pid {})", addr.as_deref().unwrap_or("?"), std::process::id());
        let notes = PrefixStore::new(format!("rallypoint.static/{}", self.run_id), Arc::new(store.clone()));
        self.claim(&notes, WORLD, &self.world_size.to_string(), &me, |held, by| {
            format!(
                "node rank {} at {me} was started for {}, but {by} for {held}; start all with the same --nnodes",
                self.rank,
                counted(self.world_size, "node")
            )
        })?;
        let rank = format!("rank/{}", self.rank);
        self.claim(&notes, &rank, &format!("{:016x}", self.nonce), &me, |_, by| {
            format!(
                "node rank {} was given twice: to {by} and to {me}; give each node a --node-rank of its own",
                self.rank
            )
        })?;
        let mut joined = store.count_worker().map_err(|source| self.failed(source))?;
        let mut said = None;
        while joined < self.world_size as i64 {
            self.check_conflicts(&notes)?;
            if self.interrupted.load(Ordering::SeqCst) || !sleep(Duration::ZERO, self.cancellation.as_ref()) {
                return Err(RendezvousError::Interrupted { run_id: self.run_id.clone() });
            }
            if said != Some(joined) && self.observer.is_none() {
                said = Some(joined);
                let (run_id, world_size) = (&self.run_id, self.world_size);
                tracing::info!(
                    "waiting in the static rendezvous '{run_id}': {joined} of {world_size} nodes are here"
                );
            }
            self.tell(joined, start);
            if start.elapsed() >= self.timeout {
                return Err(self.too_few(&notes, joined, start.elapsed()));
            }
            sleep(LOOK, self.cancellation.as_ref());
            joined = store.workers().map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    fn open(&self, start: Instant) -> Result<TcpStore, StoreError> {
        let host = match self.rank {
            0 if is_loopback(&self.endpoint.host) || is_this_machine(&self.endpoint.host) => {
                place_to_listen(&self.endpoint.host)
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

    /// Somebody listens there already. If that is another rank 0 of this job, it is to be told apart from a port that is
    /// taken.
    fn open_beside(&self) -> Result<TcpStore> {
        let options = TcpStoreOptions::new(self.endpoint.clone())
            .timeout(BESIDE)
            .cancellation(self.cancellation.clone());
        let rank_0 = format!("rallypoint.static/{}/rank/0", self.run_id);
        // It may have opened its store a moment ago, and not have said yet who it is.
        match TcpStore::open(options)
            .and_then(|store| store.wait_for(&[&rank_0], Some(BESIDE)).map(|()| store))
        {
            Ok(store) => Ok(store),
            _ => Err(self.failed(StoreError::Listen {
                address: self.endpoint.to_string(),
                error: std::io::ErrorKind::AddrInUse.into(),
            })),
        }
    }

    /// Writes down what this node takes for true, unless another has written something else: then both are told.
    fn claim(
        &self,
        notes: &PrefixStore,
        key: &str,
        claim: &str,
        me: &str,
        contradiction: impl Fn(&str, &str) -> String,
    ) -> Result<()> {
        let desired = format!("{claim}\n{me}");
        let held = match notes.compare_exchange(key, b"", desired.as_bytes()).map_err(|e| self.failed(e))? {
            Exchange::Stored => return Ok(()),
            Exchange::Held(held) => String::from_utf8_lossy(&held).into_owned(),
            Exchange::Absent => return Ok(()),
        };
        let (what, by) = held.split_once('\n').unwrap_or((&held, "another node"));
        if what == claim {
            return Ok(());
        }
        let conflict = contradiction(what, by);
        match notes.check(&["met"]).map_err(|error| self.failed(error))? {
            // Once all have met, who comes again is a node that was restarted; it takes the place of what it was. What all
            // have agreed on it can't change, nor does it concern those who have met.
            true if key == WORLD => Err(self.conflict(conflict)),
            true => notes.set(key, desired.as_bytes()).map_err(|error| self.failed(error)),
            false => {
                notes.set("conflict", conflict.as_bytes()).map_err(|error| self.failed(error))?;
                Err(self.conflict(conflict))
            }
        }
    }

    fn check_conflicts(&self, notes: &PrefixStore) -> Result<()> {
        match notes.check(&["conflict"]).map_err(|error| self.failed(error))? {
            false => Ok(()),
            true => {
                let conflict = notes.get("conflict").map_err(|error| self.failed(error))?;
                let conflict: String = String::from_utf8_lossy(&conflict).chars().take(500).collect();
                Err(self.conflict(conflict))
            }
        }
    }

    /// Who has which rank, where all have said so; nodes that run torch's launcher don't.
    fn participants(&self, store: &Arc<dyn Store>) -> Result<Vec<NodeDesc>> {
        let notes = PrefixStore::new(format!("rallypoint.static/{}", self.run_id), Arc::clone(store));
        let keys: Vec<_> = (0..self.world_size).map(|rank| format!("rank/{rank}")).collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let read = || match notes.check(&keys)? {
            true => notes.multi_get(&keys),
            false => Ok(Vec::new()),
        };
        let claims = read().map_err(|source| self.failed(source))?;
        let node = |claim: &Vec<u8>| {
            let text = std::str::from_utf8(claim).ok()?;
            let (addr, pid) = text.split_once('\n')?.1.strip_suffix(')')?.rsplit_once(" (pid ")?;
            Some(NodeDesc::new(addr, pid.parse().ok()?, 0))
        };
        Ok(claims.iter().map(node).collect::<Option<_>>().unwrap_or_default())
    }

    fn too_few(&self, notes: &PrefixStore, joined: i64, waited: Duration) -> RendezvousError {
        let is_missing = |rank: &u64| !notes.check(&[&format!("rank/{rank}")]).unwrap_or(false);
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
        let mut held = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            let store = self.meet()?;
            if self.rank == 0 {
                let met = format!("rallypoint.static/{}/met", self.run_id);
                store.set(&met, b"1").map_err(|source| self.failed(source))?;
            }
            *held = Some(Arc::new(store));
        }
        let store: Arc<dyn Store> = Arc::clone(held.as_ref().expect("it was just made")) as _;
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
            participants,
        })
    }

    /// No node comes or goes. Rank 0 can be missed: the store goes with it, and then this fails. Once a node has finished it
    /// does not, because rank 0 may have waited for this node as long as it does.
    fn membership(&self) -> Result<Membership> {
        let Some(store) = self.store() else { return Ok(Membership::default()) };
        let membership = Membership { round: Some(0), ..Membership::default() };
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.rank == 0 || checked.at.is_some_and(|at| at.elapsed() < CHECK) {
            return Ok(membership);
        }
        let round = PrefixStore::new(self.run_id.clone(), Arc::from(store.with_timeout(Some(LOST))));
        match nodes_that_finished(&round) {
            Ok(nodes) => checked.finished = nodes > 0,
            Err(_) if checked.finished => {}
            Err(source) => return Err(self.failed(source)),
        }
        checked.at = Some(Instant::now());
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
