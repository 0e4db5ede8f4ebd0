//! All limits, with their meanings and the corresponding limits of torch.
//!
//! The limits are grouped by the code that enforces them: the server, the client, FileStore's reader, and the codec of
//! the rendezvous state.

use std::time::Duration;

use crate::quantity::Quantity;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Defines the struct, its defaults, and access to the server's limits by name.
///
/// The default of a server limit is followed by the function that formats it: `count` prints a plain number, and
/// `with_unit` prints a size or a duration.
macro_rules! limits {
    (
        $(#[$outer:meta])*
        pub struct Limits;
        server { $($(#[doc = $doc:literal])* pub $name:ident: $kind:ty = $default:expr, $print:ident;)* }
        unlisted { $($(#[$unlisted_doc:meta])* pub $unlisted:ident: $unlisted_kind:ty = $unlisted_default:expr;)* }
    ) => {
        $(#[$outer])*
        pub struct Limits {
            $($(#[doc = $doc])* pub $name: $kind,)*
            $($(#[$unlisted_doc])* pub $unlisted: $unlisted_kind,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Limits { $($name: $default,)* $($unlisted: $unlisted_default,)* }
            }
        }

        impl Limits {
            /// Returns the name, the formatted value and the description of each server limit.
            pub fn describe(&self) -> Vec<(&'static str, String, String)> {
                vec![$((stringify!($name), $print(&self.$name), strip_links(concat!($($doc),*)))),*]
            }

            /// Sets the server limit `name` to the value in `text`.
            ///
            /// Sizes accept the units `KiB`, `MiB` and `GiB`. Durations accept `ms`, `s` and `min`.
            ///
            /// # Errors
            ///
            /// Fails with a message for the user if no server limit has this name, or if `text` is not a valid value.
            pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
                let invalid = |why| format!("limit {name}: {text:?} is not {why}");
                match name {
                    $(stringify!($name) => self.$name = Quantity::parse(text).map_err(invalid)?,)*
                    _ => {
                        let names = [$(stringify!($name)),*].join(", ");
                        return Err(format!("there is no limit {name:?}; the limits are {names}"));
                    }
                }
                Ok(())
            }
        }
    };
}

fn count(value: &impl ToString) -> String {
    value.to_string()
}

fn with_unit(value: &impl Quantity) -> String {
    value.format()
}

/// Returns a doc comment as text, without the markup of its links.
fn strip_links(doc: &str) -> String {
    doc.trim().replace("[`Limits::", "").replace("`]", "")
}

limits! {
/// Limits on requests, on stored data, and on connections.
///
/// A server uses `Limits::default()`, lowered by [`Limits::fit_memory`] to the memory available to its process. The
/// `--limit` flag of `rallypoint serve` overrides any server limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits;

server {
    // ---- one request: enforced by the decoder before it allocates memory ----
    /// Maximum length of a key. Torch's libuv server: 8 KiB. Torch's legacy server: unlimited.
    pub key_len: usize = 8 * KIB, with_unit;
    /// Maximum length of a value, including the result of an append. Torch's libuv server: 8 MiB, but appends can
    /// exceed it. Torch's legacy server: unlimited.
    pub value_len: usize = 8 * MIB, with_unit;
    /// Maximum number of keys in one request. Torch's libuv server: 131,072. Torch's legacy server: unlimited.
    pub keys_per_request: usize = 131_072, count;
    /// Maximum length of a request. Torch: unlimited, so one `multi_set` may announce 1 TiB.
    pub frame_len: usize = 64 * MIB, with_unit;

    // ---- the store: enforced by the engine, which refuses writes beyond a limit and never evicts data ----
    /// Maximum number of bytes in keys, values, queue items, and the names of awaited keys and barriers. By default at
    /// most a quarter of the memory budget of the machine or container. Torch: unlimited.
    pub store_bytes: usize = 4096 * MIB, with_unit;
    /// Maximum number of keys. Torch: unlimited.
    pub keys: usize = 4_000_000, count;
    /// Maximum number of items in all queues together. Torch: unlimited.
    pub queue_items: usize = 1_000_000, count;
    /// Maximum number of absent keys that one connection may wait for. Torch: 131,072 per request, without a limit on
    /// the sum.
    pub awaited_per_client: usize = 131_072, count;
    /// Maximum number of absent keys that all connections together may wait for. Torch: unlimited.
    pub awaited_total: usize = 1_000_000, count;
    /// Maximum number of bytes in latches: values that a `wait` saw and that its client has not read yet. Beyond it a
    /// `wait` still ends, but a `get` after it does not find a key that was deleted in between. Torch: no latches.
    pub latched_bytes: usize = 256 * MIB, with_unit;

    // ---- connections: enforced by the hub ----
    // Before the handshake the hub accepts only the 5 bytes of VALIDATE and sends no reply, so connections without a
    // handshake need no byte limit.
    /// Maximum time from accepting a connection to its complete VALIDATE. Torch: unlimited.
    pub handshake: Duration = Duration::from_secs(10), with_unit;
    /// Age from which a connection without a handshake counts as stale. A correct client sends VALIDATE immediately, so
    /// 10,000 clients that connect together do not count as stale.
    pub stale_after: Duration = Duration::from_secs(1), with_unit;
    /// Maximum number of stale connections. Beyond it the oldest ones are closed. Torch: unlimited.
    pub stale_total: usize = 1024, count;
    /// Maximum number of stale connections of one address. Torch: unlimited.
    pub stale_per_address: usize = 256, count;
    /// Maximum number of connections. The server lowers it to the file limit of its process minus
    /// [`Limits::spare_files`]. Torch: unlimited, and the legacy server aborts at the file limit.
    pub connections: usize = 65_536, count;
    /// Number of file descriptors that the server reserves for uses other than connections, but at most a quarter of
    /// the file limit of its process.
    pub spare_files: usize = 64, count;
    /// Period over which the rate of an incomplete request is measured. Torch: none.
    pub partial_grace: Duration = Duration::from_secs(30), with_unit;
    /// Minimum rate of an incomplete request in each [`Limits::partial_grace`], in bytes per second. A slower
    /// connection is closed.
    pub partial_rate: usize = KIB, with_unit;
    /// Maximum number of bytes in incomplete and deferred requests of all connections together. Large requests share
    /// three quarters of it, first come first served. Beyond the limit the connection with the most such bytes is
    /// closed. Torch: unlimited, and aborted uploads leak.
    pub input_total: usize = 256 * MIB, with_unit;
    /// Maximum time for each 32 KiB of a large request while other large requests wait for their share. Torch:
    /// unlimited.
    pub input_stall: Duration = Duration::from_secs(3), with_unit;
    /// Number of bytes of deferred requests above which a connection is no longer read. A request is deferred while an
    /// earlier request of its connection is blocked.
    pub deferred_bytes: usize = MIB, with_unit;
    /// Number of bytes of unsent replies above which a connection is no longer read. Torch: unlimited.
    pub output_pause: usize = MIB, with_unit;
    /// Number of bytes of unsent replies above which a stalled connection is closed after a third of
    /// [`Limits::output_stall`], and maximum length of the reply to `list_keys`. The length of a value
    /// is divided by the number of replies that share it, and by one more if the store still has it.
    pub output_hard: usize = 64 * MIB, with_unit;
    /// Maximum number of bytes of unsent replies of all connections together. Beyond it the connection that has read
    /// nothing for the longest time is closed, connections with 32 KiB of unsent replies first. Torch: unlimited.
    pub output_total: usize = 1024 * MIB, with_unit;
    /// Size of the kernel buffers of a connection, in each direction. Control groups (v2) charge these buffers to the
    /// server. At 4 MiB or more, the kernel chooses the size. Torch: the kernel chooses the size.
    pub socket_bytes: usize = 4 * MIB, with_unit;
    /// Maximum time for which a connection may read none of its replies. Torch: unlimited.
    pub output_stall: Duration = Duration::from_secs(30), with_unit;
    /// Number of violations per second above which new connections of an address are refused. A violation is a
    /// connection that was closed because its peer broke the protocol or exceeded a limit. Loopback is exempt, because
    /// all programs of the machine share it.
    pub violations_per_second: u32 = 20, count;
    /// Time for which new connections of an address are refused after it exceeded [`Limits::violations_per_second`].
    pub violation_penalty: Duration = Duration::from_secs(10), with_unit;
    /// Maximum number of log lines per second about closed connections.
    pub log_lines_per_second: u32 = 10, count;
    /// TCP keep-alive: idle time before the first probe. Torch: no keep-alive.
    pub keepalive_idle: Duration = Duration::from_secs(60), with_unit;
    /// TCP keep-alive: time between two probes.
    pub keepalive_interval: Duration = Duration::from_secs(10), with_unit;
    /// TCP keep-alive: number of unanswered probes after which the connection ends, on systems without
    /// `TCP_USER_TIMEOUT`.
    pub keepalive_probes: u32 = 6, count;
    /// Maximum time for which sent data or probes may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration = Duration::from_secs(120), with_unit;
}

unlisted {
    // ---- the client ----
    /// Maximum length of a reply that the client accepts. Torch: unlimited, the client allocates the announced length.
    pub reply_len: usize = 64 * MIB;
    // After a network outage, the retransmission backoff of TCP may have grown to 1 min. A call that may be repeated
    // therefore abandons its connection early, and reconnects until the server replies.
    /// Maximum time for which sent data or probes may stay unacknowledged during a repeatable call. After it the client
    /// repeats the call over a new connection. A stopped server process does not trigger it, because the kernel
    /// acknowledges for the process. Other calls use [`Limits::user_timeout`]. Torch: unlimited, but TCP gives up after
    /// about 15 min.
    pub client_user_timeout: Duration = Duration::from_secs(10);
    /// Length of the longest request that uses [`Limits::client_user_timeout`]. A longer request may exceed the socket
    /// buffers of a server that is busy with other clients, and then stays unacknowledged although the server is alive.
    pub client_user_timeout_len: usize = 64 * KIB;
    /// TCP keep-alive of the client: idle time before the first probe. With this default and those of
    /// [`Limits::client_keepalive_interval`] and [`Limits::client_user_timeout`], a waiting client detects a dead
    /// connection after 11 s. Torch: no keep-alive.
    pub client_keepalive_idle: Duration = Duration::from_secs(5);
    /// TCP keep-alive of the client: time between two probes.
    pub client_keepalive_interval: Duration = Duration::from_secs(2);

    // ---- the file of a FileStore: enforced by its reader, which treats longer records as damage ----
    /// Maximum length of a key in the file. A longer announced length is reported as damage. With a higher limit, more
    /// damaged records would look like records that are not completely written yet. Torch: unlimited.
    pub record_key_len: usize = 64 * KIB;
    /// Maximum length of a value in the file. Torch: unlimited, it allocates the announced length.
    pub record_value_len: usize = 64 * MIB;

    // ---- the state of a rendezvous: enforced by its codec, which rejects larger states as corrupt ----
    /// Maximum length of a state before base64. A waiting node keeps two decoded states and the one that it writes,
    /// which together take about 20 times this limit. A node must fit into 64 MiB. Torch: unlimited.
    pub state_bytes: usize = 2 * MIB;
    /// Maximum number of nodes in each list of a state. The memory for decoding is proportional to it. Torch:
    /// unlimited.
    pub state_nodes: usize = 10_000;
    /// Maximum number of bytes in the names and texts of unknown attributes of a state. A memo reference of 2 bytes
    /// may stand for a text of any length, so the length of the state does not bound them. Torch: unlimited.
    pub state_extra: usize = 64 * KIB;
    /// Maximum length of a node's address. DNS names have at most 253 bytes. Torch: unlimited.
    pub host_len: usize = 255;
}
}

impl Limits {
    /// Lowers the limits so that a server fits into `memory` bytes.
    ///
    /// Each limit on a total gets a fixed share of `memory`. The shares add up to at most two thirds of it. The rest
    /// covers memory that the server does not count: spare capacity of hash tables, rounding in the allocator, and
    /// fragmentation.
    pub fn fit_memory(&mut self, memory: usize) {
        // Each limit is rounded down to whole KiB, which keeps the output of `--list-limits` readable.
        let lower = |limit: &mut usize, max: usize| *limit = (*limit).min((max & !(KIB - 1)).max(KIB));
        lower(&mut self.store_bytes, memory / 4);
        lower(&mut self.input_total, memory / 4);
        lower(&mut self.output_total, memory / 9);
        lower(&mut self.latched_bytes, memory / 64);
        lower(&mut self.socket_bytes, (memory / 512).max(32 * KIB));
        self.connections = self.connections.min((memory / (32 * KIB)).max(1));
        // The limits on one request and on one connection must not exceed the limits on all connections together.
        lower(&mut self.frame_len, self.input_total / 8 * 7);
        lower(&mut self.key_len, self.frame_len / 4);
        lower(&mut self.value_len, self.frame_len.saturating_sub(2 * self.key_len));
        lower(&mut self.deferred_bytes, self.input_total / 32);
        lower(&mut self.output_pause, self.output_total / 32);
        lower(&mut self.output_hard, self.output_total);
    }

    /// Returns the number of connections that a process can serve if it may open `files` files.
    pub fn connections_within(&self, files: usize) -> usize {
        let spare = self.spare_files.min(files / 4);
        self.connections.min(files - spare).max(1)
    }

    /// Checks that a server can work with these limits.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user that names the first invalid limit and its valid values.
    pub fn check(&self) -> Result<(), String> {
        let keepalive = Duration::from_secs(1)..=Duration::from_secs(32_767);
        let max_user_timeout = Duration::from_secs(2_000_000);
        let invalid = [
            ("key_len", self.key_len < 64, "at least 64"),
            ("keys_per_request", self.keys_per_request == 0, "at least 1"),
            ("frame_len", self.frame_len.saturating_sub(64) < self.key_len, "at least 64 more than key_len"),
            ("connections", self.connections == 0, "at least 1"),
            ("handshake", self.handshake.is_zero(), "more than 0s"),
            ("keepalive_idle", !keepalive.contains(&self.keepalive_idle), "from 1s to 32767s"),
            ("keepalive_interval", !keepalive.contains(&self.keepalive_interval), "from 1s to 32767s"),
            ("keepalive_probes", !(1..=127).contains(&self.keepalive_probes), "from 1 to 127"),
            ("user_timeout", self.user_timeout > max_user_timeout, "at most 2000000s"),
        ];
        match invalid.iter().find(|(_, is_invalid, _)| *is_invalid) {
            Some((name, _, requirement)) => Err(format!("limit {name} must be {requirement}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_set_by_its_name_with_a_unit() {
        let mut limits = Limits::default();
        limits.set("value_len", "1MiB").unwrap();
        limits.set("handshake", "250ms").unwrap();
        limits.set("log_lines_per_second", "3").unwrap();
        assert_eq!((limits.value_len, limits.log_lines_per_second), (MIB, 3));
        assert_eq!(limits.handshake, Duration::from_millis(250));
    }

    #[test]
    fn an_invalid_name_or_value_is_rejected_with_the_valid_ones() {
        let mut limits = Limits::default();
        assert!(limits.set("value_length", "1").unwrap_err().contains("value_len"));
        assert!(limits.set("value_len", "8 parsecs").unwrap_err().contains("8MiB"));
        assert!(limits.set("handshake", "soon").unwrap_err().contains("250ms"));
        assert!(limits.set("store_bytes", "99999999999999999999GiB").is_err());
        assert_eq!(limits, Limits::default());
    }

    #[test]
    fn check_names_the_invalid_limit() {
        assert_eq!(Limits::default().check(), Ok(()));
        for (name, value) in [("key_len", "0"), ("connections", "0"), ("keepalive_idle", "250ms")] {
            let mut limits = Limits::default();
            limits.set(name, value).unwrap();
            assert!(limits.check().unwrap_err().contains(name), "{name}");
        }
    }

    #[test]
    fn a_described_value_can_be_set_again() {
        let mut limits = Limits::default();
        for (name, default, meaning) in limits.describe() {
            limits.set(name, &default).unwrap();
            assert!(!meaning.is_empty() && !meaning.contains('['), "{name}: {meaning}");
        }
        assert_eq!(limits, Limits::default());
    }

    #[test]
    fn describe_prints_counts_without_units_and_lists_only_server_limits() {
        let described = Limits::default().describe();
        let value = |name| described.iter().find(|row| row.0 == name).map(|row| row.1.as_str());
        assert_eq!((value("connections"), value("queue_items")), (Some("65536"), Some("1000000")));
        assert_eq!((value("key_len"), value("store_bytes")), (Some("8KiB"), Some("4GiB")));
        for name in ["reply_len", "record_key_len", "state_nodes", "host_len"] {
            assert_eq!(value(name), None);
            let mut limits = Limits::default();
            let error = limits.set(name, "1").unwrap_err();
            assert!(error.contains("there is no limit") && error.contains("value_len"), "{error}");
        }
    }

    #[test]
    fn fit_memory_keeps_the_defaults_on_a_large_machine() {
        let mut limits = Limits::default();
        limits.fit_memory(16 << 30);
        assert_eq!(limits, Limits::default());
    }

    #[test]
    fn the_server_limits_add_up_to_at_most_two_thirds_of_the_memory() {
        for memory in [4 * MIB, 40 * MIB, 300 * MIB, 8 << 30] {
            let mut limits = Limits::default();
            limits.fit_memory(memory);
            assert_eq!(limits.check(), Ok(()), "{memory}");
            let total = limits.store_bytes
                + limits.input_total
                + limits.output_total
                + limits.latched_bytes
                + limits.connections * KIB;
            assert!(total <= memory / 3 * 2, "{total} of {memory}");
            assert!(limits.frame_len < limits.input_total);
            assert!(limits.value_len + limits.key_len + 64 < limits.frame_len.min(limits.store_bytes));
        }
    }

    #[test]
    fn the_longest_value_of_torch_fits_into_a_budget_of_40_mib() {
        let mut limits = Limits::default();
        limits.fit_memory(40 * MIB);
        assert_eq!((limits.value_len, limits.store_bytes, limits.connections), (8 * MIB, 10 * MIB, 1280));
    }

    #[test]
    fn every_limit_accepts_or_refuses_the_largest_number() {
        for (name, ..) in Limits::default().describe() {
            let mut limits = Limits::default();
            if limits.set(name, "18446744073709551615").is_ok() {
                let _ = limits.check();
            }
        }
    }

    #[test]
    fn a_low_file_limit_leaves_a_quarter_for_other_files() {
        let limits = Limits::default();
        let connections = [1, 64, 256, 1024].map(|files| limits.connections_within(files));
        assert_eq!(connections, [1, 48, 192, 960]);
        assert_eq!(limits.connections_within(usize::MAX), limits.connections);
    }

    #[test]
    fn the_defaults_accept_the_longest_keys_and_values_of_torchs_libuv_server() {
        let limits = Limits::default();
        assert_eq!((limits.key_len, limits.value_len, limits.keys_per_request), (8192, 8 << 20, 131_072));
        assert!(limits.frame_len > limits.value_len * 2 + limits.key_len, "a compare_set of two such values");
        assert!(
            limits.awaited_per_client >= limits.keys_per_request,
            "a wait for the maximum number of keys of a request"
        );
    }

    #[test]
    fn a_state_with_the_maximum_number_of_nodes_fits_into_a_value() {
        let limits = Limits::default();
        assert!(limits.state_bytes / limits.state_nodes > 160, "torch needs about 120 bytes per node");
        assert!(limits.state_bytes.div_ceil(3) * 4 < limits.value_len);
    }

    #[test]
    fn the_client_accepts_the_longest_value_of_the_server() {
        let limits = Limits::default();
        assert!(limits.reply_len > limits.value_len);
    }
}
