//! What the engine holds at one moment, to be looked at: by logs, status pages and tests. Nothing here changes it.

/// The engine in figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Keys held.
    pub keys: usize,
    /// Bytes of keys, values and queue items, with their overheads.
    pub bytes: usize,
    /// Items in all queues.
    pub queue_items: usize,
    /// Awaited keys, counted once for each client that waits.
    pub awaited: usize,
    /// Clients blocked in a WAIT or BARRIER.
    pub blocked: usize,
}

/// What a client is blocked in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting<'a> {
    /// A WAIT: the keys that have not come.
    Keys(Vec<&'a [u8]>),
    /// A BARRIER.
    Barrier {
        /// Its key.
        key: &'a [u8],
        /// How many must arrive.
        world_size: u64,
        /// How many have.
        arrived: usize,
    },
}
