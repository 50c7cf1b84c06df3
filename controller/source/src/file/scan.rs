// SPDX-License-Identifier: Apache-2.0

//! Listing and change detection of files.

use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The coarsest clock of a file system (FAT; most others tick every 4 ms): two changes within it
/// may have equal times.
const CLOCK_TICK: Duration = Duration::from_secs(2);

/// The files of a path, sorted: itself, or those of the directory that it is.
///
/// Hidden ones are skipped, and with them the `..data` of a projected volume, whose files are
/// reached by the symlinks beside it.
///
/// # Errors
/// If the path cannot be read.
pub fn list(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        // A dangling symlink counts: it is reported as unreadable.
        if is_ours(&file) && !fs::metadata(&file).is_ok_and(|metadata| metadata.is_dir()) {
            files.push(file);
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn is_ours(file: &Path) -> bool {
    let hidden = file
        .file_name()
        .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = file.extension().and_then(|extension| extension.to_str());
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// The properties that change with a file: the file behind the name, its size, its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The result of reading a file.
#[derive(Debug)]
pub(super) enum Reading {
    /// The file has not changed.
    Unchanged,
    /// The file is being written: it is skipped until the next time.
    Busy,
    /// The new content, and its fingerprint.
    Content(String, Seen),
}

/// The fingerprint of a file that was read.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// `None` if the file was so young that another change could go unnoticed.
    fingerprint: Option<Fingerprint>,
    hash: u64,
}

/// Reads a file, unless it is the one that was `seen`.
pub(super) fn read(path: &Path, seen: Option<&mut Seen>) -> io::Result<Reading> {
    // Opening a pipe would wait for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut file = File::open(path)?;
    let before = file.metadata()?;
    let fingerprint = Fingerprint::of(&before);
    if seen.as_ref().and_then(|seen| seen.fingerprint.as_ref()) == Some(&fingerprint) {
        return Ok(Reading::Unchanged);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if Fingerprint::of(&file.metadata()?) != fingerprint {
        return Ok(Reading::Busy);
    }
    let now = Seen {
        fingerprint: is_settled(&before).then_some(fingerprint),
        hash: hash(&bytes),
    };
    if let Some(seen) = seen
        && seen.hash == now.hash
    {
        *seen = now;
        return Ok(Reading::Unchanged);
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Reading::Content(text, now))
}

fn is_settled(metadata: &Metadata) -> bool {
    let Ok(modified) = metadata.modified() else {
        return false;
    };
    let age = match SystemTime::now().duration_since(modified) {
        Ok(age) => age,
        Err(ahead) => ahead.duration(),
    };
    age > CLOCK_TICK
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
