//! A FileStore led by lines of text: for tests in other languages that share a file with it. Not a tool for people.
//!
//! `file_store_driver PATH NUM_WORKERS TIMEOUT_MS` opens the store (a negative number of workers means none given) and
//! says `ok` or `err NAME MESSAGE`; then each line of standard input is one operation and is answered by one line. Values
//! are in hexadecimal, `-` for an empty one. `close`, or the end of the input, closes the store.

use std::io::{BufRead, Write};
use std::time::Duration;

use rallypoint_store::{FileStore, FileStoreOptions, Store, StoreError};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [path, num_workers, timeout] = &arguments[..] else {
        eprintln!("usage: file_store_driver PATH NUM_WORKERS TIMEOUT_MS");
        std::process::exit(2);
    };
    let num_workers: i64 = num_workers.parse().expect("a number of workers");
    let options =
        FileStoreOptions::new(path).num_workers(u64::try_from(num_workers).ok()).timeout(millis(timeout));
    let mut store = match options.open() {
        Ok(store) => Some(store),
        Err(error) => return answer(Err(error)),
    };
    answer(Ok(String::new()));
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("lines of text");
        let words: Vec<_> = line.split(' ').collect();
        if words == ["close"] {
            return answer(store.take().expect("closed only here").close().map(|()| String::new()));
        }
        answer(run(store.as_ref().expect("open until closed"), &words));
    }
}

fn run(store: &FileStore, words: &[&str]) -> Result<String, StoreError> {
    let done = |()| String::new();
    Ok(match words {
        ["set", key, value] => done(store.set(key, &bytes(value))?),
        ["get", key] => hex(&store.get(key)?),
        ["add", key, delta] => store.add(key, delta.parse().expect("a number"))?.to_string(),
        ["cas", key, expected, desired] => hex(&store.compare_set(key, &bytes(expected), &bytes(desired))?),
        ["append", key, value] => done(store.append(key, &bytes(value))?),
        ["del", key] => store.delete_key(key)?.to_string(),
        ["check", keys @ ..] => store.check(keys)?.to_string(),
        ["count"] => store.num_keys()?.to_string(),
        ["list"] => store.list_keys()?.join(" "),
        ["wait", key, timeout] => done(store.wait_for(&[key], millis(timeout))?),
        ["barrier", key, size] => done(store.barrier(key, size.parse().expect("a world size"))?),
        // Many additions in one go, to meet others at the lock.
        ["adds", key, times] => {
            let sums = (0..times.parse().expect("a number"))
                .map(|_: u32| store.add(key, 1).map(|sum| sum.to_string()));
            sums.collect::<Result<Vec<_>, _>>()?.join(" ")
        }
        _ => panic!("no such command: {words:?}"),
    })
}

fn answer(result: Result<String, StoreError>) {
    let line = match result {
        Ok(said) if said.is_empty() => "ok\n".into(),
        Ok(said) => format!("ok {said}\n"),
        Err(error) => {
            let name = format!("{error:?}");
            let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
            format!("err {name} {}\n", error.to_string().replace('\n', " "))
        }
    };
    let mut out = std::io::stdout().lock();
    // Who started this has gone: nothing is left to do but close the store, which the caller does next.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".into() } else { bytes.iter().map(|byte| format!("{byte:02x}")).collect() }
}

fn bytes(hex: &str) -> Vec<u8> {
    match hex {
        "-" => Vec::new(),
        hex => {
            let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
            (0..hex.len()).step_by(2).map(digits).collect()
        }
    }
}
