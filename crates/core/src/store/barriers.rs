//! Barriers that can be used again: each round releases `world_size` clients that are all still connected.
//!
//! A barrier is not a key: setting a key of its name releases no client, and a completed barrier leaves nothing behind.

use std::collections::BTreeMap;

use ahash::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::engine::ClientId;
use crate::key::Key;

/// The position of a client at a barrier.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    barrier: (Key, u64),
    number: u64,
}

/// All barriers with waiting clients. Barriers of one key with different world sizes are different barriers.
#[derive(Debug)]
pub(super) struct Barriers {
    /// The clients at each barrier, by the order of their arrival.
    rounds: HashMap<(Key, u64), BTreeMap<u64, ClientId>, RandomState>,
    bytes: usize,
}

/// Approximate bytes of a barrier with this key: the key, and the records.
pub(super) fn barrier_cost(key: &[u8]) -> usize {
    key.len() + 256
}

impl Barriers {
    pub(super) fn new(hasher: RandomState) -> Barriers {
        Barriers { rounds: HashMap::with_hasher(hasher), bytes: 0 }
    }

    /// Returns the bytes of all barriers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether clients wait at a barrier.
    pub(super) fn has_round(&self, key: &[u8], world_size: u64) -> bool {
        self.rounds.contains_key(&(Key::from(key), world_size))
    }

    /// Adds a client. Returns its position in an incomplete round, or, as `Err`, the other clients of a round that is complete
    /// and over, in the order of their arrival.
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

    /// Removes a client that gave up or disconnected.
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
