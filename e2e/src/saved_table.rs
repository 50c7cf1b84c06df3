// SPDX-License-Identifier: Apache-2.0

//! The table that an agent keeps on its disk.

use std::fs;
use std::path::Path;

/// The frames of the table in an agent's state directory; `None` if there is none, or it cannot be read.
#[must_use]
pub fn saved_table(directory: &Path) -> Option<Vec<u8>> {
    // They follow a header and are compressed (RFC 8878, section 3.1.1).
    const FRAME: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
    let file = fs::read(directory.join("table")).ok()?;
    let start = file.windows(4).position(|bytes| bytes == FRAME)?;
    zstd::decode_all(&file[start..]).ok()
}
