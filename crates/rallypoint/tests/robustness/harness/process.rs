//! Memory, open file descriptors and CPU time of a process, read from `/proc`.

use std::fs;
use std::time::Duration;

/// One clock tick, the unit of times in `/proc/PID/stat` and `/proc/net/tcp`. Linux has 100 ticks per second
/// (`USER_HZ`).
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(10);

/// A process, identified by its process id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    /// Returns the resident memory in bytes.
    pub(crate) fn memory(self) -> usize {
        // The kernel counts the pages when this file is read, so the number is exact. `VmRSS` in `/proc/PID/status` may
        // lag behind by some pages per CPU.
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.0)).expect("the server runs");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a line with Rss");
        let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// Returns the largest resident memory that the process has had, in bytes.
    pub(crate) fn peak_memory(self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line with VmHWM");
        let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// Returns the number of open file descriptors.
    pub(crate) fn files(self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0)).expect("the server runs").count()
    }

    /// Returns the CPU time of all live threads, in user and kernel mode.
    pub(crate) fn cpu(self) -> Duration {
        self.schedstat(0)
    }

    /// Returns whether all threads sleep, and none runs or waits for a CPU.
    pub(crate) fn is_sleeping(self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).expect("the server runs");
        let states =
            tasks.flatten().map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        states.into_iter().all(|stat| stat.contains(") S "))
    }

    /// Returns the time for which the threads were runnable and waited for a CPU, summed over all threads.
    pub(crate) fn cpu_wait(self) -> Duration {
        self.schedstat(1)
    }

    /// Returns a field of `schedstat`, summed over all live threads.
    fn schedstat(self, field: usize) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).expect("the server runs");
        let nanoseconds = tasks.map(|task| {
            let path = task.expect("a thread").path().join("schedstat");
            let stat = fs::read_to_string(path).unwrap_or_default();
            stat.split(' ').nth(field).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        });
        Duration::from_nanos(nanoseconds.sum())
    }

    /// Returns the CPU time in user mode, to a precision of one clock tick.
    pub(crate) fn user_cpu(self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).expect("the server runs");
        // The process name in parentheses can contain spaces and parentheses, so the fields are counted from the last
        // `)`. The first field is the state, and `utime` is the eleventh field after it.
        let after_name = stat.rsplit_once(')').expect("a name in parentheses").1;
        let ticks: u32 =
            after_name.split_whitespace().nth(11).and_then(|text| text.parse().ok()).expect("utime");
        TICK_INTERVAL * ticks
    }
}
