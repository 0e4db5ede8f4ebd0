//! Commands of operators. Each is a process that opens one connection, on the host that it asks.

use rallypoint_coordinator::message::{Command, Open, PROTOCOL_VERSION, Purpose, Reply};
use rallypoint_core::wire::{MAGIC, Request};

use super::host::RUN_ID;
use super::network::{ConnectionIndex, Segment, Side};
use super::world::World;

/// A process that sends one command.
#[derive(Debug)]
pub(super) struct Operator {
    command: Command,
    input: Vec<u8>,
}

impl World {
    /// Sends a command to the process of a host.
    pub(super) fn command(&mut self, host: usize, command: Command) {
        self.trace(|| format!("an operator sends to h{host}: {command:?}"));
        self.next_process += 1;
        let number = self.next_process;
        self.operators.insert(number, Operator { command, input: Vec::new() });
        self.open(host, number, host);
    }

    pub(super) fn handle_operator_segment(&mut self, index: ConnectionIndex, number: u64, segment: Segment) {
        let Some(operator) = self.operators.get_mut(&number) else { return };
        match segment {
            Segment::Accepted => {
                let open = Open {
                    version: PROTOCOL_VERSION,
                    host: "operator".into(),
                    run_id: RUN_ID.into(),
                    purpose: Purpose::Operator(operator.command.clone()),
                };
                let message = serde_json::to_vec(&open).expect("a message can be encoded");
                let mut bytes = Vec::new();
                Request::Validate { magic: MAGIC }.encode(&mut bytes);
                Request::Message { message: message.as_slice().into() }.encode(&mut bytes);
                self.transmit(index, Side::Acceptor, Segment::Bytes(bytes));
            }
            Segment::Bytes(bytes) => {
                operator.input.extend_from_slice(&bytes);
                let Some((len, rest)) = operator.input.split_first_chunk::<8>() else { return };
                let Some(message) = rest.get(..u64::from_le_bytes(*len) as usize) else { return };
                let reply: Reply = serde_json::from_slice(message).expect("a reply can be decoded");
                self.trace(|| match reply {
                    Reply::Done(text) => format!("the operator is told: {text}"),
                    reply => format!("the operator is told: {reply:?}"),
                });
                self.operators.remove(&number);
                self.close_side(index, Side::Opener, Segment::End);
            }
            Segment::Open => {}
            Segment::Refused | Segment::End | Segment::Reset => {
                self.operators.remove(&number);
            }
        }
    }
}
