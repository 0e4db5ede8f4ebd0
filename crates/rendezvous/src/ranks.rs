//! Ranks of workers: every node of a round says how many it runs, rank 0 counts through, every node reads where its own
//! begin. The keys and texts are those of torch's agents, who may be at the other end.

use rallypoint_store::{Result, Store, StoreError};
use serde::Deserialize;

/// What a node contributes to a round.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RoleInfo {
    /// What its workers do; `default` where all do the same.
    pub role: String,
    /// Its own rank.
    pub rank: u64,
    /// How many workers it runs.
    pub local_world_size: u64,
}

/// Where the ranks of a node's workers begin, among all and among those of the same role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignedRanks {
    /// The global rank of its first worker.
    pub first: u64,
    /// All workers of the round.
    pub world_size: u64,
    /// The role rank of its first worker.
    pub role_first: u64,
    /// All workers of that role.
    pub role_world_size: u64,
}

/// A number of workers beyond which something is wrong.
const MAX_WORKERS: u64 = 1 << 32;

/// Says what this node contributes and learns its ranks. Waits for the others as long as the store does.
pub fn assign_ranks(store: &dyn Store, own: &RoleInfo, world_size: u64) -> Result<AssignedRanks> {
    store.set(&format!("torchelastic/role_info/{}", own.rank), own.to_json().as_bytes())?;
    if own.rank == 0 {
        let infos = role_infos(store, world_size)?;
        let assigned: Vec<_> = (0..)
            .zip(assign_to_nodes(&infos))
            .map(|(rank, ranks): (u64, _)| (format!("torchelastic/assigned_ranks/{rank}"), ranks.to_json()))
            .collect();
        let pairs: Vec<_> = assigned.iter().map(|(key, json)| (key.as_str(), json.as_bytes())).collect();
        store.multi_set(&pairs)?;
    }
    AssignedRanks::read(&store.get(&format!("torchelastic/assigned_ranks/{}", own.rank))?)
}

/// What every node contributes, in the order of their ranks. Waits for them as long as the store does.
pub fn role_infos(store: &dyn Store, world_size: u64) -> Result<Vec<RoleInfo>> {
    let keys: Vec<_> = (0..world_size).map(|rank| format!("torchelastic/role_info/{rank}")).collect();
    let infos = store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>())?;
    infos.iter().zip(0..).map(|(json, rank)| RoleInfo::read(json, rank)).collect()
}

/// The ranks of every node, in the order of the nodes.
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
            .filter(|info| info.local_world_size < MAX_WORKERS)
            .ok_or_else(|| malformed(&format!("the role info of node {rank}"), json))
    }

    /// As Python's `json.dumps` writes it.
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

/// JSON with everything beyond ASCII escaped.
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
