// SPDX-License-Identifier: Apache-2.0

//! The edge's side: what one replica of the centre asks it to write. The items before a commit are staged; the commit
//! takes them in, or nothing. Items that the edge must not do are left out.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_federate::imports::ImportName;
use portolan_mcs::{Action, Refused, Target, WantedSlice, Write, WriteKind, admit, admit_slice};
use portolan_model::{ContentHash, SetHash};
use portolan_proto::v1;
use prost::Message as _;
use serde_json::Value;
use v1::work_item::Action as Message;

use super::{EdgeWork, MAX_BYTES, MAX_ITEM_BYTES, MAX_SLICES, MAX_WRITES, WantedSlices, hash_of};

/// The longest text about an item, in bytes.
const MAX_NAMED: usize = 256;

/// Error that ends a stream to a replica of the centre.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// An item has no id, so that nobody knows which one it is.
    #[error("work.put: {0}")]
    Item(String),
    /// There is too much of something.
    #[error("work: more than {most} {what}")]
    TooMany {
        /// Things that are bounded, as the message names them.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// The items are not those that the centre has.
    #[error("work_commit.hash: not that of the items")]
    Mismatch,
    /// A commit is missing.
    #[error("work_commit.number: {0} is not the next one")]
    Number(u64),
}

/// An item that is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{item}: {refused}")]
pub struct RefusedItem {
    /// Its kind and name, as far as they are text.
    pub item: String,
    /// Reason.
    pub refused: Refused,
}

/// Writes that one replica asks for.
#[derive(Debug, Default)]
pub struct WorkInbox {
    items: BTreeMap<v1::ObjectId, Item>,
    total: SetHash,
    bytes: usize,
    staged: BTreeMap<v1::ObjectId, Option<Item>>,
    staged_bytes: usize,
    /// As of the last commit.
    slices: Option<Arc<WantedSlices>>,
    number: u64,
}

#[derive(Debug)]
struct Item {
    hash: ContentHash,
    bytes: usize,
    /// `None` if it is refused.
    task: Option<Task>,
}

#[derive(Debug, Clone)]
enum Task {
    Write(Write),
    Slice(ImportName, WantedSlice),
}

impl WorkInbox {
    /// Stages a part of a change. Returns the items that are left out.
    ///
    /// # Errors
    /// If an item has no id, or there is too much. The stream is to be ended; nothing has changed.
    pub fn stage(&mut self, part: v1::CentreWork) -> Result<Vec<RefusedItem>, WorkError> {
        let mut refused = Vec::new();
        for id in part.delete {
            self.staged_bytes += id.encoded_len();
            self.staged.insert(id, None);
        }
        for bytes in part.put {
            self.staged_bytes += bytes.len();
            bound("bytes of an item", bytes.len(), MAX_ITEM_BYTES)?;
            let item = v1::WorkItem::decode(&*bytes);
            let item = item.map_err(|error| WorkError::Item(error.to_string()))?;
            let missing = || WorkError::Item("id: missing".to_owned());
            let id = item.id.ok_or_else(missing)?;
            let task = match task(&id, item.action) {
                Ok(task) => Some(task),
                Err(why) => {
                    let item = named(&id);
                    refused.push(RefusedItem { item, refused: why });
                    None
                }
            };
            let item = Item {
                hash: hash_of(&bytes),
                bytes: bytes.len(),
                task,
            };
            self.staged.insert(id, Some(item));
        }
        bound("items", self.staged.len(), MAX_WRITES + MAX_SLICES)?;
        bound("bytes before a commit", self.staged_bytes, MAX_BYTES)?;
        Ok(refused)
    }

    /// Takes in what is staged. Returns all that the replica asks for now.
    ///
    /// # Errors
    /// If that is not what the centre has, or too much. The stream is to be ended.
    pub fn commit(&mut self, commit: &v1::CentreWorkCommit) -> Result<EdgeWork, WorkError> {
        if commit.number != self.number + 1 {
            return Err(WorkError::Number(commit.number));
        }
        self.number = commit.number;
        self.staged_bytes = 0;
        let mut touches_slices = commit.slices != self.slices.is_some();
        for (id, item) in std::mem::take(&mut self.staged) {
            touches_slices |= id.kind() == v1::ObjectKind::EndpointSlice;
            let old = match item {
                Some(item) => {
                    self.total.insert(item.hash);
                    self.bytes += item.bytes;
                    self.items.insert(id, item)
                }
                None => self.items.remove(&id),
            };
            if let Some(old) = old {
                self.total.remove(old.hash);
                self.bytes -= old.bytes;
            }
        }
        if self.total.to_bytes().as_slice() != commit.hash {
            return Err(WorkError::Mismatch);
        }
        bound("items", self.items.len(), MAX_WRITES + MAX_SLICES)?;
        bound("bytes of all items", self.bytes, MAX_BYTES)?;
        if touches_slices {
            self.slices = commit.slices.then(|| Arc::new(self.all_slices()));
        }
        Ok(EdgeWork {
            leading: commit.leading,
            writes: Arc::new(self.all_writes()),
            slices: self.slices.clone(),
        })
    }

    fn all_slices(&self) -> WantedSlices {
        let tasks = self.items.values().filter_map(|item| item.task.as_ref());
        let slices = tasks.filter_map(|task| match task {
            Task::Slice(name, slice) => Some((name.clone(), slice.clone())),
            Task::Write(_) => None,
        });
        slices.collect()
    }

    /// All writes, in order.
    fn all_writes(&self) -> Vec<Write> {
        let tasks = self.items.values().filter_map(|item| item.task.as_ref());
        let writes = tasks.filter_map(|task| match task {
            Task::Write(write) => Some(write.clone()),
            Task::Slice(..) => None,
        });
        let mut writes: Vec<_> = writes.collect();
        writes.sort_by_key(turn);
        writes
    }
}

/// Statuses of exports come first, then deletions.
pub(super) fn turn(write: &Write) -> u8 {
    match (write.target.kind, &write.action) {
        (WriteKind::ServiceExport, _) => 0,
        (_, Action::Delete { .. }) => 1,
        _ => 2,
    }
}

/// The task of an item.
fn task(id: &v1::ObjectId, action: Option<Message>) -> Result<Task, Refused> {
    let kind = match id.kind() {
        v1::ObjectKind::ServiceExport => WriteKind::ServiceExport,
        v1::ObjectKind::ServiceImport => WriteKind::ServiceImport,
        v1::ObjectKind::EndpointSlice => WriteKind::EndpointSlice,
        _ => return Err(unknown("id.kind")),
    };
    let name = ImportName {
        namespace: id.namespace.as_str().into(),
        name: id.name.as_str().into(),
    };
    let action = match action.ok_or_else(|| unknown("action"))? {
        Message::Create(object) => Action::Create(json("create", &object)?),
        Message::Apply(object) => Action::Apply(json("apply", &object)?),
        Message::ApplyStatus(object) => Action::ApplyStatus(json("apply_status", &object)?),
        Message::Delete(uid) => Action::Delete { uid: uid.into() },
        Message::Keep(_) if kind != WriteKind::EndpointSlice => return Err(unknown("action")),
        Message::Keep(object) => {
            let slice = admit_slice(&name, json("keep", &object)?)?;
            return Ok(Task::Slice(name, slice));
        }
    };
    let write = Write {
        target: Target { kind, name },
        action,
    };
    admit(&write)?;
    Ok(Task::Write(write))
}

fn unknown(field: &'static str) -> Refused {
    let why = "none that an edge writes".to_owned();
    Refused { field, why }
}

fn json(field: &'static str, object: &[u8]) -> Result<Value, Refused> {
    serde_json::from_slice(object).map_err(|error| Refused {
        field,
        why: error.to_string(),
    })
}

fn named(id: &v1::ObjectId) -> String {
    let mut text = match v1::ObjectKind::try_from(id.kind) {
        Ok(kind) => format!("{} {}/{}", kind.as_str_name(), id.namespace, id.name),
        Err(_) => format!("object of kind {} {}/{}", id.kind, id.namespace, id.name),
    };
    text.truncate(text.floor_char_boundary(MAX_NAMED));
    text
}

fn bound(what: &'static str, count: usize, most: usize) -> Result<(), WorkError> {
    match count > most {
        true => Err(WorkError::TooMany { what, most }),
        false => Ok(()),
    }
}
