//! The examples that people copy: they run, they say what they should, and they are short.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The built example. `cargo test` builds them all; whoever asks for one test alone may have to wait for it here.
fn built(name: &str) -> PathBuf {
    // target/PROFILE/deps/helpers-… → target/PROFILE/examples/NAME
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let example = profile.join("examples").join(name);
    if !example.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", env!("CARGO_PKG_NAME"), "--example", name, "--target-dir"]);
        cargo.arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
    }
    example
}

/// Runs an example to its end; what it printed.
fn run(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(built(name)).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// How long its source is.
fn lines_of(name: &str) -> usize {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples").join(format!("{name}.rs"));
    std::fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn an_embedded_server_is_short_and_runs() {
    assert!(lines_of("embedded_server") < 40);
    let printed = run("embedded_server", &[]);
    assert!(printed.contains("3 workers, 6 items done"), "{printed}");
}

#[test]
fn a_job_that_meets_is_short_and_runs() {
    assert!(lines_of("meeting_point") < 40);
    let printed = run("meeting_point", &[]);
    for rank in 0..3 {
        assert!(
            printed.contains(&format!("rank {rank} knows [\"node0:5000\", \"node1:5001\", \"node2:5002\"]")),
            "{printed}"
        );
    }
}
