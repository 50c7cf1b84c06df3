// SPDX-License-Identifier: Apache-2.0

//! Small files of credentials.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Size limit of files in bytes. Bundles of authorities are smaller.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// A file, as it was read.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Path.
    pub path: PathBuf,
    /// Content.
    pub content: Vec<u8>,
}

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct FileError {
    /// Path.
    pub path: PathBuf,
    /// Reason, which never quotes keys or tokens.
    pub reason: String,
}

impl FileError {
    /// Names a file and a reason.
    pub fn new(path: &Path, reason: impl ToString) -> Self {
        Self {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }
}

impl File {
    /// The error that this file cannot be used.
    pub fn error(&self, reason: impl ToString) -> FileError {
        FileError::new(&self.path, reason)
    }
}

/// Omits the content, which may be a key.
impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Reads a file. Blocks.
///
/// # Errors
/// If it cannot be read, or is larger than [`MAX_FILE_BYTES`].
pub fn read(path: &Path) -> Result<File, FileError> {
    let named = |error| FileError::new(path, error);
    let mut content = Vec::new();
    let file = std::fs::File::open(path).map_err(named)?;
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(named)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(FileError::new(path, "larger than 1 MiB"));
    }
    Ok(File {
        path: path.to_owned(),
        content,
    })
}
