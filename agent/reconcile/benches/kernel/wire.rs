// SPDX-License-Identifier: Apache-2.0

//! A bare netlink socket.

use std::os::fd::OwnedFd;

use anyhow::{Result, ensure};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, send, socket_with, sockopt};

use crate::encode::{ACK, Pack};

/// The size of a send, in bytes: the best by measurement.
const SEND: usize = 256 << 10;

pub(crate) struct Wire {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Wire {
    pub(crate) fn generic() -> Result<Self> {
        Self::open(Some(netlink::GENERIC))
    }

    pub(crate) fn netfilter() -> Result<Self> {
        Self::open(Some(netlink::NETFILTER))
    }

    pub(crate) fn route() -> Result<Self> {
        // NETLINK_ROUTE is number 0.
        Self::open(None)
    }

    fn open(protocol: Option<Protocol>) -> Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let fd = socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        sockopt::set_socket_send_buffer_size_force(&fd, 8 << 20)?;
        sockopt::set_socket_recv_buffer_size_force(&fd, 8 << 20)?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        let buffer = vec![0; 64 << 10];
        Ok(Self { fd, buffer })
    }

    /// Sends all messages in large pieces without acknowledgements, then waits for a barrier.
    pub(crate) fn batched(&mut self, pack: &Pack) -> Result<()> {
        let mut from = 0;
        for (index, end) in pack.ends.iter().enumerate() {
            let last = index + 1 == pack.ends.len();
            if last || end - from > SEND {
                send(&self.fd, &pack.bytes[from..*end], SendFlags::empty())?;
                from = *end;
            }
        }
        let mut barrier = Pack::default();
        barrier.message(1, ACK, |_| {});
        self.acknowledged(&barrier.bytes)
    }

    /// Sends a transaction, of which one message asks for an acknowledgement, and waits for that.
    pub(crate) fn transaction(&mut self, bytes: &[u8]) -> Result<()> {
        self.acknowledged(bytes)
    }

    /// Sends one message at a time and waits for its acknowledgement.
    pub(crate) fn one_by_one(&mut self, pack: &mut Pack) -> Result<()> {
        let mut from = 0;
        for end in &pack.ends {
            pack.bytes[from + 6] |= 4;
            self.acknowledged(&pack.bytes[from..*end])?;
            from = *end;
        }
        Ok(())
    }

    /// Sends a message that requests an acknowledgement.
    ///
    /// # Errors
    /// If the acknowledgement carries any error.
    fn acknowledged(&mut self, message: &[u8]) -> Result<()> {
        let answer = self.exchange(message)?;
        let status = answer.get(16..20).unwrap_or(&[1; 4]);
        ensure!(status == [0; 4], "the kernel refused a message: {status:?}");
        Ok(())
    }

    pub(crate) fn exchange(&mut self, message: &[u8]) -> Result<&[u8]> {
        send(&self.fd, message, SendFlags::empty())?;
        let (length, _) = recv(&self.fd, &mut self.buffer[..], RecvFlags::empty())?;
        Ok(&self.buffer[..length])
    }
}
