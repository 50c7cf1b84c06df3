// SPDX-License-Identifier: Apache-2.0

//! The way to etcd: endpoints, TLS, and the user.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hyper_util::rt::TokioIo;
use portolan_tls::{ClientFiles, Rotating};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// A dead endpoint delays the next one by no more than this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A name and a password.
#[derive(Clone)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The way to an etcd, as flags say it.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The beginning of the flags' names, for errors: `--etcd`.
    pub flags: &'static str,
    /// The members, as `http://HOST:PORT` or `https://HOST:PORT`; not empty.
    pub endpoints: Vec<String>,
    /// Authorities of the members' certificates; present exactly with https.
    pub ca: Option<PathBuf>,
    /// Certificate and key of the client.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The user, and the file with the password.
    pub user: Option<(String, PathBuf)>,
}

/// An opened way to etcd.
#[derive(Debug)]
pub struct Connection {
    /// A channel to each member, which connects when it is used.
    pub endpoints: Vec<Channel>,
    /// The user, if etcd's authentication is enabled.
    pub user: Option<User>,
    /// The TLS files, whose changes take effect while they are followed.
    pub credentials: Option<Rotating<ClientConfig>>,
}

impl Access {
    /// Checks the flags, without reading files.
    ///
    /// # Errors
    /// A flag cannot be used.
    pub fn validate(&self) -> anyhow::Result<()> {
        let flags = self.flags;
        for uri in self.uris()? {
            let is_secure = uri.scheme_str() == Some("https");
            ensure!(
                is_secure == self.ca.is_some(),
                "{flags}-endpoint {uri}: https:// needs {flags}-ca, and http:// excludes it"
            );
        }
        ensure!(
            self.ca.is_some() || self.identity.is_none(),
            "{flags}-cert needs {flags}-ca"
        );
        Ok(())
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn check_files(&self) -> anyhow::Result<()> {
        self.read_user()?;
        if let Some(files) = self.client_files() {
            files.open("etcd")?;
        }
        Ok(())
    }

    /// Reads the files and opens the channels; nothing is connected yet.
    ///
    /// # Errors
    /// A flag or a file cannot be used.
    pub fn open(&self) -> anyhow::Result<Connection> {
        let uris = self.uris()?.into_iter();
        let user = self.read_user()?;
        let Some(files) = self.client_files() else {
            return Ok(Connection {
                endpoints: uris.map(|uri| endpoint(uri).connect_lazy()).collect(),
                user,
                credentials: None,
            });
        };
        let files = files.open("etcd")?;
        let channel = |uri: Uri| self.secure_channel(&uri, files.subscribe());
        let endpoints = uris.map(channel).collect::<anyhow::Result<_>>()?;
        Ok(Connection {
            endpoints,
            user,
            credentials: Some(files),
        })
    }

    fn uris(&self) -> anyhow::Result<Vec<Uri>> {
        let flag = format!("{}-endpoint", self.flags);
        let parse = |text: &String| {
            let uri: Uri = text.parse().with_context(|| flag.clone())?;
            let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
            ensure!(
                is_known && uri.host().is_some() && uri.port_u16().is_some(),
                "{flag} {text:?}: expected http://HOST:PORT or https://HOST:PORT"
            );
            Ok(uri)
        };
        self.endpoints.iter().map(parse).collect()
    }

    fn client_files(&self) -> Option<ClientFiles> {
        let ca = self.ca.clone()?;
        let identity = self.identity.clone();
        Some(ClientFiles { ca, identity })
    }

    fn read_user(&self) -> anyhow::Result<Option<User>> {
        let Some((name, file)) = &self.user else {
            return Ok(None);
        };
        let password = std::fs::read_to_string(file)
            .with_context(|| format!("{}-password-file {}", self.flags, file.display()))?;
        Ok(Some(User {
            name: name.clone(),
            password: password.trim_end_matches(['\r', '\n']).to_owned(),
        }))
    }

    /// A channel of which each connection uses the credentials of its time.
    fn secure_channel(
        &self,
        uri: &Uri,
        config: watch::Receiver<Arc<ClientConfig>>,
    ) -> anyhow::Result<Channel> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{}-endpoint", self.flags))?;
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        // The connector below does TLS itself; tonic would refuse https without its own.
        let plain: Uri = format!("http://{authority}").parse()?;
        let connector =
            service_fn(move |_: Uri| secure(authority.clone(), name.clone(), config.clone()));
        Ok(endpoint(plain).connect_with_connector_lazy(connector))
    }
}

fn endpoint(uri: Uri) -> Endpoint {
    Endpoint::from(uri)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
}

async fn secure(
    authority: String,
    name: ServerName<'static>,
    config: watch::Receiver<Arc<ClientConfig>>,
) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(authority).await?;
    stream.set_nodelay(true)?;
    let config = Arc::clone(&config.borrow());
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(TokioIo::new(stream))
}
