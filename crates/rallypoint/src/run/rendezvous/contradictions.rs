//! Finds flags of the rendezvous that contradict each other or have no effect.
//!
//! Torchrun ignores such flags. We refuse them on the command line, and warn about them if they come from environment
//! variables (`flags.rs`). The following combinations are harmless and common in launch scripts, so they cause only a
//! warning:
//!
//! - `--node-rank` with a backend that assigns group ranks,
//! - a `--master-addr` or `--master-port` that differs from the `--rdzv-endpoint` of such a backend,
//! - `timeout` or `rank` in the `--rdzv-conf` of such a backend,
//! - `--master-addr` of a job with one node.

use rallypoint_rendezvous::{ConfigValue, is_loopback, parse_rendezvous_config, parse_rendezvous_endpoint};

use super::{Kind, RendezvousFlags};
use crate::flags::FlagValue;
use crate::refusal::Refusal;

/// The default port of the `c10d` backend.
const C10D_PORT: u16 = 29400;

impl RendezvousFlags {
    pub(super) fn check_contradictions(&self, kind: Kind, warnings: &mut Vec<String>) -> Result<(), Refusal> {
        if kind != Kind::Native {
            // `--node-rank` has a meaning of its own for each kind.
            for (_, flag) in self.native.iter().filter(|(option, _)| *option != "node_rank") {
                flag.refuse("it is for --rdzv-backend rallypoint only", warnings)?;
            }
        }
        match kind {
            Kind::OneMachine if self.standalone => self.check_standalone(warnings),
            Kind::OneMachine => self.check_one_node(warnings),
            Kind::Static => self.check_static(warnings),
            Kind::Native => self.check_native(warnings),
            Kind::Dynamic => self.check_dynamic(warnings),
        }
    }

    fn check_standalone(&self, warnings: &mut Vec<String>) -> Result<(), Refusal> {
        if self.max_nodes > 1 {
            // This is refused even if the number comes from a variable. Torchrun would wait for nodes that can't
            // reach this one.
            return Err(Refusal::usage(format!(
                "--standalone runs on this machine only, but {} has more nodes; leave one of them out",
                self.nnodes
            )));
        }
        let mut refuse = |flag_value: Option<&FlagValue<String>>, why: &str| match flag_value {
            Some(flag_value) => flag_value.refuse(why, warnings),
            None => Ok(()),
        };
        refuse(
            self.backend.as_ref().filter(|backend| backend.value != "c10d"),
            "--standalone uses c10d; leave one of them out",
        )?;
        refuse(
            self.endpoint.as_ref().filter(|endpoint| !is_loopback_port_0(&endpoint.value)),
            "--standalone uses a free port of this machine; for an endpoint, use --rdzv-backend c10d instead",
        )?;
        let why = "--standalone uses a free port of this machine";
        refuse(self.non_loopback_master_addr(), why)?;
        if let Some(port) = self.master_port.as_ref().filter(|port| port.value != 0) {
            port.refuse(why, warnings)?;
        }
        match self.nonzero_rank() {
            Some(rank) => rank.refuse("--standalone has one node, whose rank is 0", warnings),
            None => Ok(()),
        }
    }

    fn nonzero_rank(&self) -> Option<&FlagValue<i64>> {
        self.node_rank.as_ref().filter(|rank| rank.value != 0)
    }

    fn non_loopback_master_addr(&self) -> Option<&FlagValue<String>> {
        self.master_addr.as_ref().filter(|addr| !is_loopback(&addr.value))
    }

    /// Checks the flags of a job with one node, which has no `--standalone`, endpoint or master port.
    fn check_one_node(&self, warnings: &mut Vec<String>) -> Result<(), Refusal> {
        if let Some(addr) = self.non_loopback_master_addr() {
            addr.warn("one node without --master-port uses a free port of this machine", warnings);
        }
        // A node rank other than 0 suggests that the user forgot `--nnodes`. Each node would then run the whole job
        // by itself.
        match self.nonzero_rank() {
            Some(rank) => {
                rank.refuse("there is one node, whose rank is 0; --nnodes sets the number of nodes", warnings)
            }
            None => Ok(()),
        }
    }

    fn check_static(&self, warnings: &mut Vec<String>) -> Result<(), Refusal> {
        if self.min_nodes != self.max_nodes {
            let why = format!(
                "the static rendezvous has a fixed number of nodes; use --nnodes {}, or --rdzv-backend c10d for an elastic \
                 job",
                self.max_nodes
            );
            self.nnodes.refuse(&why, warnings)?;
        }
        if let Some(endpoint) = &self.endpoint {
            if parse_rendezvous_endpoint(&endpoint.value, 1).is_ok_and(|parsed| parsed.port == 0) {
                return Err(Refusal::value(format!(
                    "{endpoint}: a static rendezvous needs a port that all nodes know; --standalone uses a free port"
                )));
            }
            let why =
                format!("{endpoint} already is the address of the node with group rank 0; use one of them");
            for master in self.conflicting_master(&endpoint.value) {
                master.refuse(&why, warnings)?;
            }
        }
        let rank = self.conf_value("rank").map(|rank| rank.to_string());
        match rank {
            Some(rank) if rank != self.rank().to_string() => Err(Refusal::usage(format!(
                "--rdzv-conf rank={rank} differs from the rank of this node, {}; use only --node-rank {rank}",
                self.rank()
            ))),
            _ => Ok(()),
        }
    }

    fn check_dynamic(&self, warnings: &mut Vec<String>) -> Result<(), Refusal> {
        let backend = self.backend_name();
        if let Some(rank) = self.nonzero_rank() {
            let why = format!("{backend} assigns ranks; --rdzv-backend static uses --node-rank");
            rank.warn(&why, warnings);
        }
        match &self.endpoint {
            Some(endpoint) => {
                let why = format!("{backend} uses {endpoint}, and sets MASTER_ADDR and MASTER_PORT itself");
                self.conflicting_master(&endpoint.value)
                    .iter()
                    .for_each(|master| master.warn(&why, warnings));
            }
            None => {
                let why = format!("{backend} needs --rdzv-endpoint HOST:PORT instead");
                for master in self.conflicting_master(&format!("localhost:{C10D_PORT}")) {
                    master.refuse(&why, warnings)?;
                }
            }
        }
        // Launch scripts may contain these options, because torchrun accepts every key of `--rdzv-conf` with every
        // backend.
        for (key, instead) in [
            ("timeout", "c10d has join_timeout (for nodes) and read_timeout (for the store)"),
            ("rank", "c10d assigns ranks"),
        ] {
            if let (Some(_), "c10d", Some(conf)) = (self.conf_value(key), backend, &self.conf) {
                warnings.push(format!("{key} in {conf} has no effect: {instead}"));
            }
        }
        Ok(())
    }

    /// Checks `--master-addr` and `--master-port`, which the native rendezvous never uses.
    fn check_native(&self, warnings: &mut Vec<String>) -> Result<(), Refusal> {
        let port = self.master_port.as_ref().map(|port| FlagValue {
            value: port.value.to_string(),
            flag: port.flag,
            is_typed: port.is_typed,
        });
        for master in self.master_addr.iter().chain(&port) {
            master.warn("rallypoint sets MASTER_ADDR and MASTER_PORT itself", warnings);
        }
        Ok(())
    }

    /// Returns the value of one option of `--rdzv-conf`, or `None` if it is not set. Options that can't be parsed count
    /// as not set, because `parameters` refuses them.
    fn conf_value(&self, key: &str) -> Option<ConfigValue> {
        parse_rendezvous_config(&self.conf.as_ref()?.value).ok()?.remove(key)
    }

    /// Returns those of `--master-addr` and `--master-port` that differ from the host and the port of the endpoint.
    fn conflicting_master(&self, endpoint: &str) -> Vec<FlagValue<String>> {
        // An invalid endpoint is refused when the parameters are checked.
        let Ok(parsed) = parse_rendezvous_endpoint(endpoint, C10D_PORT) else { return Vec::new() };
        let addr = self.master_addr.as_ref().filter(|addr| !is_same_host(&addr.value, &parsed.host));
        let port = self.master_port.as_ref().filter(|port| port.value != i64::from(parsed.port));
        let port = port.map(|port| FlagValue {
            value: port.value.to_string(),
            flag: port.flag,
            is_typed: port.is_typed,
        });
        addr.cloned().into_iter().chain(port).collect()
    }
}

/// Returns whether two host names are equal or are both loopback. Does not resolve names.
fn is_same_host(a: &str, b: &str) -> bool {
    let bare = |host: &str| host.trim_matches(['[', ']']).to_ascii_lowercase();
    bare(a) == bare(b) || is_loopback(a) && is_loopback(b)
}

/// Returns whether the endpoint is port 0 of a loopback address, which is what `--standalone` uses.
fn is_loopback_port_0(endpoint: &str) -> bool {
    parse_rendezvous_endpoint(endpoint, 0).is_ok_and(|parsed| parsed.port == 0 && is_loopback(&parsed.host))
}
