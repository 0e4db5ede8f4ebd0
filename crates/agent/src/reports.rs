//! Reads from a round's store how many nodes of the round have finished.

use std::time::Duration;

use rallypoint_core::supervise::Reports;
use rallypoint_rendezvous::{
    ExitBarrier, Membership, RendezvousInfo, count_reported_ended, has_reported_ended,
};
use rallypoint_store::{Result, Store};

/// The timeout of each call to the store.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the reports of the nodes of this round. `seen` contains the lost nodes.
pub(crate) fn read_reports(round: &RendezvousInfo, seen: &Membership) -> Result<Reports> {
    let store = &*round.store.with_timeout(Some(CALL_TIMEOUT));
    let lost = seen.lost.as_ref().map_or(&[][..], |lost| &lost.nodes);
    let mut lost_finished = 0;
    for (node, rank) in round.participants.iter().zip(0..) {
        if lost.contains(node) && has_reported_ended(store, rank)? {
            lost_finished += 1;
        }
    }
    // The two counts are not read atomically, and a node of ours increments `ours_finished` before `finished`. A node
    // that increments both between the two reads looks like a finished torch node. A node that has incremented only
    // `ours_finished` makes a finished torch node look lost. The supervisor therefore acts only if two consecutive
    // polls show lost nodes.
    let ours_finished = count_reported_ended(store)?.max(0) as u64;
    let finished = ExitBarrier::of(round).with_timeout(CALL_TIMEOUT).count_ended()?.max(0) as u64;
    Ok(Reports { finished, ours_finished, lost_finished })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rallypoint_rendezvous::{LossCause, Lost, NodeDesc, RendezvousStoreInfo, report_ended};
    use rallypoint_store::{HashStore, PrefixStore};

    use super::*;

    #[test]
    fn our_lost_nodes_are_identified_by_their_reports_and_torchs_are_only_counted() {
        let store = Arc::new(PrefixStore::new("round", Arc::new(HashStore::new())));
        let nodes: Vec<_> = (0..3).map(|number| NodeDesc::new("host", number, 0)).collect();
        let round = RendezvousInfo {
            store: Arc::clone(&store),
            rank: 0,
            world_size: 3,
            bootstrap_store_info: RendezvousStoreInfo { master_addr: "host".into(), master_port: 1 },
            use_agent_store: true,
            round: 0,
            lost: 0,
            participants: nodes.clone(),
        };
        let cause = LossCause::NoHeartbeat(Duration::from_secs(15));
        let lost = Lost { nodes: nodes[1..].to_vec(), cause };
        let seen = Membership { lost: Some(lost), ..Membership::default() };
        assert_eq!(read_reports(&round, &seen).unwrap(), Reports::default());
        report_ended(&*store, 1).unwrap();
        store.add("torchelastic/agent/terminal_state/num_members", 2).unwrap();
        let reports = Reports { finished: 2, ours_finished: 1, lost_finished: 1 };
        assert_eq!(read_reports(&round, &seen).unwrap(), reports);
    }
}
