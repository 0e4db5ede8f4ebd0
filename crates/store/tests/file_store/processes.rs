//! Tests with several processes and threads on one file: they agree on one order of writes, and a killed process loses
//! at most its unfinished record.
//!
//! The child processes run this test program with the ignored test `child`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rallypoint_store::{FileStore, FileStoreOptions, Store};
use rustix::fs::{FlockOperation, flock};

use super::fixture::{CALL_TIMEOUT, LockHolder, TestFile, record};

/// The environment variable with the role of the child.
const ROLE_VARIABLE: &str = "FILE_STORE_CHILD_ROLE";
/// The environment variable with the path of the file.
const PATH_VARIABLE: &str = "FILE_STORE_CHILD_PATH";
/// The environment variable with the name of the child.
const NAME_VARIABLE: &str = "FILE_STORE_CHILD_NAME";

/// The prefix of lines that a child prints for the test. The test harness prints other lines.
const OUTPUT_PREFIX: &str = "child says ";

fn start(role: &str, path: &Path, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE_VARIABLE, role)
        .env(PATH_VARIABLE, path)
        .env(NAME_VARIABLE, name)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Reads the output of a child until the child exits. Returns the lines that it printed for the test.
fn output(child: &mut Child) -> Vec<String> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.filter_map(|line| Some(line.unwrap().split_once(OUTPUT_PREFIX)?.1.to_owned())).collect()
}

#[test]
#[ignore = "runs in the child processes of the other tests"]
fn child() {
    let (Ok(role), Ok(path), Ok(name)) =
        (std::env::var(ROLE_VARIABLE), std::env::var(PATH_VARIABLE), std::env::var(NAME_VARIABLE))
    else {
        return;
    };
    let path = Path::new(&path);
    match role.as_str() {
        "agree" => agree(path, &name),
        "set" => set_until_killed(path),
        "pieces" => write_in_pieces_until_killed(path),
        other => panic!("no such role: {other}"),
    }
}

fn print(message: impl std::fmt::Display) {
    // The line is written with one call, so that a child that is killed prints all of it or nothing.
    std::io::stdout().lock().write_all(format!("{OUTPUT_PREFIX}{message}\n").as_bytes()).unwrap();
}

fn open(path: &Path) -> FileStore {
    FileStoreOptions::new(path).timeout(CALL_TIMEOUT).open().unwrap()
}

const ROUNDS: usize = 60;
const PROCESSES: usize = 3;
const THREADS: usize = 2;

/// Increments a counter and appends to a log in several threads. Prints each number and each log that it reads.
fn agree(path: &Path, name: &str) {
    let store = open(path);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let number = store.add("counter", 1).unwrap();
                    store.append("log", format!("{name}.{thread}.{round};").as_bytes()).unwrap();
                    let log = String::from_utf8(store.get("log").unwrap()).unwrap();
                    print(format_args!("{number} {log}"));
                }
            });
        }
    });
}

#[test]
fn all_processes_and_threads_agree_on_one_order() {
    let file = TestFile::new();
    let store = file.open();
    let mut children: Vec<_> = (0..PROCESSES).map(|n| start("agree", &file.path(), &n.to_string())).collect();
    let mut numbers = BTreeSet::new();
    let mut logs = Vec::new();
    for child in &mut children {
        for line in output(child) {
            let (number, log) = line.split_once(' ').unwrap();
            assert!(numbers.insert(number.parse::<usize>().unwrap()), "{number} was returned twice");
            logs.push(log.to_owned());
        }
        assert!(child.wait().unwrap().success());
    }
    let total = PROCESSES * THREADS * ROUNDS;
    assert_eq!(numbers, (1..=total).collect());
    assert_eq!(store.get("counter").unwrap(), total.to_string().as_bytes());
    let end = String::from_utf8(store.get("log").unwrap()).unwrap();
    assert_eq!(end.matches(';').count(), total);
    for log in logs {
        assert!(end.starts_with(&log), "this log is not a prefix of the final log: {log}");
    }
    // The records of the file contain the same log, and so does a store that reads the file from the start.
    let last = file.records().into_iter().rfind(|(key, _)| key == "/log").unwrap().1;
    assert_eq!(last, end);
    assert_eq!(file.open().get("log").unwrap(), end.as_bytes());
}

fn set_until_killed(path: &Path) {
    let store = open(path);
    for n in 0.. {
        store.set(&format!("key {n}"), &[b'x'; 5000]).unwrap();
        print(n);
    }
}

/// Writes records as torch does, with four writes for each record.
fn write_in_pieces_until_killed(path: &Path) {
    let mut file = File::options().append(true).open(path).unwrap();
    for n in 0.. {
        let bytes = record(&format!("/key {n}"), &"x".repeat(5000));
        let key_end = bytes.len() - 5000 - 4;
        flock(&file, FlockOperation::LockExclusive).unwrap();
        for piece in [&bytes[..4], &bytes[4..key_end], &bytes[key_end..key_end + 4], &bytes[key_end + 4..]] {
            file.write_all(piece).unwrap();
            // The pause makes it likely that the process is killed between two writes.
            std::thread::sleep(Duration::from_micros(300));
        }
        flock(&file, FlockOperation::Unlock).unwrap();
        print(n);
        // The pause allows other processes to take the lock.
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Waits for the first record of a writer, sleeps for `pause`, and kills the writer. Asserts that the file contains all
/// records that the writer finished, and that another instance can still read and write. Returns whether the writer
/// left a torn record.
fn kill_a_writer(role: &str, pause: Duration) -> bool {
    let file = TestFile::new();
    let store = file.open();
    let mut child = start(role, &file.path(), "victim");
    // The writer has started once its first key is present.
    store.wait(&["key 0"]).unwrap();
    std::thread::sleep(pause);
    child.kill().unwrap();
    let finished = output(&mut child).len();
    child.wait().unwrap();

    store.set_timeout(Some(Duration::from_secs(2)));
    let started = Instant::now();
    let names: Vec<_> = (0..finished).map(|n| format!("key {n}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert!(store.multi_get(&names).unwrap().iter().all(|value| value == &[b'x'; 5000]));
    let is_torn = !is_whole(&file);
    store.set("after", b"1").unwrap();
    assert!(is_whole(&file));
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    // The writer may have been killed after it wrote one more record and before it printed the number.
    let keys = file.open().list_keys().unwrap().len() - 1;
    assert!((finished..=finished + 1).contains(&keys), "{finished} finished, {keys} present");
    is_torn
}

/// Returns whether the file has no torn record.
fn is_whole(file: &TestFile) -> bool {
    let _lock = LockHolder::shared(&file.path());
    let bytes = file.bytes();
    let mut rest = &bytes[..];
    while let Some(after) = after_field(rest).and_then(after_field) {
        rest = after;
    }
    rest.is_empty()
}

/// Returns the bytes after the first field, or `None` if the field is torn. A field is a length of 4 bytes, followed by
/// that number of bytes.
fn after_field(bytes: &[u8]) -> Option<&[u8]> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.get(u32::from_le_bytes(*len) as usize..)
}

#[test]
fn a_killed_writer_loses_at_most_its_unfinished_record() {
    for n in 0..12 {
        kill_a_writer("set", Duration::from_micros(n * 977));
    }
}

#[test]
fn a_writer_killed_within_a_record_blocks_no_other_process() {
    let torn = (0..12).filter(|n| kill_a_writer("pieces", Duration::from_micros(n * 977))).count();
    assert!(torn > 0, "no writer was killed within a record, so nothing was tested");
}

#[test]
fn threads_and_instances_of_one_process_share_a_counter() {
    let file = TestFile::new();
    let shared = file.open();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (shared, file) = (&shared, &file);
            scope.spawn(move || {
                let own = file.open();
                let store = if n % 2 == 0 { shared } else { &own };
                for _ in 0..100 {
                    store.add("counter", 1).unwrap();
                }
            });
        }
    });
    assert_eq!(shared.add("counter", 0).unwrap(), 400);
}
