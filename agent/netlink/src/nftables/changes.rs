// SPDX-License-Identifier: Apache-2.0

//! Notifications of changes of tables (kernel: `NFNLGRP_NFTABLES`, `nf_tables_commit`).
//!
//! The kernel makes a message of every changed object while anybody listens. So a program that makes large
//! changes itself does not listen meanwhile ([`Changes::pause`]), and compares generations afterwards.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{GET_GENERATION, HEADER_LEN, SUBSYSTEM, kind, reply};
use crate::socket::SocketError;
use crate::sys;
use crate::wire::{self, Header, Messages, Writer};

/// `NFNLGRP_NFTABLES`.
const GROUP: i32 = 7;
/// `NFT_MSG_NEWGEN`, which follows the objects of a transaction.
const NEW_GENERATION: u16 = 15;
/// Room for the messages of a large change. More are lost, which is noticed.
const RECEIVE_BUFFER: i32 = 1 << 20;
/// The kernel sends at most a page of messages at once, in a datagram.
const DATAGRAM_MAX: usize = 64 << 10;

/// A subscription to changes of tables, in the network namespace of the thread that opened it. It is never
/// waited for: the descriptor becomes readable. Needs `CAP_NET_ADMIN` on older kernels.
#[derive(Debug)]
pub struct Changes {
    fd: OwnedFd,
    buffer: Box<[u8]>,
}

impl Changes {
    /// Subscribes.
    ///
    /// # Errors
    /// If the kernel does not let us.
    pub fn open() -> Result<Self, SocketError> {
        let open = || {
            let fd = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)?;
            sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
            // A request gives the socket its address.
            let mut writer = Writer::default();
            let header = Header {
                kind: kind(GET_GENERATION),
                flags: wire::REQUEST,
                sequence: 1,
            };
            writer.message(header, |writer| writer.raw(&[0; HEADER_LEN]));
            sys::send(&fd, writer.as_bytes())?;
            Ok(fd)
        };
        let this = Self {
            fd: open().map_err(SocketError::Open)?,
            buffer: vec![0; DATAGRAM_MAX].into(),
        };
        this.resume()?;
        Ok(this)
    }

    /// Stops to listen. What was not read stays readable.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn pause(&self) -> Result<(), SocketError> {
        self.member(libc::NETLINK_DROP_MEMBERSHIP)
    }

    /// Listens again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn resume(&self) -> Result<(), SocketError> {
        self.member(libc::NETLINK_ADD_MEMBERSHIP)
    }

    fn member(&self, option: i32) -> Result<(), SocketError> {
        let set = sys::set_option(&self.fd, libc::SOL_NETLINK, option, GROUP);
        set.map_err(SocketError::Open)
    }

    /// Reads all messages so far; returns whether any is about a table of this name, or may be.
    pub fn read(&mut self, table: &str) -> bool {
        let mut found = false;
        loop {
            match sys::receive(&self.fd, &mut self.buffer, false) {
                Ok(len) => found |= is_about(self.buffer.get(..len), table),
                Err(errno) => match errno.number() {
                    libc::EINTR => {}
                    libc::EAGAIN => return found,
                    // Messages were lost.
                    libc::ENOBUFS => found = true,
                    // Nothing is known from now on.
                    _ => return true,
                },
            }
        }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns `true` if a datagram is about a table, or cannot be read: `None` if it was longer than
/// the buffer.
fn is_about(datagram: Option<&[u8]>, table: &str) -> bool {
    let Some(datagram) = datagram else {
        return true;
    };
    Messages::new(datagram).any(|message| {
        let Ok(message) = message else { return true };
        let is_object = message.kind >> 8 == SUBSYSTEM && message.kind != kind(NEW_GENERATION);
        let is_ours = || reply::read_name(message.payload).map(|name| name == table);
        is_object && is_ours().unwrap_or(true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NFTA_TABLE_NAME`, and the attribute of the table of all other objects.
    const NAME: u16 = 1;

    fn datagram(kind: u16, payload: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        let header = Header {
            kind,
            flags: 0,
            sequence: 0,
        };
        writer.message(header, |writer| {
            writer.raw(&[0; HEADER_LEN]);
            payload(writer);
        });
        writer.as_bytes().to_vec()
    }

    #[test]
    fn messages_of_other_tables_are_not_about_ours() {
        let of = |name: &str| datagram(kind(0), |writer| writer.string(NAME, name));
        assert!(is_about(Some(&of("ours")), "ours"));
        assert!(!is_about(Some(&of("theirs")), "ours"));
        let both = [of("theirs"), of("ours")].concat();
        assert!(is_about(Some(&both), "ours"));
        // The number of the change follows its objects.
        let number = datagram(kind(NEW_GENERATION), |_| {});
        assert!(!is_about(Some(&number), "ours"));
    }

    #[test]
    fn messages_that_cannot_be_read_may_be_about_ours() {
        let nameless = datagram(kind(0), |_| {});
        let whole = datagram(kind(0), |writer| writer.string(NAME, "theirs"));
        let cut = &whole[..whole.len() - 4];
        for datagram in [None, Some(&*nameless), Some(cut)] {
            assert!(is_about(datagram, "ours"), "{datagram:?}");
        }
    }
}
