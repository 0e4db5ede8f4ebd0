//! Local ids, which distinguish nodes with the same address and process id.
//!
//! Torch numbers the handlers of a process from 0, and so do we. Containers that share the network of their host have
//! the same address and often the same process ids, so each PID namespace except the initial one has its own range of
//! numbers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// The inode number of the initial PID namespace of every Linux machine.
const INITIAL_NAMESPACE: i64 = 0xEFFF_FFFC;
/// The number of handlers that one process can create before its ids overlap with those of the next namespace.
const IDS_PER_NAMESPACE: i64 = 1 << 16;

/// Returns the local id of a new handler in this process.
pub(super) fn next_local_id() -> i64 {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    static FIRST: OnceLock<i64> = OnceLock::new();
    let first = *FIRST.get_or_init(|| first_local_id(Path::new("/proc/self/ns/pid")));
    first + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the local id of the first handler in a process: 0 in the initial PID namespace and on systems without
/// namespaces, and otherwise the start of a range for this namespace.
fn first_local_id(namespace: &Path) -> i64 {
    if cfg!(not(target_os = "linux")) {
        return 0;
    }
    let link = std::fs::read_link(namespace).ok();
    let number = link.as_deref().and_then(Path::to_str).and_then(namespace_number);
    let offset = match number {
        Some(number) => number.saturating_sub(INITIAL_NAMESPACE),
        // The namespace is unknown, so its range is random.
        None => i64::from(RandomState::new().build_hasher().finish() as u32) + 1,
    };
    offset.clamp(0, i64::from(u32::MAX)) * IDS_PER_NAMESPACE
}

/// Parses the number in `pid:[4026531836]`.
fn namespace_number(link: &str) -> Option<i64> {
    link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_of_one_process_have_increasing_ids() {
        let first = next_local_id();
        assert!(next_local_id() > first);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn each_pid_namespace_has_its_own_ids_and_the_initial_one_starts_at_0() {
        let directory = tempfile::tempdir().unwrap();
        let first_id = |name: &str| {
            let link = directory.path().join(name);
            std::os::unix::fs::symlink(format!("pid:[{name}]"), &link).unwrap();
            first_local_id(&link)
        };
        assert_eq!(first_id("4026531836"), 0);
        let (first, second) = (first_id("4026532201"), first_id("4026532202"));
        assert_eq!(second - first, IDS_PER_NAMESPACE);
        assert!(first >= IDS_PER_NAMESPACE);
        let unknown = Path::new("/no/such/namespace");
        assert!(first_local_id(unknown) >= IDS_PER_NAMESPACE);
        assert_ne!(first_local_id(unknown), first_local_id(unknown));
    }
}
