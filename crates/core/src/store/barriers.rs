//! Reusable barriers. A round of a barrier completes when `world_size` clients have arrived, and then releases all of
//! them. Clients that have canceled or disconnected do not count.
//!
//! A barrier is not a key. Setting a key with the name of a barrier releases no client, and a completed round leaves no
//! state behind.

use std::collections::BTreeMap;

use ahash::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::engine::ClientId;
use crate::key::Key;

/// The arrival of a client at a barrier. [`Barriers::leave`] removes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    barrier: (Key, u64),
    number: u64,
}

/// All barriers with blocked clients. Barriers with the same key but different world sizes are independent.
#[derive(Debug)]
pub(super) struct Barriers {
    /// The clients that are blocked at each barrier, by the number of their arrival.
    rounds: HashMap<(Key, u64), BTreeMap<u64, ClientId>, RandomState>,
    bytes: usize,
}

/// Returns the approximate memory of a barrier with this key, in bytes.
pub(super) fn barrier_cost(key: &[u8]) -> usize {
    key.len() + 256
}

impl Barriers {
    pub(super) fn new(hasher: RandomState) -> Barriers {
        Barriers { rounds: HashMap::with_hasher(hasher), bytes: 0 }
    }

    /// Returns the memory of all barriers, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether clients are blocked at the barrier with this key and this world size.
    pub(super) fn has_round(&self, key: &[u8], world_size: u64) -> bool {
        self.rounds.contains_key(&(Key::from(key), world_size))
    }

    /// Adds a client to the current round of a barrier.
    ///
    /// Returns the arrival if the round is still incomplete. If this client completes the round, removes the round and
    /// returns `Err` with its other clients, in the order of their arrival.
    pub(super) fn arrive(
        &mut self,
        client: ClientId,
        key: &[u8],
        world_size: u64,
    ) -> Result<Arrival, Vec<ClientId>> {
        let mut round = match self.rounds.entry((Key::from(key), world_size)) {
            Entry::Occupied(round) => round,
            Entry::Vacant(slot) => {
                self.bytes += barrier_cost(key);
                slot.insert_entry(BTreeMap::new())
            }
        };
        let clients = round.get_mut();
        if clients.len() as u64 + 1 >= world_size {
            self.bytes -= barrier_cost(key);
            return Err(round.remove().into_values().collect());
        }
        let number = clients.last_key_value().map_or(0, |(number, _)| number + 1);
        clients.insert(number, client);
        Ok(Arrival { barrier: round.key().clone(), number })
    }

    /// Removes the arrival of a client that canceled its BARRIER or disconnected.
    pub(super) fn leave(&mut self, arrival: Arrival) {
        let Entry::Occupied(mut round) = self.rounds.entry(arrival.barrier) else { return };
        round.get_mut().remove(&arrival.number);
        if round.get().is_empty() {
            self.bytes -= barrier_cost(&round.key().0);
            round.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn barriers() -> Barriers {
        Barriers::new(RandomState::with_seeds(1, 2, 3, 4))
    }

    fn client(number: u32) -> ClientId {
        ClientId::new(number)
    }

    #[test]
    fn the_last_arrival_completes_and_removes_the_round() {
        let mut barriers = barriers();
        barriers.arrive(client(5), b"b", 3).unwrap();
        barriers.arrive(client(6), b"b", 3).unwrap();
        assert_eq!(barriers.arrive(client(7), b"b", 3), Err(vec![client(5), client(6)]));
        assert!(barriers.rounds.is_empty() && barriers.bytes() == 0);
    }

    #[test]
    fn a_round_that_all_clients_left_is_removed() {
        let mut barriers = barriers();
        let first = barriers.arrive(client(5), b"b", 3).unwrap();
        let second = barriers.arrive(client(6), b"b", 3).unwrap();
        barriers.leave(first);
        barriers.leave(second);
        assert!(barriers.rounds.is_empty() && barriers.bytes() == 0);
    }

    #[test]
    fn a_client_that_left_is_not_released() {
        let mut barriers = barriers();
        let first = barriers.arrive(client(5), b"b", 3).unwrap();
        barriers.arrive(client(6), b"b", 3).unwrap();
        barriers.leave(first);
        barriers.arrive(client(7), b"b", 3).unwrap();
        let released = barriers.arrive(client(8), b"b", 3).unwrap_err();
        assert_eq!(released, [client(6), client(7)]);
    }

    #[test]
    fn one_key_with_two_world_sizes_is_two_barriers() {
        let mut barriers = barriers();
        barriers.arrive(client(5), b"b", 2).unwrap();
        barriers.arrive(client(6), b"b", 3).unwrap();
        assert_eq!(barriers.arrive(client(7), b"b", 2), Err(vec![client(5)]));
    }
}
