//! Every limit, in one place, each with the peer's number beside ours and the reason.
//!
//! These are plain numbers, grouped by their owner: a server, a client, the file of a FileStore, the state of a rendezvous.

use std::time::Duration;

use crate::quantity::Quantity;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Writes the struct, its defaults and the access to the limits of a server by name. After the default of such a limit stands
/// how it is printed: a `count` is a plain number, and an `with_unit` has a unit.
macro_rules! limits {
    (
        $(#[$outer:meta])*
        pub struct Limits;
        server { $($(#[doc = $doc:literal])* pub $name:ident: $kind:ty = $default:expr, $print:ident;)* }
        unlisted { $($(#[$other_doc:meta])* pub $other:ident: $other_kind:ty = $other_default:expr;)* }
    ) => {
        $(#[$outer])*
        pub struct Limits {
            $($(#[doc = $doc])* pub $name: $kind,)*
            $($(#[$other_doc])* pub $other: $other_kind,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Limits { $($name: $default,)* $($other: $other_default,)* }
            }
        }

        impl Limits {
            /// Returns name, value and meaning of each limit of a server, for people.
            pub fn describe(&self) -> Vec<(&'static str, String, String)> {
                vec![$((stringify!($name), $print(&self.$name), strip_links(concat!($($doc),*)))),*]
            }

            /// Sets the limit of a server that has this name. Sizes take `KiB`, `MiB`, `GiB`; times take `ms`, `s`, `min`.
            ///
            /// # Errors
            ///
            /// Fails with a message for the user if there is no such limit or the text is not a value of it.
            pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
                let invalid = |why| format!("limit {name}: {text:?} is not {why}");
                match name {
                    $(stringify!($name) => self.$name = Quantity::parse(text).map_err(invalid)?,)*
                    _ => {
                        let names = [$(stringify!($name)),*].join(", ");
                        return Err(format!("there is no limit {name:?}; there are {names}"));
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

/// Returns a doc comment as text, without the marks of its links.
fn strip_links(doc: &str) -> String {
    doc.trim().replace("[`Limits::", "").replace("`]", "")
}

limits! {
/// Bounds on what one peer may ask for and on what the store may hold.
///
/// A server uses `Limits::default()`, lowered by [`Limits::fit_memory`] to the memory available to its process. The
/// `--limit` flag of `rallypoint serve` overrides each server limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits;

server {
    // ---- one request (enforced by the decoder, before anything is allocated) ----
    /// Longest key in bytes. Torch's libuv server: 8 KiB; its legacy server: none.
    pub key_len: usize = 8 * KIB, with_unit;
    /// Longest value in bytes, also of the *result* of an append. Torch's libuv server: 8 MiB, but an append can grow
    /// a value past it; legacy: none.
    pub value_len: usize = 8 * MIB, with_unit;
    /// Most keys in one request. Torch's libuv server: 131,072; legacy: none.
    pub keys_per_request: usize = 131_072, count;
    /// Longest whole request. Torch: none, so one `multi_set` may ask for a terabyte.
    pub frame_len: usize = 64 * MIB, with_unit;

    // ---- the store (enforced by the engine; a write that would pass them is refused, nothing is evicted) ----
    /// Bytes of keys, values and queue items together, with the names of awaited keys and barriers. The default is at most a
    /// quarter of the memory budget of the machine or container. Torch: none, the host runs out of memory instead.
    pub store_bytes: usize = 4096 * MIB, with_unit;
    /// Number of keys. Torch: none.
    pub keys: usize = 4_000_000, count;
    /// Number of items in all queues together. Torch: none.
    pub queue_items: usize = 1_000_000, count;
    /// Absent keys one connection may wait for. Torch: 131,072 in one request, but requests add up.
    pub awaited_per_client: usize = 131_072, count;
    /// Absent keys all connections together may wait for. Torch: none.
    pub awaited_total: usize = 1_000_000, count;

    /// Bytes of values that waits have seen and whose clients have not asked for them yet. Past it a wait still ends, but
    /// a `get` behind it no longer finds what was deleted in between. Torch: it never does.
    pub latched_bytes: usize = 256 * MIB, with_unit;

    // ---- connections (enforced by the server) ----
    // Before VALIDATE nothing is taken but the five bytes of it, and nothing is answered: that needs no limit.
    /// Time from accept to a whole VALIDATE. Torch: none, silent connections are kept for ever.
    pub handshake: Duration = Duration::from_secs(10), with_unit;
    /// An unvalidated connection older than this counts as stale. A correct client sends VALIDATE at once, so ten
    /// thousand arriving together never look like an attack.
    pub stale_after: Duration = Duration::from_secs(1), with_unit;
    /// Most stale unvalidated connections; the oldest go first. Torch: none.
    pub stale_total: usize = 1024, count;
    /// Most stale unvalidated connections of one address. Torch: none.
    pub stale_per_address: usize = 256, count;
    /// Most connections; further lowered to the process' file limit less [`Limits::spare_files`]. Torch: none (its
    /// legacy server aborts at the file limit).
    pub connections: usize = 65_536, count;
    /// Files left free below the process' limit: this many, or a quarter of that limit if that is less.
    pub spare_files: usize = 64, count;
    /// The time over which the rate of an incomplete request is measured. Torch: none.
    pub partial_grace: Duration = Duration::from_secs(30), with_unit;
    /// Bytes per second at which a request must arrive in each [`Limits::partial_grace`], or it is cut off.
    pub partial_rate: usize = KIB, with_unit;
    /// Bytes of incomplete requests held for all connections together. Large requests share three quarters of it, first come
    /// first served; past the limit the largest incomplete request is cut off. Torch: none (and an aborted upload leaks there).
    pub input_total: usize = 256 * MIB, with_unit;
    /// While others wait for their share, a large request that gets no byte for this long is cut off. Torch: none.
    pub input_stall: Duration = Duration::from_secs(3), with_unit;
    /// Requests waiting behind a blocked one, in bytes, before the connection is no longer read.
    pub deferred_bytes: usize = MIB, with_unit;
    /// Unsent reply bytes above which a connection is no longer read. Torch: none.
    pub output_pause: usize = MIB, with_unit;
    /// Unsent reply bytes above which a connection that takes none of them is closed after a third of
    /// [`Limits::output_stall`], and the longest list of keys. A value counts in equal parts for each of its holders.
    pub output_hard: usize = 64 * MIB, with_unit;
    /// The same of all connections together; past it the connection that has taken none for longest is closed. Torch: none.
    pub output_total: usize = 1024 * MIB, with_unit;
    /// Size of a connection's kernel buffers, in each direction. Control groups (v2) charge these buffers to the server. At
    /// 4 MiB or more the kernel sizes them itself. Torch: the kernel sizes them.
    pub socket_bytes: usize = 4 * MIB, with_unit;
    /// A connection that takes nothing of its replies for this long is closed. Torch: none.
    pub output_stall: Duration = Duration::from_secs(30), with_unit;
    /// Connections of one address closed for an offence in a second before its new connections are refused. Loopback is exempt: there,
    /// one address is every program of the machine.
    pub offences_per_second: u32 = 20, count;
    /// How long such an address is refused.
    pub offence_penalty: Duration = Duration::from_secs(10), with_unit;
    /// Lines a second in the log about misbehaving peers.
    pub log_lines_per_second: u32 = 10, count;
    /// TCP keep-alive: idle time before the first probe. Torch: keep-alive is off.
    pub keepalive_idle: Duration = Duration::from_secs(60), with_unit;
    /// TCP keep-alive: time between probes.
    pub keepalive_interval: Duration = Duration::from_secs(10), with_unit;
    /// TCP keep-alive: unanswered probes before the connection is dead, where there is no `TCP_USER_TIMEOUT`.
    pub keepalive_probes: u32 = 6, count;
    /// Data or probes that are not acknowledged for this long kill the connection (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration = Duration::from_secs(120), with_unit;
}

unlisted {
    // ---- the client ----
    /// Largest reply our client accepts. Torch: none, it allocates what the server announces.
    pub reply_len: usize = 64 * MIB;
    // After an outage of the network, TCP retransmits with a backoff of its own, which may have grown to a minute. A call that
    // may be repeated therefore gives up its connection early, and reconnects until the server answers.
    /// If the server's machine acknowledges nothing for this long during a call that may be repeated, the client repeats the
    /// call over a new connection. A stopped process does not count: its machine acknowledges for it. Calls that must not be
    /// repeated use [`Limits::user_timeout`]. Torch: none, TCP gives up after a quarter of an hour.
    pub client_user_timeout: Duration = Duration::from_secs(10);
    /// Longest request for which that holds, in bytes. A longer request may exceed the socket buffers of the server, and a
    /// server that is busy with other clients may leave it unread.
    pub client_user_timeout_len: usize = 64 * KIB;
    /// TCP keep-alive of the client: idle time before the first probe. With this and the next time a client that waits
    /// detects a dead connection after 11 s. Torch: keep-alive is off.
    pub client_keepalive_idle: Duration = Duration::from_secs(5);
    /// TCP keep-alive of the client: time between probes.
    pub client_keepalive_interval: Duration = Duration::from_secs(2);

    // ---- the file of a FileStore (enforced by its reader; what is above is damage, not a record) ----
    /// Longest key in the file. Torch: none. The lower this limit is, the more damage can be told from a torn end.
    pub record_key_len: usize = 64 * KIB;
    /// Longest value in the file. Torch: none, it allocates what the file announces.
    pub record_value_len: usize = 64 * MIB;

    // ---- the state of a rendezvous (enforced by its codec; what is above is refused as corrupt) ----
    /// Longest state in bytes, before base64. A node that waits holds two decoded states and the one it is about to write:
    /// about twenty times this limit, of the 64 MiB that it may need. Torch: none, it unpickles what is there.
    pub state_bytes: usize = 2 * MIB;
    /// Most nodes in each list of a state; memory while reading is a small multiple of it. Torch: none.
    pub state_nodes: usize = 10_000;
    /// Bytes of names and texts of a state's attributes that we don't know, together. A reference is two bytes but stands
    /// for a text of any length, so the length of the state alone bounds nothing. Torch: none.
    pub state_extra: usize = 64 * KIB;
    /// Longest address of a node in bytes. Torch: none; DNS ends at 253.
    pub host_len: usize = 255;
}
}

impl Limits {
    /// Lowers the limits so that everything a server holds at one time fits into `memory` bytes.
    ///
    /// Each limit gets a fixed share. The shares add up to two thirds of `memory`. The rest covers what the counters leave
    /// out: spare capacity of hash tables, rounding in the allocator, and fragmentation.
    pub fn fit_memory(&mut self, memory: usize) {
        // Rounded to whole KiB to keep `--list-limits` readable.
        let lower = |limit: &mut usize, max: usize| *limit = (*limit).min((max & !(KIB - 1)).max(KIB));
        lower(&mut self.store_bytes, memory / 4);
        lower(&mut self.input_total, memory / 4);
        lower(&mut self.output_total, memory / 9);
        lower(&mut self.latched_bytes, memory / 64);
        lower(&mut self.socket_bytes, (memory / 512).max(32 * KIB));
        self.connections = self.connections.min((memory / (32 * KIB)).max(1));
        // A single request or connection must fit into the share of all connections.
        lower(&mut self.frame_len, self.input_total / 8 * 7);
        lower(&mut self.key_len, self.frame_len / 4);
        lower(&mut self.value_len, self.frame_len.saturating_sub(2 * self.key_len));
        lower(&mut self.deferred_bytes, self.input_total / 32);
        lower(&mut self.output_pause, self.output_total / 32);
        lower(&mut self.output_hard, self.output_total);
    }

    /// Returns how many connections a process can serve that may open `files` files.
    pub fn connections_within(&self, files: usize) -> usize {
        let spare = self.spare_files.min(files / 4);
        self.connections.min(files - spare).max(1)
    }

    /// Checks whether a server can work with these limits.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user that says which limit is wrong and what it must be.
    pub fn check(&self) -> Result<(), String> {
        let keepalive = Duration::from_secs(1)..=Duration::from_secs(32_767);
        let max_user_timeout = Duration::from_secs(2_000_000);
        let invalid = [
            ("key_len", self.key_len < 64, "at least 64"),
            ("keys_per_request", self.keys_per_request == 0, "at least 1"),
            ("frame_len", self.frame_len < self.key_len + 64, "at least 64 more than key_len"),
            ("connections", self.connections == 0, "at least 1"),
            ("handshake", self.handshake.is_zero(), "more than nothing"),
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
    fn a_low_file_limit_leaves_a_quarter_for_other_files() {
        let limits = Limits::default();
        let connections = [1, 64, 256, 1024].map(|files| limits.connections_within(files));
        assert_eq!(connections, [1, 48, 192, 960]);
        assert_eq!(limits.connections_within(usize::MAX), limits.connections);
    }

    #[test]
    fn the_defaults_accept_every_request_that_torch_accepts() {
        let limits = Limits::default();
        assert_eq!((limits.key_len, limits.value_len, limits.keys_per_request), (8192, 8 << 20, 131_072));
        assert!(limits.frame_len > limits.value_len * 2 + limits.key_len, "a compare_set of two such values");
        assert!(
            limits.awaited_per_client >= limits.keys_per_request,
            "a wait for as many keys as can be named"
        );
    }

    #[test]
    fn a_state_with_the_maximum_number_of_nodes_fits_into_a_value() {
        let limits = Limits::default();
        assert!(limits.state_bytes / limits.state_nodes > 160, "torch takes about 120 bytes a node");
        assert!(limits.state_bytes.div_ceil(3) * 4 < limits.value_len);
    }

    #[test]
    fn the_client_accepts_the_longest_value_of_the_server() {
        let limits = Limits::default();
        assert!(limits.reply_len > limits.value_len);
    }
}
