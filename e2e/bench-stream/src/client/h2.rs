// SPDX-License-Identifier: Apache-2.0

//! The part of HTTP/2 needed for one call on one connection.

use anyhow::{Result, bail};

use super::head::Head;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const HEAD_BYTES: usize = 9;

/// The only stream.
const STREAM: u32 = 1;

/// The largest frame that every server must accept, in bytes.
const MAX_SENT_FRAME: usize = 16 << 10;

/// Windows and frame size of the agent.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 2 << 20;
const MAX_FRAME: u32 = 256 << 10;
/// The initial window of every connection.
const DEFAULT_WINDOW: u32 = 65_535;

/// A received event.
#[derive(Debug, PartialEq)]
pub(super) enum Event<'a> {
    /// A piece of the response body.
    Data(&'a [u8]),
    /// The server's settings, which must be acknowledged.
    Settings,
    /// A ping, which must be answered.
    Ping([u8; 8]),
    /// The call has ended, for this reason.
    Ended(&'static str),
}

/// Incremental frame decoder.
#[derive(Debug, Default)]
pub(super) struct Reader {
    head: Head<HEAD_BYTES>,
    kind: u8,
    flags: u8,
    /// Remaining bytes of the frame's body; `None` within the head.
    left: Option<usize>,
    /// The body of a frame other than DATA.
    body: Vec<u8>,
}

impl Reader {
    /// Decodes the bytes of a read, and calls `show` with each event.
    pub(super) fn feed<'a>(
        &mut self,
        mut bytes: &'a [u8],
        mut show: impl FnMut(Event<'a>) -> Result<()>,
    ) -> Result<()> {
        loop {
            let Some(left) = self.left else {
                let Some([a, b, c, kind, flags, ..]) = self.head.fill(&mut bytes) else {
                    return Ok(());
                };
                (self.kind, self.flags) = (kind, flags);
                self.left = Some(u32::from_be_bytes([0, a, b, c]) as usize);
                continue;
            };
            let (now, later) = bytes.split_at(bytes.len().min(left));
            bytes = later;
            let left = left - now.len();
            self.left = Some(left);
            if self.kind == DATA {
                if !now.is_empty() {
                    show(Event::Data(now))?;
                }
            } else {
                self.body.extend_from_slice(now);
            }
            if left > 0 {
                return Ok(());
            }
            self.finish(&mut show)?;
        }
    }

    fn finish<'a>(&mut self, show: &mut impl FnMut(Event<'a>) -> Result<()>) -> Result<()> {
        let (kind, flags) = (self.kind, self.flags);
        self.head.clear();
        self.left = None;
        let body = std::mem::take(&mut self.body);
        match kind {
            DATA if flags & PADDED != 0 => bail!("a padded frame"),
            DATA | HEADERS if flags & END_STREAM != 0 => show(Event::Ended("by the server")),
            SETTINGS if flags & ACK == 0 => show(Event::Settings),
            PING if flags & ACK == 0 => match body.as_slice().try_into() {
                Ok(opaque) => show(Event::Ping(opaque)),
                Err(_) => bail!("a ping of {} bytes", body.len()),
            },
            RST_STREAM => show(Event::Ended("reset")),
            GOAWAY => show(Event::Ended("by GOAWAY")),
            _ => Ok(()),
        }
    }
}

/// Writes the connection preface and the head of the call.
pub(super) fn open(out: &mut Vec<u8>, scheme_is_https: bool) {
    out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let mut settings = Vec::new();
    // No pushes; stream window; frame size.
    for (setting, value) in [(2_u16, 0_u32), (4, STREAM_WINDOW), (5, MAX_FRAME)] {
        settings.extend_from_slice(&setting.to_be_bytes());
        settings.extend_from_slice(&value.to_be_bytes());
    }
    frame(out, SETTINGS, 0, 0, &settings);
    window_update(out, 0, CONNECTION_WINDOW - DEFAULT_WINDOW);
    // By number in HPACK's static table: POST, the scheme, then names with literal values.
    let mut headers = vec![0x83, if scheme_is_https { 0x87 } else { 0x86 }];
    for (name, value) in [
        (&[0x04][..], "/portolan.v1.Tables/Sync"),
        (&[0x01], "localhost"),
        (&[0x0f, 0x10], "application/grpc"),
        (&[0x00, 2, b't', b'e'], "trailers"),
    ] {
        headers.extend_from_slice(name);
        // All values are shorter than 127 bytes, so their length takes one byte.
        headers.extend(u8::try_from(value.len()));
        headers.extend_from_slice(value.as_bytes());
    }
    frame(out, HEADERS, END_HEADERS, STREAM, &headers);
}

/// Writes a message of the call.
pub(super) fn message(out: &mut Vec<u8>, message: &[u8]) -> Result<()> {
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
    framed.extend_from_slice(message);
    for piece in framed.chunks(MAX_SENT_FRAME) {
        frame(out, DATA, 0, STREAM, piece);
    }
    Ok(())
}

/// Acknowledges the server's settings.
pub(super) fn settings_ack(out: &mut Vec<u8>) {
    frame(out, SETTINGS, ACK, 0, &[]);
}

pub(super) fn pong(out: &mut Vec<u8>, opaque: [u8; 8]) {
    frame(out, PING, ACK, 0, &opaque);
}

/// Returns window for the bytes received, once they are half of the stream's window.
pub(super) fn make_room(out: &mut Vec<u8>, taken: &mut u32) {
    if *taken >= STREAM_WINDOW / 2 {
        window_update(out, 0, *taken);
        window_update(out, STREAM, *taken);
        *taken = 0;
    }
}

fn window_update(out: &mut Vec<u8>, stream: u32, by: u32) {
    frame(out, WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    // Bodies are at most [`MAX_SENT_FRAME`] long: three bytes are enough.
    let [.., a, b, c] = body.len().to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart_wherever_reads_cut_them() {
        let mut bytes = Vec::new();
        frame(&mut bytes, SETTINGS, 0, 0, &[0; 6]);
        message(&mut bytes, b"hello").unwrap();
        frame(&mut bytes, PING, 0, 0, b"12345678");
        settings_ack(&mut bytes);
        frame(&mut bytes, HEADERS, END_STREAM, 1, b"..");
        for cut in 1..bytes.len() {
            let (mut reader, mut data, mut others) = (Reader::default(), Vec::new(), Vec::new());
            for piece in bytes.chunks(cut) {
                let show = |event: Event<'_>| {
                    match event {
                        Event::Data(piece) => data.extend_from_slice(piece),
                        Event::Settings => others.push("settings"),
                        Event::Ping(opaque) => {
                            assert_eq!(&opaque, b"12345678");
                            others.push("ping");
                        }
                        Event::Ended(_) => others.push("ended"),
                    }
                    Ok(())
                };
                reader.feed(piece, show).unwrap();
            }
            assert_eq!(data, b"\0\0\0\0\x05hello");
            assert_eq!(others, ["settings", "ping", "ended"]);
        }
    }
}
