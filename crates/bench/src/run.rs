//! One workload from beginning to end: keys put there, connections opened, the load, keys taken away.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rallypoint_store::raise_file_limit;

use crate::Options;
use crate::control::Control;
use crate::error::{BenchError, Trouble};
use crate::fleet::Fleet;
use crate::gathering::Gathering;
use crate::keys::Keys;
use crate::latencies::Latencies;
use crate::report::Outcome;
use crate::steady::{Batches, Steady};
use crate::watch::Watch;
use crate::workload::{Kind, Sized, Workload};

/// Connections on their way at a time, where opening them is not what is measured.
const OPENING: usize = 256;
/// Files used beside the connections.
const OTHER_FILES: usize = 16;

/// A run against one server.
pub struct Bench {
    options: Options,
    control: Control,
    keys: Keys,
    interrupted: Arc<AtomicBool>,
    files: usize,
}

impl Bench {
    /// Connects to the server. The run ends soon after `interrupted` becomes true.
    ///
    /// # Errors
    ///
    /// Fails if the server can't be reached, or if the peer is not a TCPStore server.
    pub fn connect(options: Options, interrupted: Arc<AtomicBool>) -> Result<Bench, BenchError> {
        if options.endpoint.port == 0 {
            return Err(BenchError::Usage(format!("{}: port 0 is not a server's", options.endpoint)));
        }
        let files = raise_file_limit();
        let control = Control::connect(&options.endpoint, options.timeout)?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let run = std::process::id().rotate_left(16) ^ now.subsec_nanos() ^ now.as_secs() as u32;
        Ok(Bench { options, control, keys: Keys::of_run(run), interrupted, files })
    }

    /// An outcome with nothing measured yet.
    fn blank(&self, workload: Workload, in_flight: usize) -> Outcome {
        let size = |sized| workload.size.filter(|_| workload.sized() == sized);
        Outcome {
            workload: workload.to_string(),
            connections: size(Sized::Clients).unwrap_or(self.options.connections),
            in_flight,
            value_bytes: size(Sized::ValueBytes).unwrap_or(self.options.value_bytes),
            operations: 0,
            seconds: 0.0,
            operations_per_second: 0.0,
            p50_microseconds: None,
            p99_microseconds: None,
            errors: 0,
            error: None,
        }
    }

    /// Runs a workload with this number of requests in flight on each connection. The outcome has what was measured also if
    /// the workload ended early.
    pub fn measure(&mut self, workload: Workload, in_flight: usize) -> (Outcome, Result<(), BenchError>) {
        let mut outcome = self.blank(workload, in_flight);
        let ended = self.fill(workload, in_flight, &mut outcome);
        if let Err(error) = &ended {
            outcome.errors = outcome.errors.max(u64::from(error.is_trouble()));
            outcome.error = Some(error.to_string());
        }
        (outcome, ended)
    }

    fn fill(
        &mut self,
        workload: Workload,
        in_flight: usize,
        outcome: &mut Outcome,
    ) -> Result<(), BenchError> {
        let needed = outcome.connections + OTHER_FILES;
        if needed > self.files {
            return Err(BenchError::TooFewFiles { needed, limit: self.files });
        }
        let mut made = 0;
        let measured = match workload.kind {
            Kind::Cancel | Kind::Connect | Kind::Bootstrap | Kind::Barrier => {
                self.gather(workload.kind, outcome, &mut made)
            }
            _ => self.keep_up(workload, in_flight, outcome, &mut made),
        };
        // Also after a failure; then it is a best effort.
        let deleted = self.clean_up(made);
        match measured {
            Err(BenchError::Interrupted { .. }) => {
                Err(BenchError::Interrupted { leaves_keys: deleted.is_err() })
            }
            measured => measured.and(deleted),
        }
    }

    fn watch(&self, outcome: &Outcome) -> Watch {
        let name = match outcome.in_flight {
            1 => outcome.workload.clone(),
            n => format!("{} ({n} in flight)", outcome.workload),
        };
        Watch::start(name, self.options.timeout, Arc::clone(&self.interrupted))
    }

    fn open(&self, outcome: &Outcome, watch: &mut Watch) -> Result<Fleet, BenchError> {
        let address = self.control.address();
        Fleet::open(address, outcome.connections, OPENING, watch, &mut Latencies::default())
    }

    fn keep_up(
        &mut self,
        workload: Workload,
        in_flight: usize,
        outcome: &mut Outcome,
        made: &mut usize,
    ) -> Result<(), BenchError> {
        let keys = self.options.keys;
        let batches = Batches::of(workload, in_flight, keys, self.options.value_bytes, &self.keys);
        *made = batches.keys;
        if let Some(value) = &batches.preset {
            let names = self.keys.names(0, batches.keys);
            self.control.set(&names, value).map_err(|trouble| self.lost_control(trouble))?;
        }
        let mut watch = self.watch(outcome);
        let mut fleet = self.open(outcome, &mut watch)?;
        let mut steady = Steady::new(&batches, outcome.connections, self.options.until);
        let ended = fleet.run(&mut steady, &mut watch);
        outcome.measured(steady.elapsed(), &steady.latencies);
        outcome.errors = fleet.lost();
        ended
    }

    fn gather(&mut self, kind: Kind, outcome: &mut Outcome, made: &mut usize) -> Result<(), BenchError> {
        let clients = outcome.connections;
        let mut watch = self.watch(outcome);
        if kind == Kind::Connect {
            let (started, mut ready) = (Instant::now(), Latencies::default());
            let opened = Fleet::open(self.control.address(), clients, clients, &mut watch, &mut ready);
            outcome.measured(started.elapsed(), &ready);
            if opened.as_ref().err().is_none_or(BenchError::is_trouble) {
                outcome.errors = clients as u64 - ready.total();
            }
            return opened.map(drop);
        }
        let mut fleet = self.open(outcome, &mut watch)?;
        let mut gathering = match kind {
            Kind::Cancel => {
                fleet.run(&mut Gathering::wait_in_vain(clients, &self.keys), &mut watch)?;
                self.control.await_idle().map_err(|trouble| self.lost_control(trouble))?;
                Gathering::cancel(clients)
            }
            Kind::Bootstrap => {
                *made = clients;
                Gathering::bootstrap(clients, &self.keys, &vec![b'v'; outcome.value_bytes])
            }
            _ => {
                *made = 2;
                Gathering::barrier(clients, &self.keys)
            }
        };
        let ended = fleet.run(&mut gathering, &mut watch);
        outcome.measured(gathering.ended.duration_since(gathering.started), &gathering.latencies);
        outcome.errors = fleet.lost();
        ended
    }

    /// Deletes the keys this run made. If the control connection is gone too, on a new one.
    fn clean_up(&mut self, made: usize) -> Result<(), BenchError> {
        if made == 0 || self.control.delete(&self.keys, made).is_ok() {
            return Ok(());
        }
        let deleted =
            Control::connect(&self.options.endpoint, self.options.timeout.min(Duration::from_secs(10)))
                .and_then(|control| {
                    self.control = control;
                    self.control.delete(&self.keys, made).map_err(|trouble| self.lost_control(trouble))
                });
        if deleted.is_err() {
            let prefix = self.keys.prefix();
            tracing::warn!("keys that begin with {prefix} may be left");
        }
        deleted
    }

    fn lost_control(&self, trouble: Trouble) -> BenchError {
        let during = format!("the connection beside the load, to {}", self.control.address());
        BenchError::Lost { during, trouble, lost: 1, connections: 1 }
    }
}
