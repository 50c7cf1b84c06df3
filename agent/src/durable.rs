//! Files that survive a power cut.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Writes a file whole: whoever reads finds the old content or the new one, whenever the power
/// goes. Makes the directory if it is not there. If any step fails,
/// the old content is still there.
pub(crate) fn write(directory: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let new = directory.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, directory.join(name))?;
    File::open(directory)?.sync_all()
}
