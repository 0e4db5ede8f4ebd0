use super::*;

#[test]
fn a_leader_that_leaves_hands_over_before_its_process_goes() {
    for nodes in [2, 3, 4, 6] {
        let mut net = Net::running(settings(1, 6), nodes);
        let term = net.hosts[0].service.coordinator("job").unwrap().replica().term();
        net.with_client(0, |client, _| client.leave());
        net.pass(SECOND);
        assert!(net.has_left(0), "{nodes} nodes");
        net.kill(0);
        let leader = net.leader().expect("another node leads");
        let replica = net.hosts[leader].service.coordinator("job").unwrap().replica();
        assert_eq!(
            (replica.term(), replica.voters().contains(&NodeId(1))),
            (term + 1, false),
            "{nodes} nodes"
        );
        net.pass(SECOND);
        assert_eq!(net.running_nodes(1), (1..nodes).collect::<Vec<_>>());
    }
}

#[test]
fn the_last_node_leaves_at_once() {
    let mut net = Net::running(settings(1, 1), 1);
    net.with_client(0, |client, _| client.leave());
    net.pass(SECOND / 2);
    assert!(net.has_left(0));
}

#[test]
fn nodes_that_leave_together_all_leave() {
    let mut net = Net::running(settings(1, 4), 4);
    (0..4).for_each(|host| net.with_client(host, |client, _| client.leave()));
    net.pass(3 * SECOND);
    for host in 0..4 {
        assert!(net.has_left(host), "h{host}");
    }
}

#[test]
fn the_leader_of_a_drained_node_hands_over_while_the_round_runs() {
    let mut net = Net::running(settings(1, 3), 3);
    net.with_client(0, |client, _| client.drain(None));
    net.pass(3 * SECOND);
    assert_ne!(net.leader(), Some(0));
    assert_eq!(net.running_nodes(0), [0, 1, 2]);
}

#[test]
fn a_change_of_leader_touches_no_worker() {
    let mut net = Net::running(settings(1, 3), 3);
    net.kill(0);
    net.pass(8 * SECOND);
    assert!(net.leader().is_some());
    let lease_over = |host: &Host| host.events.iter().any(|event| matches!(event, Event::LeaseOver { .. }));
    assert!(!net.hosts.iter().any(lease_over));
    assert_eq!(net.running_nodes(1), [1, 2]);
}

#[test]
fn a_separate_server_tells_newcomers_where_the_leader_is_after_changes_of_leader() {
    let mut net = Net::new(settings(1, 8));
    net.add_server();
    (0..5).for_each(|_| _ = net.add_node());
    net.pass(10 * SECOND);
    // Five nodes have all replicas, so the server has none.
    let leader = net.leader().unwrap();
    assert!(leader != 0 && net.hosts[0].service.coordinator("job").is_none());
    net.kill(leader);
    net.pass(10 * SECOND);
    assert!(net.leader().is_some());
    let newcomer = net.add_node();
    net.pass(5 * SECOND);
    assert_eq!(net.activity(newcomer).1, Phase::Working);
}

#[test]
fn replicas_follow_the_number_of_nodes() {
    let mut net = Net::running(settings(1, 6), 2);
    assert_eq!(net.voters(0), 1);
    net.add_node();
    net.pass(3 * SECOND);
    assert_eq!(net.voters(0), 3);
    (0..2).for_each(|_| _ = net.add_node());
    net.pass(3 * SECOND);
    assert_eq!(net.voters(0), 5);
    net.kill(4);
    net.pass(8 * SECOND);
    assert_eq!(net.voters(0), 3);
}

#[test]
fn force_quorum_lets_the_last_voter_continue() {
    let mut net = Net::running(settings(1, 3), 3);
    net.kill(0);
    net.kill(1);
    net.pass(10 * SECOND);
    assert_eq!(net.leader(), None);
    let open = Open {
        version: PROTOCOL_VERSION,
        host: "operator".into(),
        run_id: "job".into(),
        purpose: Purpose::Operator(crate::message::Command::ForceQuorum),
    };
    let message = serde_json::to_vec(&open).unwrap();
    let (connection, now) = (ConnectionId::from_bits(1 << 20), net.now);
    net.hosts[2].service.handle_message(Peer::Client(connection), &message, now).unwrap();
    net.drain(2);
    net.pass(15 * SECOND);
    assert_eq!((net.leader(), net.activity(2).1), (Some(2), Phase::Working));
}

#[test]
fn a_leader_that_can_not_hand_over_still_decides() {
    let mut net = Net::running(settings(1, 3), 3);
    net.loses_handovers = true;
    net.with_client(0, |client, _| client.drain(None));
    net.pass(SECOND);
    net.kill(2);
    net.pass(8 * SECOND);
    assert_eq!((net.leader(), net.running_nodes(1)), (Some(0), vec![1]));
}
