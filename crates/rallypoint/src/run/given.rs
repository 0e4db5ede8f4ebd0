//! The value of a flag or of its environment variable, and what happens if it has no effect. No typed flag is ignored. A
//! variable may have been set for other commands, so it only causes a warning.

use std::fmt;

use super::Refused;
use super::python::variable_of;

/// A value that the user gave.
#[derive(Debug, Clone)]
pub(super) struct Given<T> {
    pub(super) value: T,
    pub(super) flag: &'static str,
    /// Whether the flag is on the command line. Otherwise the value is that of its variable.
    pub(super) typed: bool,
}

impl<T: fmt::Display> Given<T> {
    /// Refuses the flag, or warns about the variable, because it can't be honoured beside other flags.
    pub(super) fn refuse(&self, why: &str, warnings: &mut Vec<String>) -> Result<(), Refused> {
        match self.typed {
            true => Err(Refused::usage(format!("{self} can't be honoured: {why}"))),
            false => {
                self.warn(why, warnings);
                Ok(())
            }
        }
    }

    /// Warns that the value has no effect. For flags that launch scripts in common use combine, and that torchrun accepts.
    pub(super) fn warn(&self, why: &str, warnings: &mut Vec<String>) {
        warnings.push(format!("{self} has no effect: {why}"));
    }
}

/// As the user gave it: `--nnodes 2`, `PET_NNODES=2`.
impl<T: fmt::Display> fmt::Display for Given<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.to_string();
        match (self.typed, value.as_str()) {
            (true, "") => f.write_str(self.flag),
            (true, value) => write!(f, "{} {value}", self.flag),
            (false, "") => write!(f, "{}=1", variable_of(self.flag)),
            (false, value) => write!(f, "{}={value}", variable_of(self.flag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_flag_is_refused_and_a_variable_causes_a_warning() {
        let mut given = Given { value: 2, flag: "--node-rank", typed: true };
        let mut warnings = Vec::new();
        let refused = given.refuse("why", &mut warnings).unwrap_err();
        assert_eq!((refused.code, refused.text.as_str()), (2, "--node-rank 2 can't be honoured: why"));
        assert!(warnings.is_empty());
        given.typed = false;
        given.refuse("why", &mut warnings).unwrap();
        assert_eq!(warnings, ["PET_NODE_RANK=2 has no effect: why"]);
    }

    #[test]
    fn a_switch_is_named_without_a_value() {
        let given = |typed| Given { value: "", flag: "--no-python", typed }.to_string();
        assert_eq!((given(true), given(false)), ("--no-python".into(), "PET_NO_PYTHON=1".into()));
    }
}
