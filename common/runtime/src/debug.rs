//! Where `/debug` is served beside the admin port, and the token for actions over TCP.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use axum::Router;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::http::{Connections, serve_http};
use crate::unix::{SocketAccess, SocketFile, SocketGroup, SocketMode, listen_unix};

/// The shortest token that is one.
const SHORTEST: usize = 16;

/// Flags of both programs.
#[derive(Debug, Clone, clap::Args)]
pub struct DebugArgs {
    /// A Unix socket where everything of --admin-listen is served too, as unix:///PATH, with
    /// actions (POST) below /debug; empty for none. By default
    /// unix:///run/portolan/agent.sock or controller.sock, where that can be made.
    #[arg(long, env = "PORTOLAN_DEBUG_LISTEN")]
    debug_listen: Option<String>,

    /// The permissions of that socket, in octal: whoever may write may connect.
    #[arg(long, env = "PORTOLAN_DEBUG_SOCKET_MODE", default_value = "0600")]
    debug_socket_mode: SocketMode,

    /// The group of that socket, by name or number. Default: the process's.
    #[arg(long, env = "PORTOLAN_DEBUG_SOCKET_GROUP")]
    debug_socket_group: Option<SocketGroup>,

    /// A file with a token of at least 16 characters. Who shows it over TCP, on loopback, may do
    /// what the socket is for. It is read for each request, so it may change.
    #[arg(long, env = "PORTOLAN_DEBUG_TOKEN_FILE")]
    debug_token_file: Option<PathBuf>,
}

impl DebugArgs {
    /// Binds the socket; `default` is its path if no flag says otherwise.
    ///
    /// # Errors
    /// If a flag names a socket that cannot be bound. Without a flag that is a warning.
    pub fn bind(&self, default: &str) -> anyhow::Result<Option<DebugSocket>> {
        let access = SocketAccess {
            mode: self.debug_socket_mode,
            group: self.debug_socket_group.clone(),
        };
        let listen = |path: &Path| {
            let (listener, file) = listen_unix(path, &access)?;
            io::Result::Ok(DebugSocket { listener, file })
        };
        match self.debug_listen.as_deref() {
            Some("") => Ok(None),
            Some(text) => match text.strip_prefix("unix://").map(Path::new) {
                Some(path) if path.is_absolute() => {
                    listen(path).context("--debug-listen").map(Some)
                }
                _ => bail!("--debug-listen {text:?}: expected unix:///PATH"),
            },
            None => Ok(listen(Path::new(default))
                .inspect_err(|error| {
                    tracing::warn!(%error,
                        "no Unix socket for actions below /debug; --debug-listen says where");
                })
                .ok()),
        }
    }

    /// The token, if there is one.
    ///
    /// # Errors
    /// If there is to be one, and its file has none.
    pub fn token(&self) -> anyhow::Result<Option<DebugToken>> {
        let Some(path) = &self.debug_token_file else {
            return Ok(None);
        };
        let token = DebugToken(path.clone());
        token.read().context("--debug-token-file")?;
        Ok(Some(token))
    }
}

/// The Unix socket of the admin server.
#[derive(Debug)]
pub struct DebugSocket {
    listener: UnixListener,
    file: SocketFile,
}

impl DebugSocket {
    /// Serves until the token is cancelled; then the socket is taken away.
    pub async fn serve(self, router: Router, ending: CancellationToken) {
        serve_http(self.listener, router, Connections::default(), ending).await;
        drop(self.file);
    }
}

/// A token in a file.
#[derive(Debug, Clone)]
pub struct DebugToken(PathBuf);

impl DebugToken {
    /// A token that is in a file.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Whether this is it. Takes the same time whatever differs.
    ///
    /// # Errors
    /// If the file cannot be read or has no token.
    pub(crate) fn is(&self, shown: &[u8]) -> io::Result<bool> {
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
