//! Puts a zone file in place, if its content is new.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

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
    replace(path, render(serial).as_bytes())?;
    Ok(Written::Replaced(serial))
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// A file next to `path` that CoreDNS's `auto` plugin does not take for a zone: by default it
/// takes what has `db.` in its name.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut temporary = OsString::from(".portolan_");
    temporary.push(name.replace('.', "_"));
    temporary.push("_new");
    path.with_file_name(temporary)
}
