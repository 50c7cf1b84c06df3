// SPDX-License-Identifier: Apache-2.0

//! The format of inputs: messages, each preceded by its length, as in a protobuf file of several.

use prost::Message;
use prost::encoding::{decode_varint, encode_varint};

/// The messages of an input. The last one is truncated where the input ends.
#[derive(Debug)]
pub struct Pieces<'d>(pub &'d [u8]);

impl<'d> Iterator for Pieces<'d> {
    type Item = &'d [u8];

    fn next(&mut self) -> Option<&'d [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let length = decode_varint(&mut self.0).ok()?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (piece, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        Some(piece)
    }
}

/// Joins messages into an input.
#[must_use]
pub fn join(messages: &[impl Message]) -> Vec<u8> {
    let mut input = Vec::new();
    for message in messages {
        let bytes = message.encode_to_vec();
        encode_varint(bytes.len() as u64, &mut input);
        input.extend(bytes);
    }
    input
}

/// Joins encoded messages into an input.
#[must_use]
pub fn join_bytes(pieces: &[&[u8]]) -> Vec<u8> {
    let mut input = Vec::new();
    for piece in pieces {
        encode_varint(piece.len() as u64, &mut input);
        input.extend_from_slice(piece);
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_parts_are_split_again() {
        let pieces: [&[u8]; 3] = [b"a", b"", &[7; 300]];
        let input = join_bytes(&pieces);
        assert_eq!(Pieces(&input).collect::<Vec<_>>(), pieces);
        let cut = &input[..input.len() - 1];
        assert_eq!(Pieces(cut).last().unwrap().len(), 299);
    }
}
