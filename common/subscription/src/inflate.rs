//! Compressed records.

use portolan_proto::encoded::EncodedRecords;
use portolan_proto::limits::MAX_FRAME_BYTES;
use prost::Message;
use prost::bytes::Bytes;
use zstd::zstd_safe::get_frame_content_size;

/// The records in a compressed frame, each still encoded: decoded one by one, tiny ones that
/// compress well cannot become much larger in memory than they were on the wire.
///
/// # Errors
/// If it is none, or does not fit the bounds of a frame.
pub fn inflate(compressed: &[u8]) -> Result<EncodedRecords, String> {
    let size = match get_frame_content_size(compressed) {
        Ok(Some(size)) => size,
        Ok(None) => return Err("a compressed frame that does not state its size".to_owned()),
        Err(_) => return Err("a compressed frame that is none".to_owned()),
    };
    // Before anything is allocated.
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size > MAX_FRAME_BYTES {
        return Err(format!(
            "a compressed frame of {size} bytes, more than {MAX_FRAME_BYTES}"
        ));
    }
    let raw = zstd::bulk::decompress(compressed, size)
        .map_err(|error| format!("a compressed frame that cannot be read: {error}"))?;
    if raw.len() != size {
        return Err("a compressed frame of another size than it states".to_owned());
    }
    EncodedRecords::decode(Bytes::from(raw)).map_err(|error| error.to_string())
}
