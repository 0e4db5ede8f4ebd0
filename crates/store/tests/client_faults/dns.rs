//! Tests of names that cannot be resolved and of name servers that do not answer.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rallypoint_store::{ConnectionFault, Failure};

use crate::child::{print_line, read_line, start};
use crate::{CALL_TIMEOUT, open};

#[test]
fn an_unknown_host_is_reported() {
    let timeout = Duration::from_millis(400);
    let started = Instant::now();
    let error = open("no-such-host.invalid", 29400, timeout).unwrap_err();
    assert!(started.elapsed() >= timeout);
    let Some(ConnectionFault::Unresolvable { host, .. }) = &error.connection_fault() else {
        panic!("{error:?}")
    };
    assert_eq!(host, "no-such-host.invalid");
    assert!(error.to_string().contains("could not resolve host \"no-such-host.invalid\""), "{error}");
}

/// Runs in the child: tries to connect to a name, and prints how long that took and the error.
pub(crate) fn measure_resolve(host: &str, millis: u64) {
    let started = Instant::now();
    let error = open(host, 29400, Duration::from_millis(millis)).unwrap_err();
    let took = started.elapsed();
    assert!(matches!(error.failure(), Some(Failure::Unreachable(_))), "{error:?}");
    print_line(&format!("{} {error}", took.as_millis()));
}

/// The child runs in a mount namespace of its own, in which the only name server never answers.
#[test]
fn a_silent_name_server_does_not_extend_the_timeout() {
    // A loopback address that no other process uses. Only root can bind port 53.
    let address = format!("127.{}.{}.53", 1 + std::process::id() % 250, (std::process::id() / 250) % 250);
    let Ok(_silent) = UdpSocket::bind((address.as_str(), 53)) else {
        return println!("skipped: only root can bind the port of a name server");
    };
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("resolv.conf");
    std::fs::write(&config, format!("nameserver {address}\noptions timeout:30 attempts:5\n")).unwrap();
    let mount = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", config.display());
    let wrapper = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
    let can_mount = std::process::Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").status();
    if !can_mount.is_ok_and(|status| status.success()) {
        return println!("skipped: this process cannot create a mount namespace");
    }
    let timeout = Duration::from_millis(700);
    let mut child = start(&wrapper, &format!("resolve store.example {}", timeout.as_millis()));
    let line = read_line(&mut child);
    child.wait().unwrap();
    let (took, error) = line.split_once(' ').unwrap();
    let took = Duration::from_millis(took.parse().unwrap());
    assert!(error.contains("did not answer in time"), "{error}");
    // The resolver alone would take 150 s.
    assert!(took >= timeout && took < CALL_TIMEOUT, "failed after {took:?}");
}
