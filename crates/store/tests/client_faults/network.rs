//! Another machine, as far as the network is concerned: a namespace behind a switch in a namespace of its own, and a
//! cable between them that can be pulled. It needs root and iproute2; without them there is none.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A machine, the switch before it, and the cables.
pub(crate) struct Machine {
    name: String,
    switch: String,
    /// This machine's end of the cable to the switch.
    near: String,
    /// The switch's end of the cable to the other machine.
    far: String,
    /// Its address.
    pub(crate) address: String,
}

/// Runs `ip`; whether that worked.
fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

impl Machine {
    /// Sets one up, if that is possible here.
    pub(crate) fn new() -> Option<Machine> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = std::process::id();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Names of interfaces are short.
        let tag = format!("{:x}", (id << 4) | (count & 15));
        let net = format!("10.{}.{}", 128 + (id >> 8) % 100, id & 255);
        let block = 4 * (count & 63);
        let machine = Machine {
            name: format!("rally-{tag}"),
            switch: format!("rally-switch-{tag}"),
            near: format!("rn{tag}"),
            far: format!("rf{tag}"),
            address: format!("{net}.{}", block + 2),
        };
        let Machine { name, switch, near, far, address } = &machine;
        let possible = ip(&format!("netns add {name}"))
            && ip(&format!("netns add {switch}"))
            && ip(&format!("-n {switch} link add switch type bridge"))
            && ip(&format!("link add {near} type veth peer name near netns {switch}"))
            && ip(&format!("-n {switch} link add {far} type veth peer name eth0 netns {name}"))
            && ip(&format!("-n {switch} link set near master switch up"))
            && ip(&format!("-n {switch} link set {far} master switch up"))
            && ip(&format!("-n {switch} link set switch up"))
            && ip(&format!("address add {net}.{}/30 dev {near}", block + 1))
            && ip(&format!("link set {near} up"))
            && ip(&format!("-n {name} address add {address}/30 dev eth0"))
            && ip(&format!("-n {name} link set eth0 up"))
            && ip(&format!("-n {name} link set lo up"));
        // If not, dropping it takes away what was made.
        possible.then_some(machine)
    }

    /// What to put before a command so that it runs there.
    pub(crate) fn run(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// From now on the switch passes on nothing, and neither end can see that.
    pub(crate) fn unplug(&self) {
        assert!(ip(&format!("-n {} link set {} nomaster", self.switch, self.far)));
    }

    pub(crate) fn plug_in(&self) {
        assert!(ip(&format!("-n {} link set {} master switch", self.switch, self.far)));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Either end of a cable takes the other with it.
        ip(&format!("link delete {}", self.near));
        ip(&format!("netns delete {}", self.switch));
        ip(&format!("netns delete {}", self.name));
    }
}
