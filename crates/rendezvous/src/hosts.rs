//! Who is expected by name: a list somebody gave, or the one of the scheduler. It only makes messages better; nobody is
//! let in or kept out by it.

mod addresses;

use std::collections::BTreeSet;
use std::sync::Arc;

use rallypoint_core::rendezvous::NodeDesc;

use crate::error::{RendezvousError, Result};
use crate::parameters::RendezvousParameters;
use addresses::Addresses;

/// The hosts of a job, as far as they were named.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpectedHosts {
    names: Vec<String>,
    addresses: Arc<Addresses>,
}

/// More than this many are no list of hosts but a mistake, or an attack.
const MOST: usize = 100_000;
/// Names that are looked up to compare addresses; beyond, names alone are compared.
const LOOKED_UP: usize = 64;

impl ExpectedHosts {
    /// Those of the option `expected_hosts`, or of Slurm's node list.
    pub(crate) fn of(parameters: &RendezvousParameters) -> Result<ExpectedHosts> {
        if let Some(list) = parameters.get("expected_hosts") {
            let hosts = expand(&list.to_string()).ok_or_else(|| {
                RendezvousError::parameter(format!(
                    "expected_hosts={list} is no list of hosts; write host1;host2 or host[1-8]"
                ))
            })?;
            return Ok(ExpectedHosts::named(hosts));
        }
        let list = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"].iter().find_map(|name| std::env::var(name).ok());
        // A list that can't be read only means that nobody is named.
        Ok(ExpectedHosts::named(list.and_then(|list| expand(&list)).unwrap_or_default()))
    }

    fn named(names: Vec<String>) -> ExpectedHosts {
        ExpectedHosts { names, addresses: Arc::default() }
    }

    /// Those of them that are not among these nodes, as far as their addresses are known by now.
    pub(crate) fn missing<'a>(&self, here: impl Iterator<Item = &'a NodeDesc>) -> Vec<String> {
        if self.names.is_empty() {
            return Vec::new();
        }
        let here: BTreeSet<&str> = here.map(|node| &*node.addr).collect();
        let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
        let is_name = |addr: &&&str| addr.parse::<std::net::IpAddr>().is_err();
        let names: BTreeSet<String> = here.iter().filter(is_name).map(|addr| short(addr)).collect();
        let by_name = |host: &String| {
            here.contains(host.as_str()) || (!host.is_empty() && names.contains(&short(host)))
        };
        let mut missing: Vec<String> = self.names.iter().filter(|host| !by_name(host)).cloned().collect();
        if missing.len() <= LOOKED_UP && here.iter().any(|addr| !is_name(&addr)) {
            self.addresses.look_up(&missing);
            missing.retain(|host| !self.addresses.any_of(host, |ip| here.contains(ip.to_string().as_str())));
        }
        missing
    }
}

/// The hosts of a list as Slurm writes it: `login,node[01-03,7],gpu[1-2]-ib`. Semicolons separate as commas do, because an
/// option can't hold a comma. `None` if it is no such list.
fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    let mut depth = 0usize;
    let mut word = String::new();
    for letter in list.trim().chars().chain([',']) {
        match letter {
            '[' if depth == 0 => depth = 1,
            ']' if depth == 1 => depth = 0,
            '[' | ']' => return None,
            ',' | ';' | ' ' if depth == 0 => {
                if !word.is_empty() {
                    expand_word(&word, &mut hosts)?;
                    word.clear();
                }
                continue;
            }
            _ => {}
        }
        word.push(letter);
    }
    (depth == 0).then_some(hosts)
}

fn expand_word(word: &str, hosts: &mut Vec<String>) -> Option<()> {
    let Some((before, rest)) = word.split_once('[') else {
        hosts.push(word.to_owned());
        return (hosts.len() <= MOST).then_some(());
    };
    let (ranges, after) = rest.split_once(']')?;
    for range in ranges.split([',', ';']) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= MOST as u64 {
            return None;
        }
        for number in first..=last {
            // What follows may have brackets of its own.
            expand_word(&format!("{before}{number:0width$}{after}"), hosts)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_slurm_writes_them() {
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
    fn who_is_here_by_name_or_by_address_is_not_missing() {
        let expected = ExpectedHosts::named(expand("node[1-3],127.0.0.7,localhost").unwrap());
        let here = [
            NodeDesc::new("node1", 1, 0),
            NodeDesc::new("node2.cluster.example", 2, 0),
            NodeDesc::new("127.0.0.1", 3, 0),
        ];
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while expected.missing(here.iter()) != ["node3", "127.0.0.7"] {
            // A slow name server holds nobody up, so it may take a second look.
            assert!(std::time::Instant::now() < deadline, "{:?}", expected.missing(here.iter()));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(ExpectedHosts::default().missing(here.iter()).is_empty());
    }
}
