//! Where the gRPC service is served: a TCP port, or a Unix socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::grpc::{serve_tcp, serve_unix};
use crate::server::Server;

/// An address to listen on, written as `10.0.0.1:5300`, `[::]:5300` or `unix:///run/dns.sock`, as
/// CoreDNS's grpc plugin writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bind {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// An address that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected ADDRESS:PORT or unix:///PATH")]
pub struct BindError(String);

impl FromStr for Bind {
    type Err = BindError;

    fn from_str(text: &str) -> Result<Self, BindError> {
        let error = || BindError(text.to_owned());
        match text.strip_prefix("unix://") {
            Some(path) if Path::new(path).is_absolute() => Ok(Self::Unix(path.into())),
            Some(_) => Err(error()),
            None => text.parse().map(Self::Tcp).map_err(|_| error()),
        }
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// A listener that is bound.
#[derive(Debug)]
pub enum Bound {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket, which goes when the service ends.
    Unix(UnixListener, PathBuf),
}

impl Bind {
    /// Binds. The socket that a process before us left behind is taken away; one that somebody
    /// serves is not.
    ///
    /// # Errors
    /// If the address cannot be bound; the message names it.
    pub async fn bind(&self) -> io::Result<Bound> {
        let bound = match self {
            Self::Tcp(address) => TcpListener::bind(address).await.map(Bound::Tcp),
            Self::Unix(path) => unix(path).await.map(|it| Bound::Unix(it, path.clone())),
        };
        bound.map_err(|error| io::Error::new(error.kind(), format!("{self}: {error}")))
    }
}

async fn unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        bound => return bound,
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => return Err(error),
    }
    std::fs::remove_file(path)?;
    UnixListener::bind(path)
}

impl Bound {
    /// The port that was bound, if it is one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => Some(listener.local_addr().ok()?.port()),
            Self::Unix(..) => None,
        }
    }

    /// Serves until `shutdown`, then finishes what it has begun.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(
        self,
        server: Server,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        match self {
            Self::Tcp(listener) => serve_tcp(server, listener, shutdown).await,
            Self::Unix(listener, path) => {
                let served = serve_unix(server, listener, shutdown).await;
                // The next one takes it away too.
                let _ = std::fs::remove_file(path);
                served
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_coredns_writes_them() {
        for text in [
            "10.0.0.1:5300",
            "[::]:5300",
            "unix:///run/portolan/dns.sock",
        ] {
            assert_eq!(text.parse::<Bind>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "5300",
            "localhost:5300",
            "unix://run/dns.sock",
            "unix://",
        ] {
            assert!(text.parse::<Bind>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_socket_that_was_left_behind_is_taken_and_one_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let bind = Bind::Unix(directory.path().join("dns.sock"));
        let first = bind.bind().await.unwrap();
        let error = bind.bind().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("dns.sock"), "{error}");
        drop(first);
        assert!(bind.bind().await.is_ok());
    }
}
