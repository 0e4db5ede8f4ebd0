//! How much memory a server may use: what is left to this process of the machine's memory, of the limits of its control
//! groups (`memory.max` and `memory.high`, or `memory.limit_in_bytes`), and of its resource limits (`ulimit -v`, `ulimit -d`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

/// A server gets at least this much, even where that is more than what is left: with less it can't serve at all.
const MIN_BUDGET: u64 = 4 << 20;

/// Address space that glibc's allocator reserves for a thread when that first allocates.
const MALLOC_ARENA: u64 = 64 << 20;

/// Bytes that the server of this process may use for all that it holds.
///
/// It is found out once: the servers and clients of one process have the same limits, however much the process has grown
/// between them.
pub(super) fn budget() -> usize {
    static BUDGET: OnceLock<usize> = OnceLock::new();
    *BUDGET.get_or_init(|| usize::try_from(share(&bounds())).unwrap_or(usize::MAX))
}

/// A limit on the memory of this process, and how much of it the process uses already. Both in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    limit: u64,
    used: u64,
}

/// What a server may use within all of these: seven tenths of what is left. The process grows by other things, too, and is to
/// stay below four fifths of each limit.
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

/// Whether a thread that allocates takes an arena of its own. `rallypoint serve` has only one for all its threads.
fn allocates_by_arenas() -> bool {
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    cfg!(target_env = "gnu") && !tunables.contains("glibc.malloc.arena_max=1")
}

/// A size in `/proc/self/status`, in bytes; zero if it is not there.
fn status_bytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The limit in one of these files. `None` if it says that there is none.
fn cgroup_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The files that may hold a memory limit of this process: those of its control groups and of the groups around them. Not all
/// of them need to exist.
///
/// The arguments are `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn cgroup_limit_files(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let Some(group) = groups.lines().find_map(|line| mount.group(line)) else { continue };
        let names: &[&str] = match mount.version {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        };
        // In a container the mount may show only the container's own part of the tree.
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

/// A tree of control groups that limits memory, as this process sees it.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The part of the tree that is mounted.
    root: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
}

impl Mount {
    /// A line of `/proc/self/mountinfo`: `ID PARENT DEVICE ROOT POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`.
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

    /// The group of this tree that a line of `/proc/self/cgroup` names, if it is about this tree: `ID:CONTROLLERS:GROUP`.
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

/// A path as `mountinfo` prints it: with three octal digits for what would end a field.
fn unescaped(path: &str) -> PathBuf {
    let path = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    path.replace("\\134", "\\").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one line of text with a file for each word.
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
        // Without a namespace for control groups the names are the host's, and the mount shows where they begin.
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let limit = |group: &str| format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes");
        assert_eq!(files("4:memory:/docker/abc\n", mounts), [limit("")]);
        assert_eq!(files("4:memory:/docker/abc/job\n", mounts), [limit("/job"), limit("")]);
        assert_eq!(files("4:memory:/docker/abcdef\n", mounts), [limit("")], "not a part of it");
        // With one, a process may be outside of what it sees.
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
