//! Converts parameters to the settings of the native rendezvous, and reports all problems together.

use std::time::Duration;

use rallypoint_coordinator::JobSettings;
use rallypoint_coordinator::settings::ScaleUp;
use rallypoint_core::rendezvous::Settings;
use rallypoint_store::Endpoint;

use super::pre_join_check::PreJoinCheck;
use crate::c10d::DEFAULT_PORT;
use crate::endpoint::{check_specified, parse_rendezvous_endpoint};
use crate::error::{RendezvousError, Result};
use crate::options::{RendezvousOption, option};
use crate::parameters::{ConfigValue, RendezvousParameters, unknown_options};
use crate::store_info::is_address;

/// The options of the native rendezvous. Times are in seconds and may have fractions.
pub const NATIVE_OPTIONS: [RendezvousOption; 23] = [
    option(
        "join_timeout",
        "600",
        "Time that a node waits for other nodes. A spare, a node that waits for the next round and an excluded node wait \
         without a limit.",
    ),
    option("last_call_timeout", "30", "Time that the first round waits for more nodes once it has enough."),
    option(
        "lease",
        "5",
        "Time without a renewal after which a node counts as lost. Nodes renew five times per lease.",
    ),
    option("fence", "on", "`off` lets workers run on when their node can't renew its lease."),
    option(
        "return_grace",
        "1",
        "Time that the members of a round that has ended have to return before others take their places.",
    ),
    option(
        "reconnect_grace",
        "5",
        "Time that a node without workers may be disconnected before it is dropped.",
    ),
    option(
        "scale_up",
        "",
        "`never` or `now`: whether waiting nodes end the running round, without `scale_up_delay`.",
    ),
    option(
        "scale_up_delay",
        "10",
        "Time after which waiting nodes end the running round, so that the next one includes them.",
    ),
    option(
        "node_unit",
        "1",
        "The number of nodes of a round is a multiple of this number, and each multiple has nodes of one topology group.",
    ),
    option("voters", "5", "Maximum number of replicas of the coordinator: 1, 3 or 5."),
    option(
        "job_max_restarts",
        "",
        "Restarts of the whole job after failed workers and lost nodes, which `--job-max-restarts` sets. By default there \
         is no limit.",
    ),
    option(
        "node_name",
        "",
        "Name of this node in messages and commands of operators. By default its host name. If several nodes are on one \
         host, give each its own name.",
    ),
    option(
        "node_rank",
        "",
        "Group rank that this node asks for, which `--node-rank` sets. By default the node prefers its rank in Slurm \
         (`SLURM_NODEID`), if `srun` has started it.",
    ),
    option(
        "topology",
        "",
        "Groups of this node, from the widest to the narrowest, which `--topology` sets: `rack=r7;switch=s2`.",
    ),
    option(
        "pre_join_check",
        "",
        "Command that has to succeed before the node joins a round, which `--pre-join-check` sets.",
    ),
    option("pre_join_timeout", "60", "Time that this command may take, which `--pre-join-timeout` sets."),
    option(
        "exclude_after",
        "3",
        "Failures of a node within `exclude_window` after which the node is excluded. 0 disables this.",
    ),
    option("exclude_window", "600", "See `exclude_after`."),
    option("exclude_time", "3600", "Time for which a node is excluded after too many failures."),
    option("close_timeout", "30", "Time that closing the rendezvous may take."),
    option(
        "read_timeout",
        "60",
        "Timeout for connecting to the store of a round, and for each operation on it.",
    ),
    option("timeout", "", "Accepted and unused."),
    option("rank", "", "Accepted and unused."),
];

/// The environment variables that `srun` sets for the tasks of a step. A batch script has only the first one.
const SLURM_VARIABLES: [&str; 2] = ["SLURM_NODEID", "SLURM_STEP_NODELIST"];

/// The settings of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NativeSettings {
    pub(super) job: JobSettings,
    /// The name of the node, if it is not its host name.
    pub(super) node_name: Option<String>,
    /// The group rank that the node asks for.
    pub(super) pin: Option<u32>,
    /// The group rank that the node takes if it is free.
    pub(super) preferred_rank: Option<u32>,
    /// The topology group of the node: one value for each key of the job.
    pub(super) topology: Vec<String>,
    pub(super) pre_join_check: Option<PreJoinCheck>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) join_timeout: Duration,
    pub(super) close_timeout: Duration,
    pub(super) read_timeout: Duration,
    /// Whether the workers are killed at the end of the lease.
    pub(super) fence: bool,
}

impl NativeSettings {
    /// Converts parameters. Fails with one error that lists every problem.
    pub(crate) fn parse(parameters: &RendezvousParameters) -> Result<NativeSettings> {
        let mut reader = Reader { parameters, errors: Vec::new() };
        reader
            .errors
            .extend(unknown_options(parameters.config.keys(), &NATIVE_OPTIONS.map(|option| option.name)));
        reader.errors.extend(parameters.check_names());
        let min = u32::try_from(parameters.min_nodes);
        let (Ok(min), Ok(max)) = (min, u32::try_from(parameters.max_nodes)) else {
            return Err(RendezvousError::parameter("a rendezvous has less than 2^32 nodes"));
        };
        let mut job = JobSettings::new(min, max);
        for (name, setting) in [
            ("last_call_timeout", &mut job.last_call_timeout),
            ("lease", &mut job.lease),
            ("return_grace", &mut job.return_grace),
            ("reconnect_grace", &mut job.reconnect_grace),
            ("exclude_window", &mut job.exclude_window),
            ("exclude_time", &mut job.exclude_time),
        ] {
            reader.time(name, setting);
        }
        if job.lease < JobSettings::MIN_LEASE {
            reader.error(format!("lease must be at least {} s", JobSettings::MIN_LEASE.as_secs_f64()));
        }
        let mut delay = Duration::from_secs(10);
        reader.time("scale_up_delay", &mut delay);
        job.scale_up = match reader.text("scale_up").as_deref() {
            None => ScaleUp::After(delay),
            Some("now") => ScaleUp::After(Duration::ZERO),
            Some("never") => ScaleUp::Never,
            Some(other) => {
                reader.error(format!("scale_up is {other:?}; it must be `never` or `now`"));
                ScaleUp::Never
            }
        };
        reader.number("node_unit", 1..=max, &mut job.node_unit);
        reader.number("voters", 1..=5, &mut job.max_voters);
        if job.max_voters.is_multiple_of(2) {
            reader.error(format!("voters is {}; it must be 1, 3 or 5", job.max_voters));
        }
        reader.number("exclude_after", 0..=u32::MAX, &mut job.exclude_after);
        if parameters.get("job_max_restarts").is_some() {
            let mut restarts = 0;
            reader.number("job_max_restarts", 0..=u32::MAX, &mut restarts);
            job.job_max_restarts = Some(restarts);
        }
        if !min.is_multiple_of(job.node_unit) {
            reader.error(format!(
                "the minimum of --nnodes ({min}) is not a multiple of node_unit ({})",
                job.node_unit
            ));
        }
        let node_name = parameters.get("node_name").map(ToString::to_string);
        if let Some(name) = node_name.as_ref().filter(|name| !is_address(name)) {
            reader.error(format!("node_name is {name:?}; it must be a name without spaces"));
        }
        let pin = parameters.get("node_rank").is_some().then(|| {
            let mut pin = 0;
            reader.number("node_rank", 0..=max - 1, &mut pin);
            pin
        });
        let groups = reader.topology();
        let topology = groups.iter().map(|(_, value)| value.clone()).collect();
        job.topology = groups.into_iter().map(|(key, _)| key).collect();
        let pre_join_check = reader.pre_join_check();
        let fence = match reader.text("fence").as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => {
                reader.error(format!("fence is {other:?}; it must be `on` or `off`"));
                true
            }
        };
        let [mut join_timeout, mut close_timeout, mut read_timeout] = [600, 30, 60].map(Duration::from_secs);
        reader.time("join_timeout", &mut join_timeout);
        reader.time("close_timeout", &mut close_timeout);
        reader.time("read_timeout", &mut read_timeout);
        let endpoints = reader.endpoints();
        if !reader.errors.is_empty() {
            return Err(RendezvousError::Parameters(reader.errors));
        }
        let preferred_rank = slurm_rank(|name| std::env::var(name).ok());
        Ok(NativeSettings {
            job,
            node_name,
            pin,
            preferred_rank,
            topology,
            pre_join_check,
            endpoints,
            join_timeout,
            close_timeout,
            read_timeout,
            fence,
        })
    }
}

/// Reads options and collects the problems.
struct Reader<'a> {
    parameters: &'a RendezvousParameters,
    errors: Vec<String>,
}

impl Reader<'_> {
    fn error(&mut self, error: impl Into<String>) {
        self.errors.push(error.into());
    }

    fn text(&self, name: &str) -> Option<String> {
        self.parameters.get(name).map(|value| ConfigValue::to_string(value).trim().to_lowercase())
    }

    /// Sets a time, if the option is present.
    fn time(&mut self, name: &str, setting: &mut Duration) {
        let Some(text) = self.text(name) else { return };
        let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
        let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        match time.filter(|time| *time <= Settings::MAX_TIMEOUT) {
            Some(time) => *setting = time,
            None => self.error(format!("{name} is {text:?}; it must be a positive number of seconds")),
        }
    }

    /// Sets a number, if the option is present.
    fn number(&mut self, name: &str, range: std::ops::RangeInclusive<u32>, setting: &mut u32) {
        let Some(text) = self.text(name) else { return };
        match text.parse().ok().filter(|number| range.contains(number)) {
            Some(number) => *setting = number,
            None => {
                let (first, last) = (range.start(), range.end());
                self.error(format!("{name} is {text:?}; it must be a number from {first} to {last}"));
            }
        }
    }

    /// Returns the topology groups of the node, as keys and values.
    fn topology(&mut self) -> Vec<(String, String)> {
        let mut groups: Vec<(String, String)> = Vec::new();
        let Some(text) = self.parameters.get("topology").map(ToString::to_string) else { return groups };
        for pair in text.split([',', ';']) {
            let words = pair.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            let Some((key, value)) = words.filter(|(key, value)| !key.is_empty() && !value.is_empty()) else {
                self.error(format!(
                    "the topology {text:?} is not in the form KEY=VALUE,… (example: rack=r7,switch=s2)"
                ));
                return Vec::new();
            };
            if groups.iter().any(|(other, _)| other == key) {
                self.error(format!("the topology {text:?} has the key {key:?} twice"));
            }
            groups.push((key.to_owned(), value.to_owned()));
        }
        groups
    }

    fn pre_join_check(&mut self) -> Option<PreJoinCheck> {
        let mut timeout = Duration::from_secs(60);
        self.time("pre_join_timeout", &mut timeout);
        let command = self.parameters.get("pre_join_check").map(ToString::to_string);
        match &command {
            Some(command) if command.trim().is_empty() => {
                self.error("the command of the pre-join check is empty")
            }
            None if self.parameters.get("pre_join_timeout").is_some() => {
                self.error("pre_join_timeout is set, but there is no pre_join_check");
            }
            _ => {}
        }
        Some(PreJoinCheck { command: command?, timeout })
    }

    /// Returns the endpoints, which commas separate.
    fn endpoints(&mut self) -> Vec<Endpoint> {
        let text = self.parameters.endpoint.trim();
        if text.is_empty() {
            self.error(
                "the backend rallypoint needs an endpoint: the HOST:PORT of one or more nodes, separated by commas \
                 (--rdzv-endpoint)",
            );
            return Vec::new();
        }
        let mut endpoints = Vec::new();
        for part in text.split(',') {
            if part.trim().is_empty() {
                self.error(format!("the list of endpoints {text:?} has an empty entry"));
                continue;
            }
            match parse_rendezvous_endpoint(part, DEFAULT_PORT) {
                Ok(endpoint) => {
                    self.errors.extend(check_specified(&endpoint));
                    if endpoint.port == 0 {
                        self.error(format!("the endpoint {endpoint} needs a port that all nodes know"));
                    }
                    endpoints.push(endpoint);
                }
                Err(error) => self.error(error.to_string()),
            }
        }
        endpoints
    }
}

/// Returns the rank of this node in Slurm, if `srun` has started this process.
fn slurm_rank(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
    let [rank, nodes] = SLURM_VARIABLES.map(variable);
    nodes.and(rank)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::parse_rendezvous_config;

    fn parse(endpoint: &str, config: &str) -> Result<NativeSettings> {
        let parameters = RendezvousParameters::new("rallypoint", endpoint, "job", 2, 4).unwrap();
        NativeSettings::parse(&parameters.with_config(parse_rendezvous_config(config).unwrap()).unwrap())
    }

    #[test]
    fn documented_defaults_are_the_defaults() {
        let defaults = NATIVE_OPTIONS.iter().filter(|option| !option.default.is_empty());
        let config: Vec<_> = defaults.map(|option| format!("{}={}", option.name, option.default)).collect();
        let config = format!("{},pre_join_check=true", config.join(","));
        assert_eq!(parse("h", &config).unwrap(), parse("h", "pre_join_check=true").unwrap());
    }

    #[test]
    fn every_problem_is_reported() {
        for (config, problem) in [
            ("node_unit=5", "node_unit is \"5\"; it must be a number from 1 to 4"),
            ("node_unit=4", "the minimum of --nnodes (2) is not a multiple of node_unit (4)"),
            ("node_rank=4", "node_rank is \"4\"; it must be a number from 0 to 3"),
            ("node_rank=-1", "node_rank is \"-1\"; it must be a number from 0 to 3"),
            ("node_name=a b", "node_name is \"a b\"; it must be a name without spaces"),
            ("topology=rack", "the topology \"rack\" is not in the form KEY=VALUE,…"),
            ("topology=rack=a;=b", "is not in the form KEY=VALUE,…"),
            ("topology=rack=a;", "is not in the form KEY=VALUE,…"),
            ("topology=rack=a;rack=b", "the topology \"rack=a;rack=b\" has the key \"rack\" twice"),
            ("pre_join_timeout=5", "pre_join_timeout is set, but there is no pre_join_check"),
            ("lease=0.5", "lease must be at least 1 s"),
            ("voters=2", "voters is 2; it must be 1, 3 or 5"),
            ("scale_up=soon", "scale_up is \"soon\"; it must be `never` or `now`"),
            ("fence=maybe", "fence is \"maybe\"; it must be `on` or `off`"),
            ("leese=5", "unknown rendezvous configuration option 'leese'; did you mean 'lease'?"),
        ] {
            let error = parse("h", config).unwrap_err().to_string();
            assert!(error.contains(problem), "{config}: {error}");
        }
        let error = parse("", "lease=0,voters=9").unwrap_err().to_string();
        assert_eq!(error.lines().count(), 3, "{error}");
    }

    #[test]
    fn the_endpoint_is_a_list() {
        let endpoints = parse("node0, node1:5,[::1]:6", "").unwrap().endpoints;
        let endpoints: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
        assert_eq!(endpoints, ["node0:29400", "node1:5", "[::1]:6"]);
        for (endpoint, problem) in [
            ("", "the backend rallypoint needs an endpoint"),
            (" ", "the backend rallypoint needs an endpoint"),
            (",", "has an empty entry"),
            ("node0,,node1", "the list of endpoints \"node0,,node1\" has an empty entry"),
            ("node0:0", "the endpoint node0:0 needs a port that all nodes know"),
            ("node0,0.0.0.0", "stands for all addresses of a machine"),
            ("node0,a b", "The hostname of the rendezvous endpoint 'a b'"),
        ] {
            let error = parse(endpoint, "").unwrap_err().to_string();
            assert!(error.contains(problem), "{endpoint:?}: {error}");
        }
    }

    #[test]
    fn a_topology_has_keys_for_the_job_and_values_for_the_node() {
        let settings = parse("h", "topology=rack=r7; switch = s2").unwrap();
        assert_eq!(settings.job.topology, ["rack", "switch"]);
        assert_eq!(settings.topology, ["r7", "s2"]);
    }

    #[test]
    fn slurms_rank_is_used_only_for_processes_that_srun_has_started() {
        let batch = |name: &str| (name == "SLURM_NODEID").then(|| "0".into());
        assert_eq!(slurm_rank(batch), None);
        let step = |name: &str| Some(if name == "SLURM_NODEID" { "3" } else { "node[1-4]" }.into());
        assert_eq!(slurm_rank(step), Some(3));
        assert_eq!(slurm_rank(|_| None), None);
    }
}
