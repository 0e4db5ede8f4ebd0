//! Replies on their way: what is sent, what is still owed, and who goes when all together are owed too much.

use std::time::Instant;

use super::{EventLoop, GLANCE};
use crate::server::outbox::Outbox;

impl EventLoop {
    /// Sends what a connection is owed, and sees what follows from that.
    pub(super) fn flush(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index).filter(|connection| !connection.doomed) else {
            return;
        };
        if connection.outbox.unsent() > 0 {
            let congested = connection.is_congested(&self.limits);
            let sent =
                match connection.outbox.send(&mut connection.stream, &mut self.buffers, &mut self.engine) {
                    Err(_) => return self.doom(index),
                    Ok(sent) => sent,
                };
            if connection.outbox.unsent() == 0 {
                connection.stalled = None;
            } else if sent.bytes > 0 || connection.stalled.is_none() {
                connection.stalled = Some(Instant::now());
                self.stalled.insert(index);
            }
            if sent.is_cut_short || (congested && !connection.is_congested(&self.limits)) {
                self.queue(index);
            }
            self.count_owed(index);
        }
        self.end_if_answered(index);
    }

    /// Keeps the books of what is held of a connection's replies.
    pub(super) fn count_owed(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let owed = if connection.outbox.unsent() > 0 { connection.outbox.own_bytes() } else { 0 };
        self.output_held = self.output_held + owed - connection.owed;
        connection.owed = owed;
        connection.owed_since = match connection.outbox.unsent() {
            0 => None,
            _ => connection.owed_since.or_else(|| Some(Instant::now())),
        };
        if self.output_held > self.limits.output_total {
            self.cut_longest_owed();
        }
    }

    /// Closes the connection whose replies have been unsent for longest, because all unsent replies together are over the
    /// limit. A connection with less than `GLANCE` bytes of replies is closed only if no other has more. Returns false if
    /// no connection has unsent replies.
    fn cut_longest_owed(&mut self) -> bool {
        let owing = self.connections.iter().filter(|(_, c)| !c.doomed && c.owed > 0);
        let longest = owing.min_by_key(|(_, c)| (c.owed < GLANCE, c.owed_since));
        let Some((index, connection)) = longest else { return false };
        let why = format!(
            "replies of {} bytes not taken by all, limit {}; {} of them this one's, for {:.1} s",
            self.output_held,
            self.limits.output_total,
            connection.owed,
            connection.owed_since.map_or(0.0, |since| since.elapsed().as_secs_f32()),
        );
        self.output_held -= std::mem::take(&mut self.connections[index].owed);
        // Free the replies now. The connection itself is closed at the end of the turn.
        self.connections[index].outbox = Outbox::default();
        self.punish(index, &why, |counters| &counters.slow_output);
        true
    }

    /// Closes the connections with the oldest unsent replies until the store is within its limit again. Only key lists exceed
    /// the limit: an unsent list is printed when a key on it is deleted, and a deletion is never refused.
    pub(super) fn bound_lists(&mut self) {
        let most = self.limits.store_bytes.saturating_add(self.limits.output_total);
        while self.engine.snapshot().bytes > most {
            // This may close connections, too.
            self.count_stalled();
            self.engine.make_room();
            if self.engine.snapshot().bytes <= most || !self.cut_longest_owed() {
                return;
            }
            self.engine.make_room();
        }
    }

    /// Updates the counts of unsent replies. An unsent key list grows when other clients change the keys on it.
    pub(super) fn count_stalled(&mut self) {
        for index in self.stalled.iter().copied().collect::<Vec<_>>() {
            if self.connections.get(index).is_some_and(|connection| connection.outbox.unsent() > 0) {
                self.count_owed(index);
            }
        }
    }

    /// Closes a connection whose peer sends no more, once it has all its answers.
    fn end_if_answered(&mut self, index: usize) {
        let Some(connection) = self.connections.get(index).filter(|c| c.ended || c.hung_up) else { return };
        // Too much is held back behind a wait to read up to the end of the stream, but the end is there.
        let unreadable = connection.hung_up && !connection.wants_input(&self.limits);
        let blocked = self.engine.is_blocked(connection.client);
        // Whoever sends no more can't cancel either: a wait is dropped, with what stands behind it.
        let works = self.engine.works_for() == Some(connection.client);
        let idle = !works && (blocked || (connection.ended && !connection.session.has_deferred()));
        if (connection.ended || unreadable) && idle && connection.outbox.unsent() == 0 {
            self.doom(index);
        }
    }
}
