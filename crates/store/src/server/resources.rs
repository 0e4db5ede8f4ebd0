//! The file descriptors and the memory that are available to this process.
//!
//! The memory budget of a server follows from the memory of the machine, the control groups (`memory.max` and
//! `memory.high`, or `memory.limit_in_bytes`) and the resource limits (`ulimit -v`, `ulimit -d`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open file descriptors to the hard limit. Returns the resulting limit.
pub fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = setrlimit(Resource::Nofile, raised).map_or(limit.current, |()| limit.maximum);
    files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// The minimum memory budget. With less, a server could not store the state of a rendezvous.
const MIN_BUDGET_BYTES: u64 = 4 << 20;

/// The address space that glibc's allocator reserves for the arena of a thread.
const MALLOC_ARENA_BYTES: u64 = 64 << 20;

/// Returns the memory budget of a server in this process, in bytes.
///
/// The budget is computed once per process. Stores of one process share a server only if their limits are equal, so the
/// limits must not change when the process grows.
pub(super) fn budget() -> usize {
    static BUDGET: AtomicUsize = AtomicUsize::new(0);
    if BUDGET.load(Ordering::Relaxed) == 0 {
        let budget = usize::try_from(budget_share(available_bytes())).unwrap_or(usize::MAX);
        // If several threads compute the budget, the first result is used. There is no lock, because a lock that
        // another thread holds during a fork would stay locked in the child.
        let _ = BUDGET.compare_exchange(0, budget, Ordering::Relaxed, Ordering::Relaxed);
    }
    BUDGET.load(Ordering::Relaxed)
}

/// Returns 7/10 of the available memory, but at least [`MIN_BUDGET_BYTES`]. The other 3/10 are for memory that the
/// server does not count. The available memory is the limit minus the memory in use. If less than 1/3 of the limit was
/// in use before, that memory and a full budget together are less than 4/5 of the limit.
fn budget_share(available: u64) -> u64 {
    (available / 10 * 7).max(MIN_BUDGET_BYTES)
}

/// Returns the number of bytes that the strictest memory limit leaves to this process.
fn available_bytes() -> u64 {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let resident = status_bytes(&status, "VmRSS");
    let machine = rustix::system::sysinfo();
    let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
    let groups = cgroup_limits(&read("/proc/self/cgroup")).into_iter();
    let arena = if has_thread_arenas() { MALLOC_ARENA_BYTES } else { 0 };
    let mapped = status_bytes(&status, "VmSize") + arena;
    let data = status_bytes(&status, "VmData").max(resident);
    let resources = [(Resource::As, mapped), (Resource::Data, data)].into_iter();
    let resources = resources.filter_map(|(resource, used)| Some((getrlimit(resource).current?, used)));
    let bounds = groups.chain([machine]).map(|limit| (limit, resident)).chain(resources);
    bounds.map(|(limit, used)| limit.saturating_sub(used)).min().unwrap_or(u64::MAX)
}

/// Returns whether each thread has an arena of its own. Under RLIMIT_AS, `rallypoint serve` sets `GLIBC_TUNABLES` so
/// that its threads share one.
fn has_thread_arenas() -> bool {
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    cfg!(target_env = "gnu") && !tunables.contains("glibc.malloc.arena_max=1")
}

/// Returns the value of the field `name`, in bytes, or 0 if the field is missing. `status` is the text of
/// `/proc/self/status`.
fn status_bytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Returns the memory limits of the control groups of this process and of their ancestors.
///
/// `groups` is the text of `/proc/self/cgroup`. A file that does not exist or contains `max` sets no limit.
fn cgroup_limits(groups: &str) -> Vec<u64> {
    let read = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    cgroup_files(groups).iter().filter_map(read).collect()
}

/// Returns the paths of the files that may contain the memory limits of these control groups and of their ancestors.
///
/// In a container, `/proc/self/cgroup` may contain the path on the host, although only the subtree of the container is
/// mounted. In that case, the file at the mount point contains the limit of the container.
fn cgroup_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        // `ID:CONTROLLERS:GROUP`
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (tree, names): (_, &[&str]) = match controllers {
            "" => ("/sys/fs/cgroup", &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
            }
            _ => continue,
        };
        for directory in Path::new(group.trim_start_matches('/')).ancestors() {
            files.extend(names.iter().map(|name| Path::new(tree).join(directory).join(name)));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the paths of the limit files as text.
    fn files(groups: &str) -> Vec<String> {
        cgroup_files(groups).iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn cgroup_v2_has_limits_in_the_group_and_in_its_ancestors() {
        let names = ["/user.slice/job.scope", "/user.slice", ""]
            .map(|group| ["memory.max", "memory.high"].map(|name| format!("/sys/fs/cgroup{group}/{name}")));
        assert_eq!(files("0::/user.slice/job.scope\n"), names.concat());
    }

    #[test]
    fn cgroup_v1_has_limits_in_the_tree_of_the_memory_controller() {
        let names = ["/job/inner", "/job", ""]
            .map(|group| format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"));
        assert_eq!(files("5:cpu,cpuacct:/other\n4:memory:/job/inner\n1:name=systemd:/\n"), names);
    }

    #[test]
    fn a_machine_with_both_cgroup_versions_has_limits_in_both() {
        let names = ["memory/memory.limit_in_bytes", "memory.max", "memory.high"];
        assert_eq!(files("4:memory:/\n0::/\n"), names.map(|name| format!("/sys/fs/cgroup/{name}")));
    }

    #[test]
    fn an_invalid_cgroup_list_sets_no_limit() {
        for groups in ["", "nonsense\n0:\n", "5:cpu:/a"] {
            assert_eq!(files(groups), [""; 0], "{groups:?}");
        }
        assert_eq!(cgroup_limits("0::/there/is/no/such/group/of/this/test"), cgroup_limits("0::/"));
    }

    #[test]
    fn process_sizes_are_converted_to_bytes() {
        let status = "Name:\tVmRSS: 7\nVmSize:\t  20640 kB\nVmRSS:\t    5124 kB\nVmData:\t6824 kB\n";
        let sizes = ["VmSize", "VmRSS", "VmData", "VmSwap"].map(|name| status_bytes(status, name));
        assert_eq!(sizes, [20640 << 10, 5124 << 10, 6824 << 10, 0]);
    }

    #[test]
    fn the_budget_leaves_the_process_below_four_fifths_of_its_limit() {
        let (limit, used) = (64 << 20, 7 << 20);
        assert!(budget_share(limit - used) + used < limit / 5 * 4);
        assert_eq!(budget_share(0), MIN_BUDGET_BYTES, "a process that exceeds its limit");
        assert_eq!(budget_share(2 << 20), MIN_BUDGET_BYTES);
    }

    #[test]
    fn the_budget_of_this_process_is_below_the_memory_of_the_machine() {
        let machine = rustix::system::sysinfo();
        let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
        assert!((MIN_BUDGET_BYTES..machine).contains(&(budget() as u64)), "{} of {machine}", budget());
        assert_eq!(budget(), budget());
    }
}
