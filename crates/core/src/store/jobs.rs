//! The jobs that have keys in the store, and since when each of them is idle. A job is a run id of a rendezvous; which keys
//! belong to it is [`run_id_of`](crate::rendezvous::keys::run_id_of)'s to say.

use std::time::Duration;

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

/// A job's place in the table. It means this job as long as the job has a connection.
pub(super) type JobIndex = u32;

#[derive(Debug)]
struct Job {
    run_id: Box<[u8]>,
    /// Connections whose last key of a job was one of this job.
    connections: usize,
    /// When a client last named a key of it, or the last of its connections ended.
    used: Duration,
}

/// All jobs.
#[derive(Debug)]
pub(super) struct Jobs {
    /// A job without a connection is idle when it has not been used for this long.
    idle_after: Duration,
    now: Duration,
    by_id: HashTable<JobIndex>,
    all: Slab<Job>,
    hasher: RandomState,
    bytes: usize,
}

/// What a job costs beyond its run id, roughly.
const JOB_OVERHEAD: usize = 128;

/// What a job with this run id is counted as.
pub(super) fn job_cost(run_id: &[u8]) -> usize {
    run_id.len() + JOB_OVERHEAD
}

impl Jobs {
    pub(super) fn new(idle_after: Duration, hasher: RandomState) -> Jobs {
        let (by_id, all) = (HashTable::new(), Slab::new());
        Jobs { idle_after, now: Duration::ZERO, by_id, all, hasher, bytes: 0 }
    }

    /// Bytes held for all jobs.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// A client whose connection counts for `current` names a key of this job: from now on the connection counts for it. Whether
    /// the job is known; if not, nothing has changed.
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

    /// A job has its first key.
    pub(super) fn insert(&mut self, run_id: &[u8]) {
        let job = Job { run_id: run_id.into(), connections: 0, used: self.now };
        let index = self.all.insert(job) as JobIndex;
        let (all, hasher) = (&self.all, &self.hasher);
        let hash = |index: &JobIndex| hasher.hash_one(&*all[*index as usize].run_id);
        self.by_id.insert_unique(hasher.hash_one(run_id), index, hash);
        self.bytes += job_cost(run_id);
    }

    /// A connection no longer counts for this job.
    pub(super) fn leave(&mut self, job: Option<JobIndex>) {
        if let Some(index) = job {
            let job = &mut self.all[index as usize];
            job.connections -= 1;
            job.used = self.now;
        }
    }

    /// Forgets the jobs that are idle: their run ids, and for how long each has been.
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
