//! Runs store operations that it reads from standard input. In interop tests, torch uses the same server or file.
//!
//! ```text
//! store_driver tcp  HOST:PORT TIMEOUT_MS [PREFIX...]     wraps the store in a PrefixStore for each prefix
//! store_driver file PATH TIMEOUT_MS NUM_WORKERS          with a negative NUM_WORKERS, the file is never deleted
//! ```
//!
//! Opens the store and prints `ok` or `err NAME MESSAGE`. Then each line of standard input is one operation, for which
//! the program prints one line. Values are in hexadecimal, and `-` is the empty value. `close`, or the end of the
//! input, closes the store.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use rallypoint_rendezvous::{Barrier, barrier, synchronize};
use rallypoint_store::{
    Exchange, FileStore, FileStoreOptions, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions,
};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let opened = match words[..] {
        ["tcp", endpoint, timeout, ref prefixes @ ..] => {
            connect(endpoint, millis(timeout), prefixes).map(|store| (store, None))
        }
        ["file", path, timeout, num_workers] => open(path, millis(timeout), number(num_workers))
            .map(|file| (Arc::clone(&file) as Arc<dyn Store>, Some(file))),
        _ => {
            eprintln!(
                "usage: store_driver tcp HOST:PORT TIMEOUT_MS [PREFIX...] | file PATH TIMEOUT_MS NUM_WORKERS"
            );
            std::process::exit(2);
        }
    };
    let (mut store, file) = match opened {
        Ok(opened) => opened,
        Err(error) => return answer(Err(error)),
    };
    answer(Ok(String::new()));
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input is UTF-8");
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["close"] => {
                drop(store);
                // The store is closed explicitly, because dropping it cannot report errors.
                let closed = file.and_then(Arc::into_inner).map_or(Ok(()), FileStore::close);
                return answer(closed.map(|()| String::new()));
            }
            ["clone"] => {
                let cloned = store.clone_store().map(|cloned| store = Arc::from(cloned));
                answer(cloned.map(|()| String::new()));
            }
            _ => answer(run(&*store, &words)),
        }
    }
}

fn connect(
    endpoint: &str,
    timeout: Option<Duration>,
    prefixes: &[&str],
) -> Result<Arc<dyn Store>, StoreError> {
    let options = TcpStoreOptions::new(endpoint.parse().expect("HOST:PORT")).timeout(timeout);
    let mut store: Arc<dyn Store> = Arc::new(TcpStore::open(options)?);
    for prefix in prefixes {
        store = Arc::new(PrefixStore::new(*prefix, store));
    }
    Ok(store)
}

fn open(path: &str, timeout: Option<Duration>, num_workers: i64) -> Result<Arc<FileStore>, StoreError> {
    let options = FileStoreOptions::new(path).num_workers(u64::try_from(num_workers).ok());
    options.timeout(timeout).open().map(Arc::new)
}

fn run(store: &dyn Store, words: &[&str]) -> Result<String, StoreError> {
    let done = |()| String::new();
    Ok(match words {
        ["set", key, value] => done(store.set(key, &bytes(value))?),
        ["get", key] => hex(&store.get(key)?),
        ["add", key, delta] => store.add(key, number(delta))?.to_string(),
        ["compare_set", key, expected, desired] => {
            hex(&store.compare_set(key, &bytes(expected), &bytes(desired))?)
        }
        ["compare_exchange", key, expected, desired] => {
            match store.compare_exchange(key, &bytes(expected), &bytes(desired))? {
                Exchange::Stored => "stored".into(),
                Exchange::Mismatch(value) => format!("held {}", hex(&value)),
                Exchange::Absent => "absent".into(),
            }
        }
        ["append", key, value] => done(store.append(key, &bytes(value))?),
        ["delete_key", key] => store.delete_key(key)?.to_string(),
        ["check", keys @ ..] => store.check(keys)?.to_string(),
        ["num_keys"] => store.num_keys()?.to_string(),
        ["list_keys"] => store.list_keys()?.join(" "),
        ["multi_get", keys @ ..] => list(&store.multi_get(keys)?),
        ["multi_set", words @ ..] => {
            let values: Vec<_> = words.chunks(2).map(|pair| (pair[0], bytes(pair[1]))).collect();
            let pairs: Vec<_> = values.iter().map(|(key, value)| (*key, &value[..])).collect();
            done(store.multi_set(&pairs)?)
        }
        ["wait", keys @ ..] => done(store.wait(keys)?),
        ["wait_for", timeout, keys @ ..] => done(store.wait_for(keys, millis(timeout))?),
        ["queue_push", key, value] => done(store.queue_push(key, &bytes(value))?),
        ["queue_pop", key] => hex(&store.queue_pop(key)?),
        ["try_queue_pop", key] => hex(&store.try_queue_pop(key)?),
        ["queue_len", key] => store.queue_len(key)?.to_string(),
        ["barrier", key, size] => done(store.barrier(key, number(size))?),
        ["barrier_for", key, size, timeout] => done(store.barrier_for(key, number(size), millis(timeout))?),
        ["set_timeout", timeout] => {
            store.set_timeout(millis(timeout));
            done(())
        }
        ["timeout"] => store.timeout().unwrap_or_default().as_millis().to_string(),
        ["has_extended_api"] => store.has_extended_api().to_string(),
        // Performs many additions, which compete with those of other processes for the lock of the file.
        ["adds", key, times] => {
            let sums = (0..number(times)).map(|_: u32| store.add(key, 1).map(|sum| sum.to_string()));
            sums.collect::<Result<Vec<_>, _>>()?.join(" ")
        }
        // `synchronize` and `elastic_barrier` run our versions of torch's elastic helpers. The other ranks run torch's.
        ["synchronize", data, rank, size, prefix, timeout] => {
            list(&synchronize(store, &bytes(data), number(rank), number(size), prefix, millis(timeout))?)
        }
        ["elastic_barrier", prefix, rank, size, timeout] => {
            let options =
                Barrier::new(prefix, number(size)).rank(number::<u64>(rank)).timeout(millis(timeout));
            done(barrier(store, &options)?)
        }
        _ => panic!("no such command: {words:?}"),
    })
}

fn answer(result: Result<String, StoreError>) {
    let line = match result {
        Ok(output) if output.is_empty() => "ok\n".into(),
        Ok(output) => format!("ok {output}\n"),
        Err(error) => {
            let name = match error.failure() {
                Some(failure) => format!("{failure:?}"),
                None => format!("{error:?}"),
            };
            let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
            format!("err {name} {}\n", error.to_string().replace('\n', " "))
        }
    };
    let mut out = std::io::stdout().lock();
    // A failed write means that the test has ended. `main` then reaches the end of its input and closes the store.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a number")
}

/// Parses a timeout in milliseconds. 0 means no timeout, which is `None`.
fn millis(text: &str) -> Option<Duration> {
    Some(Duration::from_millis(number(text))).filter(|timeout| !timeout.is_zero())
}

fn list(values: &[Vec<u8>]) -> String {
    values.iter().map(|value| hex(value)).collect::<Vec<_>>().join(" ")
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
