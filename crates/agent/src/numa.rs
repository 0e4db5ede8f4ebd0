//! Binds a worker to processors near its device. `numactl` does the binding, as in torch.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::config::NumaBinding;
use crate::devices::{Machine, processors};
use crate::error::{AgentError, Result};

type Processors = BTreeSet<u32>;

/// Returns a command that runs `program` with `numactl`, bound to the processors of the worker with this local rank.
pub(crate) fn bind(
    binding: NumaBinding,
    local_rank: u32,
    program: OsString,
    args: Vec<OsString>,
) -> Result<(OsString, Vec<OsString>)> {
    let numactl = "numactl";
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|directory| directory.join(numactl).is_file()) {
        return Err(config_error(
            "numactl CLI is required for NUMA binding; install it, or omit --numa-binding",
        ));
    }
    let devices = Machine::this().visible_gpus().into_iter().map(|gpu| gpu.address).collect();
    let topology = Topology { root: "/".into(), devices, allowed: processors()? };
    let processors = topology.processors(binding, local_rank as usize)?;
    let processors: Vec<String> = processors.iter().map(u32::to_string).collect();
    let mut numactl_args = vec![format!("--physcpubind={}", processors.join(",")).into(), program];
    numactl_args.extend(args);
    Ok((numactl.into(), numactl_args))
}

/// The devices and processors of a machine, and where they are.
struct Topology {
    root: PathBuf,
    /// The PCI addresses of the devices.
    devices: Vec<Option<String>>,
    /// The processors that this process may use.
    allowed: Processors,
}

impl Topology {
    fn processors(&self, binding: NumaBinding, device: usize) -> Result<Processors> {
        if self.devices.is_empty() {
            return Err(config_error("No accelerator available for NUMA binding"));
        }
        let node = self.node_of(device)?;
        let processors = match binding {
            NumaBinding::Node => self.processors_of_node(node)?,
            NumaBinding::Socket => self.processors_of_socket(node)?,
            NumaBinding::Exclusive => self.exclusive_cores(node, device)?,
            NumaBinding::CoreComplex => self.core_complex(node, device)?,
        };
        match processors.is_empty() {
            true => Err(config_error("Must bind to a non-empty set of CPU indices")),
            false => Ok(processors),
        }
    }

    fn read(&self, path: &str) -> Result<String> {
        let path = self.root.join(path);
        fs::read_to_string(&path).map_err(AgentError::file("read", &path))
    }

    /// Returns the NUMA node of a device. A machine with a single NUMA node may report -1, which
    /// counts as 0.
    fn node_of(&self, device: usize) -> Result<u32> {
        let address = self.devices.get(device).ok_or_else(|| {
            let all = self.devices.len();
            config_error(&format!(
                "NUMA binding: there is no device for local rank {device}; visible devices: {all}"
            ))
        })?;
        let address = address.as_ref().ok_or_else(|| {
            config_error(&format!("NUMA binding: the PCI address of device {device} is unknown"))
        })?;
        let text = self.read(&format!("sys/bus/pci/devices/{}/numa_node", address.to_lowercase()))?;
        Ok(text.trim().parse::<i64>().unwrap_or(0).max(0) as u32)
    }

    /// Returns the index of a device among the devices of its node, and the number of these devices.
    fn index_on_node(&self, node: u32, device: usize) -> Result<(usize, usize)> {
        let all: Vec<usize> =
            (0..self.devices.len()).filter(|d| self.node_of(*d).ok() == Some(node)).collect();
        let index = all.iter().position(|other| *other == device);
        Ok((index.ok_or_else(|| config_error("NUMA binding: a device is on no node"))?, all.len()))
    }

    fn processors_of_node(&self, node: u32) -> Result<Processors> {
        let all = parse_cpu_list(&self.read(&format!("sys/devices/system/node/node{node}/cpulist"))?);
        Ok(all.intersection(&self.allowed).copied().collect())
    }

    fn processors_of_socket(&self, node: u32) -> Result<Processors> {
        let socket = self.socket_of_node(node)?;
        let mut processors = Processors::new();
        for other in parse_cpu_list(&self.read("sys/devices/system/node/possible")?) {
            let of_node = self.processors_of_node(other).unwrap_or_default();
            if !of_node.is_empty() && self.socket_of_node(other)? == socket {
                processors.extend(of_node);
            }
        }
        Ok(processors)
    }

    fn socket_of_node(&self, node: u32) -> Result<String> {
        let processors = self.processors_of_node(node)?;
        let first =
            processors.first().ok_or_else(|| config_error("Must bind to a non-empty set of CPU indices"))?;
        self.read(&format!("sys/devices/system/cpu/cpu{first}/topology/physical_package_id"))
    }

    /// Divides the physical cores of the node among its devices, and returns the share of `device`. If the cores can't
    /// be divided evenly, the first devices get one more core each.
    fn exclusive_cores(&self, node: u32, device: usize) -> Result<Processors> {
        let mut cores: BTreeMap<u32, Processors> = BTreeMap::new();
        for processor in self.processors_of_node(node)? {
            let list = format!("sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
            let core = parse_cpu_list(&self.read(&list)?).first().copied().unwrap_or(processor);
            cores.entry(core).or_default().insert(processor);
        }
        let (index, devices) = self.index_on_node(node, device)?;
        let (cores_per_device, remainder) = (cores.len() / devices, cores.len() % devices);
        if cores_per_device < 1 {
            return Err(config_error(&format!(
                "There are only {} physical cores on numa_node_index={node}, but there are {devices} devices \
                 associated with this NUMA node.",
                cores.len()
            )));
        }
        let start = index * cores_per_device + index.min(remainder);
        let count = cores_per_device + usize::from(index < remainder);
        Ok(cores.into_values().skip(start).take(count).flatten().collect())
    }

    /// Returns the group of processors for `device`. The processors of a group share their highest-level cache. The
    /// first devices of the node get the larger groups.
    fn core_complex(&self, node: u32, device: usize) -> Result<Processors> {
        let mut groups: BTreeMap<u32, Processors> = BTreeMap::new();
        for processor in self.processors_of_node(node)? {
            let first = self.cache_siblings(processor)?.first().copied().unwrap_or(processor);
            groups.entry(first).or_default().insert(processor);
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.len()), group.first().copied()));
        let (index, _) = self.index_on_node(node, device)?;
        Ok(groups.get(index % groups.len().max(1)).cloned().unwrap_or_default())
    }

    /// Returns the processors that share the highest-level cache of this processor.
    fn cache_siblings(&self, processor: u32) -> Result<Processors> {
        let directory = format!("sys/devices/system/cpu/cpu{processor}/cache");
        let mut highest = (-1, Processors::new());
        for index in cache_indices(&self.root.join(&directory)) {
            let read = |name: &str| self.read(&format!("{directory}/index{index}/{name}"));
            if !matches!(read("type")?.trim(), "Unified" | "Data") {
                continue;
            }
            let level = read("level")?.trim().parse().unwrap_or(-1);
            if level > highest.0 {
                highest = (level, parse_cpu_list(&read("shared_cpu_list")?));
            }
        }
        Ok(highest.1)
    }
}

fn cache_indices(directory: &Path) -> Vec<u32> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix("index")?.parse().ok()).collect()
}

fn config_error(what: &str) -> AgentError {
    AgentError::Config(what.into())
}

/// Parses a list of processors in the kernel's format: `0-2,4`.
fn parse_cpu_list(text: &str) -> Processors {
    let mut processors = Processors::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            processors.extend(first..=last);
        }
    }
    processors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::write;

    /// Creates a machine with 2 sockets, 2 NUMA nodes per socket, 4 cores per node and 2 threads per core. Three of its
    /// four devices are on node 1.
    fn machine() -> (tempfile::TempDir, Topology) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "sys/devices/system/node/possible", "0-3\n");
        for node in 0..4u32 {
            let cpus = format!("{}-{},{}-{}\n", node * 4, node * 4 + 3, 16 + node * 4, 16 + node * 4 + 3);
            write(root, &format!("sys/devices/system/node/node{node}/cpulist"), &cpus);
        }
        for cpu in 0..32u32 {
            let (core, directory) = (cpu % 16, format!("sys/devices/system/cpu/cpu{cpu}"));
            write(
                root,
                &format!("{directory}/topology/thread_siblings_list"),
                &format!("{core},{}\n", core + 16),
            );
            write(root, &format!("{directory}/topology/physical_package_id"), &format!("{}\n", core / 8));
            // Three cores share a cache, and the fourth has its own.
            let (first, last) = if core % 4 == 3 { (core, core) } else { (core / 4 * 4, core / 4 * 4 + 2) };
            let shared = format!("{first}-{last},{}-{}\n", first + 16, last + 16);
            for (index, kind, level, list) in [
                (0, "Data", 1, format!("{core},{}\n", core + 16)),
                (1, "Instruction", 9, "0\n".into()),
                (2, "Unified", 3, shared),
            ] {
                let directory = format!("{directory}/cache/index{index}");
                write(root, &format!("{directory}/type"), &format!("{kind}\n"));
                write(root, &format!("{directory}/level"), &format!("{level}\n"));
                write(root, &format!("{directory}/shared_cpu_list"), &list);
            }
        }
        let devices: Vec<_> = [1, 1, -1, 1]
            .iter()
            .zip(0..)
            .map(|(node, device)| {
                let address = format!("0000:0{device}:00.0");
                write(root, &format!("sys/bus/pci/devices/{address}/numa_node"), &format!("{node}\n"));
                Some(address)
            })
            .collect();
        let topology = Topology { root: root.into(), devices, allowed: (0..32).collect() };
        (dir, topology)
    }

    #[test]
    fn processors_follow_from_the_location_of_the_device() {
        let (_dir, machine) = machine();
        for (binding, device, expected) in [
            (NumaBinding::Node, 0, "4-7,20-23"),
            (NumaBinding::Node, 2, "0-3,16-19"),
            (NumaBinding::Socket, 0, "0-7,16-23"),
            (NumaBinding::Exclusive, 0, "4-5,20-21"),
            (NumaBinding::Exclusive, 1, "6,22"),
            (NumaBinding::Exclusive, 3, "7,23"),
            (NumaBinding::CoreComplex, 0, "4-6,20-22"),
            (NumaBinding::CoreComplex, 1, "7,23"),
            (NumaBinding::CoreComplex, 3, "4-6,20-22"),
        ] {
            let chosen = machine.processors(binding, device).unwrap();
            assert_eq!(chosen, parse_cpu_list(expected), "{binding:?} of device {device}");
        }
    }

    #[test]
    fn only_allowed_processors_are_chosen() {
        let (_dir, mut machine) = machine();
        machine.allowed = [4, 6].into();
        assert_eq!(machine.processors(NumaBinding::Node, 0).unwrap(), [4, 6].into());
        let error = machine.processors(NumaBinding::Exclusive, 0).unwrap_err().to_string();
        assert!(error.contains("only 2 physical cores"), "{error}");
        machine.allowed.clear();
        assert!(machine.processors(NumaBinding::Node, 0).unwrap_err().to_string().contains("non-empty"));
    }

    #[test]
    fn a_missing_device_is_an_error() {
        let (_dir, mut machine) = machine();
        let error = machine.processors(NumaBinding::Node, 4).unwrap_err().to_string();
        assert!(error.contains("no device for local rank 4"), "{error}");
        machine.devices.clear();
        let error = machine.processors(NumaBinding::Node, 0).unwrap_err().to_string();
        assert_eq!(error, "No accelerator available for NUMA binding");
    }
}
