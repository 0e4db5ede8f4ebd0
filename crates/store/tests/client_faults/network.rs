//! Another machine, as far as the network is concerned: a namespace with a cable to this one that can be pulled. It needs
//! root and iproute2; without them there is none.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network namespace and the cable to it.
pub(crate) struct Machine {
    name: String,
    near: String,
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
            near: format!("rn{tag}"),
            far: format!("rf{tag}"),
            address: format!("{net}.{}", block + 2),
        };
        let Machine { name, near, far, address } = &machine;
        let possible = ip(&format!("netns add {name}"))
            && ip(&format!("link add {near} type veth peer name {far} netns {name}"))
            && ip(&format!("address add {net}.{}/30 dev {near}", block + 1))
            && ip(&format!("-n {name} address add {address}/30 dev {far}"))
            && ip(&format!("link set {near} up"))
            && ip(&format!("-n {name} link set {far} up"))
            && ip(&format!("-n {name} link set lo up"));
        // If not, dropping it takes away what was made.
        possible.then_some(machine)
    }

    /// What to put before a command so that it runs there.
    pub(crate) fn run(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Pulls the cable at the other end: here, nothing seems to have happened.
    pub(crate) fn unplug(&self) {
        assert!(ip(&format!("-n {} link set {} down", self.name, self.far)));
    }

    /// Puts it back.
    pub(crate) fn plug_in(&self) {
        assert!(ip(&format!("-n {} link set {} up", self.name, self.far)));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Either end takes the other with it.
        ip(&format!("link delete {}", self.near));
        ip(&format!("netns delete {}", self.name));
    }
}
