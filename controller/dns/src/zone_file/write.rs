//! Puts a zone file in place, if its content is new.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use portolan_runtime::AtomicFile;

/// What became of the file.
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

/// Writes what `render` makes of a serial, if that is not in the file already but for the serial.
/// The new serial is one more than the file's, or `first` if there is none: servers and
/// secondaries take a zone if its serial grew, and a restart of ours must not make it smaller.
///
/// The file is replaced at once: who reads it sees the old content or the new one.
///
/// # Errors
///
/// If the file cannot be read or its directory cannot be written to.
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
    AtomicFile::new(path).write(render(serial).as_bytes())?;
    Ok(Written::Replaced(serial))
}
