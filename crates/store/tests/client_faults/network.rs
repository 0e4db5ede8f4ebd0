//! A simulated machine: a network namespace behind a switch, which is another network namespace. Tests can cut the
//! link.
//!
//! Creating the namespaces needs root, iproute2 and util-linux.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::child::{read_line, start};

/// A machine, its switch, and the links between them.
///
/// Each namespace exists as long as its process, and the process exits with the tests, even if they are killed.
pub(crate) struct Machine {
    host: Network,
    switch: Network,
    /// The interface on the real machine that is linked to the switch.
    near: String,
    /// The address of the simulated machine.
    pub(crate) address: String,
}

/// A network namespace, and the process that keeps it alive.
struct Network {
    holder: Child,
    /// The command that runs another command in the namespace.
    enter: [String; 4],
}

/// Runs `ip`. Returns whether it succeeded.
fn ip(arguments: &str) -> bool {
    run(&format!("ip {arguments}"))
}

fn run(command: &str) -> bool {
    let words: Vec<_> = command.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

impl Network {
    fn new() -> Option<Network> {
        if !run("unshare --net true") {
            return None;
        }
        let mut holder = start(&["unshare", "--net"], "hold");
        read_line(&mut holder);
        let enter = ["nsenter", "--net", "--target", &holder.id().to_string()].map(String::from);
        Some(Network { holder, enter })
    }

    fn id(&self) -> u32 {
        self.holder.id()
    }

    fn ip(&self, arguments: &str) -> bool {
        run(&format!("{} ip {arguments}", self.enter.join(" ")))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Machine {
    /// Creates a machine. Returns `None` if this process cannot create its network namespaces or links.
    pub(crate) fn new() -> Option<Machine> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = std::process::id();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let net = format!("10.{}.{}", 128 + (id >> 8) % 100, id & 255);
        let block = 4 * (count & 63);
        let machine = Machine {
            host: Network::new()?,
            switch: Network::new()?,
            // The name of an interface has at most 15 characters.
            near: format!("rn{:x}", (id << 4) | (count & 15)),
            address: format!("{net}.{}", block + 2),
        };
        let Machine { host, switch, near, address } = &machine;
        let is_ready = switch.ip("link add switch type bridge")
            && ip(&format!("link add {near} type veth peer name near netns {}", switch.id()))
            && switch.ip(&format!("link add far type veth peer name eth0 netns {}", host.id()))
            && switch.ip("link set near master switch up")
            && switch.ip("link set far master switch up")
            && switch.ip("link set switch up")
            && ip(&format!("address add {net}.{}/30 dev {near}", block + 1))
            && ip(&format!("link set {near} up"))
            && host.ip(&format!("address add {address}/30 dev eth0"))
            && host.ip("link set eth0 up")
            && host.ip("link set lo up");
        is_ready.then_some(machine)
    }

    /// Returns the command that runs another command on the machine.
    pub(crate) fn enter(&self) -> Vec<&str> {
        self.host.enter.iter().map(String::as_str).collect()
    }

    /// Cuts the link. The switch drops all packets, but the interfaces of both sides stay up.
    pub(crate) fn cut(&self) {
        assert!(self.switch.ip("link set far nomaster"));
    }

    pub(crate) fn reconnect(&self) {
        assert!(self.switch.ip("link set far master switch"));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The kernel would also delete the interface together with the switch, but only after a delay.
        ip(&format!("link delete {}", self.near));
    }
}
