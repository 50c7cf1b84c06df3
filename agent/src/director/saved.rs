// SPDX-License-Identifier: Apache-2.0

//! State that outlives a run of the agent: the commanded role, and objects of ours in the kernel.

use std::io;
use std::path::Path;

use portolan_plan::host::Owned;
use serde::{Deserialize, Serialize};

use crate::backends::{boot_id, since_boot};
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
    /// Identifier of the boot in which it was commanded. A file of an earlier version has none, and its time counts:
    /// the update of an active director must not end its service, as nobody would command it again.
    boot: Option<String>,
}

/// The role that was commanded in this boot; standby if none was, or if it cannot be read. During a reboot another
/// director may have become active.
pub(crate) fn load_role(directory: &Path) -> Activity {
    let saved: SavedRole = load(directory, ROLE);
    let is_of_this_boot = match saved.boot {
        Some(boot) => !boot.is_empty() && boot == boot_id(),
        None => is_written_since_boot(&directory.join(ROLE)),
    };
    match is_of_this_boot {
        true => saved.role,
        false => Activity::Standby,
    }
}

/// Returns `true` if a file was written in this boot; true if that is unknown, as with a time in
/// the future.
fn is_written_since_boot(path: &Path) -> bool {
    let written = std::fs::metadata(path).and_then(|file| file.modified());
    let age = written.ok().and_then(|at| at.elapsed().ok());
    age.is_none_or(|age| age <= since_boot())
}

/// Like [`load_role`], for an agent that starts: a role without a boot gets this one, so that the next reboot ends it.
pub(super) fn adopt_role(directory: &Path) -> Activity {
    let role = load_role(directory);
    let has_boot = || load::<SavedRole>(directory, ROLE).boot.is_some();
    if role == Activity::Active
        && !has_boot()
        && let Err(error) = save_role(directory, role)
    {
        tracing::warn!(%error, "the commanded role cannot be saved: it may outlive a reboot");
    }
    role
}

/// Saves the commanded role.
pub(super) fn save_role(directory: &Path, role: Activity) -> io::Result<()> {
    let boot = Some(boot_id());
    save(directory, ROLE, &SavedRole { role, boot })
}

/// Returns the state that earlier runs have made; an empty one if it cannot be read.
pub(crate) fn load_owned(directory: &Path) -> Owned {
    load(directory, OWNED)
}

/// Saves what is ours.
pub(crate) fn save_owned(directory: &Path, owned: &Owned) -> io::Result<()> {
    save(directory, OWNED, owned)
}
