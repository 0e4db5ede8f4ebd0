//! The parameters of a rendezvous. This module parses and checks them. Each backend interprets its own options.

use std::collections::BTreeMap;

use rallypoint_core::Limits;

use crate::endpoint::parse_rendezvous_endpoint;
use crate::error::{RendezvousError, Result};
use crate::native::{NATIVE_BACKEND, NativeSettings};
use crate::store_info::is_address;

/// The value of an option.
#[derive(Debug, Clone, PartialEq)]
pub enum ConfigValue {
    /// Python's `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A string. Values from a command line are always strings.
    Text(String),
}

impl From<&str> for ConfigValue {
    fn from(text: &str) -> ConfigValue {
        ConfigValue::Text(text.into())
    }
}

impl From<i64> for ConfigValue {
    fn from(number: i64) -> ConfigValue {
        ConfigValue::Int(number)
    }
}

impl From<bool> for ConfigValue {
    fn from(value: bool) -> ConfigValue {
        ConfigValue::Bool(value)
    }
}

impl std::fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConfigValue::None => f.write_str("None"),
            ConfigValue::Bool(value) => f.write_str(if *value { "True" } else { "False" }),
            ConfigValue::Int(number) => number.fmt(f),
            ConfigValue::Float(number) => number.fmt(f),
            ConfigValue::Text(text) => text.fmt(f),
        }
    }
}

/// The options of a rendezvous, by name.
pub type Config = BTreeMap<String, ConfigValue>;

/// The parameters from which a [`RendezvousHandler`](crate::RendezvousHandler) is created.
#[derive(Debug, Clone, PartialEq)]
pub struct RendezvousParameters {
    /// The name of the backend.
    pub backend: String,
    /// The address of the store. Each backend has its own format.
    pub endpoint: String,
    /// The run id.
    pub run_id: String,
    /// The minimum number of nodes in a round.
    pub min_nodes: u64,
    /// The maximum number of nodes in a round.
    pub max_nodes: u64,
    /// The address at which other nodes reach this node. If it is `None`, the backend determines it.
    pub local_addr: Option<String>,
    /// Further options.
    pub config: Config,
}

impl RendezvousParameters {
    /// Creates parameters without options.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if the name of the backend is empty or the numbers of nodes are
    /// inconsistent.
    pub fn new(
        backend: &str,
        endpoint: &str,
        run_id: &str,
        min_nodes: u64,
        max_nodes: u64,
    ) -> Result<RendezvousParameters> {
        let mut errors = Vec::new();
        if backend.is_empty() {
            errors.push(EMPTY_BACKEND.to_owned());
        }
        if min_nodes < 1 {
            errors.push(format!(
                "The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero."
            ));
        }
        if max_nodes < min_nodes {
            errors.push(format!(
                "The maximum number of rendezvous nodes ({max_nodes}) must be greater than or equal to the minimum \
                 number of rendezvous nodes ({min_nodes})."
            ));
        }
        if !errors.is_empty() {
            return Err(RendezvousError::Parameters(errors));
        }
        Ok(RendezvousParameters {
            backend: backend.into(),
            endpoint: endpoint.into(),
            run_id: run_id.into(),
            min_nodes,
            max_nodes,
            local_addr: None,
            config: Config::new(),
        })
    }

    /// Returns a message for each problem with the parameters, if the backend is `c10d`, `static` or `rallypoint`.
    /// Returns no messages for other backends.
    pub fn check(&self) -> Vec<String> {
        let checked = match self.backend.as_str() {
            "c10d" => crate::settings::settings(self).err(),
            "static" => crate::fixed::StaticRendezvousHandler::create(self).err(),
            NATIVE_BACKEND => NativeSettings::parse(self).err(),
            _ => None,
        };
        checked.map(|error| error.to_string().lines().map(String::from).collect()).unwrap_or_default()
    }

    /// Returns a message for each problem with the run id and the local address.
    pub(crate) fn check_names(&self) -> Vec<String> {
        let mut errors = Vec::new();
        // Keys consist of a prefix, the run id and a suffix. 256 bytes are left for the prefix and the suffix.
        let max_len = Limits::default().key_len - 256;
        if self.run_id.len() > max_len {
            errors.push(format!("the run id has {} bytes; the maximum is {max_len}", self.run_id.len()));
        }
        if let Some(addr) = self.local_addr.as_deref().filter(|addr| !is_address(addr)) {
            let shown: String = addr.chars().take(64).collect();
            errors.push(format!(
                "the local address {shown:?} is neither a host name nor an address: it is empty, has whitespace or control characters, or has more than 255 bytes"
            ));
        }
        errors
    }

    /// Sets the options.
    ///
    /// # Errors
    ///
    /// As in torch's constructor, fails with [`RendezvousError::Parameters`] if an option has the name of a parameter.
    pub fn with_config(mut self, config: Config) -> Result<RendezvousParameters> {
        const NAMES: [&str; 7] =
            ["self", "backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"];
        let errors: Vec<_> = config
            .keys()
            .filter(|key| NAMES.contains(&key.as_str()))
            .map(|key| format!("got multiple values for keyword argument '{key}'"))
            .collect();
        if !errors.is_empty() {
            return Err(RendezvousError::Parameters(errors));
        }
        self.config = config;
        Ok(self)
    }

    /// Sets the address at which other nodes reach this node. An empty address is ignored.
    pub fn with_local_addr(mut self, local_addr: Option<String>) -> RendezvousParameters {
        self.local_addr = local_addr.filter(|addr| !addr.is_empty());
        self
    }

    /// Returns whether the port of the endpoint is 0. The system then chooses a port, which no other node knows.
    pub fn has_private_port(&self) -> bool {
        parse_rendezvous_endpoint(&self.endpoint, 1).is_ok_and(|endpoint| endpoint.port == 0)
    }

    /// Returns the option `key`, or `None` if it is not set.
    pub fn get(&self, key: &str) -> Option<&ConfigValue> {
        self.config.get(key)
    }

    /// Returns the option `key` as a boolean, or `None` if it is not set.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if the value is not a boolean.
    pub fn get_as_bool(&self, key: &str) -> Result<Option<bool>> {
        let value = match self.get(key) {
            None | Some(ConfigValue::None) => return Ok(None),
            Some(ConfigValue::Bool(value)) => Some(*value),
            Some(ConfigValue::Int(1)) => Some(true),
            Some(ConfigValue::Int(0)) => Some(false),
            Some(ConfigValue::Text(text)) => match text.to_lowercase().as_str() {
                "1" | "true" | "t" | "yes" | "y" => Some(true),
                "0" | "false" | "f" | "no" | "n" => Some(false),
                _ => None,
            },
            Some(_) => None,
        };
        value.map(Some).ok_or_else(|| value_error(key, "boolean"))
    }

    /// Returns the option `key` as an integer, parsed as Python's `int()` does, or `None` if it is not set.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if the value is not an integer.
    pub fn get_as_int(&self, key: &str) -> Result<Option<i64>> {
        let value = match self.get(key) {
            None | Some(ConfigValue::None) => return Ok(None),
            Some(ConfigValue::Bool(value)) => Some(i64::from(*value)),
            Some(ConfigValue::Int(number)) => Some(*number),
            Some(ConfigValue::Float(number)) => number.is_finite().then_some(number.trunc() as i64),
            Some(ConfigValue::Text(text)) => python_int(text),
        };
        value.map(Some).ok_or_else(|| value_error(key, "integer"))
    }
}

pub(crate) const EMPTY_BACKEND: &str = "The rendezvous backend name must be a non-empty string.";

fn value_error(key: &str, kind: &str) -> RendezvousError {
    RendezvousError::parameter(format!(
        "The rendezvous configuration option '{key}' does not represent a valid {kind} value."
    ))
}

/// Parses an integer as Python's `int(text)`: surrounding whitespace, a sign, and single underscores between digits are
/// allowed.
pub(crate) fn python_int(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let well_formed =
        digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    well_formed.then(|| plain.parse().ok()).flatten()
}

/// Parses options in the form of a command line: `key=value,key=value`. Whitespace around keys and values is removed.
/// If a key occurs twice, the last value counts.
///
/// # Errors
///
/// Fails with [`RendezvousError::Parameters`] if an option is malformed.
pub fn parse_rendezvous_config(text: &str) -> Result<Config> {
    let (config, errors) = read_rendezvous_config(text);
    if errors.is_empty() { Ok(config) } else { Err(RendezvousError::Parameters(errors)) }
}

/// Parses options like [`parse_rendezvous_config`]. Returns the well-formed options and a message for each malformed
/// one.
pub fn read_rendezvous_config(text: &str) -> (Config, Vec<String>) {
    let (mut config, mut errors) = (Config::new(), Vec::new());
    if text.trim().is_empty() {
        return (config, errors);
    }
    for piece in text.trim().split(',') {
        let (key, value) = piece.split_once('=').map_or((piece, None), |(key, value)| (key, Some(value)));
        let key = key.trim();
        if key.is_empty() {
            let form =
                "The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.";
            if !errors.iter().any(|error| error == form) {
                errors.push(form.to_owned());
            }
            continue;
        }
        match value.map(str::trim).filter(|value| !value.is_empty()) {
            Some(value) => drop(config.insert(key.into(), value.into())),
            None => errors
                .push(format!("The rendezvous configuration option '{key}' must have a value specified.")),
        }
    }
    (config, errors)
}

/// Returns a message for each option that the `c10d` backend doesn't have. The message suggests the most similar
/// option.
pub fn unknown_c10d_options<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    unknown_options(names, &crate::options::C10D_OPTIONS.map(|option| option.name))
}

/// Returns a message for each option that is not in `known`. The message suggests the most similar option.
pub(crate) fn unknown_options<'a>(
    names: impl IntoIterator<Item = &'a String>,
    known: &[&str],
) -> Vec<String> {
    names
        .into_iter()
        .filter(|key| !known.contains(&key.as_str()))
        .map(|key| {
            let nearest = known.iter().min_by_key(|name| edit_distance(key, name));
            let nearest = nearest.filter(|name| edit_distance(key, name) <= 2 + key.len() / 3);
            match nearest {
                Some(name) => {
                    format!("unknown rendezvous configuration option '{key}'; did you mean '{name}'?")
                }
                None => {
                    format!(
                        "unknown rendezvous configuration option '{key}'; known options: {}",
                        known.join(", ")
                    )
                }
            }
        })
        .collect()
}

/// Returns the Levenshtein distance: the smallest number of characters to insert, delete or replace in order to turn
/// `from` into `to`.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(config: &[(&str, ConfigValue)]) -> RendezvousParameters {
        let config = config.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        RendezvousParameters::new("c10d", "h:1", "run", 1, 2).unwrap().with_config(config).unwrap()
    }

    #[test]
    fn one_error_lists_every_problem_in_torchs_words() {
        let error = RendezvousParameters::new("", "", "", 0, 0).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 2, "{error}");
        assert!(error.contains("backend name must be a non-empty string."), "{error}");
        assert!(
            error.contains("The minimum number of rendezvous nodes (0) must be greater than zero."),
            "{error}"
        );
        let error = RendezvousParameters::new("x", "", "", 3, 2).unwrap_err().to_string();
        assert!(
            error.starts_with("The maximum number of rendezvous nodes (2) must be greater than or equal"),
            "{error}"
        );
    }

    #[test]
    fn an_option_named_like_a_parameter_is_refused() {
        let config = parse_rendezvous_config("run_id=x").unwrap();
        let error = RendezvousParameters::new("x", "", "", 1, 1).unwrap().with_config(config).unwrap_err();
        assert!(error.to_string().contains("multiple values for keyword argument 'run_id'"), "{error}");
    }

    #[test]
    fn booleans_are_parsed_as_torch_parses_them() {
        for (value, read) in [
            ("1".into(), Some(true)),
            ("TRUE".into(), Some(true)),
            ("t".into(), Some(true)),
            ("Yes".into(), Some(true)),
            ("y".into(), Some(true)),
            ("0".into(), Some(false)),
            ("false".into(), Some(false)),
            ("F".into(), Some(false)),
            ("no".into(), Some(false)),
            ("n".into(), Some(false)),
            (1.into(), Some(true)),
            (0.into(), Some(false)),
            (true.into(), Some(true)),
            (2.into(), None),
            (ConfigValue::Float(1.0), None),
            ("on".into(), None),
            ("".into(), None),
            (" 1".into(), None),
        ] {
            let parameters = parameters(&[("k", value.clone())]);
            match read {
                Some(read) => assert_eq!(parameters.get_as_bool("k").unwrap(), Some(read), "{value:?}"),
                None => assert_eq!(
                    parameters.get_as_bool("k").unwrap_err().to_string(),
                    "The rendezvous configuration option 'k' does not represent a valid boolean value.",
                    "{value:?}"
                ),
            }
        }
        assert_eq!(parameters(&[]).get_as_bool("k").unwrap(), None);
    }

    #[test]
    fn integers_are_parsed_as_pythons_int_parses_them() {
        for (value, read) in [
            (" 12 ".into(), Some(12)),
            ("+1".into(), Some(1)),
            ("-1".into(), Some(-1)),
            ("1_000".into(), Some(1000)),
            (true.into(), Some(1)),
            (ConfigValue::Float(1.5), Some(1)),
            ("1.0".into(), None),
            ("0x10".into(), None),
            ("".into(), None),
            ("1__0".into(), None),
            ("_1".into(), None),
            ("- 1".into(), None),
            ("+-1".into(), None),
        ] {
            let parameters = parameters(&[("k", value.clone())]);
            match read {
                Some(read) => assert_eq!(parameters.get_as_int("k").unwrap(), Some(read), "{value:?}"),
                None => assert!(parameters.get_as_int("k").is_err(), "{value:?}"),
            }
        }
    }

    #[test]
    fn options_are_parsed_from_a_string() {
        let config = parse_rendezvous_config(" a = 1 ,b=x=y, a=2 ").unwrap();
        assert_eq!(config.len(), 2);
        assert_eq!((&config["a"], &config["b"]), (&"2".into(), &"x=y".into()));
        assert!(parse_rendezvous_config("  ").unwrap().is_empty());
        for (text, what) in
            [("a=1,", "in format"), ("=1", "in format"), ("a", "'a' must have a value"), ("a= ", "'a' must")]
        {
            let error = parse_rendezvous_config(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn an_unknown_option_is_reported_with_the_nearest_known_one() {
        let known = ["join_timeout", "last_call_timeout", "is_host"];
        let config = parse_rendezvous_config("jion_timeout=1,isHost=1,colour=red,is_host=1").unwrap();
        let unknown = unknown_options(config.keys(), &known);
        assert_eq!(unknown.len(), 3, "{unknown:?}");
        assert!(unknown[0].contains("'colour'; known options: join_timeout, last"), "{unknown:?}");
        assert!(unknown[1].contains("'isHost'; did you mean 'is_host'?"), "{unknown:?}");
        assert!(unknown[2].contains("'jion_timeout'; did you mean 'join_timeout'?"), "{unknown:?}");
    }
}
