// SPDX-License-Identifier: Apache-2.0

//! Small JSON files of the state directory, replaced whole.

use std::io;
use std::path::Path;

use portolan_runtime::AtomicFile;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a file; the default if there is none, or if it cannot be read, which is logged. Blocks.
pub(crate) fn load<T: DeserializeOwned + Default>(directory: &Path, name: &str) -> T {
    let path = directory.join(name);
    let read = std::fs::read(&path);
    let parsed = read.and_then(|bytes| serde_json::from_slice(&bytes).map_err(Into::into));
    parsed.unwrap_or_else(|error: io::Error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(file = %path.display(), %error, "cannot be read: taken for empty");
        }
        T::default()
    })
}

/// Replaces a file. Blocks.
///
/// # Errors
/// If it cannot be written; the last one stays.
pub(crate) fn save(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(content)?;
    let path = directory.join(name);
    AtomicFile::new(&path).creating_directory().write(&bytes)
}
