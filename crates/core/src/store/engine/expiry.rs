//! Expiry of idle jobs. It costs nothing unless [`Engine::expire_jobs_after`] turns it on.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Engine;
use crate::rendezvous::keys::run_id_of;
use crate::store::ClientId;
use crate::store::jobs::{Jobs, job_cost};
use crate::wire::Request;

/// An idle job whose keys were deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredJob {
    /// The run id of its rendezvous.
    pub run_id: Vec<u8>,
    /// The number of keys and queues that were deleted.
    pub keys: usize,
    /// How long the job was idle.
    pub idle: Duration,
}

impl Engine {
    /// Turns on expiry: jobs that have been idle for `idle_after` are deleted by [`Engine::expire_idle_jobs`]. A job is the set
    /// of keys with the same run id.
    pub fn expire_jobs_after(&mut self, idle_after: Duration) {
        self.jobs = Some(Box::new(Jobs::new(idle_after, self.hasher.clone())));
    }

    /// Sets the current time, as the time since any fixed moment. Only expiry uses it.
    pub fn set_time(&mut self, now: Duration) {
        if let Some(jobs) = &mut self.jobs {
            jobs.set_time(now);
        }
    }

    /// Returns whether any job is being watched for expiry.
    pub fn has_jobs(&self) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| !jobs.is_empty())
    }

    /// Deletes the keys and queues of all idle jobs and returns the jobs that had any.
    ///
    /// A job is idle if it has no connection and no client has named one of its keys for the configured time. A connection
    /// belongs to the job whose key it named last. All keys of a job are deleted at one moment.
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

    /// Records that a client uses the jobs of the keys in this request.
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

    /// Records that a client uses the job of this key. Only a write adds a job to the table, and only if the store has room
    /// for the entry, so that clients cannot grow the table without bound.
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
