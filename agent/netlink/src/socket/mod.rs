// SPDX-License-Identifier: Apache-2.0

//! One blocking netlink socket: single requests, dumps and [`Batch`]es.
//!
//! An exchange is told from an earlier one by its sequence numbers, so whatever an exchange that
//! failed left in the queue is discarded by the next one. Knows nothing of IPVS or ipset.

mod batch;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub(crate) use batch::{Batch, Refused};

use crate::wire::{self, Header, Malformed, Messages, Writer};
use crate::{Errno, sys};

/// Time limit of an answer, far longer than necessary: the kernel executes a request within the
/// send.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Room for the replies to one send: about 800 bytes each, as the kernel accounts them, times the
/// 16,000 requests of a send of 1 MiB, if every one of them failed.
const RECEIVE_BUFFER: i32 = 32 << 20;
/// Four times the largest send.
const SEND_BUFFER: i32 = 4 << 20;
/// The kernel dumps at most 32 KiB at once; ipset returns a refused message of 64 KiB whole.
const DATAGRAM_MAX: usize = 128 << 10;
/// An attribute has 64 KiB at most, and a message of this crate has one large attribute.
const MESSAGE_MAX: usize = 66 << 10;
/// Attempts at a dump before it fails because the state changed during each.
const DUMP_ATTEMPTS: usize = 5;

/// Error of a netlink socket.
///
/// After any of them but [`Refused`](Self::Refused) and [`Interrupted`](Self::Interrupted) the
/// outcome of a batch is unknown: requests may or may not have been executed. Read the kernel's
/// state again before the next batch. Later requests use a new socket: the old one may still be
/// within a dump, or unusable for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// The socket cannot be made.
    #[error("cannot open a netlink socket: {0}")]
    Open(Errno),
    /// The kernel did not take the requests of one send.
    #[error("cannot send to the kernel: {0}")]
    Send(Errno),
    /// The kernel's answer cannot be received.
    #[error("cannot receive from the kernel: {0}")]
    Receive(Errno),
    /// The receive buffer was full and answers are lost (`ENOBUFS`).
    #[error("answers of the kernel were lost, what it did is unknown")]
    Overrun,
    /// No answer came within five seconds.
    #[error("the kernel did not answer, what it did is unknown")]
    Timeout,
    /// The kernel refused a request that reads.
    #[error("the kernel refused the request: {0}")]
    Refused(Errno),
    /// The state changed during each of five dumps.
    #[error("the kernel's state kept changing while it was read")]
    Interrupted,
    /// The kernel's answer is malformed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The netlink protocols in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bus {
    /// `NETLINK_GENERIC`: IPVS.
    Generic,
    /// `NETLINK_NETFILTER`: ipset.
    Netfilter,
    /// `NETLINK_ROUTE`: routes.
    Route,
}

/// A netlink socket of the network namespace of the thread that opened it.
pub(crate) struct Socket {
    fd: OwnedFd,
    bus: Bus,
    /// Whether the kernel was asked to check dumps strictly.
    strict: bool,
    /// Whether the next send needs a new socket.
    broken: bool,
    sequence: u32,
    /// Size of the send buffer that was asked for, in bytes.
    room: i32,
    /// At most this many bytes fit a send, less one message.
    send_limit: usize,
    buffer: Box<[u8]>,
}

impl Socket {
    pub(crate) fn open(bus: Bus) -> Result<Self, SocketError> {
        let (fd, send_limit) = open(bus).map_err(SocketError::Open)?;
        Ok(Self {
            fd,
            bus,
            strict: false,
            broken: false,
            sequence: 0,
            room: SEND_BUFFER,
            send_limit,
            buffer: vec![0; DATAGRAM_MAX].into(),
        })
    }

    /// Makes the kernel refuse dumps with headers that it does not understand, and otherwise respect all
    /// that they ask for, if it can.
    pub(crate) fn check_strictly(&mut self) {
        let name = libc::NETLINK_GET_STRICT_CHK;
        // A kernel that cannot shows more than was asked for.
        let _ = sys::set_option(&self.fd, libc::SOL_NETLINK, name, 1);
        self.strict = true;
    }

    /// Raises how many bytes fit a send, if the kernel lets us.
    pub(crate) fn make_room(&mut self, bytes: i32) -> Result<(), SocketError> {
        self.room = bytes;
        self.send_limit = make_room(&self.fd, bytes).map_err(SocketError::Open)?;
        Ok(())
    }

    /// Replaces a socket after an error of its own.
    fn renew(&mut self) -> Result<(), SocketError> {
        (self.fd, self.send_limit) = open(self.bus).map_err(SocketError::Open)?;
        if self.strict {
            self.check_strictly();
        }
        self.make_room(self.room)?;
        self.broken = false;
        Ok(())
    }

    /// Marks the socket as unusable after an error.
    fn broke<T>(&mut self, error: impl Into<SocketError>) -> Result<T, SocketError> {
        self.broken = true;
        Err(error.into())
    }

    /// Number of requests so far.
    pub(crate) fn requests(&self) -> u32 {
        self.sequence
    }

    /// A batch that is sent in pieces of about `size` bytes.
    pub(crate) fn batch(&mut self, size: usize) -> Batch<'_> {
        Batch::new(self, size)
    }

    /// Sends one request of type `kind` and has `decode` add each of its replies to the result.
    pub(crate) fn request<T: Default>(
        &mut self,
        kind: u16,
        fill: impl Fn(&mut Writer),
        decode: impl Fn(&mut T, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, SocketError> {
        self.exchange(kind, wire::ACK, &fill, &decode)
            .map(|(result, _)| result)
    }

    /// As [`Self::request`], for a dump: starts again if the kernel says that it is inconsistent.
    pub(crate) fn dump<T: Default>(
        &mut self,
        kind: u16,
        fill: impl Fn(&mut Writer),
        decode: impl Fn(&mut T, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, SocketError> {
        for _ in 0..DUMP_ATTEMPTS {
            let (result, interrupted) = self.exchange(kind, wire::DUMP, &fill, &decode)?;
            if !interrupted {
                return Ok(result);
            }
        }
        Err(SocketError::Interrupted)
    }

    /// As [`Self::dump`], once: objects that change meanwhile may be missing.
    pub(crate) fn dump_once<T: Default>(
        &mut self,
        kind: u16,
        fill: impl Fn(&mut Writer),
        decode: impl Fn(&mut T, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, SocketError> {
        self.exchange(kind, wire::DUMP, &fill, &decode)
            .map(|(result, _)| result)
    }

    /// A batch that is sent as a whole, or not at all.
    pub(crate) fn atomic_batch(&mut self) -> Batch<'_> {
        Batch::whole(self)
    }

    fn exchange<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        fill: &impl Fn(&mut Writer),
        decode: &impl Fn(&mut T, &[u8]) -> Result<(), Malformed>,
    ) -> Result<(T, bool), SocketError> {
        let sequence = self.next_sequence();
        let mut writer = Writer::default();
        writer.message(
            Header {
                kind,
                flags: wire::REQUEST | flags,
                sequence,
            },
            fill,
        );
        self.send(writer.as_bytes())?;
        let mut result = T::default();
        let mut malformed = None;
        // Also after a malformed reply everything is read, or the dump would still be running.
        let interrupted = self.replies(sequence, |payload| {
            malformed = malformed.or(decode(&mut result, payload).err());
        })?;
        match malformed {
            None => Ok((result, interrupted)),
            Some(error) => Err(error.into()),
        }
    }

    /// Hands out the replies to a request until its end; tells if one was marked as inconsistent.
    fn replies(&mut self, sequence: u32, mut each: impl FnMut(&[u8])) -> Result<bool, SocketError> {
        let mut interrupted = false;
        loop {
            let len = self.receive()?;
            for message in Messages::new(&self.buffer[..len]) {
                let message = match message {
                    Ok(message) => message,
                    Err(error) => {
                        self.broken = true;
                        return Err(error.into());
                    }
                };
                if message.sequence != sequence {
                    continue;
                }
                interrupted |= message.flags & wire::DUMP_INTERRUPTED != 0;
                match message.kind {
                    wire::ERROR | wire::DONE => {
                        let status = i32::from_ne_bytes(wire::array(message.payload, 0)?);
                        if status < 0 {
                            return Err(SocketError::Refused(Errno::new(status)));
                        }
                        return Ok(interrupted);
                    }
                    wire::NOOP => {}
                    _ => each(message.payload),
                }
            }
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), SocketError> {
        if self.broken {
            self.renew()?;
        }
        loop {
            match sys::send(&self.fd, bytes) {
                Ok(()) => return Ok(()),
                Err(errno) if errno.number() == libc::EINTR => {}
                Err(errno) => return self.broke(SocketError::Send(errno)),
            }
        }
    }

    /// Waits for a datagram and returns its length in the buffer.
    fn receive(&mut self) -> Result<usize, SocketError> {
        match self.receive_if(true)? {
            Some(len) => Ok(len),
            None => self.broke(SocketError::Timeout),
        }
    }

    /// Without `wait`, `None` if there is no datagram now.
    fn receive_if(&mut self, wait: bool) -> Result<Option<usize>, SocketError> {
        loop {
            match sys::receive(&self.fd, &mut self.buffer, wait) {
                Ok(len) if len > self.buffer.len() => return self.broke(Malformed::Truncated),
                Ok(len) => return Ok(Some(len)),
                Err(errno) => match errno.number() {
                    libc::EINTR => {}
                    libc::EAGAIN => return Ok(None),
                    libc::ENOBUFS => return self.broke(SocketError::Overrun),
                    _ => return self.broke(SocketError::Receive(errno)),
                },
            }
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

/// A socket, and how many bytes may be collected before a send.
fn open(bus: Bus) -> Result<(OwnedFd, usize), Errno> {
    let protocol = match bus {
        Bus::Generic => libc::NETLINK_GENERIC,
        Bus::Netfilter => libc::NETLINK_NETFILTER,
        Bus::Route => libc::NETLINK_ROUTE,
    };
    let fd = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    let send_limit = set_options(&fd)?;
    Ok((fd, send_limit))
}

/// Sets buffers and timeout and returns how many bytes may be collected before a send.
fn set_options(fd: &OwnedFd) -> Result<usize, Errno> {
    let level = libc::SOL_SOCKET;
    // Forcing needs CAP_NET_ADMIN; without it the kernel cuts the sizes to its limits.
    sys::set_option(fd, level, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)
        .or_else(|_| sys::set_option(fd, level, libc::SO_RCVBUF, RECEIVE_BUFFER))?;
    sys::set_receive_timeout(fd, RECEIVE_TIMEOUT)?;
    // Refusals need not carry the request: its sequence number is enough.
    sys::set_option(fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
    make_room(fd, SEND_BUFFER)
}

/// Sets the size of the send buffer and returns how many bytes may be collected before a send.
fn make_room(fd: &OwnedFd, bytes: i32) -> Result<usize, Errno> {
    let level = libc::SOL_SOCKET;
    sys::set_option(fd, level, libc::SO_SNDBUFFORCE, bytes)
        .or_else(|_| sys::set_option(fd, level, libc::SO_SNDBUF, bytes))?;
    let mut size = [0; 4];
    sys::get_option(fd, level, libc::SO_SNDBUF, &mut size)?;
    let size = usize::try_from(i32::from_ne_bytes(size)).unwrap_or(0);
    Ok(size.saturating_sub(MESSAGE_MAX))
}
