// SPDX-License-Identifier: Apache-2.0

//! Reading messages.

use super::{ATTRIBUTE_LEN, HEADER_LEN, Malformed, NESTED, NET_BYTE_ORDER, padded};

/// The `N` bytes at `offset`.
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Malformed> {
    bytes
        .get(offset..)
        .and_then(<[u8]>::first_chunk)
        .copied()
        .ok_or(Malformed::Truncated)
}

/// Takes an item of `len` bytes, and its padding, off the start of `rest`.
fn split<'a>(rest: &mut &'a [u8], len: usize, header: usize) -> Result<&'a [u8], Malformed> {
    let item = rest
        .get(..len)
        .filter(|_| len >= header)
        .ok_or(Malformed::Truncated)?;
    // The last item may lack its padding.
    *rest = rest.get(padded(len)..).unwrap_or_default();
    Ok(item)
}

/// One message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    /// The message type.
    pub(crate) kind: u16,
    /// The `NLM_F_*` flags.
    pub(crate) flags: u16,
    /// The sequence number, that of the request in a reply.
    pub(crate) sequence: u32,
    /// The bytes after the header.
    pub(crate) payload: &'a [u8],
}

/// The messages of a datagram; after an error there are no more.
#[derive(Debug)]
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take_message(&mut self) -> Result<Message<'a>, Malformed> {
        let len = u32::from_ne_bytes(array(self.rest, 0)?);
        let len = usize::try_from(len).map_err(|_| Malformed::Truncated)?;
        let message = split(&mut self.rest, len, HEADER_LEN)?;
        Ok(Message {
            kind: u16::from_ne_bytes(array(message, 4)?),
            flags: u16::from_ne_bytes(array(message, 6)?),
            sequence: u32::from_ne_bytes(array(message, 8)?),
            payload: &message[HEADER_LEN..],
        })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = self.take_message();
        if message.is_err() {
            self.rest = &[];
        }
        Some(message)
    }
}

/// The attributes of a message, or of a nest; after an error there are no more.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// The attributes from `offset` on, where a protocol's own header ends.
    pub(crate) fn new(payload: &'a [u8], offset: usize) -> Result<Self, Malformed> {
        let rest = payload.get(padded(offset)..).ok_or(Malformed::Truncated)?;
        Ok(Self { rest })
    }

    /// The first attribute of a number; all up to it must be well-formed.
    pub(crate) fn find(&self, kind: u16) -> Result<Option<Attribute<'a>>, Malformed> {
        for attribute in self.clone() {
            let attribute = attribute?;
            if attribute.kind == kind {
                return Ok(Some(attribute));
            }
        }
        Ok(None)
    }

    /// As [`Self::find`], for one that is always there.
    pub(crate) fn get(&self, kind: u16) -> Result<Attribute<'a>, Malformed> {
        self.find(kind)?.ok_or(Malformed::Missing { kind })
    }

    fn take_attribute(&mut self) -> Result<Attribute<'a>, Malformed> {
        let len = usize::from(u16::from_ne_bytes(array(self.rest, 0)?));
        let attribute = split(&mut self.rest, len, ATTRIBUTE_LEN)?;
        Ok(Attribute {
            kind: u16::from_ne_bytes(array(attribute, 2)?) & !(NESTED | NET_BYTE_ORDER),
            payload: &attribute[ATTRIBUTE_LEN..],
        })
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let attribute = self.take_attribute();
        if attribute.is_err() {
            self.rest = &[];
        }
        Some(attribute)
    }
}

/// One attribute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute<'a> {
    /// Its number, without flags.
    pub(crate) kind: u16,
    /// Its value.
    pub(crate) payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    pub(crate) fn u8(self) -> Result<u8, Malformed> {
        self.exact().map(u8::from_ne_bytes)
    }

    pub(crate) fn u16(self) -> Result<u16, Malformed> {
        self.exact().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(self) -> Result<u32, Malformed> {
        self.exact().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(self) -> Result<u64, Malformed> {
        self.exact().map(u64::from_ne_bytes)
    }

    pub(crate) fn be16(self) -> Result<u16, Malformed> {
        self.exact().map(u16::from_be_bytes)
    }

    pub(crate) fn be32(self) -> Result<u32, Malformed> {
        self.exact().map(u32::from_be_bytes)
    }

    /// The text before the first NUL; bytes that are no UTF-8 are replaced.
    pub(crate) fn string(self) -> String {
        let end = self
            .payload
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(self.payload.len());
        String::from_utf8_lossy(&self.payload[..end]).into_owned()
    }

    pub(crate) fn nested(self) -> Attributes<'a> {
        Attributes { rest: self.payload }
    }

    /// The payload as exactly `N` bytes.
    pub(crate) fn exact<const N: usize>(self) -> Result<[u8; N], Malformed> {
        self.payload.try_into().map_err(|_| Malformed::Length {
            kind: self.kind,
            len: self.payload.len(),
        })
    }
}
