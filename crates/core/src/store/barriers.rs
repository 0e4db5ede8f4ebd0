//! Barriers that can be used again: each round releases `world_size` clients that are all still connected.
//!
//! A barrier is not a key: setting a key of its name releases no client, and a completed barrier leaves nothing behind.

use std::collections::BTreeMap;

use ahash::RandomState;
use hashbrown::HashMap;
use slab::Slab;

use super::waiters::ClientIndex;

/// The position of a client at a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    barrier: usize,
    number: u64,
}

#[derive(Debug)]
struct Barrier {
    name: (Box<[u8]>, u64),
    /// By the order of their arrival.
    members: BTreeMap<u64, ClientIndex>,
}

/// All barriers with waiting clients. Barriers of one key with different world sizes are different barriers.
#[derive(Debug)]
pub(super) struct Barriers {
    by_name: HashMap<(Box<[u8]>, u64), usize, RandomState>,
    all: Slab<Barrier>,
    bytes: usize,
}

/// Approximate bytes of a barrier with this key: two copies of the key, and the records.
pub(super) fn barrier_cost(key: &[u8]) -> usize {
    2 * key.len() + 256
}

impl Barriers {
    pub(super) fn new(hasher: RandomState) -> Barriers {
        Barriers { by_name: HashMap::with_hasher(hasher), all: Slab::new(), bytes: 0 }
    }

    /// Returns the bytes of all barriers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a client. Returns its position in an incomplete round, or, as `Err`, the other clients of a round that is complete
    /// and over, in the order of their arrival.
    pub(super) fn arrive(
        &mut self,
        client: ClientIndex,
        key: &[u8],
        world_size: u64,
    ) -> Result<Arrival, Vec<ClientIndex>> {
        let name = (Box::from(key), world_size);
        let barrier = match self.by_name.get(&name) {
            Some(&barrier) => barrier,
            None => {
                let barrier = self.all.insert(Barrier { name: name.clone(), members: BTreeMap::new() });
                self.by_name.insert(name, barrier);
                self.bytes += barrier_cost(key);
                barrier
            }
        };
        let round = &mut self.all[barrier];
        if round.members.len() as u64 + 1 >= world_size {
            let others = round.members.values().copied().collect();
            self.remove(barrier);
            return Err(others);
        }
        let number = round.members.last_key_value().map_or(0, |(number, _)| number + 1);
        round.members.insert(number, client);
        Ok(Arrival { barrier, number })
    }

    /// Removes a client that gave up or disconnected.
    pub(super) fn leave(&mut self, arrival: Arrival) {
        let round = &mut self.all[arrival.barrier];
        round.members.remove(&arrival.number);
        if round.members.is_empty() {
            self.remove(arrival.barrier);
        }
    }

    /// Returns the key, the world size and the number of arrivals.
    #[cfg(test)]
    fn look(&self, arrival: Arrival) -> (&[u8], u64, usize) {
        let round = &self.all[arrival.barrier];
        (&round.name.0, round.name.1, round.members.len())
    }

    fn remove(&mut self, barrier: usize) {
        let gone = self.all.remove(barrier);
        self.by_name.remove(&gone.name);
        self.bytes -= barrier_cost(&gone.name.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn barriers() -> Barriers {
        Barriers::new(RandomState::with_seeds(1, 2, 3, 4))
    }

    #[test]
    fn the_last_arrival_gets_all_the_others_and_the_round_is_forgotten() {
        let mut barriers = barriers();
        barriers.arrive(5, b"b", 3).unwrap();
        barriers.arrive(6, b"b", 3).unwrap();
        assert_eq!(barriers.arrive(7, b"b", 3), Err(vec![5, 6]));
        assert!(barriers.all.is_empty() && barriers.by_name.is_empty());
    }

    #[test]
    fn a_round_that_all_clients_left_is_forgotten() {
        let mut barriers = barriers();
        let first = barriers.arrive(5, b"b", 3).unwrap();
        let second = barriers.arrive(6, b"b", 3).unwrap();
        barriers.leave(first);
        barriers.leave(second);
        assert!(barriers.all.is_empty() && barriers.by_name.is_empty());
    }

    #[test]
    fn a_client_that_left_is_not_released() {
        let mut barriers = barriers();
        let leaver = barriers.arrive(5, b"b", 3).unwrap();
        barriers.arrive(6, b"b", 3).unwrap();
        barriers.leave(leaver);
        let stayer = barriers.arrive(7, b"b", 3).unwrap();
        assert_eq!(barriers.look(stayer), (&b"b"[..], 3, 2));
        let others = barriers.arrive(8, b"b", 3).unwrap_err();
        assert_eq!(others, [6, 7]);
    }

    #[test]
    fn one_key_with_two_world_sizes_is_two_barriers() {
        let mut barriers = barriers();
        let of_two = barriers.arrive(5, b"b", 2).unwrap();
        let of_three = barriers.arrive(6, b"b", 3).unwrap();
        assert_eq!((barriers.look(of_two).2, barriers.look(of_three).2), (1, 1));
    }
}
