//! Signals by name, as Python names them.

/// Linux' signals with their numbers; of two names for one number the first is the one that is told.
const NAMES: [(&str, i32); 36] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGILL", 4),
    ("SIGTRAP", 5),
    ("SIGABRT", 6),
    ("SIGIOT", 6),
    ("SIGBUS", 7),
    ("SIGFPE", 8),
    ("SIGKILL", 9),
    ("SIGUSR1", 10),
    ("SIGSEGV", 11),
    ("SIGUSR2", 12),
    ("SIGPIPE", 13),
    ("SIGALRM", 14),
    ("SIGTERM", 15),
    ("SIGSTKFLT", 16),
    ("SIGCHLD", 17),
    ("SIGCLD", 17),
    ("SIGCONT", 18),
    ("SIGSTOP", 19),
    ("SIGTSTP", 20),
    ("SIGTTIN", 21),
    ("SIGTTOU", 22),
    ("SIGURG", 23),
    ("SIGXCPU", 24),
    ("SIGXFSZ", 25),
    ("SIGVTALRM", 26),
    ("SIGPROF", 27),
    ("SIGWINCH", 28),
    ("SIGIO", 29),
    ("SIGPOLL", 29),
    ("SIGPWR", 30),
    ("SIGSYS", 31),
    ("SIGRTMIN", 34),
    ("SIGRTMAX", 64),
];

/// The name of a signal.
pub(crate) fn signal_name(number: i32) -> Option<&'static str> {
    NAMES.iter().find(|(_, of)| *of == number).map(|(name, _)| *name)
}

/// The number of a signal; a name is written with its `SIG`.
pub fn signal_number(name: &str) -> Option<i32> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_as_python_names_them() {
        for (number, name) in [(1, "SIGHUP"), (6, "SIGABRT"), (9, "SIGKILL"), (15, "SIGTERM"), (29, "SIGIO")]
        {
            assert_eq!(signal_name(number), Some(name));
            assert_eq!(signal_number(name), Some(number));
        }
        assert_eq!(
            (signal_number("SIGPOLL"), signal_number("TERM"), signal_name(40)),
            (Some(29), None, None)
        );
    }
}
