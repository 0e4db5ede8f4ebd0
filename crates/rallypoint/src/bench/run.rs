//! One workload from beginning to end: keys put there, connections opened, the load, keys taken away.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::BenchArgs;
use super::control::Control;
use super::error::{BenchError, Trouble};
use super::fleet::Fleet;
use super::gathering::Gathering;
use super::keys::Keys;
use super::latencies::Latencies;
use super::report::Outcome;
use super::steady::{Batches, Steady};
use super::watch::Watch;
use super::workload::{Kind, Sized, Workload};

/// Connections on their way at a time, where opening them is not what is measured.
const OPENING: usize = 256;
/// Files used beside the connections.
const OTHER_FILES: usize = 16;

/// A run against one server.
pub(super) struct Bench<'a> {
    args: &'a BenchArgs,
    control: Control,
    keys: Keys,
    interrupted: Arc<AtomicBool>,
    files: usize,
}

impl<'a> Bench<'a> {
    /// Finds the server.
    pub(super) fn begin(args: &'a BenchArgs, interrupted: Arc<AtomicBool>) -> Result<Bench<'a>, BenchError> {
        let files = raise_file_limit();
        let control = Control::connect(&args.endpoint, args.timeout)?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let run = std::process::id().rotate_left(16) ^ now.subsec_nanos() ^ now.as_secs() as u32;
        Ok(Bench { args, control, keys: Keys::of_run(run), interrupted, files })
    }

    /// With how many requests in flight to run this workload. What is large is sent one at a time.
    pub(super) fn flights(&self, workload: Workload) -> Vec<usize> {
        match workload.size {
            Some(_) => vec![1],
            None => self.args.in_flight.iter().map(|&n| n as usize).collect(),
        }
    }

    /// An outcome with nothing measured yet.
    pub(super) fn blank(&self, workload: Workload, in_flight: usize) -> Outcome {
        let size = |sized| workload.size.filter(|_| workload.sized() == sized);
        Outcome {
            workload: workload.to_string(),
            connections: size(Sized::Clients).unwrap_or(self.args.connections as usize),
            in_flight,
            value_bytes: size(Sized::ValueBytes).unwrap_or(self.args.value_bytes as usize),
            operations: 0,
            seconds: 0.0,
            operations_per_second: 0.0,
            p50_microseconds: None,
            p99_microseconds: None,
            errors: 0,
            error: None,
        }
    }

    /// Runs a workload and writes what it came to into `outcome`, also if it ends early.
    pub(super) fn measure(
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
        Watch::start(name, self.args.timeout, Arc::clone(&self.interrupted))
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
        let keys = self.args.keys as usize;
        let batches = Batches::of(workload, in_flight, keys, self.args.value_bytes as usize, &self.keys);
        *made = batches.keys;
        if let Some(value) = &batches.preset {
            let names = self.keys.names(0, batches.keys);
            self.control.set(&names, value).map_err(|trouble| self.lost_control(trouble))?;
        }
        let mut watch = self.watch(outcome);
        let mut fleet = self.open(outcome, &mut watch)?;
        let mut steady = Steady::new(&batches, outcome.connections, self.args.until());
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
        let deleted = Control::connect(&self.args.endpoint, self.args.timeout.min(Duration::from_secs(10)))
            .and_then(|control| {
                self.control = control;
                self.control.delete(&self.keys, made).map_err(|trouble| self.lost_control(trouble))
            });
        if deleted.is_err() {
            let prefix = self.keys.prefix();
            crate::output::complain(&format!("rallypoint bench: keys that begin with {prefix} may be left"));
        }
        deleted
    }

    fn lost_control(&self, trouble: Trouble) -> BenchError {
        let during = format!("the connection beside the load, to {}", self.control.address());
        BenchError::Lost { during, trouble, lost: 1, connections: 1 }
    }
}

/// Lets this process open as many files as it may; how many that is.
fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    now.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}
