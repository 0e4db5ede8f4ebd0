//! Decodes states of a rendezvous, or the base64 values in which a store contains them, for interop tests. Each line of
//! input is one state or value in hex.
//!
//! ```text
//! state_codec < LINES        for each pickled state: prints `ok`, the state, and the hex of our encoding of it
//! state_codec cell < LINES   for each base64 value: prints `ok` and the hex of the decoded bytes
//! ```
//!
//! For a line that cannot be decoded, prints `error` and the reason. Fields are separated by tabs.

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
