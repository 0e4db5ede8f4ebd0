//! Operations that own their operands, and the proptest strategies that generate them.

use std::fmt;

use proptest::prelude::*;
use rallypoint_core::store::{SERVER_KEY, STORED_KEY};
use rallypoint_core::wire::{KeyList, Op, PairList, Reply, ReplyKind, Request};
use rallypoint_core::{Key, Value};

/// Bytes that print as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Text(pub(crate) Vec<u8>);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Text {
        Text(bytes.to_vec())
    }
}

impl std::ops::Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A request of a client, or bytes that violate the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    Set(Text, Text),
    CompareSet(Text, Text, Text),
    Get(Text),
    Add(Text, i64),
    Check(Vec<Text>),
    Wait(Vec<Text>),
    NumKeys,
    DeleteKey(Text),
    Append(Text, Text),
    MultiGet(Vec<Text>),
    MultiSet(Vec<(Text, Text)>),
    CancelWait,
    Ping(u32),
    QueuePush(Text, Text),
    QueuePop(Text),
    QueueLen(Text),
    ListKeys,
    Barrier(Text, i64),
    /// Bytes that violate the protocol after a handshake.
    Garbage(Text),
}

impl Operation {
    /// Calls `with` with the request. Returns `None` for garbage.
    pub(crate) fn with_request<T>(&self, with: impl FnOnce(Request<'_>) -> T) -> Option<T> {
        Some(match self {
            Operation::Set(key, value) => with(Request::Set { key, value: (&**value).into() }),
            Operation::CompareSet(key, expected, desired) => with(Request::CompareSet {
                key,
                expected: (&**expected).into(),
                desired: (&**desired).into(),
            }),
            Operation::Get(key) => with(Request::Get { key }),
            Operation::Add(key, delta) => with(Request::Add { key, delta: *delta }),
            Operation::Check(keys) => with(Request::Check { keys: KeyList::new(&slices(keys)) }),
            Operation::Wait(keys) => with(Request::Wait { keys: KeyList::new(&slices(keys)) }),
            Operation::NumKeys => with(Request::NumKeys),
            Operation::DeleteKey(key) => with(Request::DeleteKey { key }),
            Operation::Append(key, value) => with(Request::Append { key, value: (&**value).into() }),
            Operation::MultiGet(keys) => with(Request::MultiGet { keys: KeyList::new(&slices(keys)) }),
            Operation::MultiSet(pairs) => {
                let pairs: Vec<(&[u8], &[u8])> =
                    pairs.iter().map(|(key, value)| (&**key, &**value)).collect();
                with(Request::MultiSet { pairs: PairList::new(&pairs) })
            }
            Operation::CancelWait => with(Request::CancelWait),
            Operation::Ping(nonce) => with(Request::Ping { nonce: *nonce }),
            Operation::QueuePush(key, value) => with(Request::QueuePush { key, value: (&**value).into() }),
            Operation::QueuePop(key) => with(Request::QueuePop { key }),
            Operation::QueueLen(key) => with(Request::QueueLen { key }),
            Operation::ListKeys => with(Request::ListKeys),
            Operation::Barrier(key, world_size) => with(Request::Barrier { key, world_size: *world_size }),
            Operation::Garbage(_) => return None,
        })
    }

    /// Returns the number of bytes after which the server executes or refuses the operation. The server refuses a
    /// second VALIDATE and unknown operations at their first byte.
    pub(crate) fn decided_len(&self) -> usize {
        match self {
            Operation::Garbage(garbage) if matches!(garbage[0], 0 | 0x13..) => 1,
            _ => self.encode().len(),
        }
    }

    /// Returns the encoded request, or the garbage.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Operation::Garbage(garbage) = self {
            return garbage.to_vec();
        }
        self.with_request(|request| request.encode(&mut bytes));
        bytes
    }

    /// Adds a prefix to all keys of the request. A request that concerns all keys, such as LIST_KEYS, becomes a PING.
    pub(crate) fn add_prefix(&mut self, prefix: &[u8]) {
        let put = |key: &mut Text| *key = Text([prefix, key].concat());
        match self {
            Operation::Set(key, _)
            | Operation::CompareSet(key, ..)
            | Operation::Get(key)
            | Operation::Add(key, _)
            | Operation::DeleteKey(key)
            | Operation::Append(key, _)
            | Operation::QueuePush(key, _)
            | Operation::QueuePop(key)
            | Operation::QueueLen(key)
            | Operation::Barrier(key, _) => put(key),
            Operation::Check(keys) | Operation::Wait(keys) | Operation::MultiGet(keys) => {
                keys.iter_mut().for_each(put);
            }
            Operation::MultiSet(pairs) => pairs.iter_mut().for_each(|(key, _)| put(key)),
            Operation::NumKeys | Operation::ListKeys => *self = Operation::Ping(0),
            Operation::CancelWait | Operation::Ping(_) | Operation::Garbage(_) => {}
        }
    }
}

fn slices(keys: &[Text]) -> Vec<&[u8]> {
    keys.iter().map(|key| &**key).collect()
}

impl From<Request<'_>> for Operation {
    fn from(request: Request<'_>) -> Operation {
        let keys = |keys: KeyList<'_>| keys.iter().map(Text::from).collect();
        match request {
            Request::Validate { .. } | Request::Message { .. } => {
                unreachable!("no operation encodes to VALIDATE or MESSAGE")
            }
            Request::Set { key, value } => Operation::Set(key.into(), value.bytes().into()),
            Request::CompareSet { key, expected, desired } => {
                Operation::CompareSet(key.into(), expected.bytes().into(), desired.bytes().into())
            }
            Request::Get { key } => Operation::Get(key.into()),
            Request::Add { key, delta } => Operation::Add(key.into(), delta),
            Request::Check { keys: list } => Operation::Check(keys(list)),
            Request::Wait { keys: list } => Operation::Wait(keys(list)),
            Request::NumKeys => Operation::NumKeys,
            Request::DeleteKey { key } => Operation::DeleteKey(key.into()),
            Request::Append { key, value } => Operation::Append(key.into(), value.bytes().into()),
            Request::MultiGet { keys: list } => Operation::MultiGet(keys(list)),
            Request::MultiSet { pairs } => {
                Operation::MultiSet(pairs.iter().map(|(key, value)| (key.into(), value.into())).collect())
            }
            Request::CancelWait => Operation::CancelWait,
            Request::Ping { nonce } => Operation::Ping(nonce),
            Request::QueuePush { key, value } => Operation::QueuePush(key.into(), value.bytes().into()),
            Request::QueuePop { key } => Operation::QueuePop(key.into()),
            Request::QueueLen { key } => Operation::QueueLen(key.into()),
            Request::ListKeys => Operation::ListKeys,
            Request::Barrier { key, world_size } => Operation::Barrier(key.into(), world_size),
        }
    }
}

/// The keys of random operations. The set is small, so that clients use the same keys.
pub(crate) const KEYS: &[&[u8]] =
    &[b"/a", b"/b", b"/c", b"/d", b"", b"\0\xff", SERVER_KEY, STORED_KEY, b"rallypoint/x"];

fn key() -> impl Strategy<Value = Text> {
    let common = prop::sample::select(&KEYS[..4]);
    prop_oneof![10 => common, 1 => prop::sample::select(KEYS)].prop_map(Text::from)
}

/// The values of random operations. The set is small, so that many compare-and-sets succeed. Some values are numbers.
const VALUES: &[&[u8]] = &[b"", b"x", b"y", b"7", b" 7z", b"9223372036854775807", b"\0\0\0\0\0\0\0\0"];

fn value() -> impl Strategy<Value = Text> {
    prop::sample::select(VALUES).prop_map(Text::from)
}

fn delta() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -3..5i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

fn keys() -> impl Strategy<Value = Vec<Text>> {
    prop::collection::vec(key(), 0..4)
}

/// Generates any operation except VALIDATE and LIST_KEYS. The model does not predict the order of the keys in a reply
/// to LIST_KEYS.
pub(crate) fn any_operation() -> BoxedStrategy<Operation> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| Operation::Set(key, value)),
        4 => (key(), value(), value()).prop_map(|(key, old, new)| Operation::CompareSet(key, old, new)),
        4 => key().prop_map(Operation::Get),
        3 => (key(), delta()).prop_map(|(key, delta)| Operation::Add(key, delta)),
        1 => keys().prop_map(Operation::Check),
        8 => keys().prop_map(Operation::Wait),
        1 => Just(Operation::NumKeys),
        5 => key().prop_map(Operation::DeleteKey),
        2 => (key(), value()).prop_map(|(key, value)| Operation::Append(key, value)),
        4 => keys().prop_map(Operation::MultiGet),
        3 => prop::collection::vec((key(), value()), 0..4).prop_map(Operation::MultiSet),
        5 => Just(Operation::CancelWait),
        1 => any::<u32>().prop_map(Operation::Ping),
        6 => (key(), value()).prop_map(|(key, item)| Operation::QueuePush(key, item)),
        5 => key().prop_map(Operation::QueuePop),
        1 => key().prop_map(Operation::QueueLen),
        4 => (key(), -1..4i64).prop_map(|(key, size)| Operation::Barrier(key, size)),
    ]
    .boxed()
}

/// Protocol violations: unknown codes, a second VALIDATE, and lengths and counts beyond every limit.
const GARBAGE: &[&[u8]] = &[
    b"\x13",
    b"\xff\xff",
    b"\x00\xce\xf7\x85\x3c",
    b"\x03\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x03\0\0\0\0\0\0\0\x40",
    b"\x01\x02\0\0\0\0\0\0\0/a\0\0\0\0\0\0\0\x80",
    b"\x06\0\0\0\0\0\0\0\x40",
    b"\x0b\0\0\0\0\0\0\0\x80",
];

/// Generates bytes that violate the protocol.
pub(crate) fn garbage() -> impl Strategy<Value = Operation> {
    prop::sample::select(GARBAGE).prop_map(|bytes| Operation::Garbage(bytes.into()))
}

/// Generates operations that create and delete keys, wait for them, and read them.
pub(crate) fn waits() -> BoxedStrategy<Operation> {
    let key = || prop::sample::select(&KEYS[..2]).prop_map(Text::from);
    let keys = || prop::collection::vec(key(), 1..3);
    prop_oneof![
        6 => keys().prop_map(Operation::Wait),
        3 => (key(), value()).prop_map(|(key, value)| Operation::Set(key, value)),
        4 => prop::collection::vec((key(), value()), 1..5).prop_map(Operation::MultiSet),
        2 => (key(), value()).prop_map(|(key, value)| Operation::Append(key, value)),
        6 => key().prop_map(Operation::DeleteKey),
        4 => key().prop_map(Operation::Get),
        4 => keys().prop_map(Operation::MultiGet),
        1 => Just(Operation::CancelWait),
    ]
    .boxed()
}

/// Generates operations on queues, and a few others on the same keys.
pub(crate) fn queues() -> BoxedStrategy<Operation> {
    let queue = || prop::sample::select(&KEYS[..2]).prop_map(Text::from);
    prop_oneof![
        6 => queue().prop_map(|queue| Operation::QueuePush(queue, Text::default())),
        5 => queue().prop_map(Operation::QueuePop),
        6 => prop::collection::vec(queue(), 1..3).prop_map(Operation::Wait),
        2 => Just(Operation::CancelWait),
        1 => Just(Operation::NumKeys),
        1 => queue().prop_map(Operation::QueueLen),
        1 => queue().prop_map(|key| Operation::Set(key, Text::default())),
        1 => queue().prop_map(Operation::DeleteKey),
    ]
    .boxed()
}

/// Generates operations on barriers, and a few others on the same keys.
pub(crate) fn barriers() -> BoxedStrategy<Operation> {
    let key = || prop::sample::select(&KEYS[..2]).prop_map(Text::from);
    prop_oneof![
        8 => (key(), 1..4i64).prop_map(|(key, size)| Operation::Barrier(key, size)),
        3 => Just(Operation::CancelWait),
        1 => Just(Operation::NumKeys),
        1 => key().prop_map(|key| Operation::Set(key, Text::default())),
        1 => prop::collection::vec(key(), 1..3).prop_map(Operation::Wait),
    ]
    .boxed()
}

/// Generates operations with random keys of less than 300 bytes and random values of less than 2000 bytes.
pub(crate) fn large_operation() -> impl Strategy<Value = Operation> {
    let key = || prop::collection::vec(any::<u8>(), 0..300).prop_map(Text);
    let value = || prop::collection::vec(any::<u8>(), 0..2000).prop_map(Text);
    let keys = || prop::collection::vec(key(), 0..12);
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| Operation::Set(key, value)),
        (key(), value(), value()).prop_map(|(key, old, new)| Operation::CompareSet(key, old, new)),
        key().prop_map(Operation::Get),
        (key(), any::<i64>()).prop_map(|(key, delta)| Operation::Add(key, delta)),
        keys().prop_map(Operation::Check),
        keys().prop_map(Operation::Wait),
        Just(Operation::NumKeys),
        key().prop_map(Operation::DeleteKey),
        (key(), value()).prop_map(|(key, value)| Operation::Append(key, value)),
        keys().prop_map(Operation::MultiGet),
        prop::collection::vec((key(), value()), 0..6).prop_map(Operation::MultiSet),
        Just(Operation::CancelWait),
        any::<u32>().prop_map(Operation::Ping),
        (key(), value()).prop_map(|(key, item)| Operation::QueuePush(key, item)),
        key().prop_map(Operation::QueuePop),
        key().prop_map(Operation::QueueLen),
        Just(Operation::ListKeys),
        (key(), any::<i64>()).prop_map(|(key, size)| Operation::Barrier(key, size)),
    ]
}

/// Generates any reply and its kind.
pub(crate) fn any_reply() -> impl Strategy<Value = (ReplyKind, Reply)> {
    let value = || prop::collection::vec(any::<u8>(), 0..2000).prop_map(|bytes| Value::copied(&bytes));
    let key = prop::collection::vec(any::<u8>(), 0..300).prop_map(|key| Key::from(&key[..]));
    prop_oneof![
        Just((ReplyKind::Waited(Op::Wait), Reply::Stop)),
        Just((ReplyKind::Waited(Op::CancelWait), Reply::Canceled)),
        any::<bool>().prop_map(|present| (ReplyKind::Checked, Reply::Checked(present))),
        any::<i64>().prop_map(|number| (ReplyKind::Number, Reply::Number(number))),
        any::<u32>().prop_map(|nonce| (ReplyKind::Nonce, Reply::Nonce(nonce))),
        value().prop_map(|value| (ReplyKind::Value, Reply::Value(value))),
        prop::collection::vec(value(), 0..6)
            .prop_map(|values| (ReplyKind::Values(values.len() as u64), Reply::Values(values))),
        Just((ReplyKind::Popped, Reply::Popped { before: 0, item: None })),
        (1..i64::MAX, value())
            .prop_map(|(before, item)| (ReplyKind::Popped, Reply::Popped { before, item: Some(item) })),
        prop::collection::vec(key, 0..12).prop_map(|keys| (ReplyKind::Keys, Reply::Keys(keys))),
    ]
}
