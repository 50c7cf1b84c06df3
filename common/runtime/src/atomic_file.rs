// SPDX-License-Identifier: Apache-2.0

//! Files that are replaced whole and survive a power cut.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A file that is written at once: a reader finds the old content or the new one, whenever the
/// power goes. If a step fails, the old content stays.
#[derive(Debug, Clone, Copy)]
pub struct AtomicFile<'a> {
    path: &'a Path,
    mode: u32,
    creates_directory: bool,
}

impl<'a> AtomicFile<'a> {
    /// A file that the umask lets others read, in a directory that exists.
    #[must_use]
    pub fn new(path: &'a Path) -> Self {
        Self {
            path,
            mode: 0o666,
            creates_directory: false,
        }
    }

    /// Lets only the owner read and write the file.
    #[must_use]
    pub fn private(self) -> Self {
        Self {
            mode: 0o600,
            ..self
        }
    }

    /// Creates the directory if it is missing.
    #[must_use]
    pub fn creating_directory(self) -> Self {
        Self {
            creates_directory: true,
            ..self
        }
    }

    /// Writes the content. Blocks.
    ///
    /// # Errors
    /// If a file system operation fails.
    pub fn write(self, content: &[u8]) -> io::Result<()> {
        let directory = self.path.parent();
        let directory = directory.filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        if self.creates_directory {
            fs::create_dir_all(directory)?;
        }
        let temporary = temporary(self.path);
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(self.mode);
        let mut file = options.open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, self.path)?;
        File::open(directory)?.sync_all()
    }
}

/// A hidden file in the same directory. CoreDNS's `auto` plugin does not load it: by default the
/// plugin loads files with `db.` in their names.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut temporary = OsString::from(".portolan_");
    temporary.push(name.replace('.', "_"));
    temporary.push("_new");
    path.with_file_name(temporary)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn content_is_replaced_and_nothing_else_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state").join("db.cluster.local");
        let file = AtomicFile::new(&path);
        assert!(file.write(b"no directory").is_err());
        for content in ["one", "two"] {
            file.creating_directory().write(content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        let names = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 1);
    }

    #[test]
    fn a_private_file_is_private_from_the_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tls.key");
        // Left by a crash, readable by everybody.
        fs::write(temporary(&path), "old").unwrap();
        AtomicFile::new(&path).private().write(b"key").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_failed_write_leaves_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        fs::write(&path, "old").unwrap();
        fs::create_dir(temporary(&path)).unwrap();
        assert!(AtomicFile::new(&path).write(b"new").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }
}
