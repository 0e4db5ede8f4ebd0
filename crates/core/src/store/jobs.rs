//! The table of jobs with keys in the store, for expiry. A job is a run id of a rendezvous;
//! [`run_id_of`](crate::rendezvous::keys::run_id_of) maps a key to its job.

use std::time::Duration;

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

/// Index of a job in the table. It stays valid while the job has a connection.
pub(super) type JobIndex = u32;

#[derive(Debug)]
struct Job {
    run_id: Box<[u8]>,
    /// The number of connections whose last rendezvous key was one of this job.
    connections: usize,
    /// The time of the last request for one of its keys, or of the last disconnect.
    used: Duration,
}

/// The table of jobs.
#[derive(Debug)]
pub(super) struct Jobs {
    /// The time without a request or connection after which a job is idle.
    idle_after: Duration,
    now: Duration,
    by_id: HashTable<JobIndex>,
    all: Slab<Job>,
    hasher: RandomState,
    bytes: usize,
}

/// Approximate bytes of a job beyond its run id.
const JOB_OVERHEAD: usize = 128;

/// Approximate bytes of a job with this run id.
pub(super) fn job_cost(run_id: &[u8]) -> usize {
    run_id.len() + JOB_OVERHEAD
}

impl Jobs {
    pub(super) fn new(idle_after: Duration, hasher: RandomState) -> Jobs {
        let (by_id, all) = (HashTable::new(), Slab::new());
        Jobs { idle_after, now: Duration::ZERO, by_id, all, hasher, bytes: 0 }
    }

    /// Returns the bytes of all jobs.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// Records a request for a key of this job, and moves the connection from job `current` to this one. Returns false, and
    /// changes nothing, if the job is not in the table.
    pub(super) fn use_by(&mut self, current: &mut Option<JobIndex>, run_id: &[u8]) -> bool {
        let index = match current {
            Some(index) if *self.all[*index as usize].run_id == *run_id => *index,
            _ => {
                let Some(index) = self.find(run_id) else { return false };
                self.leave(current.take());
                *current = Some(index);
                self.all[index as usize].connections += 1;
                index
            }
        };
        self.all[index as usize].used = self.now;
        true
    }

    /// Adds a job to the table.
    pub(super) fn insert(&mut self, run_id: &[u8]) {
        let job = Job { run_id: run_id.into(), connections: 0, used: self.now };
        let index = self.all.insert(job) as JobIndex;
        let (all, hasher) = (&self.all, &self.hasher);
        let hash = |index: &JobIndex| hasher.hash_one(&*all[*index as usize].run_id);
        self.by_id.insert_unique(hasher.hash_one(run_id), index, hash);
        self.bytes += job_cost(run_id);
    }

    /// Removes a connection from its job.
    pub(super) fn leave(&mut self, job: Option<JobIndex>) {
        if let Some(index) = job {
            let job = &mut self.all[index as usize];
            job.connections -= 1;
            job.used = self.now;
        }
    }

    /// Removes the idle jobs from the table; returns their run ids and how long each was idle.
    pub(super) fn take_idle(&mut self) -> Vec<(Box<[u8]>, Duration)> {
        let (now, idle_after) = (self.now, self.idle_after);
        let is_idle = |job: &Job| job.connections == 0 && now.saturating_sub(job.used) >= idle_after;
        let idle: Vec<_> = self.all.iter().filter(|(_, job)| is_idle(job)).map(|(index, _)| index).collect();
        let taken = idle.into_iter().map(|index| {
            let job = self.all.remove(index);
            let hash = self.hasher.hash_one(&*job.run_id);
            if let Ok(slot) = self.by_id.find_entry(hash, |&at| at == index as JobIndex) {
                slot.remove();
            }
            self.bytes -= job_cost(&job.run_id);
            (job.run_id, now.saturating_sub(job.used))
        });
        taken.collect()
    }

    fn find(&self, run_id: &[u8]) -> Option<JobIndex> {
        let hash = self.hasher.hash_one(run_id);
        self.by_id.find(hash, |&index| *self.all[index as usize].run_id == *run_id).copied()
    }
}
