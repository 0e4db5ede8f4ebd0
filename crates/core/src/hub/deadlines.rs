//! Deadlines: connections that take too long for a handshake, a request, or their replies. They are checked a few times per
//! second, and only for connections with a running deadline.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use super::uploads::Upload;
use super::{CloseReason, ConnectionId, Event, Hub};
use crate::store::EffectLog;

impl<L: EffectLog> Hub<L> {
    pub(super) fn sweep(&mut self, now: Duration) {
        self.sweep_handshakes(now);
        self.sweep_requests(now);
        self.sweep_replies(now);
        self.offences.forget_old(now);
        if let Some(jobs) = &mut self.jobs {
            self.events.extend(jobs.expire(&mut self.engine, now).into_iter().map(Event::Expired));
        }
    }

    fn sweep_handshakes(&mut self, now: Duration) {
        let connections = &self.connections;
        let unvalidated = |id: &ConnectionId| {
            let found = connections.get(id.index()).filter(|connection| connection.id == *id)?;
            (!found.closing && !found.session.is_validated()).then_some(found)
        };
        self.unvalidated.retain(|id| unvalidated(id).is_some());
        let mut late = Vec::new();
        let mut per_address = BTreeMap::<IpAddr, usize>::new();
        let mut total = 0;
        // From the youngest stale connection back, so that the oldest ones are over the limit.
        for connection in self.unvalidated.iter().rev().filter_map(unvalidated) {
            let (age, address) = (now.saturating_sub(connection.opened), connection.peer.ip());
            if age < self.limits.stale_after {
                continue;
            }
            let of_address = per_address.entry(address).or_default();
            (*of_address, total) = (*of_address + 1, total + 1);
            let is_crowding =
                *of_address > self.limits.stale_per_address && !address.to_canonical().is_loopback();
            if age >= self.limits.handshake || total > self.limits.stale_total || is_crowding {
                late.push((connection.id.index(), age));
            }
        }
        for (index, age) in late {
            self.punish(index, CloseReason::NoHandshake { age }, now);
        }
    }

    fn sweep_requests(&mut self, now: Duration) {
        let mut late = Vec::new();
        let (connections, limits, waiting) = (&mut self.connections, &self.limits, self.uploads.waiting());
        self.receiving.retain(|&index| {
            let found = connections.get_mut(index).filter(|connection| !connection.closing);
            let Some((connection, receiving)) = found.and_then(|c| c.receiving.map(|r| (c, r))) else {
                return false;
            };
            if connection.is_too_slow(now, limits) {
                late.push((index, CloseReason::SlowRequest { limit: limits.partial_rate }));
            } else if waiting > 0
                && matches!(connection.upload, Upload::Admitted { .. })
                && now.saturating_sub(receiving.grown.0) >= limits.input_stall
            {
                let (stall, held) = (limits.input_stall, connection.held);
                late.push((index, CloseReason::StalledUpload { stall, held, waiting }));
            }
            true
        });
        for (index, reason) in late {
            self.punish(index, reason, now);
        }
    }

    fn sweep_replies(&mut self, now: Duration) {
        // A value counts for more once the store has let go of it.
        for index in self.stalled.iter().copied().collect::<Vec<_>>() {
            if self.connections.get(index).is_some_and(|connection| !connection.closing) {
                self.count_output(index, now);
            }
        }
        let mut late = Vec::new();
        let (connections, limits) = (&self.connections, &self.limits);
        self.stalled.retain(|&index| {
            let found = connections.get(index).filter(|connection| !connection.closing);
            let Some((connection, since)) = found.and_then(|c| c.stalled.map(|since| (c, since))) else {
                return false;
            };
            let is_large = connection.owed > limits.output_hard;
            let patience = if is_large { limits.output_stall / 3 } else { limits.output_stall };
            let waited = now.saturating_sub(since);
            if waited >= patience {
                late.push((index, CloseReason::SlowReader { unsent: connection.outbox.unsent(), waited }));
            }
            true
        });
        for (index, reason) in late {
            self.punish(index, reason, now);
        }
    }
}
