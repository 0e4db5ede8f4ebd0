//! One workload from start to end: set keys, open connections, run the load, delete the keys.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rallypoint_store::raise_file_limit;

use crate::Options;
use crate::collective::Collective;
use crate::connection_pool::ConnectionPool;
use crate::control::Control;
use crate::error::{BenchError, ConnectionError};
use crate::keys::Keys;
use crate::latencies::Latencies;
use crate::monitor::Monitor;
use crate::report::Outcome;
use crate::steady::{Batches, SteadyLoad};
use crate::workload::{Kind, SizeUnit, Workload};

/// The maximum number of connections whose handshake is under way at the same time. It does not apply to the workload
/// `connect`, which measures how long opening takes.
const MAX_CONNECTING: usize = 256;
/// The number of file descriptors that the process needs in addition to the connections.
const OTHER_FILES: usize = 16;

/// A run against one server.
pub struct Bench {
    options: Options,
    control: Control,
    keys: Keys,
    interrupted: Arc<AtomicBool>,
    /// The number of files that this process may open.
    file_limit: usize,
}

impl Bench {
    /// Connects to the server. A load ends within 200 ms after `interrupted` becomes true, and the keys of its workload
    /// are deleted.
    ///
    /// # Errors
    ///
    /// Fails if the port is 0, if the server can't be reached, or if the peer is not a TCPStore server.
    pub fn connect(options: Options, interrupted: Arc<AtomicBool>) -> Result<Bench, BenchError> {
        if options.endpoint.port == 0 {
            return Err(BenchError::Usage(format!(
                "{}: port 0 is not the port of a server",
                options.endpoint
            )));
        }
        let file_limit = raise_file_limit();
        let control = Control::connect(&options.endpoint, options.timeout)?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let run = std::process::id().rotate_left(16) ^ now.subsec_nanos() ^ now.as_secs() as u32;
        Ok(Bench { options, control, keys: Keys::of_run(run), interrupted, file_limit })
    }

    /// Returns an outcome without measurements.
    fn empty_outcome(&self, workload: Workload, in_flight: usize) -> Outcome {
        let size = |size_unit| workload.size.filter(|_| workload.size_unit() == size_unit);
        Outcome {
            workload: workload.to_string(),
            connections: size(SizeUnit::Clients).unwrap_or(self.options.connections),
            in_flight,
            value_bytes: size(SizeUnit::ValueBytes).unwrap_or(self.options.value_bytes),
            operations: 0,
            seconds: 0.0,
            operations_per_second: 0.0,
            p50_microseconds: None,
            p99_microseconds: None,
            errors: 0,
            error: None,
        }
    }

    /// Runs a workload with this number of requests in flight on each connection. If the workload ends early, the
    /// outcome has the measurements up to that point.
    pub fn measure(&mut self, workload: Workload, in_flight: usize) -> (Outcome, Result<(), BenchError>) {
        let mut outcome = self.empty_outcome(workload, in_flight);
        let ended = self.run_workload(workload, in_flight, &mut outcome);
        if let Err(error) = &ended {
            outcome.errors = outcome.errors.max(u64::from(error.is_failure()));
            outcome.error = Some(error.to_string());
        }
        (outcome, ended)
    }

    fn run_workload(
        &mut self,
        workload: Workload,
        in_flight: usize,
        outcome: &mut Outcome,
    ) -> Result<(), BenchError> {
        let needed = outcome.connections + OTHER_FILES;
        if needed > self.file_limit {
            return Err(BenchError::TooFewFiles { needed, limit: self.file_limit });
        }
        let mut created_keys = 0;
        let result = match workload.kind {
            Kind::Cancel | Kind::Connect | Kind::Bootstrap | Kind::Barrier => {
                self.run_collective(workload.kind, outcome, &mut created_keys)
            }
            _ => self.run_steady(workload, in_flight, outcome, &mut created_keys),
        };
        // Delete the keys after a failure, too.
        let deleted = self.clean_up(created_keys);
        match result {
            Err(BenchError::Interrupted { .. }) => {
                Err(BenchError::Interrupted { leaves_keys: deleted.is_err() })
            }
            result => result.and(deleted),
        }
    }

    fn monitor(&self, outcome: &Outcome) -> Monitor {
        let name = match outcome.in_flight {
            1 => outcome.workload.clone(),
            n => format!("{} ({n} in flight)", outcome.workload),
        };
        Monitor::start(name, self.options.timeout, Arc::clone(&self.interrupted))
    }

    fn open(&self, outcome: &Outcome, monitor: &mut Monitor) -> Result<ConnectionPool, BenchError> {
        let address = self.control.address();
        ConnectionPool::open(address, outcome.connections, MAX_CONNECTING, monitor, &mut Latencies::default())
    }

    fn run_steady(
        &mut self,
        workload: Workload,
        in_flight: usize,
        outcome: &mut Outcome,
        created_keys: &mut usize,
    ) -> Result<(), BenchError> {
        let keys = self.options.keys;
        let batches = Batches::of(workload, in_flight, keys, self.options.value_bytes, &self.keys);
        *created_keys = batches.keys;
        if let Some(value) = &batches.preset {
            let names = self.keys.names(0, batches.keys);
            self.control.set(&names, value).map_err(|error| self.control_error(error))?;
        }
        let mut monitor = self.monitor(outcome);
        let mut pool = self.open(outcome, &mut monitor)?;
        let mut steady = SteadyLoad::new(&batches, outcome.connections, self.options.until);
        let ended = pool.run(&mut steady, &mut monitor);
        outcome.set_measurements(steady.elapsed(), &steady.latencies);
        outcome.errors = pool.lost();
        ended
    }

    fn run_collective(
        &mut self,
        kind: Kind,
        outcome: &mut Outcome,
        created_keys: &mut usize,
    ) -> Result<(), BenchError> {
        let clients = outcome.connections;
        let mut monitor = self.monitor(outcome);
        if kind == Kind::Connect {
            let (started, mut ready) = (Instant::now(), Latencies::default());
            let opened =
                ConnectionPool::open(self.control.address(), clients, clients, &mut monitor, &mut ready);
            outcome.set_measurements(started.elapsed(), &ready);
            if opened.as_ref().err().is_none_or(BenchError::is_failure) {
                outcome.errors = clients as u64 - ready.total();
            }
            return opened.map(drop);
        }
        let mut pool = self.open(outcome, &mut monitor)?;
        let mut collective = match kind {
            Kind::Cancel => {
                pool.run(&mut Collective::wait_for_absent_keys(clients, &self.keys), &mut monitor)?;
                self.control.await_idle().map_err(|error| self.control_error(error))?;
                Collective::cancel(clients)
            }
            Kind::Bootstrap => {
                *created_keys = clients;
                Collective::bootstrap(clients, &self.keys, &vec![b'v'; outcome.value_bytes])
            }
            _ => {
                *created_keys = 2;
                Collective::barrier(clients, &self.keys)
            }
        };
        let ended = pool.run(&mut collective, &mut monitor);
        outcome.set_measurements(collective.ended.duration_since(collective.started), &collective.latencies);
        outcome.errors = pool.lost();
        ended
    }

    /// Deletes the keys that a workload created. Connects again if the control connection was lost.
    fn clean_up(&mut self, created_keys: usize) -> Result<(), BenchError> {
        if created_keys == 0 || self.control.delete(&self.keys, created_keys).is_ok() {
            return Ok(());
        }
        let deleted =
            Control::connect(&self.options.endpoint, self.options.timeout.min(Duration::from_secs(10)))
                .and_then(|control| {
                    self.control = control;
                    self.control.delete(&self.keys, created_keys).map_err(|error| self.control_error(error))
                });
        if deleted.is_err() {
            let prefix = self.keys.prefix();
            tracing::warn!("keys that start with {prefix} may be left on the server");
        }
        deleted
    }

    fn control_error(&self, error: ConnectionError) -> BenchError {
        let during = format!("the control connection to {}", self.control.address());
        BenchError::Lost { during, error, lost: 1, connections: 1 }
    }
}
