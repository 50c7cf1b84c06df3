//! A connection, and what it says of the other end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;

use crate::identity::Certified;

/// The other end, as far as the connection knows it. Goes with each request.
#[derive(Debug, Clone)]
pub(crate) struct Peer(Arc<State>);

#[derive(Debug)]
struct State {
    address: SocketAddr,
    certificate: Option<Result<Certified, String>>,
    admitted: AtomicBool,
    cut: AtomicBool,
    connection: AtomicWaker,
}

impl Peer {
    pub(super) fn new(address: SocketAddr, certificate: Option<Result<Certified, String>>) -> Self {
        Self(Arc::new(State {
            address,
            certificate,
            admitted: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            connection: AtomicWaker::new(),
        }))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// What its certificate says, if it has one: a node, or why not.
    pub(crate) fn certificate(&self) -> Option<&Result<Certified, String>> {
        self.0.certificate.as_ref()
    }

    /// An agent was let in on this connection: it may stay.
    pub(crate) fn admit(&self) {
        self.0.admitted.store(true, Ordering::Relaxed);
    }

    /// Closes the connection, whatever is on its way.
    pub(crate) fn cut(&self) {
        self.0.cut.store(true, Ordering::Release);
        self.0.connection.wake();
    }

    fn check(&self, context: &Context<'_>) -> io::Result<()> {
        self.0.connection.register(context.waker());
        if self.0.cut.load(Ordering::Acquire) {
            let message = "the agent takes nothing, or not the end of its stream";
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        Ok(())
    }

    fn is_admitted(&self) -> bool {
        self.0.admitted.load(Ordering::Relaxed)
    }
}

/// What the verified certificate of the other end says, if there is one.
pub(super) fn certified(stream: &TlsStream<TcpStream>) -> Option<Result<Certified, String>> {
    let (_, session) = stream.get_ref();
    let own = session.peer_certificates()?.first()?;
    Some(Certified::read(own))
}

/// The bytes below HTTP/2.
#[derive(Debug)]
pub(super) enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that counts, and ends if no agent is let in on it.
#[derive(Debug)]
pub(crate) struct Connection {
    io: Io,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
    /// Until when an agent must be let in; `None` after that.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    pub(super) fn new(io: Io, peer: Peer, permit: OwnedSemaphorePermit, within: Duration) -> Self {
        Self {
            io,
            peer,
            _permit: permit,
            deadline: Some(Box::pin(sleep(within))),
        }
    }

    /// The other end.
    pub(crate) fn peer(&self) -> Peer {
        self.peer.clone()
    }

    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(deadline) = &mut self.deadline else {
            return Ok(());
        };
        if self.peer.is_admitted() {
            self.deadline = None;
        } else if deadline.as_mut().poll(context).is_ready() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no agent was let in on this connection in time",
            ));
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.peer.check(context)?;
        self.check_deadline(context)?;
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_read(context, buffer),
            Io::Tls(io) => Pin::new(io).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write(context, bytes),
            Io::Tls(io) => Pin::new(io).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write_vectored(context, slices),
            Io::Tls(io) => Pin::new(io).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(io) => io.is_write_vectored(),
            Io::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_flush(context),
            Io::Tls(io) => Pin::new(io).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_shutdown(context),
            Io::Tls(io) => Pin::new(io).poll_shutdown(context),
        }
    }
}
