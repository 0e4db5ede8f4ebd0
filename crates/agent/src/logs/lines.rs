//! Splits bytes into lines, as Python's text files do: a line ends with `\n`, `\r` or `\r\n`. An unterminated line is
//! buffered.

/// The maximum length of an unterminated line. The beginning of a longer line is passed on as a line of its own.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The beginning of an unterminated line.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<u8>);

impl Lines {
    /// Appends `bytes` to the buffer, and passes every line that is now complete to `line`, without its terminator.
    pub(super) fn take(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        self.0.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = self.0[start..].iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let end = start + length;
            let next = match (self.0[end], self.0.get(end + 1)) {
                (b'\r', Some(b'\n')) => end + 2,
                // This `\r` may be the first half of a `\r\n`.
                (b'\r', None) => break,
                _ => end + 1,
            };
            line(&self.0[start..end]);
            start = next;
        }
        self.0.drain(..start);
        if self.0.len() > MAX_LINE_BYTES {
            line(&self.0);
            self.0.clear();
        }
    }

    /// Passes the unterminated line to `line`, if there is one. The caller must not pass more bytes afterwards.
    pub(super) fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        let rest = std::mem::take(&mut self.0);
        let rest = rest.strip_suffix(b"\r").unwrap_or(&rest);
        if !rest.is_empty() {
            line(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&str]) -> (Vec<String>, Vec<String>) {
        let (mut lines, mut whole, mut rest) = (Lines::default(), Vec::new(), Vec::new());
        let text = |line: &[u8]| String::from_utf8(line.to_vec()).unwrap();
        pieces.iter().for_each(|piece| lines.take(piece.as_bytes(), |line| whole.push(text(line))));
        lines.finish(|line| rest.push(text(line)));
        (whole, rest)
    }

    #[test]
    fn lines_are_assembled_from_pieces() {
        assert_eq!(
            lines(&["a\nb", "c\n", "\nd"]),
            (vec!["a".into(), "bc".into(), "".into()], vec!["d".into()])
        );
        assert_eq!(
            lines(&["a\r\nb\rc\r", "\nd\r"]),
            (vec!["a".into(), "b".into(), "c".into()], vec!["d".into()])
        );
        assert_eq!(lines(&["", "\n"]), (vec!["".into()], vec![]));
    }

    #[test]
    fn a_line_beyond_the_limit_is_split() {
        let (whole, rest) = lines(&["x".repeat(MAX_LINE_BYTES + 1).as_str(), "y\n"]);
        assert_eq!((whole[0].len(), whole[1].as_str(), rest.len()), (MAX_LINE_BYTES + 1, "y", 0));
    }
}
