//! Deadlines: connections that take too long for a handshake, a request, or their replies, and jobs that are idle. They are
//! checked a few times per second, and only for connections with a running deadline.

use std::time::Duration;

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
                Some(reason) => self.punish(index, reason),
                // A value counts for more once the store has let go of it.
                None => self.count_output(index),
            }
        }
        self.offences.forget_old(self.now, &self.limits);
        if let Some(jobs) = &mut self.jobs {
            self.events.extend(jobs.expire(&mut self.engine, self.now).into_iter().map(Event::Expired));
        }
    }

    /// Closes the oldest connections without a handshake if there are too many that should have finished it.
    fn close_stale(&mut self) {
        let age_of = |index: &usize| {
            let connection = &self.connections[*index];
            let age = self.now.saturating_sub(connection.opened);
            (!connection.session.is_validated() && age >= self.limits.stale_after).then_some((age, *index))
        };
        let mut stale: Vec<(Duration, usize)> = self.watched.iter().filter_map(age_of).collect();
        let excess = stale.len().saturating_sub(self.limits.stale_total);
        stale.sort_by(|(one, _), (other, _)| other.cmp(one));
        for (age, index) in stale.into_iter().take(excess) {
            self.punish(index, CloseReason::NoHandshake { age });
        }
    }
}
