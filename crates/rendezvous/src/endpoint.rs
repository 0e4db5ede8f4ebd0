//! Parses the endpoints of a rendezvous as torch does, except for IPv6 addresses without brackets. Unlike in the
//! endpoints that [`Endpoint`] itself parses, the port is optional.

use std::net::Ipv6Addr;

use rallypoint_store::Endpoint;

use crate::error::{RendezvousError, Result};

/// Parses a rendezvous endpoint as [`split_rendezvous_endpoint`] does. An endpoint without a port gets `default_port`.
///
/// # Errors
///
/// Fails with [`RendezvousError::Parameters`] if the host or the port is malformed.
pub fn parse_rendezvous_endpoint(endpoint: &str, default_port: u16) -> Result<Endpoint> {
    let (host, port) = split_rendezvous_endpoint(endpoint)?;
    Ok(Endpoint { host, port: port.unwrap_or(default_port) })
}

/// Returns the host of a rendezvous endpoint, and the port if there is one. The host of an empty endpoint is
/// `localhost`.
///
/// `::1` is parsed as an address without a port, although torch parses its last `1` as a port.
///
/// # Errors
///
/// Fails with [`RendezvousError::Parameters`] if the host or the port is malformed.
pub fn split_rendezvous_endpoint(endpoint: &str) -> Result<(String, Option<u16>)> {
    let text = endpoint.trim();
    if text.is_empty() {
        return Ok(("localhost".into(), None));
    }
    let (host, port) = match text.rsplit_once(':') {
        _ if text.starts_with('[') && text.ends_with(']') => (text, None),
        _ if is_bare_address(text) => (text, None),
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => inner,
        None => host,
    };
    let parse_port = |port: &str| {
        Some(port)
            .filter(|port| (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|port| port.parse().ok())
            .ok_or_else(|| {
                RendezvousError::parameter(format!(
                    "The port number of the rendezvous endpoint '{text}' must be an integer between 0 and 65536."
                ))
            })
    };
    let port = port.map(parse_port).transpose()?;
    if host.is_empty() || !host.chars().all(|c| c.is_alphanumeric() || "_.:-".contains(c)) {
        return Err(RendezvousError::parameter(format!(
            "The hostname of the rendezvous endpoint '{text}' must be a dot-separated list of labels, an IPv4 address, \
             or an IPv6 address."
        )));
    }
    Ok((host.into(), port))
}

/// Returns a message if the endpoint has an unspecified address such as `0.0.0.0`. A server can listen on such an
/// address, but nodes can't connect to it, and workers would get it as `MASTER_ADDR`.
pub(crate) fn check_specified(endpoint: &Endpoint) -> Option<String> {
    let address = endpoint.host.parse::<std::net::IpAddr>().ok()?;
    address.to_canonical().is_unspecified().then(|| {
        format!(
            "the rendezvous endpoint '{endpoint}' can't be used: {} stands for all addresses of a machine, so nodes can't \
             connect to it; use the name or address of the machine that hosts the store",
            endpoint.host
        )
    })
}

/// Returns whether `text` is an IPv6 address whose last part can't be a port, because the text before it is no address.
/// `::1` is one. `::1:29400` is also an IPv6 address, but users mean 29400 as the port, and torch parses it that way.
fn is_bare_address(text: &str) -> bool {
    let is_address = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    is_address(text) && text.rsplit_once(':').is_none_or(|(host, _)| !is_address(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed_as_torch_parses_them() {
        for (text, host, port) in [
            ("", "localhost", 123),
            ("  ", "localhost", 123),
            ("h", "h", 123),
            ("h:65535", "h", 65535),
            ("h:0", "h", 0),
            ("h:01", "h", 1),
            ("h:1\n", "h", 1),
            ("h:1:2", "h:1", 2),
            ("a_b", "a_b", 123),
            ("é:1", "é", 1),
            ("[::1]", "::1", 123),
            ("[::1]:5", "::1", 5),
            ("::1:5", "::1", 5),
            ("10.0.0.1:29400", "10.0.0.1", 29400),
        ] {
            let endpoint = parse_rendezvous_endpoint(text, 123).unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port), "{text:?}");
        }
    }

    /// Torch parses the last part of these addresses as a port.
    #[test]
    fn an_ipv6_address_without_brackets_and_port_is_not_split() {
        for text in ["::1", "::", "2001:db8::7"] {
            let endpoint = parse_rendezvous_endpoint(text, 123).unwrap();
            assert_eq!(endpoint, Endpoint { host: text.into(), port: 123 });
        }
    }

    #[test]
    fn an_unspecified_address_is_refused_as_an_endpoint() {
        for text in ["0.0.0.0:29400", "0.0.0.0", "[::]:29400", "::", "[::ffff:0.0.0.0]:1"] {
            let endpoint = parse_rendezvous_endpoint(text, 1).unwrap();
            let problem = check_specified(&endpoint).expect("the endpoint is refused");
            assert!(problem.contains("stands for all addresses of a machine"), "{problem}");
        }
        for text in ["127.0.0.1:1", "[::1]:1", "localhost", "node0:29400"] {
            assert_eq!(check_specified(&parse_rendezvous_endpoint(text, 1).unwrap()), None, "{text}");
        }
    }

    #[test]
    fn the_error_for_a_malformed_endpoint_names_the_malformed_part() {
        for text in ["h:", "h:65536", "h:99999", "h:-1", "h: 1", "h:1x"] {
            let error = parse_rendezvous_endpoint(text, 1).unwrap_err().to_string();
            assert!(error.contains("The port number of the rendezvous endpoint"), "{text:?}: {error}");
        }
        for text in ["a b", "[", "[]", "[::1", "http://x:1", "/tmp/x", "[fe80::1%eth0]:1"] {
            let error = parse_rendezvous_endpoint(text, 1).unwrap_err().to_string();
            assert!(error.contains("The hostname of the rendezvous endpoint"), "{text:?}: {error}");
        }
    }
}
