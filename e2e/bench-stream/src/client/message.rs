// SPDX-License-Identifier: Apache-2.0

//! The part of gRPC and of the protocol needed to recognize Welcomes, Commits and AskBuckets.

use anyhow::{Result, ensure};
use portolan_proto::v1;
use prost::Message as _;

use super::head::Head;

/// The size of a message's prefix: the compression flag and the length.
const HEAD_BYTES: usize = 5;

/// The number of bytes kept of a message. The decoded messages are shorter; records are not.
const LOOK_BYTES: usize = 512;

/// A decoded message.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Welcome { epoch: u64 },
    Commit(Box<v1::Commit>),
    AskBuckets { count: u32 },
}

/// Incremental message decoder.
#[derive(Debug, Default)]
pub(super) struct Messages {
    head: Head<HEAD_BYTES>,
    /// Remaining bytes of the message; `None` within the head.
    left: Option<usize>,
    /// The beginning of the message.
    begin: Vec<u8>,
}

impl Messages {
    /// Decodes a piece of the body, and appends its messages to `heard`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], heard: &mut Vec<Heard>) -> Result<()> {
        while !bytes.is_empty() {
            let left = match self.left {
                Some(left) => left,
                None => {
                    let Some([compressed, a, b, c, d]) = self.head.fill(&mut bytes) else {
                        return Ok(());
                    };
                    ensure!(compressed == 0, "a message that gRPC compressed");
                    u32::from_be_bytes([a, b, c, d]) as usize
                }
            };
            let (now, later) = bytes.split_at(bytes.len().min(left));
            let look = now.len().min(LOOK_BYTES - self.begin.len());
            self.begin.extend_from_slice(&now[..look]);
            self.left = Some(left - now.len());
            bytes = later;
            if self.left == Some(0) {
                self.left = None;
                self.head.clear();
                look_at(&self.begin, heard)?;
                self.begin.clear();
            }
        }
        Ok(())
    }
}

/// Decodes the fields of a frame, which may be truncated to its beginning.
fn look_at(mut frame: &[u8], heard: &mut Vec<Heard>) -> Result<()> {
    while !frame.is_empty() {
        let tag = prost::decode_length_delimiter(&mut frame)?;
        ensure!(tag & 7 == 2, "a frame with a field that is no message");
        let Ok(length) = prost::decode_length_delimiter(&mut frame) else {
            return Ok(());
        };
        let Some((field, rest)) = frame.split_at_checked(length) else {
            return Ok(());
        };
        frame = rest;
        match tag >> 3 {
            1 => heard.push(Heard::Welcome {
                epoch: v1::Welcome::decode(field)?.epoch,
            }),
            4 => heard.push(Heard::Commit(Box::new(v1::Commit::decode(field)?))),
            7 => heard.push(Heard::AskBuckets {
                count: v1::AskBuckets::decode(field)?.count,
            }),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_proto::v1::frame::Frame;

    fn framed(frame: Frame) -> Vec<u8> {
        let message = v1::Frame { frame: Some(frame) }.encode_to_vec();
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(&message);
        bytes
    }

    #[test]
    fn messages_are_read_wherever_they_are_split() {
        let commit = v1::Commit {
            revision: 7,
            records_hash: vec![1; 16],
            ..v1::Commit::default()
        };
        let welcome = v1::Welcome {
            version: 1,
            epoch: 9,
            ..v1::Welcome::default()
        };
        let mut bytes = framed(Frame::Welcome(welcome));
        bytes.extend(framed(Frame::Compressed(vec![0x22; 5_000])));
        bytes.extend(framed(Frame::AskBuckets(v1::AskBuckets { count: 64 })));
        bytes.extend(framed(Frame::Commit(commit.clone())));
        let expected = [
            Heard::Welcome { epoch: 9 },
            Heard::AskBuckets { count: 64 },
            Heard::Commit(Box::new(commit)),
        ];
        for cut in 1..bytes.len() {
            let (mut messages, mut heard) = (Messages::default(), Vec::new());
            for piece in bytes.chunks(cut) {
                messages.feed(piece, &mut heard).unwrap();
            }
            assert_eq!(heard, expected);
        }
    }
}
