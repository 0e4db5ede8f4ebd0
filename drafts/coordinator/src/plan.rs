//! Selects the members of the next round and assigns their group ranks.
//!
//! The function [`plan`] is deterministic: it depends only on its arguments.

use std::collections::{BTreeMap, BTreeSet};

use crate::terms::Terms;

/// A node that wants to be in the next round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The group rank of the node in the round before, if the node was a member of it.
    pub previous_rank: Option<u32>,
    /// The group rank that the node asks for.
    pub pin: Option<u32>,
    /// The values of the topology keys, from the widest to the narrowest, such as rack and switch.
    pub topology: Vec<String>,
}

/// Why no round can be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Shortage {
    /// There are fewer candidates than the minimum.
    #[error("{joined} of at least {min} nodes have joined")]
    TooFew {
        /// The number of candidates.
        joined: usize,
        /// The minimum.
        min: usize,
    },
    /// There are enough candidates, but not enough whole units.
    #[error("{joined} nodes have joined, which give {usable} nodes in whole units of {unit}; at least {min} are needed")]
    TooFewUnits {
        /// The number of candidates.
        joined: usize,
        /// The number of candidates in whole units.
        usable: usize,
        /// The number of nodes in a unit.
        unit: usize,
        /// The minimum.
        min: usize,
    },
}

/// Returns the indices of the candidates that form the next round, ordered by group rank.
///
/// `candidates` are sorted by the time at which they asked to join. Candidates from the round before are selected before
/// all others.
///
/// # Errors
///
/// Fails if the candidates do not suffice for `terms.min_nodes`.
pub fn plan(candidates: &[Candidate], terms: &Terms) -> Result<Vec<usize>, Shortage> {
    let selected = select(candidates, terms)?;
    Ok(assign(candidates, selected, terms))
}

/// Selects up to `max_nodes` candidates, in whole units.
fn select(candidates: &[Candidate], terms: &Terms) -> Result<Vec<usize>, Shortage> {
    let (min, max, unit) = (terms.min_nodes as usize, terms.max_nodes as usize, terms.node_unit.max(1) as usize);
    if candidates.len() < min {
        return Err(Shortage::TooFew { joined: candidates.len(), min });
    }
    // The sort is stable, so both parts stay sorted by the time of the join.
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|index| candidates[*index].previous_rank.is_none());
    let mut groups: BTreeMap<&[String], Vec<usize>> = BTreeMap::new();
    let mut units: Vec<Vec<usize>> = Vec::new();
    for index in order {
        // All nodes of a unit are in the same topology group.
        let group = groups.entry(&candidates[index].topology).or_default();
        group.push(index);
        if group.len() == unit {
            units.push(std::mem::take(group));
        }
    }
    units.truncate(max / unit);
    let selected: Vec<usize> = units.concat();
    if selected.len() < min {
        let (joined, usable) = (candidates.len(), selected.len());
        return Err(Shortage::TooFewUnits { joined, usable, unit, min });
    }
    Ok(selected)
}

/// Assigns ranks to the selected candidates, and returns them ordered by rank.
fn assign(candidates: &[Candidate], selected: Vec<usize>, terms: &Terms) -> Vec<usize> {
    let count = selected.len() as u32;
    let mut free: BTreeSet<u32> = (0..count).collect();
    let mut ranks: BTreeMap<u32, usize> = BTreeMap::new();
    let mut place = |rank: Option<u32>, index: usize| -> bool {
        let placed = rank.is_some_and(|rank| free.remove(&rank));
        if placed {
            ranks.insert(rank.expect("a placed candidate has a rank"), index);
        }
        placed
    };
    let mut rest = selected;
    rest.retain(|index| !place(candidates[*index].pin, *index));
    if candidates.iter().all(|candidate| candidate.topology.is_empty()) {
        rest.retain(|index| !place(candidates[*index].previous_rank, *index));
    } else {
        sort_by_group(candidates, &mut rest);
    }
    ranks.extend(free.into_iter().zip(rest));
    let _ = terms;
    ranks.into_values().collect()
}

/// Sorts candidates so that those of a topology group are contiguous. Groups, and the candidates of a group, are sorted
/// by their lowest rank in the round before. Those that were not in that round follow.
fn sort_by_group(candidates: &[Candidate], selected: &mut [usize]) {
    let previous = |index: usize| candidates[index].previous_rank.unwrap_or(u32::MAX);
    // The lowest previous rank of each group, for groups of every width.
    let mut lowest: BTreeMap<&[String], (u32, usize)> = BTreeMap::new();
    for (position, index) in selected.iter().enumerate() {
        let topology = &candidates[*index].topology;
        for width in 1..=topology.len() {
            let group = lowest.entry(&topology[..width]).or_insert((u32::MAX, position));
            group.0 = group.0.min(previous(*index));
        }
    }
    let key = |index: usize| {
        let topology = &candidates[index].topology;
        let groups: Vec<(u32, usize)> = (1..=topology.len()).map(|width| lowest[&topology[..width]]).collect();
        (groups, previous(index))
    };
    selected.sort_by_cached_key(|index| key(*index));
}

#[cfg(test)]
mod tests;
