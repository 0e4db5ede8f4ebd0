//! Large requests that arrive in pieces: which of them may go on, and which goes when all together hold too much.

use std::time::{Duration, Instant};

use super::EventLoop;
use crate::server::crowd::Upload;

impl EventLoop {
    /// Lets the next large request go on that waited for others. While there is room, as soon as all is read that came
    /// of the first. With less, once the first is done or stands still, so that several of those who have stopped are
    /// found out at a time. With little, only once it is done: it must find room to the end.
    pub(super) fn let_in(&mut self) {
        let now = Instant::now();
        let (held, total, stall) = (self.input_held, self.limits.input_total, self.limits.input_stall);
        let patience = match held {
            _ if held <= total / 2 => Some(Duration::ZERO),
            _ if held <= total / 8 * 5 => Some(stall / 10),
            _ => None,
        };
        let (connections, limits) = (&self.connections, &self.limits);
        let arriving = |(client, request): Upload| {
            connections.get(client.index()).filter(|connection| {
                connection.client == client
                    && connection.session.begun() == request
                    && connection.session.partial().is_some()
                    // Who doesn't take its replies isn't read either, and must not be the one all wait for.
                    && (connection.paused || connection.wants_input(limits))
            })
        };
        let keeps_place = |upload| {
            let stands_still = |how_long| arriving(upload).is_some_and(|c| c.stands_still(now, how_long));
            arriving(upload).is_some() && !patience.is_some_and(stands_still)
        };
        let Some(client) = self.crowd.next(keeps_place, |upload| arriving(upload).is_some()) else { return };
        self.connections[client.index()].go_on();
        self.queue(client.index());
    }

    /// Too much is held for all together: the largest goes.
    pub(super) fn cut_largest(&mut self) {
        let largest =
            self.connections.iter().filter(|(_, c)| !c.doomed).max_by_key(|(_, connection)| connection.held);
        if let Some((index, connection)) = largest {
            let why = format!(
                "incomplete requests of {} bytes in all, limit {}; this one held {}",
                self.input_held, self.limits.input_total, connection.held
            );
            self.punish(index, &why, |counters| &counters.slow_input);
        }
    }
}
