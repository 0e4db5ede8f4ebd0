//! Numbers of things in messages.

/// Returns a text such as `1 node` or `2 nodes`. The plural of `noun` must be `noun` with an `s`.
pub fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thing_is_in_the_singular() {
        let texts = [0, 1, 2].map(|count: usize| counted(count, "node"));
        assert_eq!(texts, ["0 nodes", "1 node", "2 nodes"]);
    }
}
