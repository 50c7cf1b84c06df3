// SPDX-License-Identifier: Apache-2.0

//! A nonblocking socket, with or without TLS.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use portolan_tls::NodeName;
use portolan_tls::issue::Authority;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Validity of certificates before and after the present.
pub(crate) const VALID: Duration = Duration::from_hours(1);

/// The transport below HTTP/2.
pub(super) enum Io {
    Plain(TcpStream),
    Tls(Box<(TcpStream, ClientConnection)>),
}

impl Io {
    /// Connects to a port of the loopback.
    pub(super) fn connect(port: u16, tls: Option<Arc<ClientConfig>>) -> Result<Self> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connect")?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let Some(config) = tls else {
            return Ok(Self::Plain(socket));
        };
        let connection = ClientConnection::new(config, ServerName::try_from("localhost")?)?;
        Ok(Self::Tls(Box::new((socket, connection))))
    }

    /// Reads the available bytes. Returns false if the other end has closed.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        match self {
            Self::Plain(socket) => match socket.read(buffer) {
                Ok(0) => Ok(false),
                Ok(count) => take(&buffer[..count]).map(|()| true),
                Err(error) => is_open(&error),
            },
            Self::Tls(tls) => {
                let (socket, connection) = &mut **tls;
                match connection.read_tls(socket) {
                    Ok(0) => return Ok(false),
                    Ok(_) => connection.process_new_packets().map(drop)?,
                    Err(error) => return is_open(&error),
                }
                flush(socket, connection)?;
                loop {
                    match connection.reader().read(buffer) {
                        Ok(0) => return Ok(false),
                        Ok(count) => take(&buffer[..count])?,
                        Err(error) => return is_open(&error),
                    }
                }
            }
        }
    }

    /// Writes all bytes. Agents send so little that the socket's buffer always has room.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes).context("write"),
            Self::Tls(tls) => {
                let (socket, connection) = &mut **tls;
                connection.writer().write_all(bytes)?;
                flush(socket, connection)
            }
        }
    }
}

impl AsFd for Io {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::Tls(tls) => tls.0.as_fd(),
        }
    }
}

/// Whether the socket is still open after this error of a read.
///
/// # Errors
/// If the error is unexpected.
fn is_open(error: &std::io::Error) -> Result<bool> {
    match error.kind() {
        ErrorKind::WouldBlock => Ok(true),
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => Ok(false),
        _ => bail!("read: {error}"),
    }
}

fn flush(socket: &mut TcpStream, connection: &mut ClientConnection) -> Result<()> {
    while connection.wants_write() {
        connection.write_tls(socket).context("write")?;
    }
    Ok(())
}

/// The TLS configuration of a node's agent, with a certificate of the authority in `dir`.
pub(super) fn config(dir: &Path, node: &str) -> Result<Arc<ClientConfig>> {
    let read = |name| std::fs::read_to_string(dir.join(name)).context(name);
    let ca = read("ca.crt")?;
    let authority = Authority::load(&ca, &read("ca.key")?)?;
    let now = SystemTime::now();
    let issued = authority.node(&NodeName::new("", node)?, now - VALID..now + VALID)?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes())?)?;
    let chain = vec![CertificateDer::from_pem_slice(issued.cert.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![portolan_tls::ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}
