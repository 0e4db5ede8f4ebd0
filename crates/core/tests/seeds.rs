//! The seed corpus of the fuzz targets. The tests compare the files in `fuzz/seeds` with the seeds that are defined
//! here, and run the checks of the fuzz targets on them.
//!
//! `UPDATE_SEEDS=1 cargo test --test seeds` writes the files again. The seeds of `record_reader` and `state` are not
//! defined here, and this test does not overwrite them.

// The checks are included by path, because a dependency on the package of the fuzz targets would need the fuzzer's
// runtime.
#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub)]
mod checks;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rallypoint_core::wire::{KeyList, MAGIC, Op, PairList, Reply, Request};
use rallypoint_core::{Key, Value};

type Seeds = BTreeMap<String, Vec<u8>>;

fn directory(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target)
}

fn seeds_on_disk(target: &str) -> Seeds {
    let files = fs::read_dir(directory(target)).unwrap_or_else(|error| panic!("{target}: {error}"));
    let files = files.map(|file| file.expect("a readable directory"));
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// Asserts that the seed files of a target are equal to `seeds`. If `UPDATE_SEEDS` is set, writes the files first.
fn assert_up_to_date(target: &str, seeds: &Seeds) {
    if std::env::var_os("UPDATE_SEEDS").is_some() {
        let directory = directory(target);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        seeds.iter().for_each(|(name, bytes)| fs::write(directory.join(name), bytes).unwrap());
    }
    assert_eq!(seeds_on_disk(target), *seeds, "`UPDATE_SEEDS=1 cargo test --test seeds` updates the files");
}

fn replay(target: &str, check: fn(&[u8])) {
    let seeds = seeds_on_disk(target);
    assert!(!seeds.is_empty(), "no seeds of {target}");
    for (name, bytes) in seeds {
        println!("{target}/{name}");
        check(&bytes);
    }
}

fn encoded(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

const VALIDATE: Request<'static> = Request::Validate { magic: MAGIC };

/// Returns an operation code followed by 64-bit numbers.
fn numbers(op: Op, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![op as u8];
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    bytes
}

/// Returns streams of requests: each operation after a handshake, some combinations, and protocol violations.
fn request_seeds() -> Seeds {
    let keys: [&[u8]; 3] = [b"/a", b"", b"\0\xff"];
    let pairs: [(&[u8], &[u8]); 3] = [(b"/a", b"1"), (b"", b""), (b"/a", b"2")];
    let absent: [&[u8]; 1] = [b"/absent"];
    let queue: [&[u8]; 1] = [b"/q"];
    let value = |bytes: &'static [u8]| bytes.into();
    let operations = [
        Request::Set { key: b"/k", value: value(b"v") },
        Request::CompareSet { key: b"/k", expected: b"".into(), desired: value(b"v") },
        Request::Get { key: b"/k" },
        Request::Add { key: b"/n", delta: -5 },
        Request::Check { keys: KeyList::new(&keys) },
        Request::Wait { keys: KeyList::new(&keys) },
        Request::NumKeys,
        Request::DeleteKey { key: b"/k" },
        Request::Append { key: b"/k", value: value(b"more") },
        Request::MultiGet { keys: KeyList::new(&keys) },
        Request::MultiSet { pairs: PairList::new(&pairs) },
        Request::CancelWait,
        Request::Ping { nonce: 0x468f },
        Request::QueuePush { key: b"/q", value: value(b"item") },
        Request::QueuePop { key: b"/q" },
        Request::QueueLen { key: b"/q" },
        Request::ListKeys,
        Request::Barrier { key: b"/b", world_size: 1 },
    ];
    let mut seeds: Seeds = operations
        .iter()
        .map(|request| (format!("op_{}", request.op()), encoded(&[VALIDATE, *request])))
        .collect();
    let mut add = |name: &str, bytes: Vec<u8>| {
        assert!(seeds.insert(name.to_owned(), bytes).is_none(), "two seeds have the name {name}");
    };
    add("all_operations", [encoded(&[VALIDATE]), encoded(&operations)].concat());
    add(
        "wait_get_cancel",
        encoded(&[
            VALIDATE,
            Request::Wait { keys: KeyList::new(&absent) },
            Request::Get { key: b"/k" },
            Request::CancelWait,
        ]),
    );
    add(
        "queue_of_two",
        encoded(&[
            VALIDATE,
            operations[13],
            operations[13],
            Request::Wait { keys: KeyList::new(&queue) },
            operations[14],
            operations[14],
            operations[14],
        ]),
    );
    add("barrier_with_world_size_0", encoded(&[VALIDATE, Request::Barrier { key: b"/b", world_size: 0 }]));
    add("add_to_text", encoded(&[VALIDATE, operations[0], Request::Add { key: b"/k", delta: 1 }]));
    add("empty_lists", {
        let (keys, pairs) = (KeyList::new(&[]), PairList::new(&[]));
        let (wait, check) = (Request::Wait { keys }, Request::Check { keys });
        encoded(&[VALIDATE, wait, check, Request::MultiGet { keys }, Request::MultiSet { pairs }])
    });
    add("reserved_name", encoded(&[VALIDATE, Request::Get { key: b"rallypoint/server" }]));
    add("bad_magic", encoded(&[Request::Validate { magic: 0 }]));
    add("not_validated", encoded(&operations[..1]));
    add("validated_twice", encoded(&[VALIDATE, VALIDATE]));
    add("unknown_operation", [encoded(&[VALIDATE]), vec![0x13]].concat());
    add("incomplete_multi_set", encoded(&[VALIDATE, operations[10]])[..40].to_vec());
    for (name, number) in [("two_to_62", 1 << 62), ("two_to_63", 1 << 63), ("two_to_64_less_1", u64::MAX)] {
        let handshake = encoded(&[VALIDATE]);
        add(&format!("key_of_{name}"), [&handshake[..], &numbers(Op::Get, &[number])].concat());
        add(&format!("value_of_{name}"), [&handshake[..], &numbers(Op::Set, &[0, number])].concat());
        add(&format!("keys_{name}"), [&handshake[..], &numbers(Op::Wait, &[number])].concat());
        add(&format!("pairs_{name}"), [&handshake[..], &numbers(Op::MultiSet, &[number])].concat());
    }
    seeds
}

/// Returns streams of replies. The first byte of a seed selects the kind of its replies.
fn reply_seeds() -> Seeds {
    let value = |bytes: &[u8]| Value::copied(bytes);
    let replies = |kind: u8, replies: &[Reply]| {
        let mut bytes = vec![kind];
        replies.iter().for_each(|reply| reply.encode(&mut bytes));
        bytes
    };
    let raw = |kind: u8, words: &[u64]| {
        let mut bytes = numbers(Op::Validate, words);
        bytes[0] = kind;
        bytes
    };
    let item = || Some(value(b"item"));
    [
        ("waited", replies(0, &[Reply::Stop, Reply::Canceled])),
        ("checked", replies(1, &[Reply::Checked(true), Reply::Checked(false)])),
        ("number", replies(2, &[Reply::Number(5), Reply::Number(i64::MIN)])),
        ("nonce", replies(3, &[Reply::Nonce(0x468f)])),
        ("value", replies(4, &[Reply::Value(value(b"v")), Reply::Value(value(b""))])),
        ("values_none", replies(5, &[])),
        ("values_two", replies(5 + 8 * 2, &[Reply::Values(vec![value(b"a"), value(b"")])])),
        ("values_too_long", replies(5 + 8 * 2, &[Reply::Values(vec![value(&[b'v'; 1020]), value(b"")])])),
        (
            "popped",
            replies(6, &[Reply::Popped { before: 2, item: item() }, Reply::Popped { before: 0, item: None }]),
        ),
        ("keys", replies(7, &[Reply::Keys(vec![Key::from(&b"/k"[..]), Key::from(&b""[..])])])),
        ("waited_bad", vec![0, 2]),
        ("checked_bad", vec![1, 0xff]),
        ("value_incomplete", replies(4, &[Reply::Value(value(b"half of it"))])[..14].to_vec()),
        ("value_of_two_to_62", raw(4, &[1 << 62])),
        ("value_of_two_to_64_less_1", raw(4, &[u64::MAX])),
        ("values_of_two_to_63", raw(5 + 8, &[1 << 63])),
        ("popped_negative", raw(6, &[u64::MAX])),
        ("popped_of_two_to_62", raw(6, &[1, 1 << 62])),
        ("keys_negative", raw(7, &[u64::MAX])),
        ("keys_two_to_62", raw(7, &[1 << 62])),
        ("empty", vec![]),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

/// Returns command sequences for the `hub` target. A command makes one of several connections act, or it advances
/// the time.
fn hub_seeds() -> Seeds {
    let send = |slot: u8, requests: &[Request<'_>]| {
        let bytes = encoded(requests);
        [&[slot, bytes.len() as u8][..], &bytes].concat()
    };
    let (end, fail) = (|slot: u8| [slot + 16, 0], |slot: u8| [slot + 20, 0]);
    let (window, advance) = (|slot: u8, bytes: u8| [slot + 24, bytes], |tenths: u8| [28, tenths]);
    let key: [&[u8]; 1] = [b"/k"];
    let wait = Request::Wait { keys: KeyList::new(&key) };
    let get = Request::Get { key: b"/k" };
    let set = Request::Set { key: b"/k", value: b"v"[..].into() };
    let push = Request::QueuePush { key: b"/k", value: b"item"[..].into() };
    let barrier = Request::Barrier { key: b"/b", world_size: 2 };
    [
        ("woken", [send(0, &[wait, get]), send(1, &[set]), end(0).to_vec()].concat()),
        ("queue", [send(0, &[wait]), send(1, &[wait]), send(2, &[push]), fail(0).to_vec()].concat()),
        (
            "barrier",
            [send(0, &[barrier]), fail(0).to_vec(), send(1, &[barrier]), send(2, &[barrier])].concat(),
        ),
        (
            "unread",
            [window(0, 0).to_vec(), send(0, &[set, get, get]), advance(255).to_vec(), advance(60).to_vec()]
                .concat(),
        ),
        (
            "incomplete",
            [send(0, &[set])[..12].to_vec(), advance(200).to_vec(), advance(200).to_vec()].concat(),
        ),
        ("no_handshake", [vec![0x80, 2, 0, 0xce], advance(110).to_vec()].concat()),
        ("canceled", [send(0, &[wait, get, Request::CancelWait]), send(1, &[Request::NumKeys])].concat()),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

#[test]
fn hub_seeds_pass_the_checks() {
    assert_up_to_date("hub", &hub_seeds());
    replay("hub", checks::hub);
}

#[test]
fn request_seeds_pass_the_checks() {
    assert_up_to_date("request_decoder", &request_seeds());
    replay("request_decoder", checks::request_decoder);
}

#[test]
fn reply_seeds_pass_the_checks() {
    assert_up_to_date("reply_decoder", &reply_seeds());
    replay("reply_decoder", checks::reply_decoder);
}

#[test]
fn record_seeds_pass_the_checks() {
    replay("record_reader", checks::record_reader);
}

#[test]
fn state_seeds_pass_the_checks() {
    replay("state", checks::state);
}
