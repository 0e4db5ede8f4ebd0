//! The names of this machine.

/// Returns the host name, which may or may not contain a domain.
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the full name that Python's `socket.getfqdn()` finds in `/etc/hosts`. This function queries no name server,
/// because a slow one would delay the failure report.
pub(crate) fn full_name() -> String {
    full_name_in(&std::fs::read_to_string("/etc/hosts").unwrap_or_default(), &hostname())
}

/// Returns a name from the first line with the address of `name`: the first name with a dot, or else the first name.
/// Returns `name` if it has no address in `hosts`.
fn full_name_in(hosts: &str, name: &str) -> String {
    let words = |line| str::split_whitespace(str::split(line, '#').next().unwrap_or_default());
    let address = hosts.lines().find(|line| words(line).skip(1).any(|word| word == name));
    let address = address.and_then(|line| words(line).next());
    let line = hosts.lines().find(|line| address.is_some() && words(line).next() == address);
    let names: Vec<&str> = line.map(|line| words(line).skip(1).collect()).unwrap_or_default();
    names.iter().find(|name| name.contains('.')).or(names.first()).map_or(name, |name| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_name_is_the_dotted_name_in_the_first_line_with_the_address() {
        let hosts = "127.0.0.1 localhost # vm\n127.0.0.1 vm.example vm\n10.0.0.1 a node7.cluster\n";
        for (name, full) in [
            ("vm", "localhost"),
            ("a", "node7.cluster"),
            ("b", "b"),
            ("10.0.0.1", "10.0.0.1"),
            ("c.d", "c.d"),
        ] {
            assert_eq!(full_name_in(hosts, name), full);
        }
    }
}
