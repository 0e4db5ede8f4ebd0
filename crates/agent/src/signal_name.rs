//! The names of signals, as in Python.

/// Returns the name of a signal, such as `SIGTERM`.
pub(crate) fn signal_name(number: i32) -> Option<&'static str> {
    match number {
        16 => Some("SIGSTKFLT"),
        30 => Some("SIGPWR"),
        _ => signal_hook::low_level::signal_name(number),
    }
}

/// Returns the number of a signal, or `None` if the name is unknown.
pub fn signal_number(name: &str) -> Option<i32> {
    match name {
        "SIGIOT" => Some(6),
        "SIGPOLL" => Some(29),
        _ => (1..=31).find(|number| signal_name(*number) == Some(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_as_python_names_them() {
        for (number, name) in
            [(1, "SIGHUP"), (6, "SIGABRT"), (9, "SIGKILL"), (15, "SIGTERM"), (29, "SIGIO"), (30, "SIGPWR")]
        {
            assert_eq!(signal_name(number), Some(name));
            assert_eq!(signal_number(name), Some(number));
        }
        assert!((1..=31).all(|number| signal_name(number).is_some()));
        assert_eq!(
            (signal_number("SIGPOLL"), signal_number("TERM"), signal_name(40)),
            (Some(29), None, None)
        );
    }
}
