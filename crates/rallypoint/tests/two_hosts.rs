//! Tests of `rallypoint join` on two hosts, which are network namespaces. A node publishes an address that the other
//! host can reach, and never hosts the store at an address that it does not have. The tests are skipped without root,
//! iproute2 and util-linux.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

const RALLYPOINT: &str = env!("CARGO_BIN_EXE_rallypoint");
const SKIPPED: &str = "skipped: cannot create network namespaces (needs root, iproute2 and util-linux)";

/// A host, which is a network namespace. It exists as long as its process runs.
struct Host(Child);

impl Host {
    fn new() -> Option<Host> {
        let is_possible = Command::new("unshare").args(["--net", "true"]).output();
        if !is_possible.is_ok_and(|output| output.status.success()) {
            return None;
        }
        let mut process = Command::new("unshare");
        process.args(["--net", "sh", "-c", "echo ready; exec sleep 100"]);
        let mut process = process.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().ok()?;
        BufReader::new(process.stdout.as_mut()?).read_line(&mut String::new()).ok()?;
        Some(Host(process))
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.0.id().to_string()]).args(line.split(' '));
        command
    }

    fn run(&self, line: &str) -> bool {
        self.command(line).output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates two hosts with a network link between them. Returns `None` if this machine does not allow it.
fn two_hosts() -> Option<[Host; 2]> {
    let hosts = [Host::new()?, Host::new()?];
    let [first, second] = &hosts;
    let link = format!("ip link add eth0 type veth peer name eth0 netns {}", second.0.id());
    let is_possible = first.run(&link)
        && hosts.iter().zip(1..).all(|(host, n)| {
            host.run(&format!("ip address add 10.77.0.{n}/24 dev eth0"))
                && host.run("ip link set eth0 up")
                && host.run("ip link set lo up")
        });
    is_possible.then_some(hosts)
}

#[test]
fn the_master_address_is_reachable_from_the_other_host() {
    let Some(hosts) = two_hosts() else {
        return println!("{SKIPPED}");
    };
    // The node with the smaller address has group rank 0. It hosts the store in the first case, and the other node
    // does in the second.
    for endpoint in ["10.77.0.1:29400", "10.77.0.2:29400"] {
        let line = format!("{RALLYPOINT} join --rdzv-endpoint {endpoint} --rdzv-id job --nnodes 2");
        let start = |host: &Host| {
            let mut command = host.command(&line);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
        };
        let mut nodes = [start(&hosts[0]), start(&hosts[1])];
        let joined = nodes.each_mut().map(|node| {
            let mut line = String::new();
            BufReader::new(node.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            serde_json::from_str::<Value>(&line).unwrap()
        });
        for (host, round) in hosts.iter().zip(&joined) {
            assert_eq!(round["master_addr"], "10.77.0.1", "{round}");
            assert_eq!(round["master_port"], joined[0]["master_port"]);
            let ping = format!("{RALLYPOINT} store -e 10.77.0.1:{} ping", round["master_port"]);
            assert!(host.run(&ping), "{ping}");
        }
        for mut node in nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

/// With `ip_nonlocal_bind`, which load balancers use, a process can bind addresses that its host does not have.
#[test]
fn a_host_with_nonlocal_bind_serves_the_store_only_at_its_own_address() {
    let Some([host, _other]) = two_hosts() else { return println!("{SKIPPED}") };
    // The setting belongs to the network namespace, so it changes for this host only.
    if !host.run("sysctl -w net.ipv4.ip_nonlocal_bind=1") {
        return println!("skipped: sysctl cannot set net.ipv4.ip_nonlocal_bind");
    }
    let join = |endpoint: &str| {
        let line = format!(
            "{RALLYPOINT} join --rdzv-endpoint {endpoint} --rdzv-id job --rdzv-conf read_timeout=1 -- true"
        );
        host.command(&line).stdin(Stdio::null()).output().unwrap()
    };
    let output = join("10.77.0.9:29400");
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    let output = join("10.77.0.1:29400");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A node with a TCP store publishes the local address of its connection to the store. With a file store there is no
/// such connection.
#[test]
fn nodes_with_a_file_store_use_a_network_address_even_without_a_default_route() {
    let Some([host, _other]) = two_hosts() else { return println!("{SKIPPED}") };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let line =
        format!("{RALLYPOINT} join --rdzv-endpoint {} --rdzv-conf store_type=file -- true", path.display());
    let output = host.command(&line).stdin(Stdio::null()).output().unwrap();
    let round: Value = serde_json::from_slice(&output.stdout).expect("the node has joined");
    assert_eq!(round["master_addr"], "10.77.0.1", "{round}");
}
