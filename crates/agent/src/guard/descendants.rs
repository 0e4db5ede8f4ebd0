//! The descendants of a process, read from `/proc`.

use std::collections::HashMap;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process, identified by its id and its start time, because ids are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// The start time, in the kernel's clock ticks since boot.
    start: u64,
}

/// Returns all descendants of `root` except zombies, parents before children.
pub(crate) fn descendants(root: Pid) -> Vec<Process> {
    descendants_except(root, &[])
}

/// Returns the descendants of `root`, without the children in `excluded` and their descendants.
pub(crate) fn descendants_except(root: Pid, excluded: &[Process]) -> Vec<Process> {
    let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(stat) = pid.and_then(Stat::read) else { continue };
        let siblings = children.entry(stat.parent).or_default();
        // Omit zombies. When a process exits, its children get another parent, so a zombie has no children.
        if !stat.has_ended {
            siblings.push(stat.process);
        }
    }
    let mut found: Vec<Process> = children.remove(&root).unwrap_or_default();
    found.retain(|process| !excluded.contains(process));
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// Sends a signal to `process`, unless another process has its id now.
pub(crate) fn send(process: &Process, signal: Signal) {
    let Ok(handle) = pidfd_open(process.pid, PidfdFlags::empty()) else { return };
    if Stat::read(process.pid).is_some_and(|stat| stat.process == *process) {
        // Ignore the error, because the process may have exited.
        let _ = pidfd_send_signal(handle, signal);
    }
}

struct Stat {
    process: Process,
    parent: Pid,
    has_ended: bool,
}

impl Stat {
    fn read(pid: Pid) -> Option<Stat> {
        let text = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        Stat::parse(pid, &text)
    }

    /// Parses `pid (name) state parent …`. The start time is field 22. The name may contain spaces and
    /// parentheses.
    fn parse(pid: Pid, text: &[u8]) -> Option<Stat> {
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let mut words = std::str::from_utf8(&text[end + 1..]).ok()?.split_ascii_whitespace();
        let has_ended = matches!(words.next()?, "Z" | "X");
        let parent = Pid::from_raw(words.next()?.parse().ok()?)?;
        let start = words.nth(17)?.parse().ok()?;
        Some(Stat { process: Process { pid, start }, parent, has_ended })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::getpid;

    use super::*;

    #[test]
    fn a_grandchild_with_a_session_of_its_own_is_found_and_can_be_killed() {
        let mut child = Command::new("sh")
            .args(["-c", "setsid sleep 600 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        let grandchild = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let found = descendants(getpid());
        let position = |pid| found.iter().position(|process| process.pid == pid);
        let (first, second) = (position(Pid::from_child(&child)), position(grandchild));
        assert!(first.is_some() && first < second, "{first:?} {second:?}");
        let remaining = descendants_except(getpid(), &[found[first.unwrap()]]);
        assert!(!remaining.contains(&found[first.unwrap()]) && !remaining.contains(&found[second.unwrap()]));
        send(&found[second.unwrap()], Signal::KILL);
        assert!(child.wait().unwrap().code().is_some());
    }

    #[test]
    fn a_process_is_not_confused_with_another_of_the_same_id() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let stat = Stat::read(Pid::from_child(&child)).unwrap();
        send(&Process { start: stat.process.start + 1, ..stat.process }, Signal::KILL);
        assert!(child.try_wait().unwrap().is_none());
        send(&stat.process, Signal::KILL);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn process_names_may_contain_spaces_and_parentheses() {
        let text = b"7 (a) Z 1 (b)) S 5 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 2 3";
        let stat = Stat::parse(Pid::from_raw(7).unwrap(), text).unwrap();
        assert_eq!(
            (stat.parent.as_raw_nonzero().get(), stat.process.start, stat.has_ended),
            (5, 4711, false)
        );
        assert!(Stat::parse(Pid::from_raw(7).unwrap(), b"7 (x").is_none());
    }
}
