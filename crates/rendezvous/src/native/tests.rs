//! Tests that reach into the server of a node.

use std::net::TcpStream;
use std::time::Instant;

use rallypoint_testkit::Port;

use super::*;
use crate::parameters::parse_rendezvous_config;

fn handler(endpoint: &str, nodes: u64, config: &str, local_addr: Option<&str>) -> NativeRendezvousHandler {
    let parameters = RendezvousParameters::new(NATIVE_BACKEND, endpoint, "job", nodes, nodes).unwrap();
    let parameters = parameters.with_config(parse_rendezvous_config(config).unwrap()).unwrap();
    let parameters = parameters.with_local_addr(local_addr.map(str::to_owned));
    NativeRendezvousHandler::create(&parameters, NativeNode::default(), None, None).unwrap()
}

/// Makes the thread of the server panic, as a bug would.
fn end_server(handler: &NativeRendezvousHandler) {
    handler.service.call(|_, _| panic!("this panic is part of the test"));
}

fn is_server_ended(error: &RendezvousError) -> bool {
    matches!(error, RendezvousError::Native { fault: NativeFault::ServerEnded, .. })
}

#[test]
fn a_node_in_a_round_notices_that_its_server_has_ended() {
    let port = Port::reserve();
    let handler = handler(&port.endpoint(), 1, "", None);
    handler.next_rendezvous().unwrap();
    handler.membership().unwrap();
    let start = Instant::now();
    end_server(&handler);
    while handler.membership().is_ok() && start.elapsed() < Duration::from_secs(60) {
        handler.wait_for_change(Duration::from_secs(60));
    }
    assert!(is_server_ended(&handler.membership().unwrap_err()));
    assert!(is_server_ended(&handler.next_rendezvous().unwrap_err()));
    assert!(is_server_ended(&handler.set_closed().unwrap_err()));
    assert!(is_server_ended(&handler.leave().unwrap_err()));
}

#[test]
fn a_waiting_node_notices_that_its_server_has_ended() {
    let port = Port::reserve();
    let handler = handler(&port.endpoint(), 2, "", None);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| handler.next_rendezvous());
        end_server(&handler);
        assert!(is_server_ended(&waiting.join().unwrap().unwrap_err()));
    });
}

#[test]
fn a_node_listens_at_the_address_that_it_advertises() {
    let port = Port::reserve();
    // The endpoint is one address of this machine, and the node is reached at another one.
    let handler = handler(&port.endpoint(), 1, "", Some("127.0.0.2"));
    assert_eq!(handler.node().address, format!("127.0.0.2:{}", port.number));
    for address in ["127.0.0.1", "127.0.0.2"] {
        TcpStream::connect((address, port.number)).unwrap_or_else(|error| panic!("{address}: {error}"));
    }
}
