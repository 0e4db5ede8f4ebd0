//! Finds the process that listens on a port of this machine.

use std::fs;
use std::path::Path;

/// Returns a hint that names the process that listens on a TCP port. Returns `None` if no other process listens on it,
/// or if this process may not see the sockets of that process. Only root sees the sockets of other users' processes.
pub(crate) fn port_owner_hint(port: u16) -> Option<String> {
    let (pid, name) = port_owner(port).filter(|(pid, _)| *pid != std::process::id())?;
    Some(format!("port {port} of this machine is in use by process {pid} ({name})"))
}

/// Returns the id and the name of the process that listens on a TCP port.
fn port_owner(port: u16) -> Option<(u32, String)> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .flat_map(|table| listening_sockets(&table, port))
        .collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| has_socket(*pid, &inodes)).map(|pid| {
        // The name in `comm` is "exe" for our agents, so use the name of the program.
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        (pid, program.file_name().unwrap_or_default().to_string_lossy().into_owned())
    })
}

/// Returns the sockets that listen on a port, as links in `/proc/PID/fd` name them. `table` is the content of
/// `/proc/net/tcp` or `/proc/net/tcp6`.
fn listening_sockets(table: &str, port: u16) -> Vec<String> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, found) = words.get(1)?.rsplit_once(':')?;
        // The fourth column is the state, and 0A is LISTEN.
        let listens = words.get(3) == Some(&"0A") && u16::from_str_radix(found, 16) == Ok(port);
        listens.then(|| words.get(9).map(|inode| format!("socket:[{inode}]")))?
    };
    table.lines().skip(1).filter_map(line).collect()
}

fn has_socket(pid: u32, inodes: &[String]) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = files.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.into_iter().any(|target| inodes.iter().any(|inode| Path::new(inode) == target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 0100007F:7378 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4242 1 0 100 0 0 10 0\n   \
             1: 0100007F:7378 0100007F:0001 01 00000000:00000000 00:00000000 00000000  0 0 4243 1 0 100 0 0 10 0\n";
        assert_eq!(listening_sockets(table, 29560), ["socket:[4242]"]);
        assert!(listening_sockets(table, 1).is_empty());
    }
}
