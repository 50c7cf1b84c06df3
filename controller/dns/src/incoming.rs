// SPDX-License-Identifier: Apache-2.0

//! Limits of a listener's connections: strangers that open many use a bounded number of file
//! descriptors, and end their own connections first.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use portolan_runtime::{ConnectionSlots, Origin, Slot, SlotLimits};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

/// A CoreDNS has one connection, and each node may have one CoreDNS that asks a controller.
const LIMITS: SlotLimits = SlotLimits {
    slots: 256,
    reserve: 32,
    per_source: 32,
    rate: None,
    remembered: 0,
};

/// The pause after a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener that accepts connections.
pub(crate) trait Listen: Unpin {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Unpin;

    fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(Self::Io, IpAddr, Origin)>>;
}

impl Listen for TcpListener {
    type Io = TcpStream;

    fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, IpAddr, Origin)>> {
        let (stream, peer) = ready!(TcpListener::poll_accept(self, context))?;
        // Replies are small: they must not wait for an acknowledgement.
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        let origin = Origin::of(peer.ip(), local.ip());
        Poll::Ready(Ok((stream, peer.ip(), origin)))
    }
}

impl Listen for UnixListener {
    type Io = UnixStream;

    fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(UnixStream, IpAddr, Origin)>> {
        let (stream, _) = ready!(UnixListener::poll_accept(self, context))?;
        let own = (stream, Ipv4Addr::LOCALHOST.into(), Origin::Own);
        Poll::Ready(Ok(own))
    }
}

/// The connections of a listener, limited by slots. A new one replaces the oldest of the source
/// with the most.
#[derive(Debug)]
pub(crate) struct Incoming<L> {
    listener: L,
    sources: ConnectionSlots,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<L> Incoming<L> {
    pub(crate) fn new(listener: L) -> Self {
        Self {
            listener,
            sources: ConnectionSlots::new(LIMITS),
            pause: None,
        }
    }
}

impl<L: Listen> Stream for Incoming<L> {
    type Item = io::Result<Connection<L::Io>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            let (io, peer, origin) = match ready!(self.listener.poll_accept(context)) {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "no DNS connection can be accepted");
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                    continue;
                }
            };
            match self.sources.displace(peer, origin, Instant::now()) {
                Ok(slot) => return Poll::Ready(Some(Ok(Connection::new(io, slot)))),
                Err(reason) => tracing::debug!(%peer, %reason, "a DNS connection is closed"),
            }
        }
    }
}

/// A connection with its slot. It fails when it loses the slot.
#[derive(Debug)]
pub(crate) struct Connection<I> {
    io: I,
    displaced: Pin<Box<WaitForCancellationFutureOwned>>,
    _slot: Slot,
}

impl<I> Connection<I> {
    fn new(io: I, slot: Slot) -> Self {
        Self {
            io,
            displaced: Box::pin(slot.displaced_owned()),
            _slot: slot,
        }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.displaced.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Connection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Connection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

impl<I> Connected for Connection<I> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
