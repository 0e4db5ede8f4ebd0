//! Endpoints in the form `HOST:PORT`, and the resolution of their addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rallypoint_core::client::{Backoff, Cancellation, ConnectionFault, Deadline, Failure};

use crate::deadline::{now, pause};
use crate::error::{Context, Result, StoreError, StoreKind};

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A host name, an IPv4 address, or an IPv6 address without brackets. Empty means all addresses of this machine.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// Creates an endpoint. Removes the brackets around an IPv6 address and converts the host `*` to the empty host.
    pub fn new(host: &str, port: u16) -> Endpoint {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Endpoint { host: if host == "*" { String::new() } else { host.to_owned() }, port }
    }

    /// Returns the addresses to connect to, in the order of the resolver. For the empty host, these are the loopback
    /// addresses. A `timeout` of `None` means no timeout.
    ///
    /// A host name is looked up on another thread, because the resolver may block for longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Unreachable`] if the name does not resolve within `timeout`.
    pub fn resolve_within(&self, timeout: impl Into<Option<Duration>>) -> Result<Vec<SocketAddr>> {
        let deadline = Deadline::after(now(), timeout.into());
        self.resolve_until(&deadline).map_err(|fault| self.unresolvable_error(fault))
    }

    /// Waits until the host name resolves. DNS may know the name of a container only after its process has started.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Unreachable`] if the name does not resolve within `timeout`.
    pub fn wait_until_resolved(
        &self,
        timeout: impl Into<Option<Duration>>,
        cancellation: Option<Arc<dyn Cancellation>>,
    ) -> Result<()> {
        let deadline = Deadline::after(now(), timeout.into()).or_canceled(cancellation);
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        loop {
            match self.resolve_until(&deadline) {
                Err(fault) if deadline.has_passed(now()) => return Err(self.unresolvable_error(fault)),
                Err(_) => pause(&mut backoff, &deadline),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Returns the addresses to connect to.
    pub(crate) fn resolve_until(&self, deadline: &Deadline) -> Result<Vec<SocketAddr>, ConnectionFault> {
        if self.host.is_empty() || self.host.parse::<IpAddr>().is_ok() {
            return self.lookup();
        }
        let endpoint = self.clone();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(endpoint.lookup()));
        while !deadline.has_passed(now()) {
            match receiver.recv_timeout(deadline.slice(now()).unwrap_or(Duration::MAX)) {
                Ok(addresses) => return addresses,
                Err(RecvTimeoutError::Disconnected) => return Err(self.fault("the lookup failed")),
                Err(RecvTimeoutError::Timeout) => deadline.on_wait(),
            }
        }
        Err(self.fault("the name server did not answer in time"))
    }

    fn lookup(&self) -> Result<Vec<SocketAddr>, ConnectionFault> {
        if self.host.is_empty() {
            return Ok(vec![
                (Ipv4Addr::LOCALHOST, self.port).into(),
                (Ipv6Addr::LOCALHOST, self.port).into(),
            ]);
        }
        let resolved = (self.host.as_str(), self.port).to_socket_addrs();
        let mut addresses: Vec<_> = resolved.map_err(|error| self.fault(&error.to_string()))?.collect();
        // The resolver may return an address of `localhost` twice. It sorts the addresses, so equal ones are adjacent.
        addresses.dedup();
        Ok(addresses)
    }

    fn fault(&self, reason: &str) -> ConnectionFault {
        ConnectionFault::Unresolvable { host: self.host.clone(), reason: reason.into() }
    }

    fn unresolvable_error(&self, fault: ConnectionFault) -> StoreError {
        let context = Context::new(StoreKind::Tcp, self.to_string());
        context.failed(Failure::Unreachable(vec![(String::new(), fault)]))
    }
}

impl FromStr for Endpoint {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Endpoint> {
        let invalid = |reason: &str| {
            StoreError::InvalidArgument(format!(
                "{text:?} is not HOST:PORT: {reason} (examples: node0:29400, 10.0.0.1:29400, [::1]:29400)"
            ))
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| invalid("there is no port"))?;
        if host.chars().any(|c| c.is_whitespace() || c == '/') {
            return Err(invalid("the host has a space or a slash in it"));
        }
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(invalid("an IPv6 address needs brackets"));
        }
        let port = port.parse().map_err(|_| invalid("the port is not a number from 0 to 65535"))?;
        Ok(Endpoint::new(host, port))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_parse_and_print_as_host_and_port() {
        for text in ["node0:29400", "10.0.0.1:1", "[::1]:65535", "[fe80::1]:0", ":29400"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert_eq!("*:80".parse::<Endpoint>().unwrap(), Endpoint { host: String::new(), port: 80 });
    }

    #[test]
    fn an_invalid_endpoint_is_refused_with_the_reason() {
        for (text, reason) in [
            ("node0", "there is no port"),
            ("node0:x", "the port is not a number"),
            ("node0:70000", "the port is not a number"),
            ("::1:29400", "needs brackets"),
            ("http://node0:80", "a space or a slash"),
            ("a b:1", "a space or a slash"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
