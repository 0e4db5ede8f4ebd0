//! How the nodes meet: torchrun's rules for which rendezvous is meant, and under which name.

use std::net::IpAddr;

use rallypoint_rendezvous::{
    RendezvousError, RendezvousParameters, is_this_machine, parse_rendezvous_config,
    rendezvous_handler_registry,
};

use super::Refused;
use super::arguments::RunArgs;
use super::python::{self, Defaults};

/// How long nodes of a static rendezvous wait for each other, as torchrun has it.
const STATIC_TIMEOUT: i64 = 900;

/// What was said about the rendezvous.
pub(super) struct Meeting {
    min_nodes: u64,
    max_nodes: u64,
    backend: String,
    endpoint: String,
    /// Nothing, if nobody gave one.
    id: Option<String>,
    conf: String,
    standalone: bool,
    node_rank: i64,
    master_addr: Option<String>,
    master_port: Option<i64>,
    local_addr: Option<String>,
}

impl Meeting {
    pub(super) fn read(args: &RunArgs, defaults: &Defaults<'_>) -> Result<Meeting, Refused> {
        let nnodes = defaults.text(&args.nnodes, "--nnodes").unwrap_or_else(|| "1:1".into());
        let (min_nodes, max_nodes) = nodes(&nnodes)?;
        let text = |given: &Option<String>, flag: &str| defaults.text(given, flag);
        Ok(Meeting {
            min_nodes,
            max_nodes,
            backend: text(&args.rdzv_backend, "--rdzv-backend").unwrap_or_else(|| "static".into()),
            endpoint: text(&args.rdzv_endpoint, "--rdzv-endpoint").unwrap_or_default(),
            id: text(&args.rdzv_id, "--rdzv-id"),
            conf: text(&args.rdzv_conf, "--rdzv-conf").unwrap_or_default(),
            standalone: defaults.switch(args.standalone, "--standalone")?,
            node_rank: defaults.number(args.node_rank, "--node-rank", python::int)?.unwrap_or(0),
            master_addr: text(&args.master_addr, "--master-addr"),
            master_port: defaults.number(args.master_port, "--master-port", python::int)?,
            local_addr: text(&args.local_addr, "--local-addr"),
        })
    }

    /// The parameters of the rendezvous.
    pub(super) fn parameters(mut self, warnings: &mut Vec<String>) -> Result<RendezvousParameters, Refused> {
        let alone = self.backend == "static"
            && self.endpoint.is_empty()
            && self.master_port.is_none()
            && self.max_nodes == 1;
        if self.standalone || alone {
            self.stand_alone(warnings)?;
        }
        if self.id.as_deref() == Some("") {
            let id = random_id();
            warnings.push(format!(
                "--rdzv-id is empty; the id of this run is {id}, which no other node can know"
            ));
            self.id = Some(id);
        }
        let is_static = self.backend == "static";
        if !is_static && self.node_rank != 0 {
            let backend = &self.backend;
            warnings.push(format!(
                "--node-rank is for --rdzv-backend static and has no effect: {backend} gives ranks itself"
            ));
        }
        if !is_static && self.endpoint.is_empty() && self.master_addr.is_some() {
            warnings.push("--master-addr is for --rdzv-backend static and has no effect; --rdzv-endpoint says where to meet".into());
        }
        self.make()
    }

    /// A job on this machine alone. Torchrun draws a random id even if one was given; then logs and events have a name
    /// that nobody chose.
    fn stand_alone(&mut self, warnings: &mut Vec<String>) -> Result<(), Refused> {
        if self.min_nodes > 1 {
            return Err(Refused::usage(format!(
                "--standalone is a job on this machine alone, but --nnodes asks for {} nodes at least",
                self.min_nodes
            )));
        }
        if self.standalone
            && (!self.endpoint.is_empty() || !matches!(self.backend.as_str(), "static" | "c10d"))
        {
            warnings.push("--standalone meets on a free port of this machine: --rdzv-backend and --rdzv-endpoint have no effect".into());
        }
        self.backend = "c10d".into();
        self.endpoint = "localhost:0".into();
        self.id.get_or_insert_with(random_id);
        self.master_addr = None;
        Ok(())
    }

    fn make(self) -> Result<RendezvousParameters, Refused> {
        let wrong = |error: RendezvousError| Refused::value(error.to_string());
        let known = rendezvous_handler_registry().backends();
        if !known.contains(&self.backend) {
            return Err(Refused::value(format!(
                "--rdzv-backend {:?}: there is no such backend; there are {}",
                self.backend,
                known.join(" and ")
            )));
        }
        let mut config = parse_rendezvous_config(&self.conf).map_err(wrong)?;
        let mut endpoint = self.endpoint;
        if self.backend == "static" {
            config.insert("rank".into(), self.node_rank.into());
            config.entry("timeout".into()).or_insert_with(|| STATIC_TIMEOUT.into());
            if endpoint.is_empty() {
                let host = self.master_addr.as_deref().unwrap_or("127.0.0.1");
                endpoint = format!("{host}:{}", port(self.master_port.unwrap_or(29500))?);
            }
            if self.node_rank == 0 {
                check_ours("--master-addr", host_of(&endpoint))?;
            }
        }
        if let Some(address) = &self.local_addr {
            check_ours("--local-addr", address)?;
        }
        let id = self.id.unwrap_or_else(|| "none".into());
        let parameters =
            RendezvousParameters::new(&self.backend, &endpoint, &id, self.min_nodes, self.max_nodes)
                .and_then(|parameters| parameters.with_config(config))
                .map_err(wrong)?
                .with_local_addr(self.local_addr);
        match parameters.check() {
            wrong if wrong.is_empty() => Ok(parameters),
            wrong => Err(Refused::value(wrong.join("\n"))),
        }
    }
}

/// `N`, or `MIN:MAX`.
fn nodes(text: &str) -> Result<(u64, u64), Refused> {
    let parts: Vec<&str> = text.split(':').collect();
    let numbers: Option<Vec<i64>> = parts.iter().map(|part| python::int(part).ok()).collect();
    let (min, max) = match numbers.as_deref() {
        Some([number]) => (*number, *number),
        Some([min, max]) => (*min, *max),
        _ => {
            return Err(Refused::value(format!(
                "nnodes={text} is not in \"MIN:MAX\" format (--nnodes 4, --nnodes 2:8)"
            )));
        }
    };
    match (u64::try_from(min), u64::try_from(max)) {
        (Ok(least @ 1..), Ok(most)) if least <= most => Ok((least, most)),
        _ => Err(Refused::value(format!(
            "min_nodes must be > 0 and <= max_nodes, got min_nodes={min}, max_nodes={max} (--nnodes {text})"
        ))),
    }
}

/// Port 0 is refused: the store would be on another port than the workers are told.
fn port(port: i64) -> Result<u16, Refused> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Refused::value(format!("--master-port {port}: it must be from 1 to 65535")))
}

fn host_of(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host)
}

/// That an address which is to be this machine's is. A name is believed: what it means may not be known here yet.
fn check_ours(flag: &str, host: &str) -> Result<(), Refused> {
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    match literal.parse::<IpAddr>() {
        Ok(address) if !address.is_unspecified() && !is_this_machine(literal) => {
            Err(Refused::value(format!("{flag} {host}: this machine does not have that address")))
        }
        _ => Ok(()),
    }
}

/// A random name in the form of a UUID, as torchrun draws one.
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
