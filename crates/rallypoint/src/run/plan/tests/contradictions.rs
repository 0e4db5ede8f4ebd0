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

const NATIVE: &str = "--rdzv-backend rallypoint --rdzv-endpoint 127.0.0.1:1,node1 --nnodes 2:4";

#[test]
fn the_flags_of_the_native_rendezvous_set_its_options() {
    let line = format!(
        "{NATIVE} --node-rank 3 --job-max-restarts 5 --topology rack=r7,switch=s2 --pre-join-check DIR/tool \
         --pre-join-timeout 2.5 DIR/s.py"
    );
    let config = config(&line).rendezvous.config;
    let options: Vec<_> = config.iter().map(|(name, value)| (name.as_str(), value.to_string())).collect();
    let check = config["pre_join_check"].to_string();
    assert!(check.ends_with("/tool"), "{check}");
    let expected = [
        ("job_max_restarts", "5".to_owned()),
        ("node_rank", "3".into()),
        ("pre_join_check", check),
        ("pre_join_timeout", "2.5".into()),
        ("topology", "rack=r7,switch=s2".into()),
    ];
    assert_eq!(options, expected);
    let variables = [("PET_TOPOLOGY", "rack=r7"), ("PET_JOB_MAX_RESTARTS", "2"), ("PET_NODE_RANK", "1")];
    let config = plan_for(&format!("{NATIVE} --node-rank 2 DIR/s.py"), &variables).unwrap().config;
    let value = |name| config.rendezvous.get(name).map(ToString::to_string);
    assert_eq!(value("topology").as_deref(), Some("rack=r7"));
    assert_eq!(value("job_max_restarts").as_deref(), Some("2"));
    assert_eq!(value("node_rank").as_deref(), Some("2"), "the command line wins");
}

#[test]
fn bad_input_for_the_native_rendezvous_is_refused_before_anything_starts() {
    for (more, code, text) in [
        ("--rdzv-endpoint ,", 1, "the list of endpoints \",\" has an empty entry"),
        ("--rdzv-endpoint h:1,h:0", 1, "the endpoint h:0 needs a port that all nodes know"),
        ("--rdzv-conf node_unit=5", 1, "node_unit is \"5\"; it must be a number from 1 to 4"),
        ("--rdzv-conf node_unit=4", 1, "the minimum of --nnodes (2) is not a multiple of node_unit (4)"),
        ("--topology rack", 1, "the topology \"rack\" is not in the form KEY=VALUE,…"),
        ("--topology=", 1, "the topology \"\" is not in the form KEY=VALUE,…"),
        ("--topology rack=a,rack=b", 1, "has the key \"rack\" twice"),
        ("--node-rank 4", 1, "node_rank is \"4\"; it must be a number from 0 to 3"),
        ("--node-rank -1", 1, "node_rank is \"-1\""),
        ("--job-max-restarts -1", 1, "job_max_restarts is \"-1\""),
        ("--pre-join-timeout 5", 1, "pre_join_timeout is set, but there is no pre_join_check"),
        ("--pre-join-check=", 1, "the command of the pre-join check is empty"),
        ("--pre-join-check true --pre-join-timeout 0", 1, "pre_join_timeout is \"0\""),
        (
            "--topology rack=a --rdzv-conf topology=rack=b",
            2,
            "--topology rack=a conflicts with topology=rack=b",
        ),
        ("--rdzv-conf lease=0.1", 1, "lease must be at least 1 s"),
        ("--rdzv-conf leese=5", 1, "did you mean 'lease'?"),
        ("--standalone", 2, "--nnodes 2:4"),
    ] {
        let (found, error) = refusal_of(&format!("{NATIVE} {more} DIR/s.py"));
        assert!(found == code && error.contains(text), "{more}: {found} {error}");
    }
    let (code, error) = refusal_of("--rdzv-backend rallypoint --nnodes 2 DIR/s.py");
    assert!(code == 1 && error.contains("the backend rallypoint needs an endpoint"), "{error}");
    let warnings = warnings_for(&format!("{NATIVE} --master-port 29500 DIR/s.py"), &[]);
    assert_eq!(
        warnings,
        ["--master-port 29500 has no effect: rallypoint sets MASTER_ADDR and MASTER_PORT itself"]
    );
}

#[test]
fn flags_of_the_native_rendezvous_are_refused_with_another_backend() {
    for backend in [
        "",
        "--standalone",
        "--rdzv-backend c10d --rdzv-endpoint h:1",
        "--nnodes 2 --node-rank 1 --master-addr h",
    ] {
        for flag in
            ["--job-max-restarts 3", "--topology rack=a", "--pre-join-check true", "--pre-join-timeout 5"]
        {
            let (code, error) = refusal_of(&format!("{backend} {flag} DIR/s.py"));
            let expected = format!("{flag} can't be honored: it is for --rdzv-backend rallypoint only");
            assert_eq!((code, error), (2, expected), "{backend}");
        }
        let warnings = warnings_for(&format!("{backend} DIR/s.py"), &[("PET_TOPOLOGY", "rack=a")]);
        let expected = "PET_TOPOLOGY=rack=a has no effect: it is for --rdzv-backend rallypoint only";
        assert_eq!(warnings, [expected], "{backend}");
    }
}
