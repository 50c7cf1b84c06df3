// SPDX-License-Identifier: Apache-2.0

//! The way to etcd: endpoints, TLS, and the user.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portolan_tls::{ClientFiles, Rotating, secure_channel};
use rustls::ClientConfig;
use tonic::transport::{Channel, Endpoint, Uri};

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
                endpoints: uris
                    .map(|uri| settings(uri.into()).connect_lazy())
                    .collect(),
                user,
                credentials: None,
            });
        };
        let files = files.open("etcd")?;
        let channel = |uri: Uri| secure_channel(&uri, files.subscribe(), settings);
        let endpoints = uris.map(channel).collect::<Result<_, _>>();
        let endpoints = endpoints.with_context(|| format!("{}-endpoint", self.flags))?;
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
}

fn settings(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
}
