//! Every limit of the store, in one place, each with the peer's number beside ours and the reason.
//!
//! These are plain numbers. Who enforces which is said at each field; nothing here measures anything.

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Bounds on what one peer may ask for and on what the store may hold.
///
/// `Limits::default()` is what `rallypoint serve` uses; every field can be changed there by a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    // ---- one request (enforced by the decoder, before anything is allocated) ----
    /// Longest key in bytes. Torch's libuv server: 8 KiB; its legacy server: none.
    pub key_len: usize,
    /// Longest value in bytes, also of the *result* of an append. Torch's libuv server: 8 MiB, but an append can grow
    /// a value past it; legacy: none.
    pub value_len: usize,
    /// Most keys in one request. Torch's libuv server: 131,072; legacy: none.
    pub keys_per_request: usize,
    /// Longest whole request. Torch: none, so one `multi_set` may ask for a terabyte.
    pub frame_len: usize,

    // ---- the store (enforced by the engine; a write that would pass them is refused, nothing is evicted) ----
    /// Bytes of keys, values and queue items together. Torch: none, the host runs out of memory instead.
    pub store_bytes: usize,
    /// Number of keys. Torch: none.
    pub keys: usize,
    /// Number of items in all queues together. Torch: none.
    pub queue_items: usize,
    /// Absent keys one connection may wait for. Torch: 131,072 in one request, but requests add up.
    pub awaited_per_client: usize,
    /// Absent keys all connections together may wait for. Torch: none.
    pub awaited_total: usize,

    // ---- connections (enforced by the server) ----
    /// Time from accept to a whole VALIDATE. Torch: none, silent connections are kept for ever.
    pub handshake: Duration,
    /// An unvalidated connection older than this counts as stale. A correct client sends VALIDATE at once, so ten
    /// thousand arriving together never look like an attack.
    pub stale_after: Duration,
    /// Most stale unvalidated connections; the oldest go first. Torch: none.
    pub stale_total: usize,
    /// Most stale unvalidated connections of one address. Torch: none.
    pub stale_per_address: usize,
    /// Most connections; further lowered to the process' file limit less [`Limits::spare_files`]. Torch: none (its
    /// legacy server aborts at the file limit).
    pub connections: usize,
    /// Files left free below the process' limit.
    pub spare_files: usize,
    /// A request that has been arriving for this long must go on at [`Limits::partial_rate`]. Torch: none.
    pub partial_grace: Duration,
    /// Bytes per second a request must arrive at after [`Limits::partial_grace`].
    pub partial_rate: usize,
    /// Bytes of incomplete requests held for all connections together. Past it the largest incomplete request is cut
    /// off, so a small one is never the victim of a large one. Torch: none (and an aborted upload leaks there).
    pub input_total: usize,
    /// Requests waiting behind a blocked one, in bytes, before the connection is no longer read.
    pub deferred_bytes: usize,
    /// Unsent reply bytes above which a connection is no longer read. Torch: none.
    pub output_pause: usize,
    /// Unsent reply bytes, not counting values shared with the store, at which a connection is closed.
    pub output_hard: usize,
    /// A connection that takes nothing of its replies for this long is closed. Torch: none.
    pub output_stall: Duration,
    /// Bytes read from one connection before the next has its turn.
    pub turn_bytes: usize,
    /// Protocol offences of one address in a second before its new connections are refused. Loopback is exempt: there,
    /// one address is every program of the machine.
    pub offences_per_second: u32,
    /// How long such an address is refused.
    pub offence_penalty: Duration,
    /// Lines a second in the log about misbehaving peers.
    pub log_lines_per_second: u32,
    /// TCP keep-alive: idle time before the first probe. Torch: keep-alive is off.
    pub keepalive_idle: Duration,
    /// TCP keep-alive: time between probes.
    pub keepalive_interval: Duration,
    /// TCP keep-alive: unanswered probes before the connection is dead.
    pub keepalive_probes: u32,
    /// Unacknowledged data older than this kills the connection (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,

    // ---- the client ----
    /// Largest reply our client accepts. Torch: none, it allocates what the server announces.
    pub reply_len: usize,

    // ---- the file of a FileStore (enforced by its reader; what is above is damage, not a record) ----
    /// Longest key in the file. Torch: none. The lower it is, the more damage is told from a torn end.
    pub record_key_len: usize,
    /// Longest value in the file. Torch: none, it allocates what the file announces.
    pub record_value_len: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            key_len: 8 * KIB,
            value_len: 8 * MIB,
            keys_per_request: 131_072,
            frame_len: 64 * MIB,
            store_bytes: 4096 * MIB,
            keys: 4_000_000,
            queue_items: 1_000_000,
            awaited_per_client: 131_072,
            awaited_total: 1_000_000,
            handshake: Duration::from_secs(10),
            stale_after: Duration::from_secs(1),
            stale_total: 1024,
            stale_per_address: 256,
            connections: 65_536,
            spare_files: 64,
            partial_grace: Duration::from_secs(30),
            partial_rate: KIB,
            input_total: 256 * MIB,
            deferred_bytes: MIB,
            output_pause: MIB,
            output_hard: 64 * MIB,
            output_stall: Duration::from_secs(30),
            turn_bytes: 256 * KIB,
            offences_per_second: 20,
            offence_penalty: Duration::from_secs(10),
            log_lines_per_second: 10,
            keepalive_idle: Duration::from_secs(60),
            keepalive_interval: Duration::from_secs(10),
            keepalive_probes: 6,
            user_timeout: Duration::from_secs(120),
            reply_len: 64 * MIB,
            record_key_len: 64 * KIB,
            record_value_len: 64 * MIB,
        }
    }
}
