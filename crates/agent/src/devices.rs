//! Counts the devices of this machine by reading the kernel's files, without torch and without a driver's library.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{AgentError, Result};

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpu {
    /// The PCI address, as in `/sys/bus/pci/devices`. `None` if it is unknown, as for a part of a GPU (MIG).
    pub(crate) address: Option<String>,
    /// The UUID: that of NVIDIA's driver, one built from AMD's `unique_id`, or the item `MIG-…` of the variable.
    uuid: Option<String>,
}

/// A machine, represented by its files and its environment variables. Tests replace both.
pub(crate) struct Machine<'a> {
    root: PathBuf,
    environment: &'a dyn Fn(&str) -> Option<OsString>,
}

/// Returns the number of workers for `--nproc-per-node NAME`, where the name is `cpu`, `gpu` or `auto`.
///
/// # Errors
///
/// Fails with [`AgentError::Config`] if `name` is another name, or if it is `gpu` and there is no visible GPU. Fails
/// with [`AgentError::System`] if the processors that this process may use can't be read.
pub fn count_devices(name: &str) -> Result<u32> {
    Machine::this().count(name)
}

impl Machine<'_> {
    /// Returns the machine that this process runs on.
    pub(crate) fn this() -> Machine<'static> {
        Machine { root: "/".into(), environment: &|name| std::env::var_os(name) }
    }

    fn count(&self, name: &str) -> Result<u32> {
        match name {
            "cpu" => Ok(processors()?.len() as u32),
            "gpu" => match self.visible_gpus().len() {
                0 => Err(AgentError::Config(format!(
                    "--nproc-per-node gpu: Cuda is not available. {}; pass a number or cpu",
                    self.explain_no_gpus()
                ))),
                count => Ok(count as u32),
            },
            "auto" => match self.visible_gpus().len() {
                0 => self.count("cpu"),
                count => Ok(count as u32),
            },
            "xpu" => Err(AgentError::Config(
                "--nproc-per-node xpu: XPU devices can't be counted without torch; pass their number".into(),
            )),
            _ => Err(AgentError::Config(format!(
                "Unsupported nproc_per_node value: {name} (expected a number, auto, cpu or gpu)"
            ))),
        }
    }

    fn explain_no_gpus(&self) -> String {
        match self.gpus().len() {
            0 => "No device of the nvidia or amdgpu driver was found".into(),
            all => {
                let set = |name: &&str| (self.environment)(name).is_some();
                let names = ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
                let read = if self.nvidia().is_empty() { &names[..] } else { &names[2..] };
                let names: Vec<_> = read.iter().copied().filter(set).collect();
                format!("All GPUs ({all}) are hidden by {}", names.join(" and "))
            }
        }
    }

    /// Returns the GPUs that a worker sees. NVIDIA GPUs are in the order of their PCI addresses, or of the items of
    /// `CUDA_VISIBLE_DEVICES`. Different GPU models may be numbered in another order by CUDA, unless `CUDA_DEVICE_ORDER`
    /// is `PCI_BUS_ID`.
    pub(crate) fn visible_gpus(&self) -> Vec<Gpu> {
        let variable = |name: &str| (self.environment)(name).map(|text| text.to_string_lossy().into_owned());
        let nvidia = self.nvidia();
        if !nvidia.is_empty() {
            return filter_visible(nvidia, variable("CUDA_VISIBLE_DEVICES"));
        }
        let amd = filter_visible(self.amd(), variable("ROCR_VISIBLE_DEVICES"));
        filter_visible(amd, variable("HIP_VISIBLE_DEVICES").or_else(|| variable("CUDA_VISIBLE_DEVICES")))
    }

    fn gpus(&self) -> Vec<Gpu> {
        let nvidia = self.nvidia();
        if nvidia.is_empty() { self.amd() } else { nvidia }
    }

    /// Returns NVIDIA's GPUs in the order of their PCI addresses. GPUs without a device file are omitted: in a
    /// container, the driver's files may list all GPUs of the machine.
    fn nvidia(&self) -> Vec<Gpu> {
        let devices: BTreeSet<u32> = names(&self.root.join("dev"))
            .iter()
            .filter_map(|name| name.strip_prefix("nvidia")?.parse().ok())
            .collect();
        let directory = self.root.join("proc/driver/nvidia/gpus");
        let mut gpus = Vec::new();
        for address in names(&directory) {
            let information =
                fs::read_to_string(directory.join(&address).join("information")).unwrap_or_default();
            let field = |name: &str| {
                let line = information.lines().find(|line| line.starts_with(name))?;
                Some(line.split_once(':')?.1.trim().to_owned())
            };
            let minor = field("Device Minor").and_then(|minor| minor.parse().ok());
            if minor.is_none_or(|minor| devices.contains(&minor)) {
                gpus.push(Gpu { address: Some(address), uuid: field("GPU UUID") });
            }
        }
        match gpus.is_empty() {
            true => devices.iter().map(|_| Gpu { address: None, uuid: None }).collect(),
            false => gpus,
        }
    }

    fn amd(&self) -> Vec<Gpu> {
        let directory = self.root.join("sys/class/kfd/kfd/topology/nodes");
        let mut nodes: Vec<u32> = names(&directory).iter().filter_map(|name| name.parse().ok()).collect();
        nodes.sort_unstable();
        let gpu = |node: u32| {
            let read = |name: &str| fs::read_to_string(directory.join(node.to_string()).join(name)).ok();
            read("gpu_id").filter(|id| id.trim() != "0")?;
            let properties = read("properties").unwrap_or_default();
            let field = |name: &str| {
                let line = properties.lines().find(|line| line.split(' ').next() == Some(name))?;
                line.split(' ').nth(1)?.trim().parse::<u64>().ok()
            };
            let address = field("location_id").map(|location| {
                let (domain, bus) = (field("domain").unwrap_or(0), location >> 8 & 0xff);
                format!("{domain:04x}:{bus:02x}:{:02x}.{}", location >> 3 & 0x1f, location & 7)
            });
            let uuid = field("unique_id").map(|id| format!("GPU-{id:016x}"));
            Some(Gpu { address, uuid })
        };
        nodes.into_iter().filter_map(gpu).collect()
    }
}

/// Returns the processors that this process may use.
pub(crate) fn processors() -> Result<BTreeSet<u32>> {
    let affinity = rustix::thread::sched_getaffinity(None)
        .map_err(AgentError::system("read which processors this process may use"))?;
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    Ok(all.filter(|cpu| affinity.is_set(*cpu)).map(|cpu| cpu as u32).collect())
}

/// Returns the GPUs that `list` selects, with CUDA's rules: the list ends at the first invalid item, and a duplicate
/// item makes all GPUs invisible.
fn filter_visible(gpus: Vec<Gpu>, list: Option<String>) -> Vec<Gpu> {
    let Some(list) = list else { return gpus };
    let mut chosen: Vec<usize> = Vec::new();
    let mut selected = Vec::new();
    for item in list.split(',').map(str::trim) {
        if item.starts_with("MIG-") {
            // The item is a part of a GPU. No file shows which GPU it belongs to.
            selected.push(Gpu { address: None, uuid: Some(item.into()) });
            continue;
        }
        let index = match item.starts_with("GPU-") {
            true => {
                gpus.iter().position(|gpu| gpu.uuid.as_deref().is_some_and(|uuid| uuid.starts_with(item)))
            }
            false => leading_number(item).filter(|index| *index < gpus.len()),
        };
        match index {
            Some(index) if chosen.contains(&index) => return Vec::new(),
            Some(index) => {
                chosen.push(index);
                selected.push(gpus[index].clone());
            }
            None => break,
        }
    }
    selected
}

/// Parses the digits at the start of an item: `2nd` is 2.
fn leading_number(item: &str) -> Option<usize> {
    let digits = item.strip_prefix('+').unwrap_or(item);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn nvidia(root: &Path, count: usize) {
        for n in 0..count {
            let information = format!("Model: \t\t X\nGPU UUID: \t GPU-aa{n}\nDevice Minor: \t {n}\n");
            write(
                root,
                &format!("proc/driver/nvidia/gpus/0000:{:02x}:00.0/information", 16 + n),
                &information,
            );
            write(root, &format!("dev/nvidia{n}"), "");
        }
        write(root, "dev/nvidiactl", "");
    }

    fn addresses(root: &Path, environment: &[(&str, &str)]) -> Vec<String> {
        let lookup = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        let machine = Machine { root: root.into(), environment: &lookup };
        let gpus = machine.visible_gpus();
        gpus.into_iter().map(|gpu| gpu.address.or(gpu.uuid).unwrap_or_default()).collect()
    }

    #[test]
    fn devices_are_counted_as_cuda_counts_them() {
        let root = tempfile::tempdir().unwrap();
        nvidia(root.path(), 3);
        for (list, expected) in [
            (None, "10 11 12"),
            (Some("2,0"), "12 10"),
            (Some(" 1gpu , 2"), "11 12"),
            (Some("0,7,1"), "10"),
            (Some("-1"), ""),
            (Some(""), ""),
            (Some("1,1"), ""),
            (Some("GPU-aa2,GPU-aa0"), "12 10"),
            (Some("GPU-zz,GPU-aa0"), ""),
        ] {
            let environment: Vec<_> = list.iter().map(|list| ("CUDA_VISIBLE_DEVICES", *list)).collect();
            let expected: Vec<_> =
                expected.split_whitespace().map(|bus| format!("0000:{bus}:00.0")).collect();
            assert_eq!(addresses(root.path(), &environment), expected, "{list:?}");
        }
    }

    #[test]
    fn a_device_without_its_device_file_is_not_counted() {
        let root = tempfile::tempdir().unwrap();
        nvidia(root.path(), 2);
        fs::remove_file(root.path().join("dev/nvidia0")).unwrap();
        assert_eq!(addresses(root.path(), &[]), ["0000:11:00.0"]);
        fs::remove_dir_all(root.path().join("proc")).unwrap();
        assert_eq!(addresses(root.path(), &[]), [""]);
    }

    #[test]
    fn amd_devices_are_found() {
        let root = tempfile::tempdir().unwrap();
        let node = |n: u32, id: &str| {
            let directory = format!("sys/class/kfd/kfd/topology/nodes/{n}");
            write(root.path(), &format!("{directory}/gpu_id"), id);
            write(
                root.path(),
                &format!("{directory}/properties"),
                &format!("domain 0\nlocation_id {}\n", n << 8),
            );
        };
        node(0, "0\n");
        node(1, "51234\n");
        node(10, "51235\n");
        assert_eq!(addresses(root.path(), &[]), ["0000:01:00.0", "0000:0a:00.0"]);
        let both = [("HIP_VISIBLE_DEVICES", "1"), ("CUDA_VISIBLE_DEVICES", "0")];
        assert_eq!(addresses(root.path(), &both), ["0000:0a:00.0"]);
    }

    #[test]
    fn without_gpus_the_name_gpu_fails_and_auto_counts_processors() {
        let root = tempfile::tempdir().unwrap();
        let none = |_: &str| None;
        let machine = Machine { root: root.path().into(), environment: &none };
        let error = machine.count("gpu").unwrap_err().to_string();
        assert!(error.contains("Cuda is not available"), "{error}");
        assert_eq!(machine.count("auto").unwrap(), machine.count("cpu").unwrap());
        assert!(
            machine.count("tpu").unwrap_err().to_string().contains("Unsupported nproc_per_node value: tpu")
        );
        nvidia(root.path(), 2);
        assert_eq!((machine.count("gpu").unwrap(), machine.count("auto").unwrap()), (2, 2));
        let hidden = |name: &str| (name == "CUDA_VISIBLE_DEVICES").then(|| "".into());
        let error = Machine { root: root.path().into(), environment: &hidden }.count("gpu").unwrap_err();
        assert!(error.to_string().contains("hidden by CUDA_VISIBLE_DEVICES"), "{error}");
    }
}
