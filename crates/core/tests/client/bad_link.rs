//! A test of the heartbeats of a rendezvous over a link with delay and packet loss.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rallypoint_core::client::{Client, ready};
use rallypoint_core::rendezvous::{
    Cell, Fault, Goal, Member, Moment, MonoTime, NodeDesc, Operation, Outcome, Pursuit, Settings, State,
    WallTime,
};

use crate::net::{BadLink, Net};
use crate::operations::connected;
use crate::server::Model;

/// The time without a heartbeat after which the other nodes remove a node.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(15);

/// One node of a round, which reads and writes the shared state over the network.
struct Node {
    net: Net,
    client: Client<Net>,
    member: Member,
    state: Arc<State>,
}

impl Node {
    fn new(seed: u64) -> Node {
        let (net, client) = connected(Model::ours("a"));
        net.change(|state| {
            state.bad_link = Some(BadLink { random: seed });
            state.set("/state", "state");
        });
        let me = NodeDesc::new("node1", 1, 0);
        let state = State { complete: true, participants: [(me.clone(), 0)].into(), ..State::default() };
        Node { net, client, member: Member::new(me, Settings::new("job", 1, 1)), state: Arc::new(state) }
    }

    fn mono(&self) -> MonoTime {
        MonoTime::from_start(self.net.now())
    }

    /// Sends one heartbeat, as the keep-alive thread of `rallypoint-rendezvous` does. Returns whether the heartbeat was
    /// written.
    fn send_heartbeat(&mut self) -> bool {
        let now = self.mono();
        let (mut pursuit, mut operation) = Pursuit::start(Goal::KeepAlive, &mut self.member, now);
        let mut is_written = false;
        loop {
            let deadline = self.net.deadline(pursuit.call_timeout(&self.member, self.mono()));
            let cell = |state: &Arc<State>| Cell { state: Some(Arc::clone(state)), token: Bytes::new() };
            let outcome = match operation {
                Operation::End(_) => return is_written,
                Operation::Read => match ready(self.client.get(b"/state", &deadline)) {
                    Ok(_) => Outcome::Cell(cell(&self.state)),
                    Err(_) => Outcome::Failed(Fault::Outage),
                },
                Operation::Write { state, .. } => {
                    match ready(self.client.compare_set(b"/state", b"state", b"state", &deadline)) {
                        Ok(_) => {
                            is_written = true;
                            self.state = state;
                            Outcome::Written { won: true, cell: cell(&self.state) }
                        }
                        Err(_) => Outcome::Failed(Fault::Outage),
                    }
                }
                Operation::Pause { timeout, .. } => {
                    self.net.advance_clock(timeout);
                    Outcome::Paused { is_woken: false }
                }
                _ => Outcome::Done,
            };
            let wall = WallTime::UNIX_EPOCH.checked_add(self.net.now()).unwrap();
            let now = Moment { mono: self.mono(), wall, random: 1 };
            operation = pursuit.handle(&mut self.member, outcome, now);
        }
    }
}

#[test]
fn at_most_1_of_1000_heartbeats_is_late_over_a_link_with_delay_and_loss() {
    let (mut late, mut sent) = (0, 0);
    for seed in 0..100 {
        let mut node = Node::new(seed);
        let mut last = node.net.now();
        let end = last + Duration::from_secs(600);
        while node.net.now() < end {
            let is_written = node.send_heartbeat();
            let now = node.net.now();
            if is_written {
                sent += 1;
                late += u32::from(now - last > KEEP_ALIVE_TIMEOUT);
                last = now;
            }
            node.net.advance_clock(node.member.until_keep_alive(node.mono()).max(Duration::from_millis(100)));
        }
    }
    // With earlier versions more heartbeats were late: 5 of 1,000 when a read and the write after it shared one
    // timeout, and 1.4 of 1,000 when a reconnect took one more round trip.
    assert!(late * 1_000 <= sent, "{late} of {sent} heartbeats were late");
}
