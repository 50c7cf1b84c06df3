// SPDX-License-Identifier: Apache-2.0

//! The debug socket, which serves everything of the admin port, and the token for actions over TCP.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use axum::Router;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::http::{Connections, serve_http};
use crate::unix::{SocketAccess, SocketFile, SocketGroup, SocketMode, listen_unix};

/// Least length of a token.
const SHORTEST: usize = 16;

/// Flags of the debug socket, for both programs.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Debug socket")]
pub struct DebugArgs {
    /// Unix socket that serves everything of --admin-listen and accepts actions (POST) below /debug, as
    /// unix:///PATH; empty for none. Default: unix:///run/portolan/agent.sock or controller.sock, if
    /// it can be created. With this flag an agent serves /debug on the socket only.
    #[arg(long, env = "PORTOLAN_DEBUG_LISTEN")]
    debug_listen: Option<String>,

    /// Permissions of the debug socket, in octal. Write permission allows connecting.
    #[arg(long, env = "PORTOLAN_DEBUG_SOCKET_MODE", default_value = "0600")]
    debug_socket_mode: SocketMode,

    /// Group of the debug socket, by name or number. Default: the group of the process.
    #[arg(long, env = "PORTOLAN_DEBUG_SOCKET_GROUP")]
    debug_socket_group: Option<SocketGroup>,

    /// File with a token of at least 16 characters, which allows actions over TCP, on loopback. It is
    /// read for each request, so that it can be replaced.
    #[arg(long, env = "PORTOLAN_DEBUG_TOKEN_FILE")]
    debug_token_file: Option<PathBuf>,
}

impl DebugArgs {
    /// Returns `true` if the flag names a socket.
    #[must_use]
    pub fn names_socket(&self) -> bool {
        self.debug_listen
            .as_ref()
            .is_some_and(|text| !text.is_empty())
    }

    /// Checks the flags. Binds no socket and reads no file.
    ///
    /// # Errors
    /// If the flag is no address of a Unix socket.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.socket_path().map(drop)
    }

    /// The path of the socket that the flag names; `None` without one.
    fn socket_path(&self) -> anyhow::Result<Option<&Path>> {
        let text = self.debug_listen.as_deref().unwrap_or_default();
        if text.is_empty() {
            return Ok(None);
        }
        match text.strip_prefix("unix://").map(Path::new) {
            Some(path) if path.is_absolute() => Ok(Some(path)),
            _ => bail!("--debug-listen {text:?}: expected unix:///PATH"),
        }
    }

    /// Binds the socket, at a default path if the flag is missing.
    ///
    /// # Errors
    /// If the socket of the flag cannot be bound. The default one is left out with a warning.
    pub fn bind(&self, default: &str) -> anyhow::Result<Option<DebugSocket>> {
        let access = SocketAccess {
            mode: self.debug_socket_mode,
            group: self.debug_socket_group.clone(),
        };
        let listen = |path: &Path| {
            let (listener, file) = listen_unix(path, &access)?;
            io::Result::Ok(DebugSocket { listener, file })
        };
        match (self.socket_path()?, &self.debug_listen) {
            (Some(path), _) => listen(path).context("--debug-listen").map(Some),
            (None, Some(_)) => Ok(None),
            (None, None) => Ok(listen(Path::new(default))
                .inspect_err(|error| {
                    tracing::warn!(%error,
                        "no Unix socket for actions below /debug; set --debug-listen");
                })
                .ok()),
        }
    }

    /// The token, if the flag names one.
    ///
    /// # Errors
    /// If the file has no token.
    pub fn token(&self) -> anyhow::Result<Option<DebugToken>> {
        let Some(path) = &self.debug_token_file else {
            return Ok(None);
        };
        let token = DebugToken(path.clone());
        token.read().context("--debug-token-file")?;
        Ok(Some(token))
    }
}

/// The bound debug socket.
#[derive(Debug)]
pub struct DebugSocket {
    listener: UnixListener,
    file: SocketFile,
}

impl DebugSocket {
    /// Serves until the token is cancelled. The file of the socket is deleted then.
    pub async fn serve(self, router: Router, ending: CancellationToken) {
        serve_http(self.listener, router, Connections::default(), ending).await;
        drop(self.file);
    }
}

/// The token for actions, in a file.
#[derive(Debug, Clone)]
pub struct DebugToken(PathBuf);

impl DebugToken {
    /// The token of a file.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Whether a candidate is the token, in constant time.
    ///
    /// # Errors
    /// If the file cannot be read or has no token.
    pub(crate) fn matches(&self, shown: &[u8]) -> io::Result<bool> {
        Ok(blake3::hash(self.read()?.as_bytes()) == blake3::hash(shown))
    }

    fn read(&self) -> io::Result<String> {
        let text = fs::read_to_string(&self.0);
        let token = text.and_then(|text| match text.trim() {
            token if token.len() >= SHORTEST => Ok(token.to_owned()),
            _ => Err(io::Error::other("no token of at least 16 characters")),
        });
        let path = self.0.display();
        token.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    }
}
