//! The hosts that are expected in a job, according to a list from the user or from Slurm. The list is used in messages
//! only, and hosts that are not in it can join as well.

mod addresses;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use rallypoint_core::rendezvous::NodeDesc;

use crate::error::{RendezvousError, Result};
use crate::parameters::RendezvousParameters;
use addresses::Addresses;

/// The hosts that are expected in a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpectedHosts {
    names: Vec<String>,
    addresses: Arc<Addresses>,
}

/// Expected hosts that have not joined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingHosts {
    /// Hosts that are certainly missing.
    pub names: Box<[String]>,
    /// Hosts that may be missing: their names have not been resolved, and some of the nodes that joined are known only
    /// by address.
    pub uncertain: Box<[String]>,
}

/// The largest number of hosts in a list. A longer list is a mistake or an attack.
const MAX_HOSTS: usize = 100_000;

impl MissingHosts {
    /// Returns `; missing hosts: a, b; possibly missing hosts: c (addresses unknown)`, with at most `max_named` names
    /// in each list. A list without hosts is left out.
    pub fn describe(&self, max_named: usize) -> String {
        let list = |names: &[String]| match names.len() > max_named {
            true => format!("{} and {} more", names[..max_named].join(", "), names.len() - max_named),
            false => names.join(", "),
        };
        let mut text = String::new();
        if !self.names.is_empty() {
            text += &format!("; missing hosts: {}", list(&self.names));
        }
        if !self.uncertain.is_empty() {
            text += &format!("; possibly missing hosts: {} (addresses unknown)", list(&self.uncertain));
        }
        text
    }
}

impl ExpectedHosts {
    /// Returns the hosts in the option `expected_hosts`, or in Slurm's node list.
    pub(crate) fn from_parameters(parameters: &RendezvousParameters) -> Result<ExpectedHosts> {
        ExpectedHosts::parse(parameters.get("expected_hosts").map(ToString::to_string).as_deref())
    }

    /// Returns the hosts in `list`, or in Slurm's node list.
    pub(crate) fn parse(list: Option<&str>) -> Result<ExpectedHosts> {
        if let Some(list) = list {
            let hosts = expand(list).ok_or_else(|| {
                RendezvousError::parameter(format!(
                    "expected_hosts={list} is not a list of hosts; write host1;host2 or host[1-8]"
                ))
            })?;
            return Ok(ExpectedHosts::from_names(hosts));
        }
        let list = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"].iter().find_map(|name| std::env::var(name).ok());
        // If Slurm's list is malformed, no hosts are expected.
        Ok(ExpectedHosts::from_names(list.and_then(|list| expand(&list)).unwrap_or_default()))
    }

    fn from_names(names: Vec<String>) -> ExpectedHosts {
        ExpectedHosts { names, addresses: Arc::default() }
    }

    /// Returns the expected hosts that are not among the nodes in `present`. Names that have not been resolved yet may
    /// be in `uncertain`.
    pub(crate) fn missing<'a>(&self, present: impl Iterator<Item = &'a NodeDesc>) -> MissingHosts {
        if self.names.is_empty() {
            return MissingHosts::default();
        }
        let present: BTreeSet<&str> = present.map(|node| &*node.addr).collect();
        let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
        let is_name = |addr: &&&str| addr.parse::<std::net::IpAddr>().is_err();
        let names: BTreeSet<String> = present.iter().filter(is_name).map(|addr| short(addr)).collect();
        let by_name = |host: &String| {
            present.contains(host.as_str()) || (!host.is_empty() && names.contains(&short(host)))
        };
        let mut missing: Vec<String> = self.names.iter().filter(|host| !by_name(host)).cloned().collect();
        // `unmatched` contains the addresses of present nodes that may belong to a host whose name is not resolved yet.
        let expected: HashSet<IpAddr> = self.names.iter().filter_map(|host| host.parse().ok()).collect();
        let mut unmatched: HashSet<IpAddr> = present.iter().filter_map(|addr| addr.parse().ok()).collect();
        let present_addresses = unmatched.clone();
        unmatched.retain(|address| !expected.contains(address));
        if unmatched.is_empty() {
            return MissingHosts { names: missing.into(), uncertain: Box::default() };
        }
        self.addresses.look_up(&missing);
        let mut unresolved = HashSet::new();
        missing.retain(|host| match self.addresses.get(host) {
            Some(addresses) => {
                let mut is_present = false;
                for address in addresses.iter().filter(|address| present_addresses.contains(*address)) {
                    is_present = true;
                    unmatched.remove(address);
                }
                !is_present
            }
            None => {
                unresolved.insert(host.clone());
                true
            }
        });
        // If every present node belongs to a known host, a host without known addresses can't be present.
        let is_certain = |host: &String| unmatched.is_empty() || !unresolved.contains(host);
        let (names, uncertain): (Vec<_>, Vec<_>) = missing.into_iter().partition(is_certain);
        MissingHosts { names: names.into(), uncertain: uncertain.into() }
    }
}

/// Expands a list in Slurm's format: `login,node[01-03,7],gpu[1-2]-ib`. Returns `None` if it is malformed
/// or has more than `MAX_HOSTS` hosts.
///
/// Semicolons also separate items, because the value of a `--rdzv-conf` option can't contain a comma.
fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    let mut depth = 0usize;
    let mut item = String::new();
    for c in list.trim().chars().chain([',']) {
        match c {
            '[' if depth == 0 => depth = 1,
            ']' if depth == 1 => depth = 0,
            '[' | ']' => return None,
            ',' | ';' | ' ' if depth == 0 => {
                if !item.is_empty() {
                    expand_item(&item, &mut hosts)?;
                    item.clear();
                }
                continue;
            }
            _ => {}
        }
        item.push(c);
    }
    (depth == 0).then_some(hosts)
}

fn expand_item(item: &str, hosts: &mut Vec<String>) -> Option<()> {
    let Some((before, rest)) = item.split_once('[') else {
        hosts.push(item.to_owned());
        return (hosts.len() <= MAX_HOSTS).then_some(());
    };
    let (ranges, after) = rest.split_once(']')?;
    for range in ranges.split([',', ';']) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= MAX_HOSTS as u64 {
            return None;
        }
        for number in first..=last {
            // `after` may contain brackets, too.
            expand_item(&format!("{before}{number:0width$}{after}"), hosts)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use rallypoint_testkit::{WAIT_TIMEOUT, eventually_or};

    use super::*;

    #[test]
    fn slurm_node_lists_are_expanded() {
        for (list, hosts) in [
            ("node1", "node1"),
            ("a,b", "a b"),
            ("a;b", "a b"),
            ("node[01-03,7]", "node01 node02 node03 node7"),
            ("login,gpu[1-2]-ib", "login gpu1-ib gpu2-ib"),
            ("r[1-2]n[8-9]", "r1n8 r1n9 r2n8 r2n9"),
            ("node[09-11]", "node09 node10 node11"),
            ("", ""),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), hosts, "{list}");
        }
        for list in ["node[1", "node1]", "node[a-b]", "node[3-1]", "n[[1]]", "n[1-99999999999]", "n[]"] {
            assert_eq!(expand(list), None, "{list}");
        }
    }

    #[test]
    fn a_host_that_is_present_by_name_or_address_is_not_missing() {
        let expected = ExpectedHosts::from_names(expand("node[1-3],127.0.0.7,localhost").unwrap());
        let present = [
            NodeDesc::new("node1", 1, 0),
            NodeDesc::new("node2.cluster.example", 2, 0),
            NodeDesc::new("127.0.0.1", 3, 0),
        ];
        // The names are resolved on other threads.
        let missing = || expected.missing(present.iter());
        let expected_missing = ["node3", "127.0.0.7"];
        eventually_or(WAIT_TIMEOUT, || format!("{:?}", missing()), || *missing().names == expected_missing);
        assert_eq!(ExpectedHosts::default().missing(present.iter()), MissingHosts::default());
    }

    /// An earlier version looked up only some of the hosts and reported all others as missing, including this node.
    #[test]
    fn a_present_host_is_never_missing_among_hundreds() {
        let many: Vec<_> = (0..200).map(|number| format!("no-such-host-{number}.invalid")).collect();
        let expected =
            ExpectedHosts::from_names([&["localhost".into(), "127.0.1.1".into()][..], &many].concat());
        // The second address may belong to any of the unresolved hosts.
        let present = [NodeDesc::new("127.0.0.1", 1, 0), NodeDesc::new("127.0.2.9", 1, 0)];
        let missing = || expected.missing(present.iter());
        let is_complete = || {
            let missing = missing();
            assert!(many.iter().all(|host| !missing.names.contains(host)), "{missing:?}");
            *missing.names == ["127.0.1.1"] && missing.uncertain.len() == 200
        };
        eventually_or(WAIT_TIMEOUT, || format!("{:?}", missing()), is_complete);
        // Without the second node, all unresolved hosts are certainly missing.
        let missing = || expected.missing(present[..1].iter());
        eventually_or(WAIT_TIMEOUT, || format!("{:?}", missing()), || missing().names.len() == 201);
    }

    #[test]
    fn missing_hosts_beyond_the_limit_are_counted() {
        let boxed = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let missing = |names: &[&str], uncertain: &[&str]| MissingHosts {
            names: boxed(names),
            uncertain: boxed(uncertain),
        };
        assert_eq!(missing(&[], &[]).describe(2), "");
        assert_eq!(missing(&["a", "b"], &[]).describe(2), "; missing hosts: a, b");
        assert_eq!(missing(&["a", "b", "c", "d"], &[]).describe(2), "; missing hosts: a, b and 2 more");
        let text = "; missing hosts: a; possibly missing hosts: b, c and 1 more (addresses unknown)";
        assert_eq!(missing(&["a"], &["b", "c", "d"]).describe(2), text);
    }
}
