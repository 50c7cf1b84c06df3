//! A connection, and what it says of the other end.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

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
    /// Whether what is written goes out at once.
    open: AtomicBool,
    /// Whether a stream has more to say soon, with which what is held back is to go.
    waiting: AtomicBool,
    /// Woken when it is cut, and when a stream on it ends, as often as that happens.
    connection: Mutex<Option<Waker>>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr, certificate: Option<Result<Certified, String>>) -> Self {
        Self(Arc::new(State {
            address,
            certificate,
            streams: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
            open: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            connection: Mutex::default(),
        }))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The address of whoever a refusal is counted for: nobody's, if it is not known.
    pub(crate) fn ip(peer: Option<&Self>) -> IpAddr {
        peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| {
            peer.address().ip()
        })
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

    /// There is nothing more to say for now: what is written goes out from now on, and what was
    /// held back with it, unless a stream [waits](Self::wait). Whether it was held back until now.
    pub(crate) fn open(&self) -> bool {
        !self.is_waiting() && !self.is_open() && !self.0.open.swap(true, Ordering::Relaxed)
    }

    /// Whether a stream has more to say soon: until then nothing goes out.
    pub(crate) fn wait(&self, waits: bool) {
        self.0.waiting.store(waits, Ordering::Relaxed);
    }

    fn is_waiting(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed)
    }

    fn open_now(&self) {
        self.0.open.store(true, Ordering::Relaxed);
    }

    fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Closes the connection, whatever is on its way.
    fn cut(&self) {
        self.0.cut.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        let waker = self.0.connection.lock();
        waker.unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> io::Result<()> {
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
    /// The connection.
    pub(crate) fn peer(&self) -> &Peer {
        &self.0
    }

    /// Closes the connection, whatever is on its way.
    pub(crate) fn cut(&self) {
        self.0.cut();
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.0.streams.fetch_sub(1, Ordering::Relaxed);
        // Its time without a stream begins.
        self.0.wake();
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

/// How much is held back, in bytes: more than HTTP/2 says before the first answer.
const HELD_BYTES: usize = 512;

/// How much is read first, in bytes. HTTP/2 would read its preface by itself, which comes together
/// with the agent's first words.
const FIRST_BYTES: usize = 1024;

/// A connection that counts, and ends if there is no agent's stream on it for a while.
///
/// HTTP/2 begins with some words of its own, each of which would be a packet of its own. They are
/// held back until there is something to say, or [`Peer::open`] says that there will be nothing.
#[derive(Debug)]
pub(crate) struct Connection {
    io: Io,
    peer: Peer,
    held: Vec<u8>,
    ahead: Ahead,
    /// Whether more came than what was read first.
    read_on: bool,
    /// Whether the other end has closed its half.
    ended: bool,
    /// Whom [`Self::register`] has told to wake.
    waker: Option<Waker>,
    _permit: OwnedSemaphorePermit,
    /// For how long there may be none.
    within: Duration,
    /// Until when there must be one; `None` while there is.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// What was read, and not asked for yet.
#[derive(Debug)]
enum Ahead {
    /// Nothing was read yet.
    Unread,
    Bytes(Vec<u8>),
    /// What is read is what is asked for.
    Nothing,
}

impl Connection {
    pub(super) fn new(io: Io, peer: Peer, permit: OwnedSemaphorePermit, within: Duration) -> Self {
        Self {
            io,
            peer,
            held: Vec::new(),
            ahead: Ahead::Unread,
            read_on: false,
            ended: false,
            waker: None,
            _permit: permit,
            within,
            deadline: None,
        }
    }

    /// The other end.
    pub(crate) fn peer(&self) -> Peer {
        self.peer.clone()
    }

    /// An error if its end has come. Looked at by whatever HTTP/2 does: it does not read while it
    /// has something of its own to say that nobody takes.
    fn alive(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.register(context.waker());
        self.peer.check()?;
        self.check_deadline(context)
    }

    /// Is woken when it is cut, and when a stream on it ends.
    fn register(&mut self, waker: &Waker) {
        let known = self.waker.as_ref();
        if !known.is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
            *self.peer.waker() = Some(waker.clone());
        }
    }

    /// Whether it has neither been idle yet nor read twice. Most agents are let in within this turn,
    /// and need no timer. Who never stops talking leaves it too.
    fn is_in_first_turn(&self) -> bool {
        !self.peer.is_open() && !self.read_on
    }

    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.peer.is_admitted() {
            self.deadline = None;
            return Ok(());
        }
        if self.is_in_first_turn() {
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

impl Connection {
    /// Holds these bytes back, if it is not time yet for them to go out.
    fn hold(&mut self, slices: &[IoSlice<'_>]) -> Option<usize> {
        if self.peer.is_open() {
            return None;
        }
        let bytes = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let is_answer = self.peer.is_admitted() && !self.peer.is_waiting();
        if is_answer || self.held.len() + bytes > HELD_BYTES {
            self.peer.open_now();
            return None;
        }
        for slice in slices {
            self.held.extend_from_slice(slice);
        }
        Some(bytes)
    }

    /// Writes what was held back, and these bytes with it; how many of these were written.
    fn write_held(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { io, held, .. } = self;
        while !held.is_empty() {
            let all: Vec<_> = [IoSlice::new(held)]
                .into_iter()
                .chain(slices.iter().copied())
                .collect();
            let written = ready!(Pin::new(&mut *io).poll_write_vectored(context, &all))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            if written < held.len() {
                held.drain(..written);
                continue;
            }
            let of_these = written - held.len();
            *held = Vec::new();
            if of_these > 0 {
                return Poll::Ready(Ok(of_these));
            }
        }
        match slices {
            [] => Poll::Ready(Ok(0)),
            slices => Pin::new(io).poll_write_vectored(context, slices),
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(context, buffer),
            Self::Tls(io) => Pin::new(io).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(context, bytes),
            Self::Tls(io) => Pin::new(io).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(context, slices),
            Self::Tls(io) => Pin::new(io).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(context),
            Self::Tls(io) => Pin::new(io).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(context),
            Self::Tls(io) => Pin::new(io).poll_shutdown(context),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.alive(context)?;
        if let Ahead::Unread = self.ahead {
            let mut bytes = [0; FIRST_BYTES];
            let mut first = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.io).poll_read(context, &mut first))?;
            self.ended = first.filled().is_empty();
            self.ahead = Ahead::Bytes(first.filled().to_vec());
        }
        if let Ahead::Bytes(bytes) = &mut self.ahead {
            let count = bytes.len().min(buffer.remaining());
            buffer.put_slice(&bytes[..count]);
            bytes.drain(..count);
            if bytes.is_empty() {
                self.ahead = Ahead::Nothing;
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.remaining();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        self.read_on = true;
        self.ended = before > 0 && buffer.remaining() == before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.alive(context)?;
        match self.hold(slices) {
            Some(held) => Poll::Ready(Ok(held)),
            None => self.write_held(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.alive(context)?;
        if !self.peer.is_open() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.write_held(context, &[]))?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.peer.open_now();
        ready!(self.write_held(context, &[]))?;
        if self.ended && matches!(self.io, Io::Plain(_)) {
            // Both halves are closed together, when this is dropped.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
