//! "Is this host me?", answered by the addresses of this machine. A name is only a way to an address: what another
//! machine calls this one, or what this one calls itself, decides nothing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use rallypoint_store::Endpoint;

/// How long a name server may take before a name counts as unknown.
const RESOLVE: Duration = Duration::from_secs(10);

/// Whether one of the addresses of `host` is one of this machine. A host without addresses is not.
pub fn is_this_machine(host: &str) -> bool {
    addresses(host).into_iter().any(is_local)
}

/// The addresses of a host; none if it can't be resolved in time.
pub(crate) fn addresses(host: &str) -> Vec<IpAddr> {
    let resolved = Endpoint::new(host, 0).resolve_within(RESOLVE);
    resolved.map(|all| all.iter().map(SocketAddr::ip).collect()).unwrap_or_default()
}

/// Whether this machine has that address: only then can it be bound.
fn is_local(address: IpAddr) -> bool {
    !address.is_unspecified() && (address.is_loopback() || TcpListener::bind((address, 0)).is_ok())
}

/// Whether `host` is this machine under a name that means it on every machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Where to listen so that others reach this machine as `host`: exactly there, if it names addresses of this machine; on
/// all, if it is a name that only this machine takes for a loopback address, as Debian's `/etc/hosts` has it.
pub(crate) fn place_to_listen(host: &str) -> String {
    let only_loopback =
        addresses(host).into_iter().filter(|address| is_local(*address)).all(|a| a.is_loopback());
    if !is_loopback(host) && only_loopback { String::new() } else { host.to_owned() }
}

/// The address by which this machine reaches others, if there are any: that of the interface its default route uses.
/// Nothing is sent.
pub(crate) fn outward_address() -> IpAddr {
    // An address of the range that is reserved for documentation: nobody has it, so the default route decides.
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 9));
    let route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(elsewhere)?;
        socket.local_addr()
    };
    route().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_addresses() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "::1"] {
            assert!(is_this_machine(host), "{host}");
        }
        assert!(is_this_machine(&outward_address().to_string()));
        for host in ["192.0.2.7", "0.0.0.0", "no-such-host.invalid"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_loopback_name_is_listened_at_as_it_is_and_no_wider() {
        for host in ["localhost", "127.0.0.1", "::1", "127.0.0.7"] {
            assert_eq!(place_to_listen(host), host);
        }
        let address = outward_address();
        if !address.is_loopback() {
            assert_eq!(place_to_listen(&address.to_string()), address.to_string());
        }
    }
}
