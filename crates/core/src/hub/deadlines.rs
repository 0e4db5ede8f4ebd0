//! Deadlines for handshakes, requests and replies, and the expiry of idle jobs.
//!
//! The hub checks the deadlines every 50 ms, and only for connections with a running deadline.

use std::collections::BTreeMap;

use super::{CloseReason, Connection, Event, Hub, Service};
use crate::store::EffectLog;

impl<L: EffectLog, S: Service> Hub<L, S> {
    /// Closes connections that missed a deadline, and deletes the keys of idle jobs.
    pub(super) fn sweep(&mut self) {
        let connections = &self.connections;
        self.watched.retain(|&index| connections.get(index).is_some_and(Connection::has_deadline));
        self.close_stale();
        for index in self.watched.iter().copied().collect::<Vec<_>>() {
            if self.connections[index].closing {
                continue;
            }
            let waiting = self.uploads.waiting();
            match self.connections[index].check_deadlines(waiting, self.now, &self.limits) {
                Some(reason) => self.close_for(index, reason),
                // Recount the unsent replies: after the store has deleted a value, the reply's share of the value is
                // larger.
                None => self.count_output(index),
            }
        }
        self.violations.remove_expired(self.now, &self.limits);
        if let Some(jobs) = &mut self.jobs {
            self.events.extend(jobs.expire(&mut self.engine, self.now).into_iter().map(Event::Expired));
        }
    }

    /// Closes the oldest stale connections beyond `stale_total` and `stale_per_address`. A connection is stale if it is
    /// at least `stale_after` old and VALIDATE has not arrived.
    fn close_stale(&mut self) {
        let mut stale = Vec::new();
        for &index in self.watched.iter().rev() {
            let connection = &self.connections[index];
            let age = self.now.saturating_sub(connection.opened);
            if connection.link.is_none()
                && !connection.session.is_validated()
                && age >= self.limits.stale_after
            {
                stale.push((age, index));
            }
        }
        // Sort the newest connections first, so that the connections beyond a limit are the oldest ones.
        stale.sort_by_key(|(age, _)| *age);
        let mut by_address = BTreeMap::new();
        for (count, (age, index)) in (1..).zip(stale) {
            let count_of_address = by_address.entry(self.connections[index].peer.ip()).or_insert(0);
            *count_of_address += 1;
            if count > self.limits.stale_total || *count_of_address > self.limits.stale_per_address {
                self.close_for(index, CloseReason::NoHandshake { age });
            }
        }
    }
}
