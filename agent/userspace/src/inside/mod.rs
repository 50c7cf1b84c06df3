// SPDX-License-Identifier: Apache-2.0

//! A command in namespaces of its own, in which the agent answers for Services.
//!
//! The agent stays outside. A process of its own program enters the namespaces, which only a process with one thread
//! can, and makes the sockets there; the agent gets them as descriptors, and dials from outside.

mod channel;
mod namespaces;
mod process;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::listen::Listen;
use channel::{Answer, Channel, Request};
pub use process::{ARGUMENT, asked};

/// Time for an answer of the process inside.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why something inside of the namespaces could not be done.
#[derive(Debug, thiserror::Error)]
pub enum InsideError {
    /// The connection to the process inside.
    #[error("the process inside of the namespaces: {0}")]
    Io(#[from] io::Error),
    /// The process inside has ended.
    #[error("the process inside of the namespaces has ended")]
    Ended,
    /// It was refused.
    #[error("{0}")]
    Failed(String),
}

/// The namespaces of a command. Clones are the same ones.
#[derive(Debug, Clone)]
pub struct Inside(Arc<Mutex<Channel>>);

/// The process of a command that is to be started, or runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Deleted at the end.
    _directory: TempDir,
}

/// Makes namespaces for a command, which is not started yet. The text is its /etc/resolv.conf.
///
/// # Errors
/// If this kernel does not give them to this user.
pub async fn make(
    command: &[OsString],
    resolv_conf: &str,
) -> Result<(Inside, Running), InsideError> {
    let directory = TempDir::with_prefix("portolan-")?;
    let [socket, names] = ["inside.sock", "resolv.conf"].map(|name| directory.path().join(name));
    std::fs::write(&names, resolv_conf)?;
    let listener = channel::listen(&socket)?;
    let mut process = Command::new("/proc/self/exe");
    process.arg(ARGUMENT).arg(socket).arg(names).args(command);
    // It ends, and its command with it, when the agent's end of the socket is closed.
    let mut child = process.spawn()?;
    let channel = tokio::select! {
        accepted = timeout(PATIENCE, channel::accept(listener)) => {
            accepted.map_err(|_| InsideError::Ended)??
        }
        _ = child.wait() => return Err(InsideError::Ended),
    };
    answered(&channel).await?;
    let running = Running {
        child,
        _directory: directory,
    };
    Ok((Inside(Arc::new(Mutex::new(channel))), running))
}

/// Waits for an answer.
async fn answered(channel: &Channel) -> Result<Option<OwnedFd>, InsideError> {
    let received = timeout(PATIENCE, channel.receive()).await;
    let received = received.map_err(|_| InsideError::Ended)??;
    match received.ok_or(InsideError::Ended)? {
        (Answer::Done, descriptor) => Ok(descriptor),
        (Answer::Failed(why), _) => Err(InsideError::Failed(why)),
    }
}

impl Inside {
    async fn ask(&self, request: Request) -> Result<Option<OwnedFd>, InsideError> {
        // Answers come in the order of requests.
        let channel = self.0.lock().await;
        channel.send(&request, None).await?;
        answered(&channel).await
    }

    /// Routes an address to the namespace itself.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn route(&self, address: IpAddr) -> Result<(), InsideError> {
        self.ask(Request::Route(address)).await.map(drop)
    }

    /// Deletes such a route.
    ///
    /// # Errors
    /// If there is none.
    pub async fn unroute(&self, address: IpAddr) -> Result<(), InsideError> {
        self.ask(Request::NoRoute(address)).await.map(drop)
    }

    /// Makes a socket that listens in the namespace.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn listen(&self, listen: Listen) -> Result<OwnedFd, InsideError> {
        let socket = self.ask(Request::Open(listen)).await?;
        socket.ok_or(InsideError::Ended)
    }

    /// Starts the command.
    ///
    /// # Errors
    /// If it cannot be started.
    pub async fn start(&self) -> Result<(), InsideError> {
        self.ask(Request::Start).await.map(drop)
    }
}

impl Running {
    /// Waits for the command; its status, or that of what failed before it.
    ///
    /// # Errors
    /// If the process cannot be waited for.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Asks the command to end.
    pub fn terminate(&self) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(id, Signal::TERM);
        }
    }
}
