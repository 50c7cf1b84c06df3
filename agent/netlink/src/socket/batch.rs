// SPDX-License-Identifier: Apache-2.0

//! Many requests in few sends, without an acknowledgement of each.
//!
//! The kernel executes all requests of a send, in order and before `send` returns, and answers
//! those that fail. The last request asks for an acknowledgement, which ends the batch. If it was
//! sent already, or there is none, a no-operation is added for that.

use super::{Socket, SocketError};
use crate::Errno;
use crate::wire::{self, HEADER_LEN, Header, Malformed, Messages, Writer};

/// A request that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Number of requests that were pushed or skipped before it.
    pub(crate) index: usize,
    /// Reason.
    pub(crate) errno: Errno,
    /// The payload of the request, if the kernel returns it: ipset does, and marks the bad entry.
    pub(crate) echo: Vec<u8>,
}

/// A batch that is being sent. Dropped before [`finish`](Self::finish), it is executed in part.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    socket: &'a mut Socket,
    writer: Writer,
    /// Collected bytes are sent when there are this many.
    limit: usize,
    /// The sequence number of the first request.
    first: u32,
    refused: Vec<Refused>,
    /// The last request that is not sent yet: where it begins, and its sequence number.
    last: Option<(usize, u32)>,
    /// For batches that the kernel executes as a whole.
    whole: Option<Whole>,
}

/// A batch that must not be split.
#[derive(Debug, Default)]
struct Whole {
    /// The sequence number of the last request that is answered.
    barrier: Option<u32>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(socket: &'a mut Socket, size: usize) -> Self {
        let limit = size.min(socket.send_limit);
        let first = socket.sequence.wrapping_add(1);
        Self {
            socket,
            writer: Writer::default(),
            limit,
            first,
            refused: Vec::new(),
            last: None,
            whole: None,
        }
    }

    /// A batch that is sent as a whole. If the kernel refuses the first request, it answers no other.
    pub(super) fn whole(socket: &'a mut Socket) -> Self {
        let mut this = Self::new(socket, usize::MAX);
        this.whole = Some(Whole::default());
        this
    }

    /// Makes the last request so far the last one that is answered, in a batch that is sent as a whole.
    pub(crate) fn end_here(&mut self) {
        if let (Some(whole), Some((start, sequence))) = (&mut self.whole, self.last) {
            self.writer.acknowledge(start);
            whole.barrier = Some(sequence);
        }
    }

    /// Adds a request of type `kind` that `fill` writes, and sends if enough is collected.
    pub(crate) fn push(
        &mut self,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut Writer),
    ) -> Result<(), SocketError> {
        let sequence = self.socket.next_sequence();
        self.last = Some((self.writer.len(), sequence));
        self.writer.message(
            Header {
                kind,
                flags: wire::REQUEST | flags,
                sequence,
            },
            fill,
        );
        if self.writer.len() < self.limit {
            return Ok(());
        }
        if self.whole.is_some() {
            let too_large = Errno::new(libc::EMSGSIZE);
            return Err(SocketError::Send(too_large));
        }
        self.send()?;
        // Taking the refusals out now keeps them from filling the receive buffer.
        while let Some(len) = self.socket.receive_if(false)? {
            self.read(len, None)?;
        }
        Ok(())
    }

    /// The bytes of a batch of which nothing is sent.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.writer.as_bytes().to_vec()
    }

    /// Counts a request that is not sent.
    pub(crate) fn skip(&mut self) {
        self.socket.next_sequence();
    }

    /// Sends the rest, waits for the end, and returns the refused requests, in order.
    pub(crate) fn finish(mut self) -> Result<Vec<Refused>, SocketError> {
        let end = self.whole.as_ref().and_then(|whole| whole.barrier);
        let barrier = match (end, self.last) {
            (Some(end), _) => end,
            (None, Some((start, sequence))) => {
                self.writer.acknowledge(start);
                sequence
            }
            (None, None) => self.push_barrier(),
        };
        self.send()?;
        loop {
            let len = self.socket.receive()?;
            if self.read(len, Some(barrier))? {
                return Ok(self.refused);
            }
        }
    }

    fn push_barrier(&mut self) -> u32 {
        let sequence = self.socket.next_sequence();
        let (kind, flags) = (wire::NOOP, wire::REQUEST | wire::ACK);
        let header = Header {
            kind,
            flags,
            sequence,
        };
        self.writer.message(header, |_| {});
        sequence
    }

    fn send(&mut self) -> Result<(), SocketError> {
        self.socket.send(self.writer.as_bytes())?;
        self.last = None;
        self.writer.clear();
        Ok(())
    }

    /// Reads a datagram; tells if it ends the batch.
    fn read(&mut self, len: usize, barrier: Option<u32>) -> Result<bool, SocketError> {
        let read = self.read_messages(len, barrier);
        read.or_else(|error| self.socket.broke(error))
    }

    fn read_messages(&mut self, len: usize, barrier: Option<u32>) -> Result<bool, Malformed> {
        for message in Messages::new(&self.socket.buffer[..len]) {
            let message = message?;
            if message.kind != wire::ERROR {
                continue;
            }
            let index = message.sequence.wrapping_sub(self.first);
            let sent = self.socket.sequence.wrapping_sub(self.first);
            let status = i32::from_ne_bytes(wire::array(message.payload, 0)?);
            let is_whole_refused = self.whole.is_some() && index == 0 && status != 0;
            let is_end = barrier == Some(message.sequence) || is_whole_refused;
            // Otherwise an answer to an earlier exchange, or an acknowledgement.
            if index <= sent && status != 0 {
                let echo = message
                    .payload
                    .get(4 + HEADER_LEN..)
                    .unwrap_or_default()
                    .to_vec();
                self.refused.push(Refused {
                    index: index as usize,
                    errno: Errno::new(status),
                    echo,
                });
            }
            if is_end {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
