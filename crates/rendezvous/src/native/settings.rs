//! Converts parameters to the settings of the native rendezvous, and reports all problems together.

use std::time::Duration;

use rallypoint_coordinator::JobSettings;
use rallypoint_coordinator::settings::ScaleUp;
use rallypoint_core::rendezvous::Settings;
use rallypoint_store::Endpoint;

use super::NativeNode;
use crate::c10d::DEFAULT_PORT;
use crate::endpoint::{check_specified, parse_rendezvous_endpoint};
use crate::error::{RendezvousError, Result};
use crate::options::{RendezvousOption, option};
use crate::parameters::{ConfigValue, RendezvousParameters, unknown_options};

/// The options of the native rendezvous. Times are in seconds and may have fractions.
pub const NATIVE_OPTIONS: [RendezvousOption; 18] = [
    option("join_timeout", "600", "Time that a node waits for a round."),
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
        "Restarts of the whole job after failed workers and lost nodes. By default there is no limit.",
    ),
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

/// The settings of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NativeSettings {
    pub(super) job: JobSettings,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) join_timeout: Duration,
    pub(super) close_timeout: Duration,
    pub(super) read_timeout: Duration,
    /// Whether the workers are killed at the end of the lease.
    pub(super) fence: bool,
}

impl NativeSettings {
    /// Converts parameters. Fails with one error that lists every problem.
    pub(super) fn parse(parameters: &RendezvousParameters, node: &NativeNode) -> Result<NativeSettings> {
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
        if let Some(pin) = node.pin.filter(|pin| *pin >= max) {
            reader.error(format!(
                "the rank of this node ({pin}) must be below the maximum of --nnodes ({max})"
            ));
        }
        job.topology = node.topology.iter().map(|(name, _)| name.clone()).collect();
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
        match reader.errors.is_empty() {
            true => Ok(NativeSettings { job, endpoints, join_timeout, close_timeout, read_timeout, fence }),
            false => Err(RendezvousError::Parameters(reader.errors)),
        }
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

    /// Returns the endpoints, which commas separate.
    fn endpoints(&mut self) -> Vec<Endpoint> {
        let mut endpoints = Vec::new();
        for text in self.parameters.endpoint.split(',') {
            match parse_rendezvous_endpoint(text, DEFAULT_PORT) {
                Ok(endpoint) => {
                    self.errors.extend(check_specified(&endpoint));
                    endpoints.push(endpoint);
                }
                Err(error) => self.error(error.to_string()),
            }
        }
        endpoints
    }
}
