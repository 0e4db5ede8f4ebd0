//! Deadlines: connections that take too long for a handshake, a request, or their replies, and jobs that are idle. They are
//! checked every 50 ms, and only for connections with a running deadline.

use std::collections::BTreeMap;

use super::{CloseReason, Connection, Event, Hub};
use crate::store::EffectLog;

impl<L: EffectLog> Hub<L> {
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
                // A value counts for more once the store has let go of it.
                None => self.count_output(index),
            }
        }
        self.offences.remove_expired(self.now, &self.limits);
        if let Some(jobs) = &mut self.jobs {
            self.events.extend(jobs.expire(&mut self.engine, self.now).into_iter().map(Event::Expired));
        }
    }

    /// Closes the oldest connections without a handshake if too many should have finished it, in all or from one address.
    fn close_stale(&mut self) {
        let mut stale = Vec::new();
        for &index in self.watched.iter().rev() {
            let connection = &self.connections[index];
            let age = self.now.saturating_sub(connection.opened);
            if !connection.session.is_validated() && age >= self.limits.stale_after {
                stale.push((age, index));
            }
        }
        // The newest come first, and those beyond a limit are closed.
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
