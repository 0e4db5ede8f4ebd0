//! Which nodes have been written, and where they lie in the memo. CPython finds an object it wrote before by its identity;
//! we find a node by its value.
//!
//! Every list of a state is in the order of its nodes, so while one is written, a finger in each list before it moves on
//! beside it: no index, no hashing, one comparison or two for each node.

use super::output::Memo;
use crate::rendezvous::node::NodeDesc;

struct Place<'a> {
    node: &'a NodeDesc,
    memo: Memo,
    addr: Memo,
}

#[derive(Default)]
struct Run<'a> {
    places: Vec<Place<'a>>,
    /// The first place that is not before the node asked for last.
    finger: usize,
}

impl Run<'_> {
    fn advance(&mut self, node: &NodeDesc) {
        self.finger += self.places[self.finger..].iter().take_while(|place| place.node < node).count();
    }

    /// The address next to the finger, if it is this one. Nodes of one address lie together, so it is nowhere else.
    fn addr(&self, addr: &str) -> Option<Memo> {
        let from = self.finger.saturating_sub(1);
        let near = &self.places[from..self.places.len().min(self.finger + 1)];
        near.iter().find(|place| *place.node.addr == *addr).map(|place| place.addr)
    }
}

/// What is known of a node that is to be written.
pub(super) enum Sighting {
    /// It lies in the memo.
    Node(Memo),
    /// It is new, but its address lies in the memo.
    Addr(Memo),
    /// Neither does.
    New,
}

/// The nodes written so far.
#[derive(Default)]
pub(super) struct Seen<'a> {
    runs: Vec<Run<'a>>,
}

impl<'a> Seen<'a> {
    /// To be told before each list.
    pub(super) fn begin(&mut self) {
        self.runs.iter_mut().for_each(|run| run.finger = 0);
        self.runs.push(Run::default());
    }

    /// What is known of `node`, which must not be before the one asked for last in this list.
    pub(super) fn find(&mut self, node: &NodeDesc) -> Sighting {
        let mut addr = None;
        for run in &mut self.runs {
            run.advance(node);
            match run.places.get(run.finger) {
                Some(place) if place.node == node => return Sighting::Node(place.memo),
                _ => addr = addr.or_else(|| run.addr(&node.addr)),
            }
        }
        addr.map_or(Sighting::New, Sighting::Addr)
    }

    /// To be told of each node that was new.
    pub(super) fn remember(&mut self, node: &'a NodeDesc, memo: Memo, addr: Memo) {
        if let Some(run) = self.runs.last_mut() {
            run.places.push(Place { node, memo, addr });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks up nodes of the same address in the second list, and says what was found of each.
    fn found(first: &[i64], second: &[i64]) -> Vec<String> {
        let nodes = |pids: &[i64]| pids.iter().map(|pid| NodeDesc::new("b", *pid, 0)).collect::<Vec<_>>();
        let (first, second) = (nodes(first), nodes(second));
        let mut seen = Seen::default();
        seen.begin();
        for (index, node) in first.iter().enumerate() {
            assert!(matches!(seen.find(node), Sighting::New | Sighting::Addr(9)));
            seen.remember(node, index as Memo, 9);
        }
        seen.begin();
        let sightings = second.iter().map(|node| match seen.find(node) {
            Sighting::Node(memo) => memo.to_string(),
            Sighting::Addr(memo) => format!("addr {memo}"),
            Sighting::New => "new".to_owned(),
        });
        sightings.collect()
    }

    #[test]
    fn a_node_of_an_earlier_list_is_found_wherever_it_lies() {
        assert_eq!(found(&[1, 3, 5], &[1, 3, 5]), ["0", "1", "2"]);
        assert_eq!(found(&[1, 3, 5], &[5]), ["2"]);
        assert_eq!(found(&[], &[1, 2]), ["new", "new"]);
    }

    #[test]
    fn an_address_is_found_next_to_where_its_node_would_be() {
        assert_eq!(found(&[3], &[1, 2, 3, 4]), ["addr 9", "addr 9", "0", "addr 9"]);
    }

    #[test]
    fn another_address_is_not_taken_for_it() {
        let (a, b, c) = (NodeDesc::new("a", 0, 0), NodeDesc::new("b", 0, 0), NodeDesc::new("c", 0, 0));
        let mut seen = Seen::default();
        seen.begin();
        seen.remember(&a, 0, 1);
        seen.remember(&c, 2, 3);
        seen.begin();
        assert!(matches!(seen.find(&b), Sighting::New));
    }
}
