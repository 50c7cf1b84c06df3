// SPDX-License-Identifier: Apache-2.0

//! Echo requests and replies (RFC 792, RFC 4443).

/// The step between tokens: odd, so that all 2^64 come up, with bits in every byte.
pub(super) const TOKEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Types of messages: request and reply, of IPv4 and IPv6.
const V4: (u8, u8) = (8, 0);
const V6: (u8, u8) = (128, 129);
/// Type, code, checksum, identifier, sequence number; the token follows.
const HEADER: usize = 8;
/// Length of a message.
const LENGTH: usize = HEADER + 8;

/// Fields of a request that its reply repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) id: u16,
    pub(super) sequence: u16,
    pub(super) token: u64,
}

impl Echo {
    /// The request. The kernel fills in the checksum of IPv6.
    pub(super) fn request(self, is_v6: bool) -> [u8; LENGTH] {
        let (kind, _) = if is_v6 { V6 } else { V4 };
        let mut packet = [0; LENGTH];
        packet[0] = kind;
        packet[4..6].copy_from_slice(&self.id.to_be_bytes());
        packet[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        packet[HEADER..].copy_from_slice(&self.token.to_be_bytes());
        if !is_v6 {
            let sum = checksum(&packet);
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        packet
    }

    /// Reads a reply; `None` for anything else, and for one whose sequence number is not its token's.
    /// The checksum is left alone, since no other packet has the token.
    pub(super) fn reply(packet: &[u8], is_v6: bool) -> Option<Self> {
        let (_, kind) = if is_v6 { V6 } else { V4 };
        let packet: &[u8; LENGTH] = packet.try_into().ok()?;
        let [seen, 0, _, _, id @ .., s1, s2, _, _, _, _, _, _, _, _] = packet else {
            return None;
        };
        let id: [u8; 2] = id.to_owned();
        let token: [u8; 8] = packet[HEADER..].try_into().ok()?;
        let echo = Self {
            id: u16::from_be_bytes(id),
            sequence: u16::from_be_bytes([*s1, *s2]),
            token: u64::from_be_bytes(token),
        };
        let is_whole = u64::from(echo.sequence) == echo.token & 0xffff;
        (*seen == kind && is_whole).then_some(echo)
    }
}

/// Returns the bytes after the IPv4 header.
pub(super) fn without_ip_header(datagram: &[u8]) -> Option<&[u8]> {
    let words = datagram.first()? & 15;
    datagram.get(usize::from(words) * 4..)
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(packet: &[u8]) -> u16 {
    let words = packet
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECHO: Echo = Echo {
        id: 0x1234,
        sequence: 0x7c15,
        token: TOKEN,
    };

    #[test]
    fn a_request_has_its_checksum() {
        let request = ECHO.request(false);
        assert_eq!(request[..2], [8, 0]);
        assert_eq!(checksum(&request), 0);
        assert_eq!(ECHO.request(true)[..4], [128, 0, 0, 0]);
    }

    #[test]
    fn only_a_whole_reply_is_one() {
        let mut reply = ECHO.request(false);
        assert_eq!(Echo::reply(&reply, false), None, "a request");
        reply[0] = 0;
        assert_eq!(Echo::reply(&reply, false), Some(ECHO));
        assert_eq!(Echo::reply(&reply, true), None);
        assert_eq!(Echo::reply(&reply[..15], false), None);
        let mut other = reply;
        other[7] ^= 1;
        assert_eq!(Echo::reply(&other, false), None, "another sequence number");
        other = reply;
        other[1] = 1;
        assert_eq!(Echo::reply(&other, false), None, "another code");
    }

    #[test]
    fn the_header_has_its_own_length() {
        let mut datagram = vec![0x46; 24];
        datagram.push(9);
        assert_eq!(without_ip_header(&datagram), Some(&[9][..]));
        assert_eq!(without_ip_header(&[0x45]), None);
        assert_eq!(without_ip_header(&[]), None);
    }
}
