// SPDX-License-Identifier: Apache-2.0

//! Messages between the agent and the process in the namespaces of its command, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

use crate::listen::Listen;

/// The largest message.
const LARGEST: usize = 4096;

/// A request, or the answer to the request with this number: an answer may come when nobody waits for it any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbered<T> {
    pub(crate) number: u64,
    pub(crate) message: T,
}

/// The number of the answer that comes without a request, when the namespaces are ready.
pub(crate) const READY: u64 = 0;

/// Request of the agent. Each request has one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Route an address to the namespace itself.
    Route(IpAddr),
    /// Delete this route.
    NoRoute(IpAddr),
    /// Listen.
    Open(Listen),
    /// Start the command.
    Start,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It is done. With the socket, if one was asked for.
    Done,
    /// It failed.
    Failed(String),
}

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

/// A socket on which one process waits for the other.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 1)?;
    UnixListener::from_std(socket.into())
}

/// Connects to it. The socket blocks until it is [made a channel](Channel::new).
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

/// Waits for the other process.
pub(crate) async fn accept(listener: UnixListener) -> io::Result<Channel> {
    let (stream, _) = listener.accept().await?;
    Ok(Channel(stream))
}

impl Channel {
    /// Makes a channel of a connected socket. Needs a runtime.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(UnixStream::from_std(socket.into())?))
    }

    /// Sends a message.
    pub(crate) async fn send(
        &self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let send = || send(self.0.as_fd(), &bytes, descriptor);
        self.0.async_io(Interest::WRITABLE, send).await
    }

    /// Receives a message; `None` after the other process has ended.
    pub(crate) async fn receive<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let receive = || receive(self.0.as_fd());
        let received = self.0.async_io(Interest::READABLE, receive).await?;
        let Some((bytes, descriptor)) = received else {
            return Ok(None);
        };
        Ok(Some((serde_json::from_slice(&bytes)?, descriptor)))
    }
}

/// Sends the bytes of a message.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

type Received = (Vec<u8>, Option<OwnedFd>);

fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Received>> {
    let mut bytes = vec![0; LARGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut slices, &mut control, flags)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::other("a message is too long"));
    }
    bytes.truncate(received.bytes);
    Ok(Some((bytes, descriptor)))
}
