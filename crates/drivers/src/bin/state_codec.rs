//! Decodes states, or values of a store's key, for interop tests. Reads lines of hex.
//!
//! ```text
//! state_codec < LINES        a pickled state per line: prints `ok`, the state, and its hex as we encode it
//! state_codec cell < LINES   a value in base64 per line: prints `ok` and the hex of the bytes in it
//! ```
//!
//! Prints `error` and the reason for a line that it can't decode. Fields are separated by tabs.

use std::io::{BufRead, Write};

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{StateError, cell, pickle};

fn main() -> std::io::Result<()> {
    let mode = std::env::args().nth(1);
    let answer = match mode.as_deref() {
        None => state_answer,
        Some("cell") => cell_answer,
        Some(other) => {
            eprintln!("state_codec: {other:?} is not \"cell\"");
            std::process::exit(2);
        }
    };
    let limits = Limits::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match from_hex(line.trim()) {
            Some(bytes) => match answer(&bytes, &limits) {
                Ok(text) => writeln!(out, "ok\t{text}")?,
                Err(error) => writeln!(out, "error\t{error}")?,
            },
            None => writeln!(out, "error\tnot hex")?,
        }
    }
    Ok(())
}

fn state_answer(bytes: &[u8], limits: &Limits) -> Result<String, StateError> {
    let state = pickle::decode(bytes, limits)?;
    let written = pickle::encode(&state, limits)?;
    Ok(format!("{state:?}\t{}", to_hex(&written)))
}

fn cell_answer(value: &[u8], limits: &Limits) -> Result<String, StateError> {
    cell::decode(value, limits).map(|bytes| to_hex(&bytes))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
