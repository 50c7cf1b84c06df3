// SPDX-License-Identifier: Apache-2.0

//! What outlives a run of the agent: the commanded role, and what is ours in the kernel.

use std::io;
use std::path::Path;

use portolan_plan::host::Owned;
use serde::{Deserialize, Serialize};

use crate::state_file::{load, save};

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
