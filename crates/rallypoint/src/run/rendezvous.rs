//! Derives the parameters of the rendezvous from the flags, by torchrun's rules. `contradictions.rs` finds flags that
//! contradict each other.

mod contradictions;

use rallypoint_rendezvous::{
    NATIVE_BACKEND, RendezvousError, RendezvousParameters, is_remote_address, parse_rendezvous_config,
    rendezvous_handler_registry,
};

use super::arguments::RunArgs;
use crate::flags::{FlagEnvironment, FlagValue};
use crate::python;
use crate::refusal::Refusal;

/// The timeout of a static rendezvous in seconds, as in torchrun.
const STATIC_TIMEOUT: i64 = 900;

/// The values of the flags that select and configure the rendezvous.
pub(super) struct RendezvousFlags {
    nnodes: FlagValue<String>,
    min_nodes: u64,
    max_nodes: u64,
    backend: Option<FlagValue<String>>,
    endpoint: Option<FlagValue<String>>,
    id: Option<String>,
    conf: Option<FlagValue<String>>,
    standalone: bool,
    node_rank: Option<FlagValue<i64>>,
    master_addr: Option<FlagValue<String>>,
    master_port: Option<FlagValue<i64>>,
    local_addr: Option<String>,
    /// The flags of the native rendezvous, with the option of `--rdzv-conf` that each flag sets.
    native: Vec<(&'static str, FlagValue<String>)>,
}

/// The kind of rendezvous that the flags select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A c10d rendezvous on a free port of this machine. `--standalone` selects it. Without `--standalone`, a job with
    /// one node has this kind if its backend is `static`, which is the default, and it has no endpoint and no master
    /// port.
    OneMachine,
    Static,
    /// The native rendezvous.
    Native,
    /// Another rendezvous whose backend assigns the group ranks.
    Dynamic,
}

impl RendezvousFlags {
    pub(super) fn read(
        args: &RunArgs,
        environment: &FlagEnvironment<'_>,
    ) -> Result<RendezvousFlags, Refusal> {
        let nnodes = environment.flag(&args.nnodes, "--nnodes");
        let nnodes = nnodes.unwrap_or(FlagValue { value: "1:1".into(), flag: "--nnodes", is_typed: false });
        let (min_nodes, max_nodes) = parse_nodes(&nnodes.value)?;
        let nonempty =
            |text: &Option<String>, flag| environment.flag(text, flag).filter(|flag| !flag.value.is_empty());
        Ok(RendezvousFlags {
            nnodes,
            min_nodes,
            max_nodes,
            // An empty name is kept, and `parameters` refuses it as an unknown backend.
            backend: environment.flag(&args.rdzv_backend, "--rdzv-backend"),
            endpoint: nonempty(&args.rdzv_endpoint, "--rdzv-endpoint"),
            id: environment.text(&args.rdzv_id, "--rdzv-id"),
            conf: nonempty(&args.rdzv_conf, "--rdzv-conf"),
            standalone: environment.switch(args.standalone, "--standalone")?,
            node_rank: environment.number_value(args.node_rank, "--node-rank", python::int)?,
            master_addr: environment.flag(&args.master_addr, "--master-addr"),
            master_port: environment.number_value(args.master_port, "--master-port", python::int)?,
            local_addr: environment.text(&args.local_addr, "--local-addr"),
            native: native_flags(args, environment)?,
        })
    }

    fn kind(&self) -> Kind {
        let is_static = self.backend_name() == "static";
        let is_one_machine =
            is_static && self.endpoint.is_none() && self.master_port.is_none() && self.max_nodes == 1;
        match (self.standalone || is_one_machine, is_static) {
            (true, _) => Kind::OneMachine,
            (false, true) => Kind::Static,
            (false, false) if self.backend_name() == NATIVE_BACKEND => Kind::Native,
            (false, false) => Kind::Dynamic,
        }
    }

    fn backend_name(&self) -> &str {
        self.backend.as_ref().map_or("static", |backend| &backend.value)
    }

    fn rank(&self) -> i64 {
        self.node_rank.as_ref().map_or(0, |rank| rank.value)
    }

    /// Returns the parameters of the rendezvous. Adds a warning for each flag or variable that has no effect.
    pub(super) fn parameters(self, warnings: &mut Vec<String>) -> Result<RendezvousParameters, Refusal> {
        let kind = self.kind();
        self.check_contradictions(kind, warnings)?;
        let backend = if kind == Kind::OneMachine { "c10d" } else { self.backend_name() };
        let known = rendezvous_handler_registry().backends();
        if !known.iter().any(|name| name == backend) {
            let known = match known.split_last() {
                Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
                _ => known.concat(),
            };
            return Err(Refusal::value(format!(
                "--rdzv-backend {backend:?} is unknown; the backends are {known}"
            )));
        }
        let wrong = |error: RendezvousError| Refusal::value(error.to_string());
        let conf = self.conf.as_ref().map_or("", |conf| &conf.value);
        let mut config = parse_rendezvous_config(conf).map_err(wrong)?;
        let mut endpoint = self.endpoint.as_ref().map(|endpoint| endpoint.value.clone()).unwrap_or_default();
        match kind {
            Kind::OneMachine => endpoint = "localhost:0".into(),
            Kind::Static => {
                config.insert("rank".into(), self.rank().into());
                config.entry("timeout".into()).or_insert_with(|| STATIC_TIMEOUT.into());
                if endpoint.is_empty() {
                    let host = self.master_addr.as_ref().map_or("127.0.0.1", |host| &host.value);
                    let number = self.master_port.as_ref().map_or(29500, |port| port.value);
                    endpoint = format!("{host}:{}", check_port(number)?);
                }
                if self.rank() == 0 {
                    check_local_address("--master-addr", host_of(&endpoint))?;
                }
            }
            Kind::Native => {
                for (option, flag) in &self.native {
                    if let Some(other) = config.insert((*option).into(), flag.value.as_str().into()) {
                        return Err(Refusal::usage(format!(
                            "{flag} conflicts with {option}={other} in --rdzv-conf; use one of them"
                        )));
                    }
                }
            }
            Kind::Dynamic => {}
        }
        if let Some(address) = &self.local_addr {
            check_local_address("--local-addr", address)?;
        }
        let id = run_id(self.id.as_deref(), kind, warnings);
        let parameters = RendezvousParameters::new(backend, &endpoint, &id, self.min_nodes, self.max_nodes)
            .and_then(|parameters| parameters.with_config(config))
            .map_err(wrong)?
            .with_local_addr(self.local_addr);
        match parameters.check() {
            wrong if wrong.is_empty() => Ok(parameters),
            wrong => Err(Refusal::value(wrong.join("\n"))),
        }
    }
}

/// Returns the flags of the native rendezvous that are set, with the option of `--rdzv-conf` that each flag sets.
fn native_flags(
    args: &RunArgs,
    environment: &FlagEnvironment<'_>,
) -> Result<Vec<(&'static str, FlagValue<String>)>, Refusal> {
    let text = |value: &dyn std::fmt::Display, flag, is_typed| FlagValue {
        value: value.to_string(),
        flag,
        is_typed,
    };
    let rank = environment.number_value(args.node_rank, "--node-rank", python::int)?;
    let restarts = environment.number_value(args.job_max_restarts, "--job-max-restarts", python::int)?;
    let timeout = environment.number_value(args.pre_join_timeout, "--pre-join-timeout", python::float)?;
    let flags = [
        ("node_rank", rank.map(|rank| text(&rank.value, rank.flag, rank.is_typed))),
        ("job_max_restarts", restarts.map(|count| text(&count.value, count.flag, count.is_typed))),
        ("topology", environment.flag(&args.topology, "--topology")),
        ("pre_join_check", environment.flag(&args.pre_join_check, "--pre-join-check")),
        ("pre_join_timeout", timeout.map(|time| text(&time.value, time.flag, time.is_typed))),
    ];
    Ok(flags.into_iter().filter_map(|(option, flag)| Some((option, flag?))).collect())
}

/// Returns the run id of the job. For a job on one machine, torchrun replaces the user's id by a random one. We keep
/// the user's id, so that it appears in logs and events.
fn run_id(id: Option<&str>, kind: Kind, warnings: &mut Vec<String>) -> String {
    match id {
        Some(id) if !id.is_empty() => id.into(),
        Some(_) => {
            let id = random_id();
            warnings.push(format!(
                "--rdzv-id is empty; this run uses the random id {id}, which no other node knows"
            ));
            id
        }
        None if kind == Kind::OneMachine => random_id(),
        None => "none".into(),
    }
}

/// Parses `N` or `MIN:MAX`, and returns the minimum and the maximum number of nodes.
fn parse_nodes(text: &str) -> Result<(u64, u64), Refusal> {
    let parts: Vec<&str> = text.split(':').collect();
    let numbers: Option<Vec<i64>> = parts.iter().map(|part| python::int(part).ok()).collect();
    let (min, max) = match numbers.as_deref() {
        Some([number]) => (*number, *number),
        Some([min, max]) => (*min, *max),
        _ => {
            return Err(Refusal::value(format!(
                "nnodes={text} is not in \"MIN:MAX\" format (--nnodes 4, --nnodes 2:8)"
            )));
        }
    };
    match (u64::try_from(min), u64::try_from(max)) {
        (Ok(least @ 1..), Ok(most)) if least <= most => Ok((least, most)),
        _ => Err(Refusal::value(format!(
            "min_nodes must be > 0 and <= max_nodes, got min_nodes={min}, max_nodes={max} (--nnodes {text})"
        ))),
    }
}

/// Returns the master port, or fails if it is out of range. Port 0 is refused, because the store would listen on a
/// port that the other nodes don't know.
fn check_port(port: i64) -> Result<u16, Refusal> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Refusal::value(format!("--master-port {port} must be from 1 to 65535")))
}

fn host_of(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host)
}

/// Fails if `host` is an IP address that this machine does not have. Host names are accepted without a check.
fn check_local_address(flag: &str, host: &str) -> Result<(), Refusal> {
    match is_remote_address(host) {
        true => Err(Refusal::value(format!("{flag} {host}: this machine does not have that address"))),
        false => Ok(()),
    }
}

/// Returns a random UUID, which is the form of torchrun's random run ids.
fn random_id() -> String {
    let mut bytes = [0u8; 16];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        bytes[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
