//! The ranks of workers. Every node of a round publishes how many workers it runs, the node with group rank 0 assigns
//! the ranks, and every node reads its own.
//!
//! The keys and the JSON are those of torch's agents, which may be in the same round.

use rallypoint_store::{Result, Store, StoreError};
use serde::Deserialize;

/// What a node publishes about its workers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RoleInfo {
    /// The role of the workers. `default` if the user names none.
    pub role: String,
    /// The group rank of the node.
    pub rank: u64,
    /// The number of workers of the node.
    pub local_world_size: u64,
}

/// The ranks of a node's workers. `first` and `role_first` are the ranks of the first worker, and the ranks of the
/// other workers follow consecutively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignedRanks {
    /// The rank of the first worker.
    pub first: u64,
    /// The number of workers in the round.
    pub world_size: u64,
    /// The rank of the first worker among the workers of its role.
    pub role_first: u64,
    /// The number of workers of that role in the round.
    pub role_world_size: u64,
}

/// The exclusive upper bound for the number of workers of a node. A role info with this number or more is refused as
/// malformed.
const WORKERS_BOUND: u64 = 1 << 32;

/// Publishes the workers of this node and returns their ranks. Waits for the other nodes up to the timeout of the
/// store. `nodes` is the number of nodes in the round.
///
/// # Errors
///
/// Fails if the store can't be used, if other nodes publish nothing in time, or if a node has published malformed JSON.
pub fn assign_ranks(store: &dyn Store, own: &RoleInfo, nodes: u64) -> Result<AssignedRanks> {
    store.set(&format!("torchelastic/role_info/{}", own.rank), own.to_json().as_bytes())?;
    if own.rank == 0 {
        let infos = role_infos(store, nodes)?;
        let assigned: Vec<_> = (0..)
            .zip(assign_to_nodes(&infos))
            .map(|(rank, ranks): (u64, _)| (format!("torchelastic/assigned_ranks/{rank}"), ranks.to_json()))
            .collect();
        let pairs: Vec<_> = assigned.iter().map(|(key, json)| (key.as_str(), json.as_bytes())).collect();
        store.multi_set(&pairs)?;
    }
    AssignedRanks::read(&store.get(&format!("torchelastic/assigned_ranks/{}", own.rank))?)
}

/// Returns what every node has published, in the order of group ranks. Waits for the nodes up to the timeout of the
/// store. `nodes` is the number of nodes in the round.
///
/// # Errors
///
/// Fails if the store can't be used, if a node publishes nothing in time, or if a node has published malformed JSON.
pub fn role_infos(store: &dyn Store, nodes: u64) -> Result<Vec<RoleInfo>> {
    let keys: Vec<_> = (0..nodes).map(|rank| format!("torchelastic/role_info/{rank}")).collect();
    let infos = store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>())?;
    infos.iter().zip(0..).map(|(json, rank)| RoleInfo::read(json, rank)).collect()
}

/// Assigns consecutive ranks to the workers of all nodes, in the order of the nodes.
fn assign_to_nodes(infos: &[RoleInfo]) -> Vec<AssignedRanks> {
    let total = |role: Option<&str>| -> u64 {
        infos
            .iter()
            .filter(|info| role.is_none_or(|role| info.role == role))
            .map(|info| info.local_world_size)
            .sum()
    };
    let world_size = total(None);
    let (mut first, mut by_role) = (0, std::collections::BTreeMap::<&str, (u64, u64)>::new());
    let mut assigned = Vec::new();
    for info in infos {
        let (role_first, role_world_size) =
            by_role.entry(&info.role).or_insert_with(|| (0, total(Some(&info.role))));
        assigned.push(AssignedRanks {
            first,
            world_size,
            role_first: *role_first,
            role_world_size: *role_world_size,
        });
        first += info.local_world_size;
        *role_first += info.local_world_size;
    }
    assigned
}

fn malformed(what: &str, found: &[u8]) -> StoreError {
    let found: String = String::from_utf8_lossy(found).chars().take(100).collect();
    StoreError::InvalidArgument(format!("a peer wrote {found:?} as {what}"))
}

impl RoleInfo {
    fn read(json: &[u8], rank: u64) -> Result<RoleInfo> {
        serde_json::from_slice::<RoleInfo>(json)
            .ok()
            .filter(|info| info.local_world_size < WORKERS_BOUND)
            .ok_or_else(|| malformed(&format!("the role info of node {rank}"), json))
    }

    /// Returns this role info as JSON, in the format of Python's `json.dumps`.
    pub fn to_json(&self) -> String {
        let RoleInfo { role, rank, local_world_size } = self;
        let role = ascii(&serde_json::Value::from(role.as_str()).to_string());
        format!("{{\"role\": {role}, \"rank\": {rank}, \"local_world_size\": {local_world_size}}}")
    }
}

impl AssignedRanks {
    fn read(json: &[u8]) -> Result<AssignedRanks> {
        match serde_json::from_slice::<[u64; 4]>(json) {
            Ok([first, world_size, role_first, role_world_size]) => {
                Ok(AssignedRanks { first, world_size, role_first, role_world_size })
            }
            Err(_) => Err(malformed("this node's ranks", json)),
        }
    }

    fn to_json(self) -> String {
        let AssignedRanks { first, world_size, role_first, role_world_size } = self;
        format!("[{first}, {world_size}, {role_first}, {role_world_size}]")
    }
}

/// Escapes all non-ASCII characters in `json`, as Python's `json.dumps` does.
fn ascii(json: &str) -> String {
    let mut text = String::new();
    for c in json.chars() {
        match c {
            c if c.is_ascii() => text.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use rallypoint_store::HashStore;

    use super::*;

    fn info(role: &str, rank: u64, local_world_size: u64) -> RoleInfo {
        RoleInfo { role: role.into(), rank, local_world_size }
    }

    #[test]
    fn ranks_are_consecutive_over_all_nodes_and_within_each_role() {
        let assigned = assign_to_nodes(&[info("y", 0, 1), info("x", 1, 2), info("x", 2, 1), info("x", 3, 0)]);
        let numbers: Vec<_> = assigned.iter().map(|ranks| ranks.to_json()).collect();
        assert_eq!(numbers, ["[0, 4, 0, 1]", "[1, 4, 0, 3]", "[3, 4, 2, 3]", "[4, 4, 3, 3]"]);
    }

    #[test]
    fn every_node_gets_its_ranks_over_one_store() {
        let store = HashStore::new();
        std::thread::scope(|scope| {
            let nodes: Vec<_> = (0..3)
                .map(|rank| {
                    let store = &store;
                    scope.spawn(move || assign_ranks(store, &info("default", rank, rank + 1), 3).unwrap())
                })
                .collect();
            let firsts: Vec<_> = nodes.into_iter().map(|node| node.join().unwrap().first).collect();
            assert_eq!(firsts, [0, 1, 3]);
        });
        assert_eq!(store.get("torchelastic/assigned_ranks/1").unwrap(), b"[1, 6, 1, 6]");
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        assert_eq!(
            info("default", 0, 2).to_json(),
            r#"{"role": "default", "rank": 0, "local_world_size": 2}"#
        );
        assert_eq!(
            info("é\"\n😀", 1, 1).to_json(),
            r#"{"role": "\u00e9\"\n\ud83d\ude00", "rank": 1, "local_world_size": 1}"#
        );
        let read = RoleInfo::read(info("é😀", 1, 1).to_json().as_bytes(), 1).unwrap();
        assert_eq!(read.role, "é😀");
    }

    #[test]
    fn an_error_names_the_malformed_role_info() {
        let store = HashStore::new();
        store.set("torchelastic/role_info/1", b"{}").unwrap();
        let error = assign_ranks(&store, &info("default", 0, 1), 2).unwrap_err().to_string();
        assert!(error.contains("the role info of node 1"), "{error}");
    }
}
