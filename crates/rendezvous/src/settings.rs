//! Converts parameters to the settings of the dynamic rendezvous, and reports all problems together.

use std::time::Duration;

use rallypoint_core::rendezvous::Settings;

use crate::endpoint::{check_specified, parse_rendezvous_endpoint};
use crate::error::{RendezvousError, Result};
use crate::hosts::ExpectedHosts;
use crate::parameters::{ConfigValue, RendezvousParameters, unknown_c10d_options};

/// Converts `parameters` to settings. Fails with one error that lists every problem.
pub(crate) fn settings(parameters: &RendezvousParameters) -> Result<Settings> {
    let mut settings = Settings::new(&parameters.run_id, parameters.min_nodes, parameters.max_nodes);
    let mut errors = unknown_c10d_options(parameters.config.keys());
    for (key, setting, is_timeout) in [
        ("join_timeout", &mut settings.join_timeout, true),
        ("last_call_timeout", &mut settings.last_call_timeout, true),
        ("reform_last_call_timeout", &mut settings.reform_last_call_timeout, true),
        ("store_outage_timeout", &mut settings.store_outage_timeout, true),
        ("close_timeout", &mut settings.close_timeout, true),
        ("heartbeat_timeout", &mut settings.heartbeat_timeout, true),
        ("keep_alive_interval", &mut settings.keep_alive_interval, false),
    ] {
        match parameters.get_as_int(key) {
            Ok(None) => {}
            Ok(Some(seconds)) => match u64::try_from(seconds).ok().filter(|s| *s > 0) {
                Some(seconds) => *setting = Duration::from_secs(seconds),
                None if is_timeout => {
                    let name = key.trim_end_matches("_timeout");
                    errors.push(format!("The {name} timeout ({}) must be positive.", timedelta(seconds)));
                }
                // Torch accepts a `keep_alive_interval` that is not positive, and then removes every node as dead.
                None => errors.push(format!("{key} ({seconds}) must be positive.")),
            },
            Err(error) => errors.push(error.to_string()),
        }
    }
    match parameters.get_as_int("keep_alive_max_attempt") {
        Ok(None) => {}
        Ok(Some(attempts)) => match u32::try_from(attempts).ok().filter(|attempts| *attempts > 0) {
            Some(attempts) => settings.keep_alive_max_attempt = attempts,
            None => errors.push(format!("keep_alive_max_attempt ({attempts}) must be positive.")),
        },
        Err(error) => errors.push(error.to_string()),
    }
    errors.extend(parameters.check_names());
    errors.extend(check_backoff(parameters));
    errors.extend(check_store(parameters));
    errors.extend(ExpectedHosts::from_parameters(parameters).err().map(|error| error.to_string()));
    errors.extend(settings.check());
    if errors.is_empty() { Ok(settings) } else { Err(RendezvousError::Parameters(errors)) }
}

/// Returns a message for each problem with the options of the store.
fn check_store(parameters: &RendezvousParameters) -> Vec<String> {
    let mut errors: Vec<RendezvousError> = Vec::new();
    errors.extend(parameters.get_as_bool("is_host").err());
    errors.extend(read_timeout(parameters).err());
    match store_type(parameters) {
        Ok(StoreType::Tcp) => match parse_rendezvous_endpoint(&parameters.endpoint, 0) {
            Ok(endpoint) => errors.extend(check_specified(&endpoint).map(RendezvousError::parameter)),
            Err(error) => errors.push(error),
        },
        Ok(StoreType::File) => {}
        Err(error) => errors.push(error),
    }
    errors.iter().map(RendezvousError::to_string).collect()
}

/// The kind of store that contains the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreType {
    /// A TCPStore.
    Tcp,
    /// A FileStore.
    File,
}

/// Returns the option `store_type`.
pub(crate) fn store_type(parameters: &RendezvousParameters) -> Result<StoreType> {
    let given = parameters.get("store_type").map_or_else(|| "tcp".to_owned(), ConfigValue::to_string);
    match given.trim().to_lowercase().as_str() {
        "tcp" => Ok(StoreType::Tcp),
        "file" => Ok(StoreType::File),
        _ => {
            Err(RendezvousError::parameter("Invalid store type given. Currently only supports file and tcp."))
        }
    }
}

/// Returns the option `read_timeout`: the timeout of calls to the store.
pub(crate) fn read_timeout(parameters: &RendezvousParameters) -> Result<Duration> {
    let seconds = parameters.get_as_int("read_timeout")?.unwrap_or(60);
    let time = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    match time {
        None => Err(RendezvousError::parameter("The read timeout must be a positive integer.")),
        Some(time) if time > Settings::MAX_TIMEOUT => Err(RendezvousError::parameter(format!(
            "The read timeout ({seconds}s) is longer than a century."
        ))),
        Some(time) => Ok(time),
    }
}

/// Checks the option `cas_backoff_max_seconds` as torch does, and returns a message if it is invalid. A valid value has
/// no effect, because our nodes compute their own backoff.
fn check_backoff(parameters: &RendezvousParameters) -> Option<String> {
    let key = "cas_backoff_max_seconds";
    let (shown, seconds) = match parameters.get(key)? {
        ConfigValue::Int(number) => (number.to_string(), Some(*number as f64)),
        ConfigValue::Float(number) => (number.to_string(), Some(*number)),
        ConfigValue::Text(text) => (format!("'{text}'"), text.trim().parse::<f64>().ok()),
        other => (other.to_string(), None),
    };
    match seconds {
        None => Some(format!("{key}({shown}) is not a valid float value.")),
        Some(seconds) if !seconds.is_finite() || seconds < 0.0 => {
            Some(format!("{key} ({seconds}) must be finite and non-negative."))
        }
        Some(_) => None,
    }
}

/// Formats a number of seconds as Python formats a `timedelta`.
fn timedelta(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let time = format!("{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    match days {
        0 => time,
        1 | -1 => format!("{days} day, {time}"),
        _ => format!("{days} days, {time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::parse_rendezvous_config;

    fn read(config: &str) -> Result<Settings> {
        let parameters = RendezvousParameters::new("c10d", "h", "run", 1, 2).unwrap();
        settings(&parameters.with_config(parse_rendezvous_config(config).unwrap()).unwrap())
    }

    #[test]
    fn given_options_are_read_and_missing_ones_have_defaults() {
        assert_eq!(read("").unwrap(), Settings::new("run", 1, 2));
        let settings = read(
            "join_timeout=7,last_call_timeout=1,close_timeout=2,heartbeat_timeout=3,keep_alive_interval=4,\
             keep_alive_max_attempt=5,cas_backoff_max_seconds=0.5,timeout=900,rank=0,is_host=1",
        )
        .unwrap();
        assert_eq!(settings.join_timeout, Duration::from_secs(7));
        assert_eq!(settings.keep_alive_limit(), Duration::from_secs(20));
    }

    #[test]
    fn one_error_lists_every_problem() {
        let error = read(
            "join_timeout=0,close_timeout=-1,heartbeat_timeout=x,last_cal_timeout=3,keep_alive_interval=0,is_host=x,\
             read_timeout=0,store_type=x,expected_hosts=n[",
        );
        let error = error.unwrap_err().to_string();
        for part in [
            "The join timeout (0:00:00) must be positive.",
            "The close timeout (-1 day, 23:59:59) must be positive.",
            "'heartbeat_timeout' does not represent a valid integer value.",
            "did you mean 'last_call_timeout'?",
            "keep_alive_interval (0) must be positive.",
            "'is_host' does not represent a valid boolean value.",
            "The read timeout must be a positive integer.",
            "Invalid store type given. Currently only supports file and tcp.",
            "expected_hosts=n[ is not a list of hosts",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn the_backoff_is_checked_as_torch_checks_it() {
        for (value, what) in [
            ("x", "cas_backoff_max_seconds('x') is not a valid float value."),
            ("-1", "must be finite and non-negative."),
            ("inf", "must be finite and non-negative."),
            ("nan", "must be finite and non-negative."),
        ] {
            let error = read(&format!("cas_backoff_max_seconds={value}")).unwrap_err().to_string();
            assert!(error.contains(what), "{value}: {error}");
        }
    }
}
