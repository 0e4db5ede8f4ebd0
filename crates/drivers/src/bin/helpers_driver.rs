//! Calls one of the helper functions of `rallypoint-rendezvous` with a store, for interop tests whose other ranks run
//! torch.
//!
//! ```text
//! helpers_driver barrier     HOST:PORT PREFIX WORLD_SIZE RANK TIMEOUT_MS TRACE_MS    (rank `-` for none)
//! helpers_driver synchronize HOST:PORT PREFIX WORLD_SIZE RANK TIMEOUT_MS DATA
//! helpers_driver get_all     HOST:PORT PREFIX WORLD_SIZE RANK TIMEOUT_MS
//! helpers_driver create      HOST:PORT serve|join WORLD_SIZE TIMEOUT_MS
//! ```
//!
//! Prints `ok` and the result, or `err NAME MESSAGE`. `create` prints `ok PORT`, keeps the store open until the end of
//! standard input, and prints `ok closed`.

use std::io::Read;
use std::time::Duration;

use rallypoint_rendezvous::{Barrier, C10dStoreOptions, barrier, create_c10d_store, get_all, synchronize};
use rallypoint_store::{Endpoint, Result, TcpStore, TcpStoreOptions};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(result) => println!("ok {result}"),
        Err(error) => {
            let name = match error.failure() {
                Some(failure) => format!("{failure:?}"),
                None => format!("{error:?}"),
            };
            let name = name.split([' ', '(']).next().unwrap_or_default();
            println!("err {name} {error}");
        }
    }
}

fn run(words: &[&str]) -> Result<String> {
    match *words {
        ["barrier", endpoint, prefix, world_size, rank, timeout, trace] => {
            let at = Barrier::new(prefix, number(world_size))
                .timeout(millis(timeout))
                .rank(rank.parse().ok())
                .trace_timeout(millis(trace));
            barrier(&connect(endpoint)?, &at).map(|()| String::new())
        }
        ["synchronize", endpoint, prefix, world_size, rank, timeout, data] => {
            let (rank, world_size) = (number(rank), number(world_size));
            let store = connect(endpoint)?;
            synchronize(&store, data.as_bytes(), rank, world_size, prefix, millis(timeout)).map(text)
        }
        ["get_all", endpoint, prefix, world_size, rank, timeout] => {
            get_all(&connect(endpoint)?, number(rank), prefix, number(world_size), millis(timeout)).map(text)
        }
        ["create", endpoint, mode, world_size, timeout] => {
            let Endpoint { host, port } = endpoint.parse()?;
            let options = C10dStoreOptions::new(host, port)
                .is_server(mode == "serve")
                .world_size(number(world_size))
                .timeout(millis(timeout));
            let store = create_c10d_store(&options)?;
            println!("ok {}", store.port());
            std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input is readable");
            Ok("closed".into())
        }
        _ => panic!("no such command: {words:?}"),
    }
}

/// Connects with a timeout of 60 s, which is longer than any TIMEOUT_MS of the tests, so that the helper's timeout
/// applies.
fn connect(endpoint: &str) -> Result<TcpStore> {
    let options = TcpStoreOptions::new(endpoint.parse()?);
    TcpStore::open(options.timeout(Duration::from_secs(60)))
}

fn text(values: Vec<Vec<u8>>) -> String {
    values.iter().map(|value| String::from_utf8_lossy(value)).collect::<Vec<_>>().join(" ")
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

fn millis(word: &str) -> Duration {
    Duration::from_millis(number(word))
}
