//! A TcpStore led by lines of text: for tests in other languages that share a server with it. Not a tool for people.
//!
//! `tcp_store_driver HOST:PORT TIMEOUT_MS [PREFIX...]` connects, puts a PrefixStore around for each prefix, and says `ok`
//! or `err NAME MESSAGE`; then each line of standard input is one operation and is answered by one line. Values are in
//! hexadecimal, `-` for an empty one.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use rallypoint_store::{
    Barrier, Exchange, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions, barrier, synchronize,
};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [endpoint, timeout, prefixes @ ..] = &arguments[..] else {
        eprintln!("usage: tcp_store_driver HOST:PORT TIMEOUT_MS [PREFIX...]");
        std::process::exit(2);
    };
    let options = TcpStoreOptions {
        timeout: millis(timeout),
        ..TcpStoreOptions::new(endpoint.parse().expect("HOST:PORT"))
    };
    let mut store: Arc<dyn Store> = match TcpStore::open(options) {
        Ok(store) => Arc::new(store),
        Err(error) => return answer(Err(error)),
    };
    for prefix in prefixes {
        store = Arc::new(PrefixStore::new(prefix, store));
    }
    answer(Ok(String::new()));
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("lines of text");
        let words: Vec<_> = line.split(' ').collect();
        if words == ["clone"] {
            let cloned = store.clone_store();
            let said = cloned.map(|cloned| store = Arc::from(cloned));
            answer(said.map(|()| String::new()));
            continue;
        }
        answer(run(&*store, &words));
    }
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
                Exchange::Held(value) => format!("held {}", hex(&value)),
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
        ["timeout"] => store.timeout().as_millis().to_string(),
        ["has_extended_api"] => store.has_extended_api().to_string(),
        // The helpers around a store, which meet torch's own.
        ["synchronize", data, rank, size, prefix, timeout] => {
            list(&synchronize(store, &bytes(data), number(rank), number(size), prefix, millis(timeout))?)
        }
        ["meet", prefix, rank, size, timeout] => {
            let meeting = Barrier::new(prefix, number(size)).rank(number(rank)).timeout(millis(timeout));
            done(barrier(store, &meeting)?)
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
    // If the reader has gone, so does this, at the end of its input.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a number")
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(number(text))
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
