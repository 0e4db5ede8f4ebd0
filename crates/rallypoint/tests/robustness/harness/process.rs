//! What the system knows of a process: memory, open files, processor time. It looks and changes nothing.

use std::fs;
use std::time::Duration;

/// What the kernel counts in when it tells times to others, whatever it counts in itself.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(10);

/// A process by its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    /// Bytes of memory it occupies.
    pub(crate) fn memory(self) -> usize {
        // Exact, unlike the figure in `status`, which lags behind by some pages a processor.
        let rollup =
            fs::read_to_string(format!("/proc/{}/smaps_rollup", self.0)).expect("the server is alive");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a line with Rss");
        let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// The most bytes of memory it has occupied at one time.
    pub(crate) fn peak_memory(self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).expect("the server is alive");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line with VmHWM");
        let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// How many files it has open.
    pub(crate) fn files(self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0)).expect("the server is alive").count()
    }

    /// Processor time of all its threads, in the kernel and outside.
    pub(crate) fn cpu(self) -> Duration {
        self.schedule(0)
    }

    /// Whether all its threads wait for something.
    pub(crate) fn is_sleeping(self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).expect("the server is alive");
        let states =
            tasks.flatten().map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        states.into_iter().all(|stat| stat.contains(") S "))
    }

    /// How long its threads had something to do and no processor to do it on.
    pub(crate) fn cpu_wait(self) -> Duration {
        self.schedule(1)
    }

    fn schedule(self, field: usize) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).expect("the server is alive");
        let nanoseconds = tasks.map(|task| {
            let path = task.expect("a thread").path().join("schedstat");
            let stat = fs::read_to_string(path).unwrap_or_default();
            stat.split(' ').nth(field).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        });
        Duration::from_nanos(nanoseconds.sum())
    }

    /// Processor time outside the kernel: what its own code costs, to a clock tick.
    pub(crate) fn user_cpu(self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).expect("the server is alive");
        // The name in parentheses may hold anything; the eleventh field after the state is `utime`.
        let after_name = stat.rsplit_once(')').expect("a name in parentheses").1;
        let ticks: u32 =
            after_name.split_whitespace().nth(11).and_then(|text| text.parse().ok()).expect("utime");
        TICK_INTERVAL * ticks
    }
}
