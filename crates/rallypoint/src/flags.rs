//! The values of flags, from the command line or from environment variables. A flag on the command line that can't
//! have an effect is refused, except for combinations that are common in launch scripts. An environment variable may
//! have been set for other commands, so one without an effect usually causes only a warning.

use std::ffi::OsString;
use std::fmt;

use crate::python::int;
use crate::refusal::Refusal;

/// The value of a flag, and whether it comes from the command line.
#[derive(Debug, Clone)]
pub(crate) struct FlagValue<T> {
    pub(crate) value: T,
    pub(crate) flag: &'static str,
    /// Whether the flag is on the command line. If not, the value comes from its environment variable or is the
    /// default.
    pub(crate) is_typed: bool,
}

impl<T: fmt::Display> FlagValue<T> {
    /// Fails if the flag is on the command line, and adds a warning if the value comes from an environment variable.
    /// `why` names the conflict with other flags.
    pub(crate) fn refuse(&self, why: &str, warnings: &mut Vec<String>) -> Result<(), Refusal> {
        match self.is_typed {
            true => Err(Refusal::usage(format!("{self} can't be honored: {why}"))),
            false => {
                self.warn(why, warnings);
                Ok(())
            }
        }
    }

    /// Adds a warning that the value has no effect. This is for combinations that are common in launch scripts and
    /// that torchrun accepts.
    pub(crate) fn warn(&self, why: &str, warnings: &mut Vec<String>) {
        warnings.push(format!("{self} has no effect: {why}"));
    }
}

/// Prints the value as the user set it: `--nnodes 2` or `PET_NNODES=2`.
impl<T: fmt::Display> fmt::Display for FlagValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.to_string();
        match (self.is_typed, value.as_str()) {
            (true, "") => f.write_str(self.flag),
            (true, value) => write!(f, "{} {value}", self.flag),
            (false, "") => write!(f, "{}=1", variable_name(self.flag)),
            (false, value) => write!(f, "{}={value}", variable_name(self.flag)),
        }
    }
}

/// The environment variables that are the defaults of flags.
pub(crate) struct FlagEnvironment<'a>(pub(crate) &'a dyn Fn(&str) -> Option<OsString>);

impl FlagEnvironment<'_> {
    /// Returns the value of an environment variable. Invalid UTF-8 in it is replaced.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// Returns the text of a flag, or else of its environment variable. `typed` is the value on the command line.
    pub(crate) fn flag(&self, typed: &Option<String>, flag: &'static str) -> Option<FlagValue<String>> {
        let value = typed.clone().or_else(|| self.variable(&variable_name(flag)))?;
        Some(FlagValue { value, flag, is_typed: typed.is_some() })
    }

    pub(crate) fn text(&self, typed: &Option<String>, flag: &'static str) -> Option<String> {
        self.flag(typed, flag).map(|flag| flag.value)
    }

    /// Returns the number of a flag, or else of its environment variable. Fails if `parse` can't parse the variable.
    pub(crate) fn number_value<T: Copy>(
        &self,
        typed: Option<T>,
        flag: &'static str,
        parse: fn(&str) -> Result<T, String>,
    ) -> Result<Option<FlagValue<T>>, Refusal> {
        let variable = variable_name(flag);
        let value = match (typed, self.variable(&variable)) {
            (Some(typed), _) => typed,
            (None, None) => return Ok(None),
            (None, Some(text)) => {
                parse(&text).map_err(|why| Refusal::usage(format!("{variable} ({flag}): {why}")))?
            }
        };
        Ok(Some(FlagValue { value, flag, is_typed: typed.is_some() }))
    }

    pub(crate) fn number<T: Copy>(
        &self,
        typed: Option<T>,
        flag: &'static str,
        parse: fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Refusal> {
        Ok(self.number_value(typed, flag, parse)?.map(|flag| flag.value))
    }

    /// Returns a flag that takes no value, if the flag is on the command line or its environment variable is a number
    /// other than 0. Fails if the variable is not a number.
    pub(crate) fn switch_value(
        &self,
        typed: bool,
        flag: &'static str,
    ) -> Result<Option<FlagValue<&'static str>>, Refusal> {
        let name = variable_name(flag);
        let mut is_set = typed;
        if let Some(text) = self.variable(&name) {
            let number = int(&text).map_err(|_| {
                Refusal::value(format!("{name}={text:?} ({flag}) is not a number; use 1 or 0"))
            })?;
            is_set |= number != 0;
        }
        Ok(is_set.then_some(FlagValue { value: "", flag, is_typed: typed }))
    }

    pub(crate) fn switch(&self, typed: bool, flag: &'static str) -> Result<bool, Refusal> {
        Ok(self.switch_value(typed, flag)?.is_some())
    }
}

/// Returns the name of a flag's environment variable: `PET_NPROC_PER_NODE` for `--nproc-per-node`.
fn variable_name(flag: &str) -> String {
    format!("PET_{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase())
}

/// The ids of the flags of `run` and `join` that have no environment variable.
const WITHOUT_VARIABLE: [&str; 8] = [
    "numa_binding",
    "logs_specs",
    "log_level",
    "log_format",
    "event_log",
    "end_report",
    "health_check",
    "print_completion",
];

/// Returns the name of the environment variable of a command's flag, if the flag has one.
pub(crate) fn variable_of(command: &str, arg: &clap::Arg) -> Option<String> {
    let reads_variables = ["run", "join"].contains(&command);
    let has_variable = reads_variables && !WITHOUT_VARIABLE.contains(&arg.get_id().as_str());
    arg.get_long().filter(|_| has_variable).map(variable_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_flag_is_refused_and_a_variable_causes_a_warning() {
        let mut value = FlagValue { value: 2, flag: "--node-rank", is_typed: true };
        let mut warnings = Vec::new();
        let refused = value.refuse("why", &mut warnings).unwrap_err();
        assert_eq!((refused.code, refused.text.as_str()), (2, "--node-rank 2 can't be honored: why"));
        assert!(warnings.is_empty());
        value.is_typed = false;
        value.refuse("why", &mut warnings).unwrap();
        assert_eq!(warnings, ["PET_NODE_RANK=2 has no effect: why"]);
    }

    #[test]
    fn a_switch_is_named_without_a_value() {
        let printed = |typed| FlagValue { value: "", flag: "--no-python", is_typed: typed }.to_string();
        assert_eq!((printed(true), printed(false)), ("--no-python".into(), "PET_NO_PYTHON=1".into()));
    }

    #[test]
    fn a_flag_wins_over_its_variable_and_a_variable_of_0_does_not_unset_a_switch() {
        let lookup = |name: &str| match name {
            "PET_NNODES" => Some("2:4".into()),
            "PET_NODE_RANK" => Some("x".into()),
            "PET_STANDALONE" => Some("0".into()),
            "PET_NO_PYTHON" => Some(" 2 ".into()),
            "PET_MODULE" => Some("yes".into()),
            _ => None,
        };
        let environment = FlagEnvironment(&lookup);
        assert_eq!(environment.text(&None, "--nnodes"), Some("2:4".into()));
        assert_eq!(environment.text(&Some("3".into()), "--nnodes"), Some("3".into()));
        assert_eq!(environment.number(Some(1), "--node-rank", int).unwrap(), Some(1));
        let refused = environment.number(None, "--node-rank", int).unwrap_err();
        assert_eq!((refused.code, refused.text.contains("PET_NODE_RANK")), (2, true));
        assert!(!environment.switch(false, "--standalone").unwrap());
        assert!(environment.switch(true, "--standalone").unwrap());
        assert!(environment.switch(false, "--no-python").unwrap());
        assert_eq!(environment.switch(false, "--module").unwrap_err().code, 1);
    }
}
