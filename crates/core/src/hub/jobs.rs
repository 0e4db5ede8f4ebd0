//! The expiry of idle jobs. A job is identified by the run id of its rendezvous. [`run_id_of`] returns the run id for a
//! key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::rendezvous::keys::run_id_of;
use crate::store::{Effect, EffectLog, Engine};
use crate::wire::Request;

/// An idle job whose keys were deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredJob {
    /// The run id of the job's rendezvous.
    pub run_id: Vec<u8>,
    /// The number of keys and queue items that were deleted.
    pub keys: usize,
    /// The time for which the job was idle.
    pub idle: Duration,
}

/// The maximum memory of the table of jobs, in bytes. A job that does not fit is not tracked, so its keys never expire.
const MAX_TABLE_BYTES: usize = 4 << 20;
/// The approximate memory of a job beyond its run id, in bytes.
const JOB_OVERHEAD_BYTES: usize = 128;

#[derive(Debug, Default)]
struct Job {
    /// The number of connections whose last request for a rendezvous key named a key of this job.
    connections: usize,
    /// The time of the last request for a key of the job, or of the last disconnect.
    last_used: Duration,
}

/// The table of jobs that clients have used.
#[derive(Debug)]
pub(super) struct Jobs {
    /// The time without a request and without a connection after which a job is idle.
    idle_after: Duration,
    jobs: BTreeMap<Arc<[u8]>, Job>,
    /// The job of each connection.
    by_connection: BTreeMap<usize, Arc<[u8]>>,
    bytes: usize,
}

impl Jobs {
    pub(super) fn new(idle_after: Duration) -> Jobs {
        Jobs { idle_after, jobs: BTreeMap::new(), by_connection: BTreeMap::new(), bytes: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Records that a connection uses the jobs to which the keys in a request belong.
    pub(super) fn handle_request(&mut self, connection: usize, request: Request<'_>, now: Duration) {
        request.for_each_key(&mut |key| {
            if let Some(run_id) = run_id_of(key) {
                self.use_job(connection, run_id, now);
            }
        });
    }

    fn use_job(&mut self, connection: usize, run_id: &[u8], now: Duration) {
        let current = self.by_connection.get(&connection);
        if current.is_none_or(|current| **current != *run_id) {
            self.handle_disconnect(connection, now);
            let existing = self.jobs.get_key_value(run_id).map(|(run_id, _)| run_id.clone());
            if existing.is_none() {
                let bytes = run_id.len() + JOB_OVERHEAD_BYTES;
                if self.bytes + bytes > MAX_TABLE_BYTES {
                    return;
                }
                self.bytes += bytes;
            }
            let run_id = existing.unwrap_or_else(|| run_id.into());
            self.jobs.entry(run_id.clone()).or_default().connections += 1;
            self.by_connection.insert(connection, run_id);
        }
        if let Some(job) = self.jobs.get_mut(run_id) {
            job.last_used = now;
        }
    }

    /// Removes a connection from its job.
    pub(super) fn handle_disconnect(&mut self, connection: usize, now: Duration) {
        let run_id = self.by_connection.remove(&connection);
        if let Some(job) = run_id.and_then(|run_id| self.jobs.get_mut(&run_id)) {
            job.connections -= 1;
            job.last_used = now;
        }
    }

    /// Deletes the keys and queues of all idle jobs. Returns the idle jobs that had keys or queue items.
    ///
    /// A job is idle if, for the configured time, it has had no connection and no request has named one of its keys.
    /// All keys of a job are deleted in one step, so that a job that returns finds either all of its keys or none.
    pub(super) fn expire<L: EffectLog>(&mut self, engine: &mut Engine<L>, now: Duration) -> Vec<ExpiredJob> {
        let mut expired = BTreeMap::new();
        self.jobs.retain(|run_id, job| {
            let idle = now.saturating_sub(job.last_used);
            let is_used = job.connections > 0 || idle < self.idle_after;
            if !is_used {
                self.bytes -= run_id.len() + JOB_OVERHEAD_BYTES;
                expired.insert(run_id.clone(), ExpiredJob { run_id: run_id.to_vec(), keys: 0, idle });
            }
            is_used
        });
        if expired.is_empty() {
            return Vec::new();
        }
        let (mut keys, mut items) = (Vec::new(), Vec::new());
        for effect in engine.snapshot().effects() {
            let (key, is_item) = match effect {
                Effect::Put { key, .. } => (key, false),
                Effect::Push { key, .. } => (key, true),
                _ => continue,
            };
            if let Some(job) = run_id_of(key).and_then(|run_id| expired.get_mut(run_id)) {
                job.keys += 1;
                if is_item { items.push(Key::from(key)) } else { keys.push(Key::from(key)) }
            }
        }
        keys.iter().for_each(|key| engine.apply(Effect::Delete { key }));
        items.iter().for_each(|key| engine.apply(Effect::Pop { key }));
        expired.into_values().filter(|job| job.keys > 0).collect()
    }
}
