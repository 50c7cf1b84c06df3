//! Binding ports.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

/// Listens on an address. Where the machine has no IPv6, `[::]` means all of IPv4.
///
/// # Errors
/// If the port cannot be bound; the message names the address.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    match TcpListener::bind(address).await {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() && no_ipv6(&error) => {
            let all = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
            TcpListener::bind(all).await.map_err(named)
        }
        bound => bound.map_err(named),
    }
}

/// `EAFNOSUPPORT` without the module, `EADDRNOTAVAIL` where a setting disables IPv6.
fn no_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(97)
}
