//! Another machine, as far as the network is concerned: a process with a network of its own behind a switch that is one,
//! too, and a cable between them that can be pulled. It needs root, iproute2 and util-linux; without them there is none.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::child::{read_line, start};

/// A machine, the switch before it, and the cables. The networks live as long as the processes that have them, so that
/// nothing stays behind however the tests end.
pub(crate) struct Machine {
    host: Network,
    switch: Network,
    /// This machine's end of the cable to the switch.
    near: String,
    /// Its address.
    pub(crate) address: String,
}

/// A network of its own, and the process that has it.
struct Network {
    holder: Child,
    /// How a command is run in it.
    enter: [String; 4],
}

/// Runs `ip`; whether that worked.
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
    /// Sets one up, if that is possible here.
    pub(crate) fn new() -> Option<Machine> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = std::process::id();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let net = format!("10.{}.{}", 128 + (id >> 8) % 100, id & 255);
        let block = 4 * (count & 63);
        let machine = Machine {
            host: Network::new()?,
            switch: Network::new()?,
            // Names of interfaces are short.
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

    /// What to put before a command so that it runs there.
    pub(crate) fn enter(&self) -> Vec<&str> {
        self.host.enter.iter().map(String::as_str).collect()
    }

    /// From now on the switch passes on nothing, and neither end can see that.
    pub(crate) fn cut(&self) {
        assert!(self.switch.ip("link set far nomaster"));
    }

    pub(crate) fn reconnect(&self) {
        assert!(self.switch.ip("link set far master switch"));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It goes with the switch, too, but later.
        ip(&format!("link delete {}", self.near));
    }
}
