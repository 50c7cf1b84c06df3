// SPDX-License-Identifier: Apache-2.0

//! Admission of a write that somebody else planned: it must be one that this program plans. A cluster whose writes
//! are planned elsewhere believes no more than that: no other kind, no other field, and no label that would make an
//! object part of something else.

mod shape;

use portolan_federate::imports::ImportName;
use serde::Deserialize;
use serde_json::Value;

use crate::labels::{is_domain, is_object};
use crate::manifest::{Action, Write, WriteKind};
use crate::slice::WantedSlice;
use shape::{Import, Slice, StatusObject};

/// The longest UID, in bytes.
const MAX_UID: usize = 128;

/// Reason for which a write is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Refused {
    /// The field.
    pub field: &'static str,
    /// Reason.
    pub why: String,
}

impl Refused {
    pub(crate) fn new(field: &'static str, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { field, why }
    }
}

type Result<T> = std::result::Result<T, Refused>;

/// Whether a write is one of a ServiceImport, or of the status of a ServiceExport, as this crate plans them.
///
/// # Errors
/// It is another one.
pub fn admit(write: &Write) -> Result<()> {
    let name = &write.target.name;
    if !is_object(name) {
        return Err(Refused::new("id", "no name of an object"));
    }
    match (write.target.kind, &write.action) {
        (WriteKind::ServiceImport, Action::Create(object)) => {
            read::<Import<'_>>("create", object)?.check_created(name)
        }
        (WriteKind::ServiceImport, Action::Apply(object)) => {
            read::<Import<'_>>("apply", object)?.check_applied(name)
        }
        (WriteKind::ServiceImport, Action::ApplyStatus(object)) => {
            let object = read::<StatusObject<'_>>("apply_status", object)?;
            object.metadata.check_with_uid(name)?;
            object.check(WriteKind::ServiceImport)
        }
        (WriteKind::ServiceExport, Action::ApplyStatus(object)) => {
            let object = read::<StatusObject<'_>>("apply_status", object)?;
            object.metadata.check_plain(name)?;
            if object.status.clusters.is_some() {
                let why = "a ServiceExport has none";
                return Err(Refused::new("status.clusters", why));
            }
            object.check(WriteKind::ServiceExport)
        }
        (WriteKind::ServiceImport, Action::Delete { uid }) => check_uid("delete", uid),
        (kind, action) => {
            let why = format!("{} of a {kind}", action.verb());
            Err(Refused::new("action", why))
        }
    }
}

/// Whether an EndpointSlice is one of an import, as this crate plans them. Returns it with the import that its label
/// names.
///
/// # Errors
/// It is another one.
pub fn admit_slice(name: &ImportName, object: Value) -> Result<WantedSlice> {
    if !is_domain(&name.namespace) || !is_domain(&name.name) {
        return Err(Refused::new("id", "no name of an object"));
    }
    let slice = read::<Slice<'_>>("keep", &object)?;
    slice.check(name)?;
    let import = ImportName {
        namespace: name.namespace.clone(),
        name: slice.service_name().into(),
    };
    Ok(WantedSlice { import, object })
}

fn read<'o, T: Deserialize<'o>>(field: &'static str, object: &'o Value) -> Result<T> {
    T::deserialize(object).map_err(|error| Refused::new(field, error.to_string()))
}

fn check_uid(field: &'static str, uid: &str) -> Result<()> {
    if uid.is_empty() || uid.len() > MAX_UID {
        return Err(Refused::new(field, "no UID"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
