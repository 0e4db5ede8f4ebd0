//! The memory budget of a server: what the machine, the control groups (`memory.max` and `memory.high`, or
//! `memory.limit_in_bytes`) and the resource limits (`ulimit -v`, `ulimit -d`) leave to this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

/// The smallest budget. A server with less could not hold the state of a rendezvous.
const MIN_BUDGET: u64 = 4 << 20;

/// Address space that glibc's allocator reserves for the arena of a thread.
const MALLOC_ARENA: u64 = 64 << 20;

/// Returns the memory budget of a server in this process, in bytes.
///
/// The budget is determined once per process. Stores of one process share a server only if their limits are equal, so the
/// limits must not change as the process grows.
pub(super) fn budget() -> usize {
    static BUDGET: OnceLock<usize> = OnceLock::new();
    *BUDGET.get_or_init(|| usize::try_from(share(&bounds())).unwrap_or(usize::MAX))
}

/// A memory limit of this process, and how much of it the process uses already, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    limit: u64,
    used: u64,
}

/// Returns the budget within these bounds: 7/10 of the smallest remainder. The other 3/10 keep the process below 4/5 of each
/// limit while the rest of the program grows, too.
fn share(bounds: &[Bound]) -> u64 {
    let left = bounds.iter().map(|bound| bound.limit.saturating_sub(bound.used)).min().unwrap_or(u64::MAX);
    (left / 10 * 7).max(MIN_BUDGET)
}

fn bounds() -> Vec<Bound> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = text("/proc/self/status");
    let resident = status_bytes(&status, "VmRSS");
    let machine = rustix::system::sysinfo();
    let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
    let mut bounds = vec![Bound { limit: machine, used: resident }];
    let files = cgroup_limit_files(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
    let limits = files.iter().filter_map(|file| cgroup_limit(&fs::read_to_string(file).ok()?));
    bounds.extend(limits.map(|limit| Bound { limit, used: resident }));
    let arena = if allocates_by_arenas() { MALLOC_ARENA } else { 0 };
    let mapped = status_bytes(&status, "VmSize") + arena;
    let data = status_bytes(&status, "VmData").max(resident);
    for (resource, used) in [(Resource::As, mapped), (Resource::Data, data)] {
        bounds.extend(getrlimit(resource).current.map(|limit| Bound { limit, used }));
    }
    bounds
}

/// Returns whether each thread allocates from an arena of its own. The threads of `rallypoint serve` share one under RLIMIT_AS.
fn allocates_by_arenas() -> bool {
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    cfg!(target_env = "gnu") && !tunables.contains("glibc.malloc.arena_max=1")
}

/// Returns a size in `/proc/self/status` in bytes, or 0 if it is missing.
fn status_bytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Parses a limit file. Returns `None` for `max`.
fn cgroup_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Returns the files with the memory limits of this process: those of its control groups and of their ancestors. Some of the
/// files may not exist.
///
/// `groups` is the text of `/proc/self/cgroup`, `mounts` that of `/proc/self/mountinfo`.
fn cgroup_limit_files(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let Some(group) = groups.lines().find_map(|line| mount.group(line)) else { continue };
        let names: &[&str] = match mount.version {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        };
        // Inside a container the mount may be a subtree.
        let inside = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
        let inside = if inside.starts_with("..") { Path::new("") } else { inside };
        for folder in inside.ancestors() {
            let folder = mount.point.join(folder);
            files.extend(names.iter().map(|name| folder.join(name)));
        }
    }
    files
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A mounted control group hierarchy that can limit memory.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The directory of the hierarchy that is mounted.
    root: PathBuf,
    /// The mount point.
    point: PathBuf,
}

impl Mount {
    /// Parses a line of `/proc/self/mountinfo`: `ID PARENT DEVICE ROOT POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`.
    fn parse(line: &str) -> Option<Mount> {
        let (place, kind) = line.split_once(" - ")?;
        let (mut place, mut kind) = (place.split(' ').skip(3), kind.split(' '));
        let (root, point) = (unescaped(place.next()?), unescaped(place.next()?));
        let version = match kind.next()? {
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        Some(Mount { version, root, point })
    }

    /// Returns the group in a line of `/proc/self/cgroup` if the line is about this hierarchy: `ID:CONTROLLERS:GROUP`.
    fn group<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        let is_this = match self.version {
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
            Version::Two => controllers.is_empty(),
        };
        is_this.then_some(group)
    }
}

/// Undoes the octal escapes of a path in `mountinfo`.
fn unescaped(path: &str) -> PathBuf {
    let path = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    path.replace("\\134", "\\").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limit files as text.
    fn files(groups: &str, mounts: &str) -> Vec<String> {
        cgroup_limit_files(groups, mounts).iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn version_two_has_limits_in_the_group_and_in_all_around_it() {
        let found = files(
            "0::/user.slice/job.scope\n",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        let names = ["/user.slice/job.scope", "/user.slice", ""]
            .map(|group| ["memory.max", "memory.high"].map(|name| format!("/sys/fs/cgroup{group}/{name}")));
        assert_eq!(found, names.concat());
    }

    #[test]
    fn version_one_has_limits_in_the_tree_of_the_memory_controller() {
        let found = files(
            "5:cpu,cpuacct:/other\n4:memory:/job/inner\n1:name=systemd:/\n0::/init\n",
            "34 31 0:31 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
             36 31 0:33 / /data rw,relatime - ext4 /dev/vda rw,memory\n",
        );
        let names = ["/job/inner", "/job", ""]
            .map(|group| format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"));
        assert_eq!(found, names);
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_tree() {
        // Without a cgroup namespace the group's path is the host's, and the mount's root is its prefix.
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let limit = |group: &str| format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes");
        assert_eq!(files("4:memory:/docker/abc\n", mounts), [limit("")]);
        assert_eq!(files("4:memory:/docker/abc/job\n", mounts), [limit("/job"), limit("")]);
        assert_eq!(files("4:memory:/docker/abcdef\n", mounts), [limit("")], "not a part of it");
        // With a cgroup namespace, the process may be in a group outside of the namespace's root.
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(files("4:memory:/../other\n", mounts), [limit("")]);
    }

    #[test]
    fn a_machine_with_both_versions_is_looked_at_in_both() {
        let found = files(
            "4:memory:/\n0::/\n",
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw\n",
        );
        assert_eq!(
            found,
            [
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/uni fied/memory.max",
                "/sys/fs/cgroup/uni fied/memory.high"
            ]
        );
    }

    #[test]
    fn what_is_not_understood_limits_nothing() {
        for (groups, mounts) in [
            ("", ""),
            ("0::/a", ""),
            ("nonsense\n0:\n", "1 2 3\n - \n30 23 0:26 / /sys/fs/cgroup rw - cgroup2\n"),
            ("4:memory:/a", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup"),
        ] {
            assert_eq!(files(groups, mounts), [""; 0], "{groups:?} {mounts:?}");
        }
    }

    #[test]
    fn a_limit_is_a_number_or_none() {
        assert_eq!(cgroup_limit("67108864\n"), Some(64 << 20));
        assert_eq!(cgroup_limit("9223372036854771712\n"), Some(9_223_372_036_854_771_712));
        for none in ["max\n", "", "-1\n"] {
            assert_eq!(cgroup_limit(none), None, "{none:?}");
        }
    }

    #[test]
    fn sizes_of_a_process_are_read_in_bytes() {
        let status = "Name:\tVmRSS: 7\nVmSize:\t  20640 kB\nVmRSS:\t    5124 kB\nVmData:\t6824 kB\n";
        let sizes = ["VmSize", "VmRSS", "VmData", "VmSwap"].map(|name| status_bytes(status, name));
        assert_eq!(sizes, [20640 << 10, 5124 << 10, 6824 << 10, 0]);
    }

    #[test]
    fn the_tightest_bound_counts_and_leaves_the_process_below_four_fifths() {
        let bound = |limit: u64, used: u64| Bound { limit: limit << 20, used: used << 20 };
        let (machine, container) = (bound(16 << 10, 7), bound(64, 7));
        assert_eq!(share(&[machine, container]), share(&[container]));
        assert!(share(&[container]) + container.used < container.limit / 5 * 4);
        assert_eq!(share(&[bound(64, 80)]), MIN_BUDGET, "a process that is past its limit already");
        assert_eq!(share(&[container, bound(32, 30)]), MIN_BUDGET);
    }

    #[test]
    fn this_process_has_a_budget_within_the_machine() {
        let machine = rustix::system::sysinfo();
        let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
        assert!((MIN_BUDGET..machine).contains(&(budget() as u64)), "{} of {machine}", budget());
        assert_eq!(budget(), budget());
    }
}
