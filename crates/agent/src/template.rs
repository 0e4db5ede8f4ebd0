//! Python's `string.Template`, which torch uses for arguments and prefixes. Unknown names are left unchanged.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Substitutes `$name` and `${name}` with their values and `$$` with `$`.
pub(crate) fn substitute(text: &[u8], values: &[(&str, &str)]) -> Vec<u8> {
    let value = |name: &[u8]| values.iter().find(|(key, _)| key.as_bytes() == name).map(|(_, value)| *value);
    let mut result = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        result.extend_from_slice(&rest[..at]);
        let after = &rest[at + 1..];
        let consumed = match after.first() {
            Some(b'$') => {
                result.push(b'$');
                1
            }
            Some(b'{') => {
                let name = &after[1..1 + identifier_len(&after[1..])];
                match value(name).filter(|_| after.get(1 + name.len()) == Some(&b'}')) {
                    Some(value) => {
                        result.extend_from_slice(value.as_bytes());
                        name.len() + 2
                    }
                    None => {
                        result.push(b'$');
                        0
                    }
                }
            }
            _ => {
                let name = &after[..identifier_len(after)];
                match value(name) {
                    Some(value) => result.extend_from_slice(value.as_bytes()),
                    None => {
                        result.push(b'$');
                        result.extend_from_slice(name);
                    }
                }
                name.len()
            }
        };
        rest = &after[consumed..];
    }
    result.extend_from_slice(rest);
    result
}

/// Substitutes names in an argument of a command, as [`substitute`] does.
pub(crate) fn substitute_os(text: &OsStr, values: &[(&str, &str)]) -> OsString {
    OsString::from_vec(substitute(text.as_bytes(), values))
}

/// Returns the length of the identifier at the start: letters, digits and underscores, without a leading digit.
fn identifier_len(text: &[u8]) -> usize {
    let first = text.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_');
    let rest = text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    if first { rest } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_substituted_as_in_python() {
        for (text, expected) in [
            ("${local_rank}", "3"),
            ("$local_rank", "3"),
            ("a$local_rank.b${local_rank}c", "a3.b3c"),
            ("$local_rank_x", "$local_rank_x"),
            ("a$$b", "a$b"),
            ("$$local_rank", "$local_rank"),
            ("$RANK ${RANK}", "$RANK ${RANK}"),
            ("$", "$"),
            ("$ {local_rank}", "$ {local_rank}"),
            ("${local_rank", "${local_rank"),
            ("${}", "${}"),
            ("$1", "$1"),
            ("$$$local_rank", "$3"),
            ("ü$local_rank", "ü3"),
        ] {
            let result = substitute(text.as_bytes(), &[("local_rank", "3")]);
            assert_eq!(String::from_utf8(result).unwrap(), expected, "{text}");
        }
    }
}
