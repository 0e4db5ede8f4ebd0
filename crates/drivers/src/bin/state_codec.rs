//! Decodes pickled rendezvous states, or the base64 values that stores contain for them, for interop tests. Each line
//! of input is the hex of one state or value.
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
    let decode = match mode.as_deref() {
        None => recode_state,
        Some("cell") => decode_cell,
        Some(other) => {
            eprintln!("state_codec: unknown mode {other:?}\nhint: pass \"cell\" or no argument");
            std::process::exit(2);
        }
    };
    let limits = Limits::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match from_hex(line.trim()) {
            Some(bytes) => match decode(&bytes, &limits) {
                Ok(text) => writeln!(out, "ok\t{text}")?,
                Err(error) => writeln!(out, "error\t{error}")?,
            },
            None => writeln!(out, "error\tnot hex")?,
        }
    }
    Ok(())
}

fn recode_state(bytes: &[u8], limits: &Limits) -> Result<String, StateError> {
    let state = pickle::decode(bytes, limits)?;
    let encoded = pickle::encode(&state, limits)?;
    Ok(format!("{state:?}\t{}", to_hex(&encoded)))
}

fn decode_cell(value: &[u8], limits: &Limits) -> Result<String, StateError> {
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
