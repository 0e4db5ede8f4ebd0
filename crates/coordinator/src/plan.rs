//! Selects the members of the next round and assigns their group ranks.

use std::collections::{BTreeMap, BTreeSet};

use crate::settings::JobSettings;

/// A node that wants to be in the next round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The group rank of the node in the round before, if the node was a member of it.
    pub previous_rank: Option<u32>,
    /// The group rank that the node asks for.
    pub pin: Option<u32>,
    /// The group rank that the node takes if no other node has it.
    pub preferred_rank: Option<u32>,
    /// The topology group of the node.
    pub topology: &'a [String],
}

/// Why no round can be planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// The number of candidates that could be in a round.
    pub usable: usize,
    /// The number of candidates. It is greater than `usable` if some candidates are in no whole unit.
    pub joined: usize,
}

/// Returns the indices of the candidates that form the next round, ordered by group rank.
///
/// `candidates` are sorted by the time at which they asked to join. Candidates from the round before are selected before
/// all others.
///
/// # Errors
///
/// Fails if the candidates do not suffice for `min_nodes`.
pub fn plan(candidates: &[Candidate<'_>], settings: &JobSettings) -> Result<Vec<usize>, Shortage> {
    let selected = select(candidates, settings);
    match selected.len() < settings.min_nodes as usize {
        true => Err(Shortage { usable: selected.len(), joined: candidates.len() }),
        false => Ok(assign(candidates, selected)),
    }
}

/// Selects up to `max_nodes` candidates, in whole units. All nodes of a unit are in one topology group.
fn select(candidates: &[Candidate<'_>], settings: &JobSettings) -> Vec<usize> {
    let is_new = |index: &usize| candidates[*index].previous_rank.is_none();
    let size = settings.node_unit.max(1) as usize;
    // Both sorts are stable, so candidates that joined earlier stay before others.
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(is_new);
    let mut incomplete: BTreeMap<&[String], Vec<usize>> = BTreeMap::new();
    let mut units: Vec<Vec<usize>> = Vec::new();
    for index in order {
        let unit = incomplete.entry(candidates[index].topology).or_default();
        unit.push(index);
        if unit.len() == size {
            units.push(std::mem::take(unit));
        }
    }
    units.sort_by_key(|unit| unit.iter().filter(|index| is_new(index)).count());
    units.truncate(settings.max_nodes as usize / size);
    units.concat()
}

/// Assigns ranks to the selected candidates, and returns them ordered by rank.
///
/// Pinned ranks come first. The ranks of each topology group are contiguous among the others, and within the ranks of
/// its group, a candidate keeps the rank of the round before, or gets the rank that it prefers. Without a topology, all
/// candidates are one group.
fn assign(candidates: &[Candidate<'_>], mut selected: Vec<usize>) -> Vec<usize> {
    let mut free: BTreeSet<u32> = (0..selected.len() as u32).collect();
    let mut ranks: BTreeMap<u32, usize> = BTreeMap::new();
    selected.retain(|index| match candidates[*index].pin.filter(|pin| free.remove(pin)) {
        Some(pin) => ranks.insert(pin, *index).is_some(),
        None => true,
    });
    sort_by_group(candidates, &mut selected);
    let mut free = free.into_iter();
    for group in selected.chunk_by(|one, other| candidates[*one].topology == candidates[*other].topology) {
        let mut block: BTreeSet<u32> = free.by_ref().take(group.len()).collect();
        let mut moved = Vec::new();
        for index in group {
            match candidates[*index].previous_rank.filter(|rank| block.remove(rank)) {
                Some(rank) => _ = ranks.insert(rank, *index),
                None => moved.push(*index),
            }
        }
        moved.retain(|index| match candidates[*index].preferred_rank.filter(|rank| block.remove(rank)) {
            Some(rank) => ranks.insert(rank, *index).is_some(),
            None => true,
        });
        ranks.extend(block.into_iter().zip(moved));
    }
    ranks.into_values().collect()
}

/// Sorts candidates so that those of each topology group are contiguous. Groups, and the candidates of a group, are
/// sorted by their lowest rank in the round before. Those that were not in that round follow.
fn sort_by_group(candidates: &[Candidate<'_>], selected: &mut [usize]) {
    let previous = |index: usize| candidates[index].previous_rank.unwrap_or(u32::MAX);
    // The lowest previous rank of each group of every width, and the position at which the group first occurs.
    let mut order: BTreeMap<&[String], (u32, usize)> = BTreeMap::new();
    for (position, index) in selected.iter().enumerate() {
        let topology = candidates[*index].topology;
        for width in 1..=topology.len() {
            let group = order.entry(&topology[..width]).or_insert((u32::MAX, position));
            group.0 = group.0.min(previous(*index));
        }
    }
    selected.sort_by_cached_key(|index| {
        let topology = candidates[*index].topology;
        let groups: Vec<(u32, usize)> = (1..=topology.len()).map(|width| order[&topology[..width]]).collect();
        (groups, previous(*index))
    });
}

#[cfg(test)]
mod tests;
