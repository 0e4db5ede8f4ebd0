//! The opcodes that a state consists of. The names are those of Python's `pickletools`, with more underscores.

pub(super) const PROTO: u8 = 0x80;
pub(super) const FRAME: u8 = 0x95;
pub(super) const STOP: u8 = b'.';

pub(super) const NONE: u8 = b'N';
pub(super) const NEW_TRUE: u8 = 0x88;
pub(super) const NEW_FALSE: u8 = 0x89;
pub(super) const BIN_INT: u8 = b'J';
pub(super) const BIN_INT1: u8 = b'K';
pub(super) const BIN_INT2: u8 = b'M';
pub(super) const LONG1: u8 = 0x8a;
pub(super) const SHORT_BIN_UNICODE: u8 = 0x8c;
pub(super) const BIN_UNICODE: u8 = b'X';
pub(super) const SHORT_BIN_BYTES: u8 = b'C';

pub(super) const MEMOIZE: u8 = 0x94;
pub(super) const BIN_GET: u8 = b'h';
pub(super) const LONG_BIN_GET: u8 = b'j';

pub(super) const MARK: u8 = b'(';
pub(super) const EMPTY_TUPLE: u8 = b')';
pub(super) const TUPLE1: u8 = 0x85;
pub(super) const TUPLE2: u8 = 0x86;
pub(super) const TUPLE3: u8 = 0x87;
pub(super) const EMPTY_DICT: u8 = b'}';
pub(super) const SET_ITEM: u8 = b's';
pub(super) const SET_ITEMS: u8 = b'u';
pub(super) const EMPTY_SET: u8 = 0x8f;
pub(super) const ADD_ITEMS: u8 = 0x90;

pub(super) const STACK_GLOBAL: u8 = 0x93;
pub(super) const NEW_OBJ: u8 = 0x81;
pub(super) const BUILD: u8 = b'b';
pub(super) const REDUCE: u8 = b'R';

/// The Python module of torch's two classes.
pub(super) const TORCH_MODULE: &str = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";
