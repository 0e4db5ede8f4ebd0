//! The address of the workers' store. The node with group rank 0 publishes it in the store of the round, and the other
//! nodes read it.

use std::time::Duration;

use rallypoint_store::{Result, Store, StoreError};

use crate::port::free_port;

/// The address and port of the store that the workers of a round use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousStoreInfo {
    /// The host name or address at which workers reach the store.
    pub master_addr: String,
    /// The port.
    pub master_port: u16,
}

impl RendezvousStoreInfo {
    /// The key under which rank 0 publishes the address.
    pub const MASTER_ADDR_KEY: &str = "MASTER_ADDR";
    /// The key under which rank 0 publishes the port.
    pub const MASTER_PORT_KEY: &str = "MASTER_PORT";

    /// Publishes the address and port if the group rank `rank` is 0, and then returns what rank 0 has published.
    ///
    /// Rank 0 chooses a free port if `server_port` is `None` or 0.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used, if rank 0 publishes nothing within the timeout of the store, or if it has
    /// published a malformed address or port.
    pub fn build(
        rank: u64,
        store: &dyn Store,
        local_addr: &str,
        server_port: Option<u16>,
    ) -> Result<RendezvousStoreInfo> {
        if rank == 0 {
            let port = server_port.filter(|port| *port != 0).map_or_else(free_port, Ok)?;
            RendezvousStoreInfo { master_addr: local_addr.into(), master_port: port }.publish(store)?;
        }
        RendezvousStoreInfo::read(store, store.timeout())
    }

    /// Publishes this address and port in `store`.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used.
    pub fn publish(&self, store: &dyn Store) -> Result<()> {
        // The address is stored first, as in torch, so that a node that finds the port also finds the address.
        store.set(Self::MASTER_ADDR_KEY, self.master_addr.as_bytes())?;
        store.set(Self::MASTER_PORT_KEY, self.master_port.to_string().as_bytes())
    }

    /// Waits up to `timeout` for rank 0 to publish, and returns what it has published.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used, if rank 0 publishes nothing in time, or if it has published a malformed
    /// address or port.
    pub fn read(store: &dyn Store, timeout: impl Into<Option<Duration>>) -> Result<RendezvousStoreInfo> {
        let store = store.with_timeout(timeout.into());
        let addr = store.get(Self::MASTER_ADDR_KEY)?;
        let port = store.get(Self::MASTER_PORT_KEY)?;
        let malformed = |what: &str, found: &[u8]| {
            let found: String = String::from_utf8_lossy(found).chars().take(64).collect();
            StoreError::InvalidArgument(format!(
                "the node with group rank 0 published {found:?} as its {what}"
            ))
        };
        // The values become environment variables of the workers, so they are checked here.
        let master_addr = std::str::from_utf8(&addr)
            .ok()
            .filter(|addr| is_address(addr))
            .ok_or_else(|| malformed("address", &addr))?;
        let master_port = std::str::from_utf8(&port)
            .ok()
            .and_then(|port| port.trim().parse().ok())
            .ok_or_else(|| malformed("port", &port))?;
        Ok(RendezvousStoreInfo { master_addr: master_addr.into(), master_port })
    }
}

/// Returns whether `text` can be the address of a node: 1 to 255 bytes without whitespace or control characters. Nodes
/// publish it in the shared state and pass it to their workers.
pub(crate) fn is_address(text: &str) -> bool {
    !text.is_empty() && text.len() <= 255 && text.chars().all(|c| !c.is_whitespace() && !c.is_control())
}

#[cfg(test)]
mod tests {
    use rallypoint_store::HashStore;

    use super::*;

    #[test]
    fn every_rank_reads_what_rank_0_published() {
        let store = HashStore::new();
        let first = RendezvousStoreInfo::build(0, &store, "10.0.0.1", Some(29500)).unwrap();
        let second = RendezvousStoreInfo::build(1, &store, "10.0.0.2", None).unwrap();
        assert_eq!(first, second);
        assert_eq!((first.master_addr.as_str(), first.master_port), ("10.0.0.1", 29500));
        assert_eq!(store.get("MASTER_PORT").unwrap(), b"29500");
    }

    #[test]
    fn rank_0_chooses_a_free_port_if_none_is_given() {
        let store = HashStore::new();
        assert_ne!(RendezvousStoreInfo::build(0, &store, "h", None).unwrap().master_port, 0);
    }

    #[test]
    fn a_malformed_address_or_port_is_refused() {
        for (addr, port) in [("", "1"), ("a b", "1"), ("a\n", "1"), ("h", "x"), ("h", "65536"), ("h", "")] {
            let store = HashStore::new();
            store.set("MASTER_ADDR", addr.as_bytes()).unwrap();
            store.set("MASTER_PORT", port.as_bytes()).unwrap();
            let error = RendezvousStoreInfo::read(&store, Duration::from_secs(1)).unwrap_err().to_string();
            assert!(error.contains("the node with group rank 0 published"), "{addr:?} {port:?}: {error}");
        }
    }
}
