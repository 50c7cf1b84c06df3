// SPDX-License-Identifier: Apache-2.0

//! Building messages.

use super::{ATTRIBUTE_LEN, NESTED, NET_BYTE_ORDER, padded};

/// The start of a message, `struct nlmsghdr` less its length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    /// The message type.
    pub(crate) kind: u16,
    /// The `NLM_F_*` flags.
    pub(crate) flags: u16,
    /// The sequence number.
    pub(crate) sequence: u32,
}

/// A buffer of packed messages.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Has the message that begins here asked for an acknowledgement.
    pub(crate) fn acknowledge(&mut self, start: usize) {
        if let Some(flags) = self.bytes.get_mut(start + 6..start + 8) {
            let asked = super::ACK | u16::from_ne_bytes([flags[0], flags[1]]);
            flags.copy_from_slice(&asked.to_ne_bytes());
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends a message whose payload `fill` writes.
    pub(crate) fn message(&mut self, header: Header, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&header.kind.to_ne_bytes());
        self.bytes.extend_from_slice(&header.flags.to_ne_bytes());
        self.bytes.extend_from_slice(&header.sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        let len = u32::try_from(self.bytes.len() - start)
            .expect("a message has a handful of attributes of 64 KiB at most");
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
        self.pad();
    }

    /// Appends bytes as they are, such as a protocol's own header.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an attribute of at most 65531 bytes.
    pub(crate) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.attribute_with(kind, |writer| writer.raw(payload));
    }

    /// Appends an attribute, at most 65531 bytes long, that consists of those that `fill` writes.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.attribute_with(kind | NESTED, fill);
    }

    pub(crate) fn u8(&mut self, kind: u16, value: u8) {
        self.attribute(kind, &[value]);
    }

    pub(crate) fn u16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// In network byte order, and flagged so.
    pub(crate) fn be16(&mut self, kind: u16, value: u16) {
        self.attribute(kind | NET_BYTE_ORDER, &value.to_be_bytes());
    }

    /// In network byte order, and flagged so.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.attribute(kind | NET_BYTE_ORDER, &value.to_be_bytes());
    }

    /// Already in network byte order, and flagged so.
    pub(crate) fn be_bytes(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind | NET_BYTE_ORDER, value);
    }

    /// With the NUL that ends it.
    pub(crate) fn string(&mut self, kind: u16, value: &str) {
        self.attribute_with(kind, |writer| {
            writer.raw(value.as_bytes());
            writer.raw(&[0]);
        });
    }

    fn attribute_with(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ATTRIBUTE_LEN]);
        fill(self);
        let len = u16::try_from(self.bytes.len() - start)
            .expect("codecs split entries and check names, so that no attribute exceeds 64 KiB");
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(padded(self.bytes.len()), 0);
    }
}
