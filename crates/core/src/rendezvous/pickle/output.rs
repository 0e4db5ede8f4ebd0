//! Values as opcodes, and the memo of what was put aside: the writer's alphabet. It knows no nodes and no states.

use super::frame::Framed;
use super::opcode::{self as op, Global};

/// Index of something in the memo.
pub(super) type Memo = u32;

pub(super) struct Output {
    frames: Framed,
    /// How many memo entries there are.
    memo: Memo,
}

impl Output {
    pub(super) fn new(capacity: usize) -> Output {
        Output { frames: Framed::new(op::PROTOCOL, capacity), memo: 0 }
    }

    /// A value that is its opcode, or begins with it.
    pub(super) fn value(&mut self, code: u8) {
        self.frames.begin(&[code]);
    }

    /// What is done with values.
    pub(super) fn op(&mut self, code: u8) {
        self.frames.put(&[code]);
    }

    pub(super) fn memoize(&mut self) -> Memo {
        self.op(op::MEMOIZE);
        self.memo += 1;
        self.memo - 1
    }

    pub(super) fn recall(&mut self, memo: Memo) {
        match u8::try_from(memo) {
            Ok(memo) => self.frames.begin(&[op::BIN_GET, memo]),
            Err(_) => {
                let [a, b, c, d] = memo.to_le_bytes();
                self.frames.begin(&[op::LONG_BIN_GET, a, b, c, d]);
            }
        }
    }

    pub(super) fn recalled(&mut self, memo: Memo) -> Memo {
        self.recall(memo);
        memo
    }

    pub(super) fn text(&mut self, text: &str) -> Memo {
        match u8::try_from(text.len()) {
            Ok(len) => self.frames.begin(&[op::SHORT_BIN_UNICODE, len]),
            Err(_) => {
                let len = u32::try_from(text.len()).expect("no text of a state has 4 GiB");
                self.value(op::BIN_UNICODE);
                self.frames.put(&len.to_le_bytes());
            }
        }
        self.frames.put(text.as_bytes());
        self.memoize()
    }

    pub(super) fn text_or_recall(&mut self, text: &str, known: Option<Memo>) -> Memo {
        match known {
            Some(memo) => self.recalled(memo),
            None => self.text(text),
        }
    }

    pub(super) fn int(&mut self, number: i64) {
        if let Ok(number) = u8::try_from(number) {
            self.frames.begin(&[op::BIN_INT1, number]);
        } else if let Ok(number) = u16::try_from(number) {
            let [a, b] = number.to_le_bytes();
            self.frames.begin(&[op::BIN_INT2, a, b]);
        } else if let Ok(number) = i32::try_from(number) {
            let [a, b, c, d] = number.to_le_bytes();
            self.frames.begin(&[op::BIN_INT, a, b, c, d]);
        } else {
            self.long(number.into());
        }
    }

    /// As few bytes as hold the number with its sign.
    pub(super) fn long(&mut self, number: i128) {
        let bytes = number.to_le_bytes();
        let sign = if number < 0 { 0xff } else { 0 };
        let len = (1..bytes.len())
            .find(|len| bytes[*len..].iter().all(|byte| *byte == sign) && (bytes[len - 1] ^ sign) < 0x80)
            .unwrap_or(bytes.len());
        self.frames.begin(&[op::LONG1, len as u8]);
        self.frames.put(&bytes[..len]);
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.value(if value { op::NEW_TRUE } else { op::NEW_FALSE });
    }

    /// A class whose module lies in the memo.
    pub(super) fn class_in(&mut self, module: Memo, class: Global) -> Memo {
        self.recall(module);
        self.class_name(class)
    }

    /// A class, behind its module.
    pub(super) fn class_name(&mut self, class: Global) -> Memo {
        self.text(class.path().1);
        self.op(op::STACK_GLOBAL);
        self.memoize()
    }

    /// An object without attributes, behind its class.
    pub(super) fn new_object(&mut self) -> Memo {
        self.value(op::EMPTY_TUPLE);
        self.op(op::NEW_OBJ);
        self.memoize()
    }

    /// The ten bytes of a time.
    pub(super) fn stamp(&mut self, stamp: [u8; 10]) {
        self.frames.begin(&[op::SHORT_BIN_BYTES, stamp.len() as u8]);
        self.frames.put(&stamp);
        self.memoize();
    }

    /// A call, behind its class and its arguments.
    pub(super) fn call(&mut self, tuple: u8) -> Memo {
        self.op(tuple);
        self.memoize();
        self.op(op::REDUCE);
        self.memoize()
    }

    /// The whole pickle.
    pub(super) fn finish(self) -> Vec<u8> {
        self.frames.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Output)) -> Vec<u8> {
        let mut out = Output::new(0);
        write(&mut out);
        let bytes = out.finish();
        bytes[11..bytes.len() - 1].to_vec()
    }

    #[test]
    fn numbers_take_the_width_that_cpython_gives_them() {
        for (number, bytes) in [
            (0, &[b'K', 0][..]),
            (255, &[b'K', 255]),
            (256, &[b'M', 0, 1]),
            (65_535, &[b'M', 255, 255]),
            (65_536, &[b'J', 0, 0, 1, 0]),
            (i64::from(i32::MAX), &[b'J', 255, 255, 255, 127]),
            (-1, &[b'J', 255, 255, 255, 255]),
            (i64::from(i32::MIN), &[b'J', 0, 0, 0, 128]),
            (1 << 31, &[0x8a, 5, 0, 0, 0, 128, 0]),
            (-(1 << 31) - 1, &[0x8a, 5, 255, 255, 255, 127, 255]),
            (1 << 40, &[0x8a, 6, 0, 0, 0, 0, 0, 1]),
            (i64::MAX, &[0x8a, 8, 255, 255, 255, 255, 255, 255, 255, 127]),
            (i64::MIN, &[0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 128]),
        ] {
            assert_eq!(written(|out| out.int(number)), bytes, "{number}");
        }
    }

    #[test]
    fn texts_and_references_take_the_short_form_up_to_255() {
        let text = |len| {
            written(|out| {
                out.text(&"a".repeat(len));
            })
        };
        assert_eq!(text(255)[..2], [0x8c, 255]);
        assert_eq!(text(256)[..5], [b'X', 0, 1, 0, 0]);
        assert_eq!(written(|out| out.recall(255)), [b'h', 255]);
        assert_eq!(written(|out| out.recall(256)), [b'j', 0, 1, 0, 0]);
    }
}
