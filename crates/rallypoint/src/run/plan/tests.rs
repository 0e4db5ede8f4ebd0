//! Checks that `plan` interprets flags and variables as torchrun does.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use clap::Parser;
use rallypoint_agent::Streams;

use super::*;

mod contradictions;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    run: RunArgs,
}

/// Creates a directory with a script, a program and an interpreter.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["s.py", "python3", "tool"] {
        let path = dir.path().join(name);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    dir
}

fn plan_for(line: &str, environment: &[(&str, &str)]) -> Result<Plan, Refusal> {
    let dir = directory();
    let here = dir.path().to_str().unwrap();
    let words: Vec<String> = line.split_whitespace().map(|word| word.replace("DIR", here)).collect();
    let line: Vec<OsString> = ["run".into()].into_iter().chain(words.iter().map(OsString::from)).collect();
    let args = Cli::try_parse_from(&line).map_err(|error| Refusal::usage(error.to_string()))?.run;
    let lookup = |name: &str| match environment.iter().find(|(n, _)| *n == name) {
        Some((_, value)) => Some(value.into()),
        None => (name == "PATH").then(|| dir.path().as_os_str().to_owned()),
    };
    let environment = FlagEnvironment(&lookup);
    let plan = plan(&args, &line, &environment)?;
    crate::run::script::check(&plan.config, &environment).map(|()| plan)
}

fn config(line: &str) -> LaunchConfig {
    plan_for(line, &[]).unwrap().config
}

fn refusal_of(line: &str) -> (u8, String) {
    let refusal = plan_for(line, &[]).unwrap_err();
    (refusal.code, refusal.text)
}

fn variable(config: &LaunchConfig, name: &str) -> Option<String> {
    let found = config.extra_environment.iter().find(|(n, _)| n == OsStr::new(name));
    found.map(|(_, value)| value.to_string_lossy().into_owned())
}

#[test]
fn defaults_are_torchruns() {
    let config = config("DIR/s.py a b");
    assert_eq!(config.nproc_per_node, 1);
    assert_eq!((config.role.as_str(), config.max_restarts), ("default", 0));
    assert_eq!(config.monitor_interval, Duration::from_millis(100));
    assert_eq!(config.shutdown_grace, Duration::from_secs(30));
    assert_eq!(config.signals, [15, 2, 1, 3]);
    assert_eq!(
        (config.rendezvous.backend.as_str(), config.rendezvous.endpoint.as_str()),
        ("c10d", "localhost:0")
    );
    assert_eq!(config.rendezvous.run_id.len(), 36);
    assert_eq!(config.command.args, ["a", "b"]);
    assert!(
        matches!(&config.command.mode, CommandMode::Script { interpreter } if Path::new(interpreter).ends_with("python3"))
    );
    assert_eq!(config.logs, LogsConfig::default());
    assert_eq!(variable(&config, "OMP_NUM_THREADS"), None);
    assert_eq!(variable(&config, "TORCHELASTIC_SIGNALS_TO_HANDLE").unwrap(), "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
}

#[test]
fn flags_can_have_dashes_or_underscores_and_can_be_joined_bundled_or_shortened() {
    for line in [
        "--nproc-per-node 2 -m -r 3 pkg",
        "--nproc_per_node=2 -mr3 pkg",
        "--nproc 2 --mod --red=3 pkg",
        "--nproc-per-node 7 --nproc_per_node 2 --module -r 0 --redirects 3 pkg",
    ] {
        let config = config(line);
        assert_eq!(config.nproc_per_node, 2, "{line}");
        assert!(matches!(config.command.mode, CommandMode::Module { .. }), "{line}");
        assert_eq!(config.logs.redirects.of(1), Streams { stdout: true, stderr: true }, "{line}");
    }
}

#[test]
fn arguments_after_the_script_belong_to_the_script() {
    for (line, args) in [
        ("DIR/s.py --nnodes 9 -r", vec!["--nnodes", "9", "-r"]),
        ("DIR/s.py -- -x", vec!["-x"]),
        ("-- DIR/s.py -- y", vec!["--", "y"]),
        ("DIR/s.py a -- b -- c", vec!["a", "b", "--", "c"]),
        ("DIR/s.py --help", vec!["--help"]),
    ] {
        assert_eq!(config(line).command.args, args, "{line}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_wrong_values_with_1_like_torchrun() {
    for (line, code, part) in [
        ("", 2, "required"),
        ("--no-such-flag DIR/s.py", 2, "--no-such-flag"),
        ("--max-restarts x DIR/s.py", 2, "invalid int value"),
        ("--monitor-interval x DIR/s.py", 2, "invalid float value"),
        ("--start-method x DIR/s.py", 2, "spawn"),
        ("--nnodes", 2, "--nnodes"),
        ("--log-format xml DIR/s.py", 2, "json"),
        ("--nnodes 1:2:3 DIR/s.py", 1, "nnodes=1:2:3 is not in \"MIN:MAX\" format"),
        ("--nnodes 0 DIR/s.py", 1, "min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0"),
        ("--nnodes -1 DIR/s.py", 1, "got min_nodes=-1"),
        ("--nnodes 3:2 DIR/s.py", 1, "got min_nodes=3, max_nodes=2"),
        ("--max-restarts -1 DIR/s.py", 1, "max_restarts must be >= 0"),
        ("--monitor-interval 0 DIR/s.py", 1, "--monitor-interval"),
        ("--monitor-interval nan DIR/s.py", 1, "--monitor-interval"),
        ("--shutdown-timeout -1 DIR/s.py", 1, "shutdown_timeout must be non-negative, got -1"),
        ("--nproc-per-node 0 DIR/s.py", 1, "--nproc-per-node 0"),
        ("--nproc-per-node tpu DIR/s.py", 1, "Unsupported nproc_per_node value: tpu"),
        ("--nproc-per-node xpu DIR/s.py", 1, "xpu"),
        ("-r 4 DIR/s.py", 1, "--redirects"),
        ("--local-ranks-filter a DIR/s.py", 1, "comma-separated list of integers"),
        ("--no-python -m DIR/tool", 1, "Don't use both"),
        ("--rdzv-backend etcd-v2 --rdzv-endpoint h:1 DIR/s.py", 1, "etcd-v2"),
        ("--rdzv-conf a DIR/s.py", 1, "'a' must have a value"),
        ("--rdzv-conf jion_timeout=1 DIR/s.py", 1, "join_timeout"),
        ("--logs-specs mine DIR/s.py", 1, "--logs-specs mine"),
        ("--event-log-handler mine DIR/s.py", 1, "--event-log-handler mine"),
        ("--event-log DIR/no/such DIR/s.py", 1, "--event-log"),
        ("--signals-to-handle SIGTERM,SIGKILL DIR/s.py", 1, "SIGKILL"),
        ("--signals-to-handle SIGTERM,SIGSEGV DIR/s.py", 1, "SIGSEGV is not supported"),
        ("--signals-to-handle SIGTSTP DIR/s.py", 1, "SIGTSTP is not supported"),
        ("--signals-to-handle TERM DIR/s.py", 2, "\"TERM\""),
        ("--run-path --start-method fork DIR/s.py", 2, "--start-method fork"),
        ("--nnodes 2 --node-rank 2 DIR/s.py", 1, "the node rank 2"),
        ("--nnodes 2 --master-port 0 DIR/s.py", 1, "--master-port 0"),
        ("--nnodes 2 --master-addr 192.0.2.1 DIR/s.py", 1, "does not have that address"),
        ("--local-addr 192.0.2.1 DIR/s.py", 1, "does not have that address"),
        ("--health-check here DIR/s.py", 2, "--health-check"),
        ("--log-dir /dev/null --duplicate-stdout-filters a DIR/s.py", 1, "/dev/null"),
        ("DIR/absent.py", 1, "there is no script"),
        ("--no-python absent", 1, "there is no program \"absent\""),
        ("--event-log-handler console --event-log x DIR/s.py", 2, "use one of them"),
    ] {
        let (found, text) = refusal_of(line);
        assert!(found == code && text.contains(part), "{line}: {found}: {text}");
    }
}

#[test]
fn the_rendezvous_is_chosen_by_torchruns_rules() {
    let chosen = |line: &str| {
        let parameters = config(line).rendezvous;
        (parameters.backend, parameters.endpoint)
    };
    let pair = |backend: &str, endpoint: &str| (backend.to_owned(), endpoint.to_owned());
    assert_eq!(chosen("--standalone DIR/s.py"), pair("c10d", "localhost:0"));
    assert_eq!(chosen("--nnodes 2 DIR/s.py"), pair("static", "127.0.0.1:29500"));
    assert_eq!(chosen("--master-port 3000 DIR/s.py"), pair("static", "127.0.0.1:3000"));
    assert_eq!(
        chosen("--nnodes 2 --node-rank 1 --master-addr h --master-port 3000 DIR/s.py"),
        pair("static", "h:3000")
    );
    assert_eq!(chosen("--rdzv-backend c10d --rdzv-endpoint h:1 DIR/s.py"), pair("c10d", "h:1"));
    assert_eq!(chosen("--rdzv-backend c10d DIR/s.py"), pair("c10d", ""));
    let parameters =
        config("--nnodes 1:3 --rdzv-backend c10d --rdzv-conf join_timeout=5 --rdzv-id x DIR/s.py").rendezvous;
    assert_eq!((parameters.min_nodes, parameters.max_nodes, parameters.run_id.as_str()), (1, 3, "x"));
    assert_eq!(parameters.get_as_int("join_timeout").unwrap(), Some(5));
    let parameters = config("--nnodes 2 --node-rank 1 DIR/s.py").rendezvous;
    assert_eq!(
        (parameters.get_as_int("rank").unwrap(), parameters.get_as_int("timeout").unwrap()),
        (Some(1), Some(900))
    );
    assert_eq!(parameters.run_id, "none");
    // We keep the user's run id of a job on one machine. Torchrun would use a random one.
    assert_eq!(config("--rdzv-id mine DIR/s.py").rendezvous.run_id, "mine");
}

#[test]
fn environment_variables_are_defaults() {
    let environment = [
        ("PET_NPROC_PER_NODE", "3"),
        ("PET_MAX_RESTARTS", "2"),
        ("PET_NO_PYTHON", "1"),
        ("PET_TEE", "0:1"),
        ("PET_DUPLICATE_STDOUT_FILTERS", "a,b"),
        ("PET_LOG_DIR", "/logs"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"),
        ("OMP_NUM_THREADS", "4"),
        ("TORCH_ELASTIC_WORKER_IDENTICAL", "1"),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "8080"),
        ("TORCHELASTIC_ERROR_FILE", "/e.json"),
    ];
    let config = plan_for("tool", &environment).unwrap().config;
    assert_eq!((config.nproc_per_node, config.max_restarts), (3, 2));
    assert_eq!(config.command.mode, CommandMode::Program);
    assert_eq!(config.logs.tee.of(0), Streams { stdout: true, stderr: false });
    assert_eq!(
        (config.logs.dir, config.logs.stdout_filters),
        (LogDir::At("/logs".into()), vec!["a".into(), "b".into()])
    );
    assert_eq!(config.shutdown_grace, Duration::from_secs(7));
    assert_eq!(variable(&config_of(&environment), "OMP_NUM_THREADS"), None);
    assert!(config.identical_workers);
    assert_eq!(config.watch.health_check, "127.0.0.1:8080".parse().ok());
    let everywhere = plan_for("--health-check :8081 tool", &environment).unwrap().config;
    assert_eq!(everywhere.watch.health_check, "[::]:8081".parse().ok());
    assert_eq!(config.error_file, Some("/e.json".into()));
    let config = plan_for("--max-restarts 5 --shutdown-timeout 1 tool", &environment).unwrap().config;
    assert_eq!((config.max_restarts, config.shutdown_grace), (5, Duration::from_secs(1)));
    assert_eq!(plan_for("tool", &[("PET_NODE_RANK", "x")]).unwrap_err().code, 2);
    assert_eq!(plan_for("tool", &[("PET_STANDALONE", "x")]).unwrap_err().code, 1);
}

#[test]
fn every_variable_that_is_read_is_documented() {
    let dir = directory();
    let read = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let lookup = |name: &str| {
        read.borrow_mut().insert(name.to_owned());
        (name == "PATH").then(|| dir.path().as_os_str().to_owned())
    };
    let environment = FlagEnvironment(&lookup);
    let line: Vec<OsString> = ["run", "-m", "pkg"].map(OsString::from).into();
    let args = Cli::try_parse_from(&line).unwrap().run;
    let plan = plan(&args, &line, &environment).unwrap();
    crate::run::script::check(&plan.config, &environment).unwrap();
    crate::run::log_level(&args, &environment).unwrap();
    crate::reference::environment::assert_documented("run", &read.into_inner());
}

fn config_of(environment: &[(&str, &str)]) -> LaunchConfig {
    plan_for("tool", environment).unwrap().config
}

#[test]
fn several_workers_get_one_thread_each_by_default() {
    let plan = plan_for("--nproc-per-node 2 DIR/s.py", &[]).unwrap();
    assert_eq!(variable(&plan.config, "OMP_NUM_THREADS").unwrap(), "1");
    assert!(plan.warnings[0].contains("OMP_NUM_THREADS"));
}

#[test]
fn a_relative_log_directory_is_made_absolute() {
    let LogDir::At(dir) = config("--log-dir logs DIR/s.py").logs.dir else { panic!("no directory") };
    assert!(dir.is_absolute() && dir.ends_with("logs"), "{dir:?}");
    assert_eq!(config("--log-dir /dev/null DIR/s.py").logs.dir, LogDir::Nowhere);
}

#[test]
fn a_script_with_a_local_rank_in_its_name_must_exist_for_every_local_rank() {
    let (_, text) = refusal_of("--nproc-per-node 2 DIR/s${local_rank}.py");
    assert!(text.contains("s0.py"), "{text}");
}
