// SPDX-License-Identifier: Apache-2.0

//! Puts a zone file in place, if its content is new.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use portolan_runtime::AtomicFile;

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It has this content already.
    Unchanged,
    /// It has the new content, and this serial.
    Replaced(u32),
}

/// The serial of a zone file as [`render`](super::render()) writes it.
#[must_use]
pub fn serial_of(text: &str) -> Option<u32> {
    let soa = text.lines().find_map(|line| line.strip_prefix("@ SOA "))?;
    soa.split(' ').nth(2)?.parse().ok()
}

/// Writes the output of `render` for a new serial, unless the file differs in the serial only. The
/// new serial is one more than the file's, or `first` if there is none: servers and secondaries
/// load a zone if its serial grew, and a restart must not make it smaller.
///
/// The file is replaced atomically. Its directory is made if it is missing.
///
/// # Errors
///
/// If the file cannot be read, or its directory cannot be made or written to.
pub fn write(path: &Path, first: u32, render: impl Fn(u32) -> String) -> io::Result<Written> {
    let old = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {
            String::new()
        }
        Err(error) => return Err(error),
    };
    let serial = match serial_of(&old) {
        Some(serial) if render(serial) == old => return Ok(Written::Unchanged),
        Some(serial) => serial.wrapping_add(1),
        None => first,
    };
    AtomicFile::new(path)
        .creating_directory()
        .write(render(serial).as_bytes())?;
    Ok(Written::Replaced(serial))
}
