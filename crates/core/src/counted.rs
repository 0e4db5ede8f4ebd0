//! Counts and lists of names in messages.

/// Returns a count with its noun, such as `1 node` or `2 nodes`. The plural of `noun` must be `noun` plus `s`.
pub fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the first 16 names, separated by commas, followed by the number of names after them, if there are any.
pub fn first_few(names: impl IntoIterator<Item = impl ToString>) -> String {
    let mut names = names.into_iter();
    let first: Vec<_> = names.by_ref().take(16).map(|name| name.to_string()).collect();
    match names.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_1_takes_the_singular() {
        let texts = [0, 1, 2].map(|count: usize| counted(count, "node"));
        assert_eq!(texts, ["0 nodes", "1 node", "2 nodes"]);
    }

    #[test]
    fn first_few_lists_16_names_and_counts_the_rest() {
        assert_eq!(first_few(0..3), "0, 1, 2");
        assert!(first_few(0..16).ends_with("14, 15"));
        assert!(first_few(0..18).ends_with("14, 15 and 2 more"));
    }
}
