//! Bytes in frames, cut where CPython's pickler cuts them. It knows nothing of what is in them.

use super::opcode as op;

/// A frame ends before the first value that begins behind so many bytes.
const TARGET: usize = 64 * 1024;
const HEADER: usize = 9;

/// A pickle being written.
pub(super) struct Framed {
    bytes: Vec<u8>,
    /// Where the header of the open frame is, to be filled in at its end.
    open: Option<usize>,
}

impl Framed {
    /// A pickle of this protocol.
    pub(super) fn new(protocol: u8, capacity: usize) -> Framed {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(&[op::PROTO, protocol]);
        Framed { bytes, open: None }
    }

    /// The beginning of a value: a number, a text, a reference, an empty container. CPython looks at the length of its
    /// frame here and nowhere else.
    pub(super) fn begin(&mut self, bytes: &[u8]) {
        if self.open.is_some_and(|start| self.bytes.len() - start - HEADER >= TARGET) {
            self.close();
        }
        if self.open.is_none() {
            self.open = Some(self.bytes.len());
            self.bytes.extend_from_slice(&[op::FRAME; HEADER]);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The rest of a value, or what is done with values.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn close(&mut self) {
        if let Some(start) = self.open.take() {
            let len = (self.bytes.len() - start - HEADER) as u64;
            self.bytes[start + 1..start + HEADER].copy_from_slice(&len.to_le_bytes());
        }
    }

    /// The whole pickle.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.put(&[op::STOP]);
        self.close();
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize, bytes: &[u8]) -> Vec<u8> {
        [&[0x95], &(len as u64).to_le_bytes()[..], bytes].concat()
    }

    #[test]
    fn a_frame_ends_before_the_first_value_behind_its_target() {
        let mut framed = Framed::new(4, 0);
        framed.begin(&[0; TARGET - 1]);
        framed.begin(&[0; 7]);
        framed.put(&[0; 2]);
        framed.begin(&[1; 3]);
        let (first, second) = (frame(TARGET + 8, &[0; TARGET + 8]), frame(4, &[1, 1, 1, b'.']));
        assert!(framed.finish() == [&[0x80, 4], &first[..], &second].concat());
    }

    #[test]
    fn a_frame_of_just_its_target_is_long_enough() {
        let mut framed = Framed::new(4, 0);
        framed.begin(&[0; TARGET]);
        framed.begin(&[1; 3]);
        let (first, second) = (frame(TARGET, &[0; TARGET]), frame(4, &[1, 1, 1, b'.']));
        assert!(framed.finish() == [&[0x80, 4], &first[..], &second].concat());
    }
}
