//! The loop's clocks: who has taken too long for a handshake, a request or its replies. Looked at a few times a second,
//! and only at those for whom a clock is running.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rallypoint_core::store::ClientId;
use rallypoint_core::{counted, printable};

use super::{EventLoop, GLANCE};

impl EventLoop {
    pub(super) fn sweep(&mut self, now: Instant) {
        self.swept = now;
        self.note_room();
        self.sweep_unvalidated(now);
        self.sweep_arriving(now);
        self.sweep_stalled(now);
        self.offences.forget_old(now);
        self.recycler.tidy();
        self.expire_jobs(now);
        self.engine.tidy();
        // What was short may be free again, whoever of this process had it.
        if self.starved {
            self.accept_again();
        }
        self.settle();
    }

    /// Deletes the keys of idle jobs, and logs up to `LOGGED` of the jobs by name.
    fn expire_jobs(&mut self, now: Instant) {
        const LOGGED: usize = 8;
        self.engine.set_time(now.duration_since(self.started));
        let jobs = self.engine.expire_idle_jobs();
        for job in jobs.iter().take(LOGGED) {
            tracing::info!(
                "job {} expired after {:.1} s without a client: deleted {}",
                printable(&job.run_id),
                job.idle.as_secs_f64(),
                counted(job.keys, "key")
            );
        }
        if let Some(more) = jobs.get(LOGGED..).filter(|more| !more.is_empty()) {
            let keys: usize = more.iter().map(|job| job.keys).sum();
            let (jobs, keys) = (counted(more.len(), "further job"), counted(keys, "key"));
            tracing::info!("{jobs} expired: deleted {keys}");
        }
    }

    /// Notes how full it is.
    pub(super) fn note_room(&self) {
        let held = self.engine.snapshot();
        self.counters.keys.store(held.keys as u64, Ordering::Relaxed);
        self.counters.bytes.store(held.bytes as u64, Ordering::Relaxed);
    }

    fn sweep_unvalidated(&mut self, now: Instant) {
        let connections = &self.connections;
        let unvalidated = |client: &ClientId| {
            connections
                .get(client.index())
                .filter(|connection| connection.client == *client && !connection.session.is_validated())
        };
        self.unvalidated.retain(|client| unvalidated(client).is_some());
        let mut too_many = Vec::new();
        let mut per_address = HashMap::<IpAddr, usize>::new();
        let mut total = 0;
        // From the youngest stale one back, so that it is the oldest that are over the limit.
        for client in self.unvalidated.iter().rev() {
            let Some(connection) = unvalidated(client) else { continue };
            let age = now.duration_since(connection.accepted);
            if age < self.limits.stale_after {
                continue;
            }
            let of_address = per_address.entry(connection.peer.ip()).or_default();
            *of_address += 1;
            total += 1;
            if age >= self.limits.handshake
                || total > self.limits.stale_total
                || (*of_address > self.limits.stale_per_address
                    && !connection.peer.ip().to_canonical().is_loopback())
            {
                too_many.push((client.index(), age));
            }
        }
        for (index, age) in too_many {
            let why = format!("no handshake after {} ms", age.as_millis());
            self.punish(index, &why, |counters| &counters.no_handshake);
        }
    }

    fn sweep_arriving(&mut self, now: Instant) {
        let (mut slow, mut in_vain) = (Vec::new(), Vec::new());
        let connections = &mut self.connections;
        let limits = &self.limits;
        let crowded = self.crowd.waiting() > 0;
        self.arriving.retain(|&index| match connections.get_mut(index) {
            Some(connection) if connection.arriving.is_some() => {
                if connection.is_too_slow(now, limits) {
                    slow.push(index);
                } else if crowded && connection.holds_room_in_vain(now, GLANCE, limits) {
                    in_vain.push(index);
                }
                true
            }
            _ => false,
        });
        for index in slow {
            let why = format!("a request arrives at less than {} bytes/s", self.limits.partial_rate);
            self.punish(index, &why, |counters| &counters.slow_input);
        }
        for index in in_vain {
            let (held, stall) = (self.connections[index].held, self.limits.input_stall);
            let others = self.crowd.waiting();
            let why = format!(
                "nothing more of a request for {} s, with {held} bytes held and {others} others waiting",
                stall.as_secs_f32()
            );
            self.punish(index, &why, |counters| &counters.slow_input);
        }
    }

    fn sweep_stalled(&mut self, now: Instant) {
        self.count_stalled();
        let mut stuck = Vec::new();
        let (connections, limits) = (&self.connections, &self.limits);
        self.stalled.retain(|&index| {
            let Some(connection) = connections.get(index) else { return false };
            let Some(since) = connection.stalled else { return false };
            // A long reply that is being taken is no offence, however long; but one that isn't holds much.
            let much = connection.outbox.own_bytes() > limits.output_hard;
            let patience = if much { limits.output_stall / 3 } else { limits.output_stall };
            let waited = now.duration_since(since);
            if waited >= patience {
                stuck.push((index, waited));
            }
            waited < patience
        });
        for (index, waited) in stuck {
            let unsent = self.connections[index].outbox.unsent();
            let why = format!("took none of {unsent} bytes of replies for {:.1} s", waited.as_secs_f32());
            self.punish(index, &why, |counters| &counters.slow_output);
        }
    }
}
