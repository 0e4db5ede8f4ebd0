//! Deleting the keys of jobs that are idle. Off unless it is asked for, and then without cost.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Engine;
use crate::rendezvous::keys::run_id_of;
use crate::store::ClientId;
use crate::store::jobs::{Jobs, job_cost};
use crate::wire::Request;

/// A job whose keys were deleted because it was idle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredJob {
    /// Its run id.
    pub run_id: Vec<u8>,
    /// How many keys and queues it had.
    pub keys: usize,
    /// For how long no client had used it.
    pub idle: Duration,
}

impl Engine {
    /// Lets jobs expire that are idle for this long: [`Engine::expire_idle_jobs`]. A job is all keys of a rendezvous with the
    /// same run id.
    pub fn expire_jobs_after(&mut self, idle_after: Duration) {
        self.jobs = Some(Box::new(Jobs::new(idle_after, self.hasher.clone())));
    }

    /// Tells what time it is, as the time since some moment. Needed only where jobs expire.
    pub fn set_time(&mut self, now: Duration) {
        if let Some(jobs) = &mut self.jobs {
            jobs.set_time(now);
        }
    }

    /// Whether there are jobs that may expire.
    pub fn has_jobs(&self) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| !jobs.is_empty())
    }

    /// Deletes the keys and queues of all jobs that are idle now: that no client has named a key of for the time given, and
    /// that no connection counts for. A connection counts for the job whose key it named last. Jobs that had no keys left are
    /// not returned.
    pub fn expire_idle_jobs(&mut self) -> Vec<ExpiredJob> {
        let Some(jobs) = &mut self.jobs else { return Vec::new() };
        let mut idle: BTreeMap<_, _> =
            jobs.take_idle().into_iter().map(|(run_id, idle)| (run_id, (idle, 0))).collect();
        if idle.is_empty() {
            return Vec::new();
        }
        self.do_all();
        let mut is_idle = |key: &[u8]| {
            let job = run_id_of(key).and_then(|run_id| idle.get_mut(run_id));
            job.map(|(_, keys)| *keys += 1).is_some()
        };
        self.map.remove_all(&mut is_idle);
        self.queues.remove_all(&mut is_idle);
        let expired =
            idle.into_iter().map(|(run_id, (idle, keys))| ExpiredJob { run_id: run_id.into(), keys, idle });
        expired.filter(|job| job.keys > 0).collect()
    }

    /// A client names keys: their jobs are in use.
    pub(super) fn use_jobs(&mut self, client: ClientId, request: &Request<'_>) {
        match request {
            Request::Validate { .. }
            | Request::Ping { .. }
            | Request::NumKeys
            | Request::ListKeys
            | Request::CancelWait => {}
            Request::Set { key, .. }
            | Request::CompareSet { key, .. }
            | Request::Add { key, .. }
            | Request::Append { key, .. }
            | Request::QueuePush { key, .. } => self.use_job(client, key, true),
            Request::Get { key }
            | Request::DeleteKey { key }
            | Request::QueuePop { key }
            | Request::QueueLen { key }
            | Request::Barrier { key, .. } => self.use_job(client, key, false),
            Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
                keys.iter().for_each(|key| self.use_job(client, key, false));
            }
            Request::MultiSet { pairs } => pairs.iter().for_each(|(key, _)| self.use_job(client, key, true)),
        }
    }

    /// A client names a key. Only one that may be about to write it makes a job known, and only while there is room.
    pub(super) fn use_job(&mut self, client: ClientId, key: &[u8], writes: bool) {
        let Some(run_id) = run_id_of(key) else { return };
        let has_room = writes && self.bytes() + job_cost(run_id) <= self.limits.store_bytes;
        let Some(jobs) = &mut self.jobs else { return };
        let current = &mut self.clients[client.index()].job;
        if !jobs.use_by(current, run_id) && has_room {
            jobs.insert(run_id);
            jobs.use_by(current, run_id);
        }
    }
}
