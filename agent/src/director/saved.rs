// SPDX-License-Identifier: Apache-2.0

//! What outlives a run of the agent: the commanded role, and what is ours in the kernel.

use std::io;
use std::path::Path;

use portolan_plan::host::Owned;
use portolan_runtime::AtomicFile;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const ROLE: &str = "role.json";
const OWNED: &str = "director.json";

/// Whether a director answers for its virtual addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// It does.
    Active,
    /// It does not. Its virtual servers are programmed all the same.
    #[default]
    Standby,
}

impl std::fmt::Display for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Standby => "standby",
        })
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct SavedRole {
    role: Activity,
}

/// The commanded role; standby if none was, or if it cannot be read.
pub(crate) fn load_role(directory: &Path) -> Activity {
    load::<SavedRole>(directory, ROLE).role
}

/// Saves the commanded role.
pub(super) fn save_role(directory: &Path, role: Activity) -> io::Result<()> {
    save(directory, ROLE, &SavedRole { role })
}

/// What earlier runs have made; nothing if it cannot be read.
pub(crate) fn load_owned(directory: &Path) -> Owned {
    load(directory, OWNED)
}

/// Saves what is ours.
pub(crate) fn save_owned(directory: &Path, owned: &Owned) -> io::Result<()> {
    save(directory, OWNED, owned)
}

fn load<T: DeserializeOwned + Default>(directory: &Path, name: &str) -> T {
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

fn save(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(content)?;
    let path = directory.join(name);
    AtomicFile::new(&path).creating_directory().write(&bytes)
}
