//! A listener that strangers cannot use up: what they leave open costs a bounded number of file
//! descriptors, and not for long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;

/// How many connections a port serves at a time; more wait to be accepted.
const CONNECTIONS: usize = 256;

/// A connection that neither takes nor gives anything for so long is closed: those who ask come
/// every few seconds, or can connect again.
const IDLE: Duration = Duration::from_secs(15);

/// A listener with a bounded number of connections that end when they are idle.
#[derive(Debug)]
pub struct Bounded<L = TcpListener> {
    listener: L,
    permits: Arc<Semaphore>,
    idle: Duration,
}

impl<L> Bounded<L> {
    /// At most 256 connections at a time, none of them silent for more than 15 seconds.
    #[must_use]
    pub fn new(listener: L) -> Self {
        Self::with(listener, CONNECTIONS, IDLE)
    }

    fn with(listener: L, connections: usize, idle: Duration) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(connections)),
            idle,
        }
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = BoundedIo<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // Nobody closes it.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        let (io, address) = self.listener.accept().await;
        let mut io = Box::pin(TimeoutStream::new(io));
        io.as_mut().set_read_timeout_pinned(Some(self.idle));
        io.as_mut().set_write_timeout_pinned(Some(self.idle));
        let connection = BoundedIo {
            io,
            _permit: permit,
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection of a [`Bounded`] listener.
#[derive(Debug)]
pub struct BoundedIo<I> {
    io: Pin<Box<TimeoutStream<I>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<I: AsyncRead + AsyncWrite> AsyncRead for BoundedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(context, buffer)
    }
}

impl<I: AsyncRead + AsyncWrite> AsyncWrite for BoundedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(context)
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self(*stream.remote_addr())
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    async fn serve(connections: usize, idle: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Bounded::with(listener, connections, idle);
        let router = Router::new().route("/", get(|| async { "here" }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn ask(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn those_who_say_nothing_make_room() {
        let address = serve(2, Duration::from_millis(300)).await;
        let mut silent = Vec::new();
        for _ in 0..5 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // Half a request is no more than none.
        silent[0].write_all(b"GET / HT").await.unwrap();
        let answer = timeout(PATIENCE, ask(address)).await.unwrap();
        assert!(answer.ends_with("here"), "{answer}");
        for mut stream in silent {
            let mut rest = Vec::new();
            let _ = timeout(PATIENCE, stream.read_to_end(&mut rest))
                .await
                .unwrap();
        }
    }

    #[tokio::test]
    async fn no_more_are_served_than_may_be() {
        let address = serve(1, PATIENCE * 10).await;
        let silent = TcpStream::connect(address).await.unwrap();
        assert!(
            timeout(Duration::from_millis(200), ask(address))
                .await
                .is_err()
        );
        drop(silent);
        let answer = timeout(PATIENCE, ask(address)).await.unwrap();
        assert!(answer.ends_with("here"), "{answer}");
    }
}
