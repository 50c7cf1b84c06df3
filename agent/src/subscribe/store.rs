//! The last good table on the node's disk, so that an agent which finds no controller has one.
//!
//! The file is what a controller would send: a header, a checksum, and, compressed, the Hello that
//! asks for the table and the frames that bring it. What is read goes the same way as what comes
//! over a stream, hashes and all.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use portolan_proto::limits::MAX_FRAME_BYTES;
use portolan_proto::v1;
use portolan_runtime::AtomicFile;
use prost::Message;

use super::{Committed, Saved, Staging, Taken};

const NAME: &str = "table";
const ASIDE: &str = "table.corrupt";
const OLD: &str = "table.old";

/// Sets the table in a directory aside, as `table.old`, because somebody else has programmed the
/// node since it was in force; whether there was one.
///
/// # Errors
/// If it cannot be renamed.
pub fn set_aside(directory: &Path) -> io::Result<bool> {
    match fs::rename(directory.join(NAME), directory.join(OLD)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        renamed => renamed.map(|()| true),
    }
}

/// The header: what the file is, and the version of its format.
const MAGIC: &[u8; 14] = b"portolan table";
const FORMAT: u16 = 1;

/// The largest table that is read, in bytes: twenty times that of a million endpoints.
const MAX_BYTES: u64 = 256 << 20;

/// Where the table of a node is kept.
#[derive(Debug, Clone)]
pub(super) struct Store {
    pub(super) directory: PathBuf,
    pub(super) cluster: String,
    pub(super) node: String,
}

impl Store {
    /// Reads the table, if there is a file. One that makes no sense is renamed to
    /// `table.corrupt`.
    pub(super) fn load(&self) -> Result<Option<(Staging, Committed)>, String> {
        let path = self.directory.join(NAME);
        let content = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            content => content.map_err(|error| error.to_string()),
        };
        let table = content.and_then(|content| self.decode(&content));
        table.map(Some).map_err(|why| {
            let aside = self.directory.join(ASIDE);
            let aside = match fs::rename(&path, &aside) {
                Ok(()) => format!("set aside as {}", aside.display()),
                Err(error) => format!("cannot be set aside: {error}"),
            };
            format!("{}: {why}; {aside}", path.display())
        })
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

    fn decode(&self, content: &[u8]) -> Result<(Staging, Committed), String> {
        let rest = content.strip_prefix(MAGIC);
        let rest = rest.ok_or("not a table of this program")?;
        let (format, rest) = rest.split_first_chunk().ok_or("cut off")?;
        let format = u16::from_be_bytes(*format);
        if format != FORMAT {
            return Err(format!("of format {format}, not {FORMAT}"));
        }
        let (checksum, body) = rest.split_first_chunk::<32>().ok_or("cut off")?;
        if blake3::hash(body) != *checksum {
            return Err("its checksum is wrong".to_owned());
        }
        let mut raw = Vec::new();
        let inflated = zstd::stream::read::Decoder::new(body)
            .and_then(|decoder| decoder.take(MAX_BYTES).read_to_end(&mut raw));
        inflated.map_err(|error| error.to_string())?;
        self.take(&raw)
    }

    /// Takes the frames as if they came from a controller.
    fn take(&self, mut raw: &[u8]) -> Result<(Staging, Committed), String> {
        let hello: v1::Hello = next(&mut raw)?;
        for (what, theirs, ours) in [
            ("node", hello.node, &self.node),
            ("cluster", hello.cluster, &self.cluster),
        ] {
            if theirs != *ours {
                return Err(format!("of {what} {theirs:?}, not {ours:?}"));
            }
        }
        let mut staging = Staging::new(&self.cluster);
        let mut table = None;
        while !raw.is_empty() {
            let taken = staging.take(next(&mut raw)?);
            if let Taken::Committed(committed) = taken.map_err(|error| error.to_string())? {
                table = Some(committed);
            }
        }
        let table = table.ok_or("it does not end with a Commit")?;
        Ok((staging, table))
    }
}

fn next<M: Message + Default>(raw: &mut &[u8]) -> Result<M, String> {
    let length = prost::decode_length_delimiter(*raw).map_err(|error| error.to_string())?;
    if length > MAX_FRAME_BYTES {
        return Err(format!("a message of {length} bytes"));
    }
    M::decode_length_delimited(raw).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
