//! What this machine is called.

use std::net::{IpAddr, ToSocketAddrs};

/// The name the machine gives itself.
pub(crate) fn short_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Its full name, as Python's `socket.getfqdn()` finds it in the list of hosts. A name that only a name server knows is not
/// asked for: the report of a failure must not wait for one.
pub(crate) fn full_name() -> String {
    let name = short_name();
    let addresses: Vec<IpAddr> =
        (name.as_str(), 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip()).collect();
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    full_name_in(&hosts, &name, &addresses)
}

/// The first line that has one of the addresses tells the names: the first of them with a dot, or else the first.
fn full_name_in(hosts: &str, name: &str, addresses: &[IpAddr]) -> String {
    if name.contains('.') && addresses.is_empty() {
        return name.into();
    }
    for address in addresses {
        let line = hosts.lines().find_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            (words.next()?.parse::<IpAddr>().ok()? == *address).then(|| words.collect::<Vec<_>>())
        });
        if let Some(first) = line.as_ref().and_then(|names| names.first()) {
            let full = line.iter().flatten().find(|name| name.contains('.'));
            return (*full.unwrap_or(first)).to_owned();
        }
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_name_is_the_one_with_a_dot_of_the_first_line_with_the_address() {
        let hosts = "127.0.0.1 localhost # x.y\n127.0.0.1 vm.example vm\n10.0.0.1 a node7.cluster\n";
        let full = |name: &str, address: &str| full_name_in(hosts, name, &[address.parse().unwrap()]);
        assert_eq!(full("vm", "127.0.0.1"), "localhost");
        assert_eq!(full("a", "10.0.0.1"), "node7.cluster");
        assert_eq!(full("b", "10.0.0.9"), "b");
        assert_eq!(full_name_in(hosts, "c.d", &[]), "c.d");
    }
}
