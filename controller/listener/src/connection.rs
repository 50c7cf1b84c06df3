// SPDX-License-Identifier: Apache-2.0

//! A connection: its input budget, its first output and its probation.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use portolan_auth::{Certified, CertifiedError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;

use crate::budget::{Allowance, Budget};
use crate::gate::Gate;
use crate::peer::Peer;
use crate::probation::Probation;

/// The node or relay of the peer's verified certificate, or why it names none; `None` without a
/// certificate.
pub(crate) fn certified(
    stream: &TlsStream<TcpStream>,
) -> Option<Result<Certified, CertifiedError>> {
    let (_, session) = stream.get_ref();
    let own = session.peer_certificates()?.first()?;
    Some(Certified::read(own))
}

/// The transport below HTTP/2.
#[derive(Debug)]
pub(crate) enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Limit of held-back output, in bytes: more than HTTP/2 writes before the first answer.
const HELD_BYTES: usize = 512;

/// Size of the first read, in bytes. HTTP/2 would read its preface alone, which arrives together
/// with the agent's first frames.
const FIRST_BYTES: usize = 1024;

/// A connection that is counted, and that ends if it has no stream of an agent for a while.
///
/// HTTP/2 begins with a few frames, each of which would be a packet of its own. They are held back
/// until there is an answer, or until [`Peer::open`].
#[derive(Debug)]
pub struct Connection {
    io: Io,
    peer: Peer,
    held: Vec<u8>,
    ahead: Ahead,
    /// Whether there was input after the first read.
    read_on: bool,
    /// Whether the peer has closed its direction.
    ended: bool,
    /// The waker that [`Self::register`] has set.
    waker: Option<Waker>,
    _permit: OwnedSemaphorePermit,
    gate: Arc<Gate>,
    budget: Budget,
    /// Time limit for a stream of an agent; `None` while there is one, and in the first turn.
    probation: Option<Probation>,
}

/// Input that was read ahead of HTTP/2.
#[derive(Debug)]
enum Ahead {
    /// The first read is still to come.
    Unread,
    Bytes(Vec<u8>),
    /// All of it was passed on; HTTP/2 reads from the transport.
    Nothing,
}

impl Connection {
    pub(crate) fn new(io: Io, peer: Peer, permit: OwnedSemaphorePermit, gate: Arc<Gate>) -> Self {
        Self {
            io,
            peer,
            held: Vec::new(),
            ahead: Ahead::Unread,
            read_on: false,
            ended: false,
            waker: None,
            _permit: permit,
            gate,
            budget: Budget::default(),
            probation: None,
        }
    }

    /// The peer.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.peer.clone()
    }

    /// Returns an error if the connection is to end. Reads, writes and flushes all check it: HTTP/2
    /// does not read while it has output that the peer does not take.
    fn alive(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.register(context.waker());
        self.peer.check()?;
        self.check_probation(context)
    }

    /// Sets the waker for a cut of the connection and for the end of a stream on it.
    fn register(&mut self, waker: &Waker) {
        let known = self.waker.as_ref();
        if !known.is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
            self.peer.register(waker.clone());
        }
    }

    /// Returns `true` if the connection has neither been idle yet nor read twice. Most agents are
    /// admitted within this turn and need no timer. A peer that never stops sending leaves it too.
    fn is_in_first_turn(&self) -> bool {
        !self.peer.is_open() && !self.read_on
    }

    fn check_probation(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.peer.is_admitted() {
            self.probation = None;
            return Ok(());
        }
        if self.is_in_first_turn() {
            return Ok(());
        }
        let begin = || Probation::begin(&self.gate, self.peer.address());
        let probation = match &mut self.probation {
            Some(probation) => probation,
            none => none.insert(begin()?),
        };
        match probation.poll(context) {
            Poll::Ready(error) => Err(error),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connection {
    /// Holds bytes back. Returns their number, or `None` if they are to be sent now.
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

    /// Writes held-back output and then `slices`. Returns how many bytes of `slices` were written.
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
        let costs = self.peer.take_costs();
        self.budget.spend(costs);
        if self.peer.is_edge() {
            self.budget.raise(Allowance::EDGE);
        }
        ready!(self.budget.poll(context))?;
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
        let count = before - buffer.remaining();
        self.budget.spend_read(count);
        self.ended = before > 0 && count == 0;
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
            // Both directions are closed together, when this is dropped.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
