// SPDX-License-Identifier: Apache-2.0

//! Listen addresses of the gRPC service: a TCP port, or a Unix socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use portolan_runtime::{SocketAccess, SocketFile, listen_unix};
use tokio::net::{TcpListener, UnixListener};

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

/// An invalid address.
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
    /// A Unix socket, removed when the service ends.
    Unix(UnixListener, SocketFile),
}

impl Bind {
    /// Binds; `access` restricts a Unix socket. A stale socket of an earlier process is replaced; a
    /// served one is not.
    ///
    /// # Errors
    /// If the address cannot be bound; the message names it.
    pub async fn bind(&self, access: &SocketAccess) -> io::Result<Bound> {
        match self {
            Self::Tcp(address) => {
                let bound = TcpListener::bind(address).await;
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
                bound.map(Bound::Tcp).map_err(named)
            }
            Self::Unix(path) => {
                let (listener, file) = listen_unix(path, access)?;
                Ok(Bound::Unix(listener, file))
            }
        }
    }
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

    /// Serves until `shutdown`, then finishes the requests in progress.
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
            Self::Unix(listener, _file) => serve_unix(server, listener, shutdown).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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
    async fn a_socket_has_the_permissions_that_were_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dns.sock");
        let bind = Bind::Unix(path.clone());
        let access = SocketAccess {
            mode: "0660".parse().unwrap(),
            group: None,
        };
        let first = bind.bind(&access).await.unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o660);
        let error = bind.bind(&access).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("dns.sock"), "{error}");
        drop(first);
        assert!(!path.exists());

        // Something else than a socket stays.
        std::fs::write(&path, "precious").unwrap();
        assert!(bind.bind(&access).await.is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
