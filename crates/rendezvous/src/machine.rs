//! Compares addresses to decide whether a host is this machine. Names other than `localhost` are only resolved, never
//! compared: other machines may use other names for this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use rallypoint_store::Endpoint;

/// The timeout for resolving a name. A name that takes longer counts as unresolvable.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns whether `host` is `localhost` or a loopback address, which every machine uses for itself.
pub fn is_loopback(host: &str) -> bool {
    let address = strip_brackets(host).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Returns the name or address at which other nodes reach the machine with this endpoint: the one in the endpoint, or
/// `127.0.0.1` if that is `localhost`.
pub(crate) fn advertised_host(endpoint: &Endpoint) -> String {
    if is_loopback(&endpoint.host) && endpoint.host.parse::<IpAddr>().is_err() {
        "127.0.0.1".into()
    } else {
        endpoint.host.clone()
    }
}

/// Returns the host name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns whether one of the addresses of `host` is an address of this machine.
pub fn is_this_machine(host: &str) -> bool {
    addresses(host).into_iter().any(is_local)
}

/// Resolves a host. Returns no addresses if that fails or takes longer than 10 s.
pub(crate) fn addresses(host: &str) -> Vec<IpAddr> {
    let resolved = Endpoint::new(host, 0).resolve_within(RESOLVE_TIMEOUT);
    resolved.map(|addresses| addresses.iter().map(SocketAddr::ip).collect()).unwrap_or_default()
}

/// Returns whether an interface of this machine has this address.
///
/// Binding the address is not a sufficient test: with `net.ipv4.ip_nonlocal_bind=1`, which load balancers use, every
/// address can be bound.
fn is_local(address: IpAddr) -> bool {
    let is_bindable = || TcpListener::bind((address, 0)).is_ok();
    !address.is_unspecified()
        && (address.is_loopback() || (is_bindable() && source_address(address) == Some(address)))
}

/// Returns the source address of packets that this machine sends to `address`. For an address of this machine, that is
/// the same address. No packet is sent.
fn source_address(address: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Any port works, because no packet is sent. Port 9 is the discard service.
    socket.connect((address, 9)).ok()?;
    socket.local_addr().ok().map(|from| from.ip())
}

/// Returns whether `host` is an IP address that this machine does not have. Returns `false` for a name, because it may
/// not resolve yet.
pub fn is_remote_address(host: &str) -> bool {
    let address = strip_brackets(host).parse::<IpAddr>();
    address.is_ok_and(|address| !address.is_unspecified() && !is_local(address.to_canonical()))
}

/// Removes the brackets around an IPv6 address.
fn strip_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns the host to listen on, so that other nodes reach this machine as `host`.
///
/// Returns `host` itself if it is `localhost` or a loopback address, or if it resolves to an address of this machine
/// that is not a loopback address. Otherwise returns an empty string, which means all addresses. In that case this
/// machine resolves the name only to loopback addresses, as with Debian's `/etc/hosts`, or to no address of its own.
/// Other machines may still resolve the name to another address of this machine.
pub(crate) fn listen_host(host: &str) -> String {
    let is_only_loopback =
        addresses(host).into_iter().filter(|address| is_local(*address)).all(|a| a.is_loopback());
    if !is_loopback(host) && is_only_loopback { String::new() } else { host.to_owned() }
}

/// Returns the address from which this machine reaches other machines: the address of the interface of its default
/// route. Without a default route, returns the machine's address in one of its networks, or `127.0.0.1` if it is in
/// none.
pub(crate) fn outbound_address() -> IpAddr {
    // Addresses reserved for documentation. No machine has them, so the default route decides.
    let remote: [IpAddr; 2] = [[192, 0, 2, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()];
    let is_useful = |address: &IpAddr| !address.is_loopback() && !address.is_unspecified();
    let mut found =
        remote.into_iter().chain(neighbor_addresses()).filter_map(source_address).filter(is_useful);
    found.next().unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Returns one address in each network of this machine, according to the kernel's tables.
fn neighbor_addresses() -> impl Iterator<Item = IpAddr> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let in_networks = network_addresses(&read("/proc/net/route"));
    // For IPv6, these are the machine's own addresses with global scope.
    let own_addresses = global_ipv6_addresses(&read("/proc/net/if_inet6"));
    in_networks.into_iter().map(IpAddr::V4).chain(own_addresses.into_iter().map(IpAddr::V6))
}

/// Returns the first address of each network in a table of IPv4 routes (`/proc/net/route`). The second column contains
/// the destination as hexadecimal digits in native byte order.
fn network_addresses(routes: &str) -> Vec<Ipv4Addr> {
    let destination = |line: &str| {
        let mut words = line.split_whitespace();
        let (_interface, network) = (words.next()?, words.next()?);
        let network = u32::from_be_bytes(u32::from_str_radix(network, 16).ok()?.to_ne_bytes());
        (network != 0).then(|| Ipv4Addr::from(network.saturating_add(1)))
    };
    routes.lines().skip(1).filter_map(destination).collect()
}

/// Returns the addresses with global scope (0) in a table of IPv6 addresses (`/proc/net/if_inet6`). The first column
/// contains the address, and the fourth contains the scope.
fn global_ipv6_addresses(table: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let is_global = *words.get(3)? == "00";
        let address = u128::from_str_radix(words[0], 16).ok()?;
        is_global.then(|| Ipv6Addr::from(address))
    };
    table.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_recognized_by_its_addresses() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "::1"] {
            assert!(is_this_machine(host), "{host}");
        }
        assert!(is_this_machine(&outbound_address().to_string()));
        for host in ["192.0.2.7", "0.0.0.0", "no-such-host.invalid"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn the_kernels_route_and_address_tables_are_parsed() {
        let routes = "Iface\tDestination\tGateway \tFlags\n\
                      eth0\t00000000\t0100090A\t0003\n\
                      eth0\t0000090A\t00000000\t0001\nshort\n";
        assert_eq!(network_addresses(routes), [Ipv4Addr::new(10, 9, 0, 1)]);
        let table = "fe800000000000000000000000000001 02 40 20 80 eth0\n\
                     fd000000000000000000000000000005 02 40 00 80 eth0\nnonsense\n";
        assert_eq!(global_ipv6_addresses(table), ["fd00::5".parse::<Ipv6Addr>().unwrap()]);
    }

    #[test]
    fn listen_host_returns_a_loopback_host_or_an_own_address_unchanged() {
        for host in ["localhost", "127.0.0.1", "::1", "127.0.0.7"] {
            assert_eq!(listen_host(host), host);
        }
        let address = outbound_address();
        if !address.is_loopback() {
            assert_eq!(listen_host(&address.to_string()), address.to_string());
        }
    }
}
