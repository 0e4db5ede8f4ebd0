//! Flags about the rendezvous that contradict each other, or that the rendezvous which is meant has no use for. Found before
//! anything starts, and by name. What is right about each is decided elsewhere.
//!
//! What torchrun ignores is refused if it was typed, and warned of if it came from a variable; see `said.rs`. Some of it
//! stands in many launch scripts and does no harm; that is warned of either way: `--node-rank`, and a master beside an
//! endpoint, for a rendezvous that gives ranks itself; and the address of the one node that there is.

use rallypoint_rendezvous::{ConfigValue, is_loopback, parse_rendezvous_config, parse_rendezvous_endpoint};

use super::{Kind, Meeting};
use crate::run::Refused;

/// Where the `c10d` backend meets if nothing else is said.
const C10D_PORT: u16 = 29400;

impl Meeting {
    pub(super) fn check_contradictions(&self, kind: Kind, warnings: &mut Vec<String>) -> Result<(), Refused> {
        match kind {
            Kind::Alone if self.standalone => self.check_standalone(warnings),
            Kind::Alone => self.check_one_node(warnings),
            Kind::Static => self.check_static(warnings),
            Kind::Dynamic => self.check_dynamic(warnings),
        }
    }

    fn check_standalone(&self, warnings: &mut Vec<String>) -> Result<(), Refused> {
        if self.max_nodes > 1 {
            // Torchrun waits for somebody who can't come.
            return Err(Refused::usage(format!(
                "--standalone is a job on this machine alone, and {} asks for more nodes; leave one of them out",
                self.nnodes
            )));
        }
        if let Some(backend) = self.backend.as_ref().filter(|backend| backend.value != "c10d") {
            backend.idle("--standalone meets with c10d; leave one of them out", warnings)?;
        }
        if let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| !is_any_port_here(&endpoint.value)) {
            endpoint.idle(
                "--standalone meets on a free port of this machine; without it there is --rdzv-backend c10d",
                warnings,
            )?;
        }
        self.check_master_alone("--standalone meets on a free port of this machine", warnings)?;
        if let Some(rank) = self.node_rank.as_ref().filter(|rank| rank.value != 0) {
            rank.idle("--standalone has one node, whose rank is 0", warnings)?;
        }
        Ok(())
    }

    fn check_master_alone(&self, why: &str, warnings: &mut Vec<String>) -> Result<(), Refused> {
        if let Some(addr) = self.master_addr.as_ref().filter(|addr| !is_loopback(&addr.value)) {
            addr.idle(why, warnings)?;
        }
        if let Some(port) = self.master_port.as_ref().filter(|port| port.value != 0) {
            port.idle(why, warnings)?;
        }
        Ok(())
    }

    /// One node, of which nothing is said but perhaps its address.
    fn check_one_node(&self, warnings: &mut Vec<String>) -> Result<(), Refused> {
        // Two nodes that were not told of each other would do the same work twice.
        if let Some(rank) = self.node_rank.as_ref().filter(|rank| rank.value != 0) {
            rank.idle("there is one node, whose rank is 0; --nnodes says how many there are", warnings)?;
        }
        if let Some(addr) = self.master_addr.as_ref().filter(|addr| !is_loopback(&addr.value)) {
            let why = "one node without --master-port meets on a free port of this machine";
            addr.ignored(why, warnings);
        }
        Ok(())
    }

    fn check_static(&self, warnings: &mut Vec<String>) -> Result<(), Refused> {
        if self.min_nodes != self.max_nodes {
            let why = format!(
                "the static rendezvous has a fixed number of nodes; say --nnodes {}, or --rdzv-backend c10d for nodes that \
                 come and go",
                self.max_nodes
            );
            self.nnodes.idle(&why, warnings)?;
        }
        if let Some(endpoint) = &self.endpoint {
            if parse_rendezvous_endpoint(&endpoint.value, 1).is_ok_and(|place| place.port == 0) {
                return Err(Refused::value(format!(
                    "{endpoint}: a static rendezvous needs a port that all nodes know; --standalone takes a free one"
                )));
            }
            let why = format!("{endpoint} says already where rank 0 is; name one place");
            self.check_master_beside(&endpoint.value, |master| master.idle(&why, warnings))?;
        }
        let config = self.conf.as_ref().map(|conf| parse_rendezvous_config(&conf.value));
        let rank =
            config.and_then(Result::ok).and_then(|config| config.get("rank").map(ConfigValue::to_string));
        match rank {
            Some(rank) if rank != self.rank().to_string() => Err(Refused::usage(format!(
                "--rdzv-conf rank={rank} is not this node's rank, which is {}; say --node-rank {rank}, and that alone",
                self.rank()
            ))),
            _ => Ok(()),
        }
    }

    fn check_dynamic(&self, warnings: &mut Vec<String>) -> Result<(), Refused> {
        let backend = self.backend_name();
        if let Some(rank) = self.node_rank.as_ref().filter(|rank| rank.value != 0) {
            rank.ignored(
                &format!("{backend} gives ranks itself; --rdzv-backend static takes them"),
                warnings,
            );
        }
        match &self.endpoint {
            Some(endpoint) => {
                let why = format!("{backend} meets at {endpoint}, and tells the workers where rank 0 is");
                self.check_master_beside(&endpoint.value, |master| {
                    master.ignored(&why, warnings);
                    Ok(())
                })?;
            }
            None => {
                let why = format!("{backend} meets at --rdzv-endpoint HOST:PORT, which is missing");
                let here = format!("localhost:{C10D_PORT}");
                self.check_master_beside(&here, |master| master.idle(&why, warnings))?;
            }
        }
        self.check_options_of_others(warnings);
        Ok(())
    }

    /// Torchrun hands these to every backend.
    fn check_options_of_others(&self, warnings: &mut Vec<String>) {
        let Some(conf) = self.conf.as_ref().filter(|_| self.backend_name() == "c10d") else { return };
        let Ok(config) = parse_rendezvous_config(&conf.value) else { return };
        for (key, instead) in [
            ("timeout", "c10d has join_timeout (for nodes) and read_timeout (for the store)"),
            ("rank", "c10d gives ranks itself"),
        ] {
            if config.contains_key(key) {
                warnings.push(format!("{key} in {conf} has no effect: {instead}"));
            }
        }
    }

    /// Hands over what was said of the master and is not what the endpoint says.
    fn check_master_beside(
        &self,
        endpoint: &str,
        mut differs: impl FnMut(&crate::run::said::Said<String>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        // What is no endpoint is refused as such.
        let Ok(place) = parse_rendezvous_endpoint(endpoint, C10D_PORT) else { return Ok(()) };
        if let Some(addr) = self.master_addr.as_ref().filter(|addr| !is_same_host(&addr.value, &place.host)) {
            differs(addr)?;
        }
        if let Some(port) = self.master_port.as_ref().filter(|port| port.value != i64::from(place.port)) {
            differs(&port.as_text())?;
        }
        Ok(())
    }
}

fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether two names mean one machine, as far as they tell.
fn is_same_host(one: &str, other: &str) -> bool {
    bare(one).eq_ignore_ascii_case(bare(other)) || is_loopback(one) && is_loopback(other)
}

/// Whether that is what `--standalone` means anyway.
fn is_any_port_here(endpoint: &str) -> bool {
    parse_rendezvous_endpoint(endpoint, 0).is_ok_and(|place| place.port == 0 && is_loopback(&place.host))
}
