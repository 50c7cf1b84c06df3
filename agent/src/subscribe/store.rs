// SPDX-License-Identifier: Apache-2.0

//! The last good table on the node's disk, for an agent that finds no controller.
//!
//! The file has a header, a checksum, and, compressed, the Hello that asks for the table and the
//! frames that bring it. If deletions are held back, a second transition follows, from the
//! controller's table to the one in force. Frames are read as those of a stream are, with all hashes.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use portolan_model::NodeTable;
use portolan_proto::limits::MAX_FRAME_BYTES;
use portolan_proto::v1;
use portolan_runtime::AtomicFile;
use prost::Message;

use super::{ClusterPin, Committed, Saved, Staging, StagingError, Taken};

const NAME: &str = "table";
const ASIDE: &str = "table.corrupt";
const OLD: &str = "table.old";

/// Renames the table in a directory to `table.old`, because another program has programmed the node
/// since it was in force. Returns whether there was one.
///
/// # Errors
/// If it cannot be renamed.
pub fn set_aside(directory: &Path) -> io::Result<bool> {
    match fs::rename(directory.join(NAME), directory.join(OLD)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        renamed => renamed.map(|()| true),
    }
}

/// The header: the kind of file, and the version of its format.
const MAGIC: &[u8; 14] = b"portolan table";
const FORMAT: u16 = 1;

/// The largest table that is read, in bytes: twenty times that of a million endpoints.
const MAX_BYTES: u64 = 256 << 20;

/// A table that cannot be read from disk.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// The file cannot be read now; it is left where it is.
    #[error("{}: {error}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The file is of no use; it has been renamed if that was possible.
    #[error("{}: {reason}; {aside}", path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        reason: Box<FileError>,
        aside: String,
    },
}

/// Content of a file that is not the node's table.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("not a table of this program")]
    NotATable,
    #[error("cut off")]
    CutOff,
    #[error("of format {0}, not {FORMAT}")]
    Format(u16),
    #[error("the checksum is wrong")]
    Checksum,
    #[error("cannot be decompressed: {0}")]
    Compression(io::Error),
    #[error("a message of {0} bytes")]
    TooLarge(usize),
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    #[error("of {what} {theirs:?}, not {ours:?}")]
    OfAnother {
        what: &'static str,
        theirs: String,
        ours: String,
    },
    #[error(transparent)]
    Staging(#[from] StagingError),
    #[error("does not end with a Commit")]
    NoCommit,
}

/// The table of the last run.
#[derive(Debug)]
pub(crate) struct StoredTable {
    /// The controller's table, to be resumed.
    pub(super) staging: Staging,
    /// The same.
    pub(crate) committed: Committed,
    /// The table that was in force: the same, with the records whose deletion was held back.
    pub(crate) in_force: Arc<NodeTable>,
    /// Its cluster; empty if it is unknown.
    pub(super) cluster_id: String,
    /// Whether it is the table of another cluster than the node belongs to now.
    pub(super) is_of_other_cluster: bool,
}

/// The place of a node's table.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) directory: PathBuf,
    pub(crate) cluster: String,
    pub(crate) node: String,
    pub(crate) pin: ClusterPin,
}

impl Store {
    /// Reads the table, if there is a file. A file that is of no use is renamed to `table.corrupt`.
    pub(super) fn load(&self) -> Result<Option<StoredTable>, StoreError> {
        let path = self.directory.join(NAME);
        let content = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::Read { path, error }),
            Ok(content) => content,
        };
        self.decode(&content).map(Some).map_err(|reason| {
            let aside = self.directory.join(ASIDE);
            let aside = match fs::rename(&path, &aside) {
                Ok(()) => format!("renamed to {}", aside.display()),
                Err(error) => format!("cannot be renamed: {error}"),
            };
            StoreError::Unusable {
                path,
                reason: Box::new(reason),
                aside,
            }
        })
    }

    /// Reads the table that was in force, and changes no file.
    ///
    /// # Errors
    /// If there is no file, or it is of no use.
    pub(crate) fn read(&self) -> anyhow::Result<Arc<NodeTable>> {
        let path = self.directory.join(NAME);
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        let stored = self.decode(&content);
        let stored = stored.with_context(|| path.display().to_string())?;
        Ok(stored.in_force)
    }

    /// Writes a table in place of the last one.
    pub(super) fn write(&self, saved: &Saved) -> io::Result<()> {
        let path = self.directory.join(NAME);
        let file = AtomicFile::new(&path).creating_directory();
        file.write(&self.encode(saved)?)
    }

    fn encode(&self, saved: &Saved) -> io::Result<Vec<u8>> {
        let hello = v1::Hello {
            version: portolan_proto::VERSION,
            cluster: self.cluster.clone(),
            node: self.node.clone(),
            cluster_id: self.pin.of_table(),
            ..v1::Hello::default()
        };
        let mut raw = hello.encode_length_delimited_to_vec();
        for frame in saved.frames() {
            raw.extend(frame.encode_length_delimited_to_vec());
        }
        let body = zstd::bulk::compress(&raw, zstd::DEFAULT_COMPRESSION_LEVEL)?;
        let mut content = MAGIC.to_vec();
        content.extend(FORMAT.to_be_bytes());
        content.extend(blake3::hash(&body).as_bytes());
        content.extend(body);
        Ok(content)
    }

    fn decode(&self, content: &[u8]) -> Result<StoredTable, FileError> {
        let rest = content.strip_prefix(MAGIC).ok_or(FileError::NotATable)?;
        let (format, rest) = rest.split_first_chunk().ok_or(FileError::CutOff)?;
        let format = u16::from_be_bytes(*format);
        if format != FORMAT {
            return Err(FileError::Format(format));
        }
        let (checksum, body) = rest.split_first_chunk::<32>().ok_or(FileError::CutOff)?;
        if blake3::hash(body) != *checksum {
            return Err(FileError::Checksum);
        }
        let mut raw = Vec::new();
        zstd::stream::read::Decoder::new(body)
            .and_then(|decoder| decoder.take(MAX_BYTES).read_to_end(&mut raw))
            .map_err(FileError::Compression)?;
        self.stage(&raw)
    }

    /// Stages the frames as if they came from a controller.
    fn stage(&self, mut raw: &[u8]) -> Result<StoredTable, FileError> {
        let hello: v1::Hello = next(&mut raw)?;
        for (what, theirs, ours) in [
            ("node", hello.node, &self.node),
            ("cluster", hello.cluster, &self.cluster),
        ] {
            if theirs != *ours {
                let ours = ours.clone();
                return Err(FileError::OfAnother { what, theirs, ours });
            }
        }
        let mut staging = Staging::new(&self.cluster, &self.node);
        let committed = next_commit(&mut staging, &mut raw)?.ok_or(FileError::NoCommit)?;
        let mut with_withheld = staging.clone();
        let in_force = next_commit(&mut with_withheld, &mut raw)?;
        if !raw.is_empty() {
            return Err(FileError::NoCommit);
        }
        // Files of older versions lack this field.
        let id = hello.cluster_id;
        Ok(StoredTable {
            in_force: in_force.map_or_else(|| Arc::clone(&committed.table), |last| last.table),
            is_of_other_cluster: !id.is_empty() && id != self.pin.id(),
            cluster_id: id,
            staging,
            committed,
        })
    }
}

/// Stages frames up to a Commit; `None` if there are no frames.
fn next_commit(staging: &mut Staging, raw: &mut &[u8]) -> Result<Option<Committed>, FileError> {
    if raw.is_empty() {
        return Ok(None);
    }
    while !raw.is_empty() {
        if let Taken::Committed(committed) = staging.take_frame(next(raw)?)? {
            return Ok(Some(committed));
        }
    }
    Err(FileError::NoCommit)
}

fn next<M: Message + Default>(raw: &mut &[u8]) -> Result<M, FileError> {
    let length = prost::decode_length_delimiter(*raw)?;
    if length > MAX_FRAME_BYTES {
        return Err(FileError::TooLarge(length));
    }
    Ok(M::decode_length_delimited(raw)?)
}

#[cfg(test)]
mod tests;
