//! Numbers and variables as torchrun reads them, which is as Python reads them.

use std::ffi::OsString;

use super::Refused;
use super::given::Given;

/// As Python's `int(text)`: blanks around it, a sign, single underscores between digits.
pub(super) fn int(text: &str) -> Result<i64, String> {
    let plain = text.trim();
    let digits = plain.strip_prefix(['+', '-']).unwrap_or(plain);
    let well_formed =
        digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let number = well_formed.then(|| plain.replace('_', "").parse().ok()).flatten();
    number.ok_or_else(|| format!("invalid int value: '{text}'"))
}

/// As Python's `float(text)`.
pub(super) fn float(text: &str) -> Result<f64, String> {
    let plain = text.trim();
    // Rust reads the same numbers, but for underscores between digits.
    let bytes = plain.as_bytes();
    let digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let underscores = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'_');
    let well_placed = |(at, _): (usize, &u8)| digit(at.checked_sub(1)) && digit(Some(at + 1));
    let well_formed = underscores.into_iter().all(well_placed);
    let number = well_formed.then(|| plain.replace('_', "").parse().ok()).flatten();
    number.ok_or_else(|| format!("invalid float value: '{text}'"))
}

/// The environment that flags have their defaults from.
pub(super) struct Defaults<'a>(pub(super) &'a dyn Fn(&str) -> Option<OsString>);

impl Defaults<'_> {
    /// A variable as text.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// Returns a flag's text, or that of its variable.
    pub(super) fn given(&self, typed: &Option<String>, flag: &'static str) -> Option<Given<String>> {
        let value = typed.clone().or_else(|| self.variable(&variable_of(flag)))?;
        Some(Given { value, flag, typed: typed.is_some() })
    }

    pub(super) fn text(&self, typed: &Option<String>, flag: &'static str) -> Option<String> {
        self.given(typed, flag).map(|given| given.value)
    }

    /// Returns a flag's number, or that of its variable. A variable that is no number is wrong usage.
    pub(super) fn given_number<T: Copy>(
        &self,
        typed: Option<T>,
        flag: &'static str,
        read: fn(&str) -> Result<T, String>,
    ) -> Result<Option<Given<T>>, Refused> {
        let variable = variable_of(flag);
        let value = match (typed, self.variable(&variable)) {
            (Some(typed), _) => typed,
            (None, None) => return Ok(None),
            (None, Some(text)) => {
                read(&text).map_err(|why| Refused::usage(format!("{variable} ({flag}): {why}")))?
            }
        };
        Ok(Some(Given { value, flag, typed: typed.is_some() }))
    }

    pub(super) fn number<T: Copy>(
        &self,
        typed: Option<T>,
        flag: &'static str,
        read: fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Refused> {
        Ok(self.given_number(typed, flag, read)?.map(|given| given.value))
    }

    /// Returns a flag without a value if it, or its variable, is set. A variable is set if it is a number other than 0.
    pub(super) fn given_switch(
        &self,
        typed: bool,
        flag: &'static str,
    ) -> Result<Option<Given<&'static str>>, Refused> {
        let name = variable_of(flag);
        let mut is_set = typed;
        if let Some(text) = self.variable(&name) {
            let number = int(&text).map_err(|_| {
                Refused::value(format!("{name}={text:?} ({flag}) is not a number; 1 is yes, 0 is no"))
            })?;
            is_set |= number != 0;
        }
        Ok(is_set.then_some(Given { value: "", flag, typed }))
    }

    pub(super) fn switch(&self, typed: bool, flag: &'static str) -> Result<bool, Refused> {
        Ok(self.given_switch(typed, flag)?.is_some())
    }
}

/// `--nproc-per-node` is `PET_NPROC_PER_NODE`.
pub(super) fn variable_of(flag: &str) -> String {
    format!("PET_{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        for (text, number) in [("5", 5), (" -1 ", -1), ("+7", 7), ("1_000", 1000)] {
            assert_eq!(int(text), Ok(number));
        }
        for text in ["", "x", "1.5", "1__0", "_1", "0x10"] {
            assert_eq!(int(text), Err(format!("invalid int value: '{text}'")));
        }
        for (text, number) in
            [("0.1", 0.1), ("1e-3", 1e-3), (" 5 ", 5.0), ("1_0.5", 10.5), ("inf", f64::INFINITY)]
        {
            assert_eq!(float(text), Ok(number));
        }
        for text in ["", "x", "1_", "1_.5"] {
            assert!(float(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_variable_and_no_switch_is_taken_back() {
        let lookup = |name: &str| match name {
            "PET_NNODES" => Some("2:4".into()),
            "PET_NODE_RANK" => Some("x".into()),
            "PET_STANDALONE" => Some("0".into()),
            "PET_NO_PYTHON" => Some(" 2 ".into()),
            "PET_MODULE" => Some("yes".into()),
            _ => None,
        };
        let defaults = Defaults(&lookup);
        assert_eq!(defaults.text(&None, "--nnodes"), Some("2:4".into()));
        assert_eq!(defaults.text(&Some("3".into()), "--nnodes"), Some("3".into()));
        assert_eq!(defaults.number(Some(1), "--node-rank", int).unwrap(), Some(1));
        let refused = defaults.number(None, "--node-rank", int).unwrap_err();
        assert_eq!((refused.code, refused.text.contains("PET_NODE_RANK")), (2, true));
        assert!(!defaults.switch(false, "--standalone").unwrap());
        assert!(defaults.switch(true, "--standalone").unwrap());
        assert!(defaults.switch(false, "--no-python").unwrap());
        assert_eq!(defaults.switch(false, "--module").unwrap_err().code, 1);
    }
}
