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
use channel::{Answer, Channel, Numbered, READY, Request};
pub use process::{ARGUMENT, asked};

/// Time for an answer of the process inside.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reason why something inside of the namespaces could not be done.
#[derive(Debug, thiserror::Error)]
pub enum InsideError {
    /// The connection to the process inside.
    #[error("the process inside of the namespaces: {0}")]
    Io(#[from] io::Error),
    /// The process inside has ended.
    #[error("the process inside of the namespaces has ended")]
    Ended,
    /// It may still do what it was asked for.
    #[error("the process inside of the namespaces does not answer within {PATIENCE:?}")]
    Silent,
    /// It was refused.
    #[error("{0}")]
    Failed(String),
}

/// The namespaces of a command. Clones are the same ones.
#[derive(Debug, Clone)]
pub struct Inside(Arc<Mutex<Asker>>);

/// The agent's end of the connection.
#[derive(Debug)]
struct Asker {
    channel: Channel,
    /// The number of the last request.
    last: u64,
}

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
            accepted.map_err(|_| InsideError::Silent)??
        }
        _ = child.wait() => return Err(InsideError::Ended),
    };
    timeout(PATIENCE, answered(&channel, READY))
        .await
        .map_err(|_| InsideError::Silent)??;
    let running = Running {
        child,
        _directory: directory,
    };
    Ok((Inside::new(channel), running))
}

/// Waits for the answer to a request.
async fn answered(channel: &Channel, number: u64) -> Result<Option<OwnedFd>, InsideError> {
    loop {
        let received = channel.receive::<Numbered<Answer>>().await?;
        let (answer, descriptor) = received.ok_or(InsideError::Ended)?;
        match answer.message {
            // It is that of a request that nobody waits for any more.
            _ if answer.number != number => {}
            Answer::Done => return Ok(descriptor),
            Answer::Failed(why) => return Err(InsideError::Failed(why)),
        }
    }
}

impl Asker {
    async fn ask(&mut self, message: Request) -> Result<Option<OwnedFd>, InsideError> {
        self.last += 1;
        let number = self.last;
        self.channel
            .send(&Numbered { number, message }, None)
            .await?;
        answered(&self.channel, number).await
    }
}

impl Inside {
    fn new(channel: Channel) -> Self {
        let last = READY;
        Self(Arc::new(Mutex::new(Asker { channel, last })))
    }

    async fn ask(&self, request: Request) -> Result<Option<OwnedFd>, InsideError> {
        let mut asker = self.0.lock().await;
        let answer = timeout(PATIENCE, asker.ask(request)).await;
        answer.map_err(|_| InsideError::Silent)?
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

#[cfg(test)]
mod tests;
