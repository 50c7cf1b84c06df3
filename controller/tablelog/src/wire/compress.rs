// SPDX-License-Identifier: Apache-2.0

//! Compression of records.

use portolan_proto::encoded::{EncodedRecords, Frame};
use prost::Message;

/// The zstd level: higher levels gain a percent and take several times as long.
const LEVEL: i32 = 3;

/// The smallest message that is compressed, in bytes: less is not worth the agent's work.
const MIN_BYTES: usize = 1_024;

/// A compressor whose context is reused from one message to the next.
#[derive(Default)]
pub(super) struct Compressor(Option<zstd::bulk::Compressor<'static>>);

impl Compressor {
    /// A frame of these records, compressed if that makes it smaller.
    pub(super) fn records(&mut self, records: EncodedRecords) -> Frame {
        if records.encoded_len() < MIN_BYTES {
            return Frame::Records(records);
        }
        let raw = records.encode_to_vec();
        match self.compress(&raw) {
            Some(compressed) if compressed.len() < raw.len() => {
                Frame::Compressed(compressed.into())
            }
            _ => Frame::Records(records),
        }
    }

    /// `None` if the context cannot be allocated or compression fails: the records are then sent
    /// uncompressed.
    fn compress(&mut self, raw: &[u8]) -> Option<Vec<u8>> {
        if self.0.is_none() {
            self.0 = zstd::bulk::Compressor::new(LEVEL).ok();
        }
        self.0.as_mut()?.compress(raw).ok()
    }
}
