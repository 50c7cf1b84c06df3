//! A connection, and what it says of the other end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    /// How many streams of agents there are on it.
    streams: AtomicUsize,
    cut: AtomicBool,
    connection: AtomicWaker,
}

impl Peer {
    pub(super) fn new(address: SocketAddr, certificate: Option<Result<Certified, String>>) -> Self {
        Self(Arc::new(State {
            address,
            certificate,
            streams: AtomicUsize::new(0),
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

    /// An agent was let in on this connection: it may stay while that stream lives.
    pub(crate) fn admit(&self) -> Admission {
        self.0.streams.fetch_add(1, Ordering::Relaxed);
        Admission(self.clone())
    }

    /// Closes the connection, whatever is on its way.
    fn cut(&self) {
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
        self.0.streams.load(Ordering::Relaxed) > 0
    }
}

/// A stream of an agent that was let in on a connection.
#[derive(Debug)]
pub(crate) struct Admission(Peer);

impl Admission {
    /// Closes the connection, whatever is on its way.
    pub(crate) fn cut(&self) {
        self.0.cut();
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.0.streams.fetch_sub(1, Ordering::Relaxed);
        // Its time without a stream begins.
        self.0.0.connection.wake();
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

/// A connection that counts, and ends if there is no agent's stream on it for a while.
#[derive(Debug)]
pub(crate) struct Connection {
    io: Io,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
    /// For how long there may be none.
    within: Duration,
    /// Until when there must be one; `None` while there is.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    pub(super) fn new(io: Io, peer: Peer, permit: OwnedSemaphorePermit, within: Duration) -> Self {
        Self {
            io,
            peer,
            _permit: permit,
            within,
            deadline: None,
        }
    }

    /// The other end.
    pub(crate) fn peer(&self) -> Peer {
        self.peer.clone()
    }

    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.peer.is_admitted() {
            self.deadline = None;
            return Ok(());
        }
        let within = self.within;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(within)));
        if deadline.as_mut().poll(context).is_ready() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no stream of an agent on this connection for too long",
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
