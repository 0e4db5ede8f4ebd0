//! Who is gone from a round without having finished. Who has finished says so under its own name before it is counted;
//! torch's agents are only counted, and while they wait for the others they send no heartbeats, so that they are taken for
//! dead. As many of those who are gone as were counted and are not ours have therefore finished.

use rallypoint_rendezvous::{
    NodeDesc, RendezvousError, RendezvousHandler, RendezvousInfo, has_said_that_it_ended, ours_that_ended,
};
use rallypoint_store::{Result, Store};

use crate::finishing::finished;

/// Nodes that are lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// How many.
    pub(crate) count: u64,
    /// Who they are. Some of these may be agents of torch's that have finished, if there are more than that.
    pub(crate) among: Vec<NodeDesc>,
}

/// Who of this round is lost. What the store does not tell now, it tells when it is asked again.
pub(crate) fn lost(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
) -> std::result::Result<Lost, RendezvousError> {
    if handler.num_nodes_gone()? == 0 {
        return Ok(Lost::default());
    }
    let gone = handler.gone_from_round()?;
    let finished = || finished(round);
    Ok(unfinished(&*round.store, &round.participants, &gone, finished).unwrap_or_default())
}

fn unfinished(
    store: &dyn Store,
    participants: &[NodeDesc],
    gone: &[NodeDesc],
    finished: impl Fn() -> Result<u64>,
) -> Result<Lost> {
    let mut among = Vec::new();
    for (node, rank) in participants.iter().zip(0..) {
        if gone.contains(node) && !has_said_that_it_ended(store, rank)? {
            among.push(node.clone());
        }
    }
    // In this order: who finishes between the two is taken for one of torch's until it is asked again. Who has said so and is
    // not counted yet makes one of torch's seem lost; whoever asks does not act on what is so for a moment only.
    let ours = ours_that_ended(store)?.max(0) as u64;
    let torchs = finished()?.saturating_sub(ours);
    let count = (among.len() as u64).saturating_sub(torchs);
    Ok(if count == 0 { Lost::default() } else { Lost { count, among } })
}

#[cfg(test)]
mod tests {
    use rallypoint_rendezvous::say_that_it_ended;
    use rallypoint_store::HashStore;

    use super::*;

    const COUNT: &str = "torchelastic/agent/terminal_state/num_members";

    fn nodes() -> Vec<NodeDesc> {
        (0..3).map(|number| NodeDesc::new("host", number, 0)).collect()
    }

    #[test]
    fn who_is_gone_is_lost_unless_it_has_finished() {
        let (store, nodes) = (HashStore::new(), nodes());
        let finished = || store.add(COUNT, 0).map(|count| count as u64);
        let lost = |gone: &[NodeDesc]| unfinished(&store, &nodes, gone, finished).unwrap();
        assert_eq!(lost(&nodes[1..2]), Lost { count: 1, among: vec![nodes[1].clone()] });
        say_that_it_ended(&store, 0).unwrap();
        store.add(COUNT, 1).unwrap();
        assert_eq!(lost(&nodes[..1]), Lost::default());
        assert_eq!(lost(&nodes[1..2]).count, 1, "that another has finished is no excuse");
    }

    #[test]
    fn an_agent_of_torchs_that_has_finished_and_falls_silent_is_not_lost() {
        let (store, nodes) = (HashStore::new(), nodes());
        let finished = || store.add(COUNT, 0).map(|count| count as u64);
        let lost = |gone: &[NodeDesc]| unfinished(&store, &nodes, gone, finished).unwrap();
        store.add(COUNT, 1).unwrap();
        assert_eq!(lost(&nodes[2..]), Lost::default());
        assert_eq!(lost(&nodes[1..]), Lost { count: 1, among: nodes[1..].to_vec() }, "one of them");
        say_that_it_ended(&store, 0).unwrap();
        store.add(COUNT, 1).unwrap();
        assert_eq!(lost(&nodes[2..]), Lost::default());
        assert_eq!(lost(&nodes[1..]).count, 1);
    }
}
