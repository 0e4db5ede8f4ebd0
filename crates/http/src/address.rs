//! Parses the argument of `--health-check`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Parses `PORT` (on the loopback address), `:PORT` (on all addresses) or `ADDRESS:PORT`.
///
/// # Errors
///
/// Fails with a message for the user if the text has another form.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    let port = |text: &str| text.parse::<u16>().ok();
    let address = match (port(text), text.strip_prefix(':').and_then(port)) {
        (Some(port), _) => Some((Ipv4Addr::LOCALHOST, port).into()),
        (None, Some(port)) => Some((Ipv6Addr::UNSPECIFIED, port).into()),
        (None, None) => text.parse().ok(),
    };
    address.ok_or_else(|| format!("{text:?} is not PORT, :PORT or ADDRESS:PORT (example: 0.0.0.0:8080)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_on_loopback_and_colon_port_on_all_addresses() {
        for (text, address) in [
            ("8080", "127.0.0.1:8080"),
            (" 8080 ", "127.0.0.1:8080"),
            (":8080", "[::]:8080"),
            ("0.0.0.0:8080", "0.0.0.0:8080"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(parse_address(text), Ok(address.parse().unwrap()), "{text}");
        }
        for wrong in ["", ":", "70000", "here", "here:8080", "-1"] {
            assert!(parse_address(wrong).unwrap_err().contains("0.0.0.0:8080"), "{wrong}");
        }
    }
}
