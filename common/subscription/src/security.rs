// SPDX-License-Identifier: Apache-2.0

//! Authentication of both ends of a stream.
//!
//! The controller shows a certificate of a configured authority. The client shows one that names it,
//! or a token that is bound to its node. Each connection uses the newest certificates, and the token is
//! read for each stream.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use portolan_tls::{ClientFiles, FileError, Rotating, read};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Uri;
use tower::{Service, service_fn};

/// The security of a stream.
#[derive(Debug, Clone)]
pub enum Security {
    /// None; no token is sent either.
    Plaintext,
    /// TLS.
    Tls(TlsClient),
}

/// The configuration of a TLS client.
#[derive(Debug, Clone)]
pub struct TlsClient {
    /// Authorities and certificate; the newest is used. `None` until their files are there.
    pub config: watch::Receiver<Arc<Option<ClientConfig>>>,
    /// The name that the controller's certificate must have; `None` for the host of its address.
    pub server_name: Option<ServerName<'static>>,
    /// A file with the token to show, if any.
    pub token_file: Option<PathBuf>,
}

impl Security {
    /// Reads the files of a TLS client, and returns them to be followed. Files may be missing: there are
    /// no connections before they are there. Blocks.
    ///
    /// # Errors
    /// If a file is there and cannot be used.
    pub fn open(
        files: ClientFiles,
        name: &'static str,
        server_name: Option<ServerName<'static>>,
        token_file: Option<PathBuf>,
    ) -> Result<(Self, Rotating<Option<ClientConfig>>), FileError> {
        let files = files.open_when_present(name)?;
        let tls = TlsClient {
            config: files.subscribe(),
            server_name,
            token_file,
        };
        Ok((Self::Tls(tls), files))
    }

    /// The value of the `authorization` header, if there is one.
    pub(crate) async fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, FileError> {
        let Self::Tls(TlsClient {
            token_file: Some(path),
            ..
        }) = self
        else {
            return Ok(None);
        };
        let (path, file) = (path.clone(), path.clone());
        let read = tokio::task::spawn_blocking(move || read(&file)).await;
        let file = read.map_err(|error| FileError::new(&path, error))??;
        let token = file.content.trim_ascii();
        if token.is_empty() {
            return Err(FileError::new(&path, "empty"));
        }
        let value = [b"Bearer ", token].concat();
        let mut value = MetadataValue::try_from(value.as_slice())
            .map_err(|_| FileError::new(&path, "not a token"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// A connection of either kind.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl Security {
    /// Connects to an address: TCP, then TLS with the host that the URI names.
    pub(crate) fn connector(
        &self,
        address: SocketAddr,
    ) -> impl Service<Uri, Response = TokioIo<Box<dyn Connection>>, Error = io::Error, Future: Send>
    + Send
    + use<> {
        let tls = match self {
            Self::Plaintext => None,
            Self::Tls(tls) => {
                let config = tls.config.borrow().as_ref().clone();
                Some((config.map(Arc::new), tls.server_name.clone()))
            }
        };
        service_fn(move |uri: Uri| {
            let tls = tls.clone();
            async move {
                if let Some((config, _)) = &tls
                    && config.is_none()
                {
                    return Err(io::Error::other("the files of TLS are not there yet"));
                }
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let Some((Some(config), server_name)) = tls else {
                    return Ok(TokioIo::new(Box::new(stream) as Box<dyn Connection>));
                };
                let name = match server_name {
                    Some(name) => name,
                    None => host(&uri)?,
                };
                let stream = TlsConnector::from(config).connect(name, stream).await?;
                Ok(TokioIo::new(Box::new(stream) as Box<dyn Connection>))
            }
        })
    }
}

fn host(uri: &Uri) -> io::Result<ServerName<'static>> {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_addresss_host() {
        for (uri, expected) in [
            (
                "https://portolan.kube-system.svc:9443",
                "portolan.kube-system.svc",
            ),
            ("https://10.0.0.1:9443", "10.0.0.1"),
            ("https://[fd00::1]:9443", "fd00::1"),
        ] {
            let name = host(&uri.parse().unwrap()).unwrap();
            assert_eq!(name.to_str(), expected);
        }
    }

    #[tokio::test]
    async fn a_token_is_read_anew_and_named_if_it_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let (_, config) = watch::channel(Arc::new(Some(empty())));
        let security = Security::Tls(TlsClient {
            config,
            server_name: None,
            token_file: Some(path.clone()),
        });
        let missing = security.authorization().await.unwrap_err();
        assert!(missing.to_string().contains("token"), "{missing}");
        for token in ["first", "second\n"] {
            std::fs::write(&path, token).unwrap();
            let value = security.authorization().await.unwrap().unwrap();
            assert_eq!(value.to_str().unwrap(), format!("Bearer {}", token.trim()));
            assert!(!format!("{value:?}").contains(token.trim()));
        }
        for bad in ["", " \n", "a\nb"] {
            std::fs::write(&path, bad).unwrap();
            assert!(security.authorization().await.is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn there_is_no_connection_before_the_files_are_there() {
        let (_, config) = watch::channel(Arc::new(None));
        let security = Security::Tls(TlsClient {
            config,
            server_name: None,
            token_file: None,
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connector = security.connector(listener.local_addr().unwrap());
        let connected = connector.call("http://localhost:1".parse().unwrap()).await;
        let error = connected.err().unwrap().to_string();
        assert!(error.contains("not there yet"), "{error}");
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err());
    }

    fn empty() -> ClientConfig {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth()
    }
}
