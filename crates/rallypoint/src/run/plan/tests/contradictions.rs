//! Contradictory flags are refused, and the error names them. Contradictory variables, and combinations that are
//! common in launch scripts, usually cause a warning.

use super::*;

/// Returns the warnings for a command line that must be accepted, without those about `OMP_NUM_THREADS`.
fn warnings_for(line: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let warnings =
        plan_for(line, environment).unwrap_or_else(|refusal| panic!("{line}: {}", refusal.text)).warnings;
    warnings.into_iter().filter(|warning| !warning.contains("OMP_NUM_THREADS")).collect()
}

#[test]
fn a_flag_that_would_be_ignored_is_refused_by_name() {
    for (line, flag, other) in [
        ("--standalone --nnodes 2", "--nnodes 2", "--standalone"),
        ("--standalone --nnodes 1:2", "--nnodes 1:2", "--standalone"),
        ("--standalone --rdzv-backend static", "--rdzv-backend static", "--standalone"),
        ("--standalone --rdzv-backend etcd", "--rdzv-backend etcd", "--standalone"),
        ("--standalone --rdzv-endpoint localhost:29400", "--rdzv-endpoint localhost:29400", "--standalone"),
        ("--standalone --rdzv-endpoint node0:0", "--rdzv-endpoint node0:0", "--standalone"),
        ("--standalone --master-addr node0", "--master-addr node0", "--standalone"),
        ("--standalone --master-port 29501", "--master-port 29501", "--standalone"),
        ("--standalone --node-rank 1", "--node-rank 1", "--standalone"),
        ("--node-rank 1", "--node-rank 1", "--nnodes"),
        ("--nnodes 1 --node-rank -1", "--node-rank -1", "--nnodes"),
        ("--nnodes 2:4", "--nnodes 2:4", "--rdzv-backend c10d"),
        ("--nnodes 1:2 --rdzv-backend static", "--nnodes 1:2", "--nnodes 2"),
        (
            "--nnodes 2 --rdzv-endpoint h:1 --master-addr g --node-rank 1",
            "--master-addr g",
            "--rdzv-endpoint h:1",
        ),
        (
            "--nnodes 2 --rdzv-endpoint h:1 --master-port 2 --node-rank 1",
            "--master-port 2",
            "--rdzv-endpoint h:1",
        ),
        ("--nnodes 2 --rdzv-conf rank=1", "--rdzv-conf rank=1", "--node-rank 1"),
        ("--nnodes 2 --rdzv-backend c10d --master-addr node0", "--master-addr node0", "--rdzv-endpoint"),
        ("--rdzv-backend c10d --master-port 29500", "--master-port 29500", "--rdzv-endpoint"),
        ("--run-path --module", "--module", "--run-path"),
        ("--run-path --no-python", "--no-python", "--run-path"),
        ("--start-method fork", "--start-method fork", "--run-path"),
        ("--run-path --start-method forkserver", "--start-method forkserver", "--run-path"),
        ("--log-dir /dev/null -r 3", "--redirects 3", "--log-dir /dev/null"),
        ("--log-dir /dev/null --tee 0:1", "--tee 0:1", "--log-dir /dev/null"),
        ("--event-log x --event-log-handler null", "--event-log", "--event-log-handler null"),
    ] {
        let (code, text) = refusal_of(&format!("{line} DIR/s.py"));
        assert!(code == 2 && text.contains(flag) && text.contains(other), "{line}: {code}: {text}");
        assert_eq!(text.lines().count(), 1, "{line}: {text}");
    }
    // This flag would not be ignored. It is an invalid value, because a static rendezvous needs a port other than 0.
    let (code, text) = refusal_of("--rdzv-endpoint localhost:0 DIR/s.py");
    assert!(code == 1 && text.contains("--rdzv-endpoint localhost:0"), "{text}");
}

#[test]
fn redundant_flags_are_accepted() {
    for line in [
        "--standalone --nnodes 1 --nproc-per-node 2",
        "--standalone --nnodes 1:1 --rdzv-backend c10d --rdzv-endpoint localhost:0 --node-rank 0",
        "--standalone --rdzv-endpoint 127.0.0.1:0 --master-addr localhost --master-port 0 --rdzv-id x",
        "--nnodes 1 --node-rank 0 --master-addr localhost",
        "--nnodes 1 --node-rank 0 --master-addr 127.0.0.1 --master-port 29501",
        "--nnodes 2 --node-rank 1 --rdzv-endpoint h:1 --master-addr H --master-port 1 --rdzv-conf rank=1",
        "--nnodes 2:2 --node-rank 1 --rdzv-backend static --rdzv-endpoint [::1]:5 --master-addr ::1 --master-port 5",
        "--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint h:1 --master-addr h --master-port 1",
        "--rdzv-backend c10d --master-addr 127.0.0.1 --master-port 29400",
        "--start-method spawn",
        "--log-dir /dev/null -r 0 -t 0:0",
        "-t 1 --duplicate-stdout-filters a",
    ] {
        assert_eq!(warnings_for(&format!("{line} DIR/s.py"), &[]), [] as [String; 0], "{line}");
    }
}

#[test]
fn combinations_common_in_launch_scripts_cause_a_warning() {
    for (line, flag) in [
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 --node-rank 1", "--node-rank 1"),
        ("--rdzv-backend c10d --rdzv-endpoint h:1 --master-addr 10.0.0.1", "--master-addr 10.0.0.1"),
        ("--rdzv-backend c10d --rdzv-endpoint h:1 --master-addr h --master-port 6000", "--master-port 6000"),
        ("--rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-conf timeout=900", "timeout"),
        ("--rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-conf rank=1", "rank"),
        ("--nnodes 1 --node-rank 0 --master-addr node0", "--master-addr node0"),
        ("--duplicate-stderr-filters a -t 1", "--duplicate-stderr-filters"),
    ] {
        let warnings = warnings_for(&format!("{line} DIR/s.py"), &[]);
        assert!(warnings.len() == 1 && warnings[0].starts_with(flag), "{line}: {warnings:?}");
    }
}

#[test]
fn typed_flags_win_over_contradicting_variables_with_a_warning() {
    for (line, name, value) in [
        ("--standalone", "PET_RDZV_BACKEND", "static"),
        ("--standalone", "PET_RDZV_ENDPOINT", "node0:29400"),
        ("--standalone", "PET_MASTER_ADDR", "node0"),
        ("--standalone", "PET_MASTER_PORT", "29500"),
        ("--standalone", "PET_NODE_RANK", "3"),
        ("--nnodes 1", "PET_NODE_RANK", "3"),
        ("--nnodes 2 --node-rank 1 --rdzv-endpoint h:1", "PET_MASTER_ADDR", "node0"),
        ("--rdzv-backend c10d", "PET_MASTER_PORT", "29500"),
        ("--rdzv-backend static --rdzv-endpoint h:1 --node-rank 1", "PET_NNODES", "1:2"),
        ("--run-path", "PET_NO_PYTHON", "1"),
        ("--log-dir /dev/null", "PET_TEE", "3"),
        ("", "PET_START_METHOD", "fork"),
    ] {
        let warnings = warnings_for(&format!("{line} DIR/s.py"), &[(name, value)]);
        let expected = format!("{name}={value} has no effect");
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(&expected),
            "{line} {name}={value}: {warnings:?}"
        );
    }
    // Two contradictions are refused although one side is a variable: a flag that `PET_STANDALONE` leaves without an
    // effect, and `--standalone` with several nodes.
    let refusal_with = |line: &str, variable| plan_for(line, &[variable]).unwrap_err();
    let refusal = refusal_with("--rdzv-endpoint h:1 DIR/s.py", ("PET_STANDALONE", "1"));
    assert!(refusal.code == 2 && refusal.text.starts_with("--rdzv-endpoint h:1 "), "{}", refusal.text);
    let refusal = refusal_with("--standalone DIR/s.py", ("PET_NNODES", "2"));
    assert!(refusal.code == 2 && refusal.text.contains("PET_NNODES=2"), "{}", refusal.text);
}
