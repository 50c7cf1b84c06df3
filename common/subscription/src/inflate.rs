// SPDX-License-Identifier: Apache-2.0

//! Compressed records.

use portolan_proto::encoded::EncodedRecords;
use portolan_proto::limits::MAX_FRAME_BYTES;
use prost::Message;
use prost::bytes::Bytes;
use zstd::zstd_safe::get_frame_content_size;

/// A compressed frame that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InflateError {
    /// Not a frame of zstd.
    #[error("compressed records: not a zstd frame")]
    Malformed,
    /// A frame of unknown size.
    #[error("compressed records: the frame does not state its size")]
    UnknownSize,
    /// A frame larger than any that is sent.
    #[error("compressed records: {0} bytes, more than {MAX_FRAME_BYTES}")]
    TooLarge(usize),
    /// A frame of another size than it states.
    #[error("compressed records: {got} bytes, not {stated} as stated")]
    WrongSize {
        /// The size in the frame's header.
        stated: usize,
        /// The size of the content.
        got: usize,
    },
    /// Content that cannot be decompressed.
    #[error("compressed records: cannot be decompressed: {0}")]
    Corrupt(#[from] std::io::Error),
    /// Content that is no message.
    #[error("compressed records: {0}")]
    Undecodable(#[from] prost::DecodeError),
}

/// The records in a compressed frame, each still encoded: decoded one by one, tiny ones that
/// compress well cannot become much larger in memory than they were on the wire.
///
/// # Errors
/// If the frame cannot be read or exceeds the size of a frame.
pub fn inflate(compressed: &[u8]) -> Result<EncodedRecords, InflateError> {
    let stated = match get_frame_content_size(compressed) {
        Ok(Some(size)) => usize::try_from(size).unwrap_or(usize::MAX),
        Ok(None) => return Err(InflateError::UnknownSize),
        Err(_) => return Err(InflateError::Malformed),
    };
    // Before anything is allocated.
    if stated > MAX_FRAME_BYTES {
        return Err(InflateError::TooLarge(stated));
    }
    let raw = zstd::bulk::decompress(compressed, stated)?;
    if raw.len() != stated {
        let got = raw.len();
        return Err(InflateError::WrongSize { stated, got });
    }
    Ok(EncodedRecords::decode(Bytes::from(raw))?)
}
