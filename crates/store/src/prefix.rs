//! A store that adds a prefix to every key of another store.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::client::{Cancellation, Exchange};

use crate::error::{Result, StoreKind};
use crate::store::Store;

/// A store whose keys are the keys of another store that start with `prefix/`. Prefixes may be nested.
///
/// Its [`barrier`](Store::barrier) is the default implementation of [`Store`], which uses the same keys as torch's
/// PrefixStore. Each key can be used for one barrier only.
#[derive(Clone)]
pub struct PrefixStore {
    prefix: String,
    store: Arc<dyn Store>,
}

impl PrefixStore {
    /// Creates a store for the keys of `store` that start with `prefix/`.
    pub fn new(prefix: impl Into<String>, store: Arc<dyn Store>) -> PrefixStore {
        PrefixStore { prefix: prefix.into(), store }
    }

    /// Returns the underlying store.
    pub fn underlying_store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the prefix without the slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    fn keys(&self, keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| self.key(key)).collect()
    }
}

impl std::fmt::Debug for PrefixStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrefixStore").field("prefix", &self.prefix).field("of", &self.store.kind()).finish()
    }
}

fn as_strs(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(&self.key(key), value)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.store.get(&self.key(key))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.store.add(&self.key(key), delta)
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.store.check(&as_strs(&self.keys(keys)))
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        self.store.wait_for(&as_strs(&self.keys(keys)), timeout)
    }

    fn wait(&self, keys: &[&str]) -> Result<()> {
        self.store.wait(&as_strs(&self.keys(keys)))
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(&self.key(key), expected, desired)
    }

    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        self.store.compare_exchange(&self.key(key), expected, desired)
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        self.store.delete_key(&self.key(key))
    }

    /// Returns the number of keys in the whole underlying store, as torch does.
    fn num_keys(&self) -> Result<u64> {
        self.store.num_keys()
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.append(&self.key(key), value)
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        self.store.multi_get(&as_strs(&self.keys(keys)))
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let keys: Vec<_> = pairs.iter().map(|(key, _)| self.key(key)).collect();
        let pairs: Vec<_> =
            keys.iter().map(String::as_str).zip(pairs.iter().map(|(_, value)| *value)).collect();
        self.store.multi_set(&pairs)
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.queue_push(&self.key(key), value)
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        self.store.queue_pop(&self.key(key))
    }

    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        self.store.try_queue_pop(&self.key(key))
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        self.store.queue_len(&self.key(key))
    }

    /// Returns only the keys that start with the prefix, without the prefix.
    fn list_keys(&self) -> Result<Vec<String>> {
        let prefix = self.key("");
        let keys = self.store.list_keys()?;
        Ok(keys.into_iter().filter_map(|key| key.strip_prefix(&prefix).map(str::to_owned)).collect())
    }

    fn timeout(&self) -> Option<Duration> {
        self.store.timeout()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.store.set_timeout(timeout);
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        Box::new(PrefixStore::new(self.prefix.clone(), Arc::from(self.store.with_timeout(timeout))))
    }

    fn has_extended_api(&self) -> bool {
        self.store.has_extended_api()
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(PrefixStore::new(self.prefix.clone(), Arc::from(self.store.clone_store()?))))
    }

    fn generation(&self) -> u64 {
        self.store.generation()
    }

    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        self.store.cancellation()
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Prefix
    }
}
