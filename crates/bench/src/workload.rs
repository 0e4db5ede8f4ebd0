//! The workloads, which users select by name and size.

use std::fmt;
use std::str::FromStr;

use rallypoint_core::Quantity;

use crate::error::BenchError;

/// The kind of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Add,
    Get,
    Set,
    Check,
    Wait,
    CompareSet,
    MultiGet,
    MultiSet,
    Cancel,
    Connect,
    Bootstrap,
    Barrier,
}

/// The unit of the size that follows the name of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeUnit {
    Nothing,
    ValueBytes,
    Keys,
    Clients,
}

/// A workload with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    pub(crate) kind: Kind,
    /// The size that follows the name, or the default size of the kind.
    pub(crate) size: Option<usize>,
}

/// Name, kind, unit of the size, and default size.
type Row = (&'static str, Kind, SizeUnit, Option<usize>);

const WORKLOADS: [Row; 12] = [
    ("add", Kind::Add, SizeUnit::Nothing, None),
    ("get", Kind::Get, SizeUnit::ValueBytes, None),
    ("set", Kind::Set, SizeUnit::ValueBytes, None),
    ("check", Kind::Check, SizeUnit::Keys, None),
    ("wait", Kind::Wait, SizeUnit::Keys, None),
    ("compare_set", Kind::CompareSet, SizeUnit::ValueBytes, None),
    ("multi_get", Kind::MultiGet, SizeUnit::Keys, Some(10_000)),
    ("multi_set", Kind::MultiSet, SizeUnit::Keys, Some(10_000)),
    ("cancel", Kind::Cancel, SizeUnit::Clients, Some(2_000)),
    ("connect", Kind::Connect, SizeUnit::Clients, Some(10_000)),
    ("bootstrap", Kind::Bootstrap, SizeUnit::Clients, Some(1_024)),
    ("barrier", Kind::Barrier, SizeUnit::Clients, Some(10_000)),
];

/// The default workloads. Their load is low enough for a server that is in use.
pub const DEFAULT_WORKLOADS: &str = "add,get,set,check,wait,compare_set";

const ALL: &str = "add,get,set,check,wait,compare_set,multi_get-10000,wait-10000,check-10000,multi_set-10000,cancel-2000,\
                   connect-10000,bootstrap-1024,barrier-10000,get-8MiB,set-8MiB";

/// The maximum number of keys in one request that torch's libuv server accepts.
const MAX_KEYS: usize = 131_072;
/// The maximum length of a value that torch's libuv server accepts, in bytes.
const MAX_VALUE_BYTES: usize = 8 << 20;

impl Workload {
    /// Returns whether the workload has a size. `rallypoint bench` runs such a workload with one request in flight.
    pub fn has_size(self) -> bool {
        self.size.is_some()
    }

    fn row(self) -> &'static Row {
        WORKLOADS.iter().find(|row| row.1 == self.kind).expect("every kind has a row")
    }

    /// Returns the name without the size.
    pub(crate) fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the unit of the size.
    pub(crate) fn size_unit(self) -> SizeUnit {
        self.row().2
    }

    /// Parses a comma-separated list of names. `all` stands for all workloads.
    ///
    /// # Errors
    ///
    /// Fails with [`BenchError::Usage`] if a name or a size is wrong.
    pub fn list(text: &str) -> Result<Vec<Workload>, BenchError> {
        let text = text.split(',').map(|name| if name.trim() == "all" { ALL } else { name.trim() });
        let workloads: Result<_, _> = text.flat_map(|names| names.split(',')).map(str::parse).collect();
        workloads.map_err(BenchError::Usage)
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        let (name, size) = match text.split_once('-') {
            Some((name, size)) => (name, Some(size)),
            None => (text, None),
        };
        let Some(&(_, kind, size_unit, default)) = WORKLOADS.iter().find(|row| row.0 == name) else {
            return Err(format!("unknown workload {text:?}; the workloads are {ALL}, and `all`"));
        };
        let size = match (size, size_unit) {
            (None, _) => default,
            (Some(_), SizeUnit::Nothing) => return Err(format!("{name} has no size")),
            (Some(size), _) => Some(parse_size(text, size, size_unit)?),
        };
        Ok(Workload { kind, size })
    }
}

fn parse_size(text: &str, size: &str, size_unit: SizeUnit) -> Result<usize, String> {
    let (size, max, what) = match size_unit {
        SizeUnit::ValueBytes => {
            (usize::parse(size).ok(), MAX_VALUE_BYTES, "bytes, such as 4096, 64KiB or 8MiB")
        }
        SizeUnit::Keys => (size.parse().ok(), MAX_KEYS, "keys"),
        _ => (size.parse().ok(), 65_536, "clients"),
    };
    size.filter(|size| (1..=max).contains(size))
        .ok_or_else(|| format!("{text:?}: the size must be from 1 to {max} {what}"))
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match (self.size, self.size_unit()) {
            (None, _) => f.write_str(name),
            (Some(size), SizeUnit::ValueBytes) if size % (1 << 20) == 0 => {
                write!(f, "{name}-{}MiB", size >> 20)
            }
            (Some(size), SizeUnit::ValueBytes) if size % (1 << 10) == 0 => {
                write!(f, "{name}-{}KiB", size >> 10)
            }
            (Some(size), _) => write!(f, "{name}-{size}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_workload_prints_its_own_name() {
        for name in ALL.split(',') {
            assert_eq!(name.parse::<Workload>().unwrap().to_string(), name);
        }
        assert_eq!(Workload::list("all").unwrap().len(), 16);
        assert_eq!(Workload::list("cancel, get-4096").unwrap()[1].to_string(), "get-4KiB");
    }

    #[test]
    fn a_name_without_a_size_gets_the_default_size() {
        assert_eq!("cancel".parse::<Workload>().unwrap().size, Some(2_000));
        assert_eq!("get".parse::<Workload>().unwrap().size, None);
    }

    #[test]
    fn the_error_for_a_wrong_name_or_size_describes_the_valid_ones() {
        for (text, why) in [
            ("put", "the workloads are add,get"),
            ("add-3", "has no size"),
            ("get-9MiB", "8MiB"),
            ("wait-0", "from 1 to 131072 keys"),
            ("connect-1KiB", "clients"),
        ] {
            let error = text.parse::<Workload>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
