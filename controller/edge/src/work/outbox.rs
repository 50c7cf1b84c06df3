// SPDX-License-Identifier: Apache-2.0

//! The centre's side: what one stream has not been sent.

use std::collections::BTreeMap;

use portolan_mcs::{Action, Target, WantedSlice, Write, WriteKind};
use portolan_model::{ContentHash, SetHash};
use portolan_proto::v1;
use prost::Message as _;
use prost::bytes::Bytes;
use v1::work_item::Action as Message;

use super::{
    EdgeWork, MAX_ITEM_BYTES, MAX_SLICE_BYTES, MAX_SLICES, MAX_WRITE_BYTES, MAX_WRITES,
    WantedSlices, hash_of, id_of,
};
use crate::split::Split;

/// The work of an edge as one stream has been sent it.
#[derive(Debug, Default)]
pub struct WorkOutbox {
    sent: BTreeMap<v1::ObjectId, Sent>,
    total: SetHash,
    last: EdgeWork,
    number: u64,
}

#[derive(Debug)]
struct Sent {
    hash: ContentHash,
    bytes: usize,
}

/// A change of the work.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkChange {
    /// Encoded items.
    pub put: Vec<Bytes>,
    /// Items that are gone.
    pub delete: Vec<v1::ObjectId>,
    /// The end.
    pub commit: v1::CentreWorkCommit,
    /// Items that are not sent.
    pub left_out: Option<LeftOut>,
}

/// Work that is not sent, since it is beyond a bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeftOut {
    /// A write.
    #[error("{0}: larger than {MAX_ITEM_BYTES} bytes")]
    Write(Target),
    /// All EndpointSlices: without some of them, the others would be deleted.
    #[error(
        "EndpointSlices of imports: more than {MAX_SLICES}, or {MAX_SLICE_BYTES} bytes of all, or {MAX_ITEM_BYTES} of one"
    )]
    Slices,
}

impl WorkOutbox {
    /// The change from what was sent to what is to be written now; `None` without one. The first is always one.
    pub fn take(&mut self, work: &EdgeWork) -> Option<WorkChange> {
        if self.number > 0 && self.last == *work {
            return None;
        }
        let (mut wanted, mut left_out) = (BTreeMap::new(), None);
        let mut size = 0;
        for write in work.writes.iter().take(MAX_WRITES) {
            let Some((id, bytes)) = encode(write) else {
                left_out = Some(LeftOut::Write(write.target.clone()));
                continue;
            };
            size += bytes.len();
            if size > MAX_WRITE_BYTES {
                // The others follow once these are done, and are not among the writes any more.
                break;
            }
            wanted.insert(id, Some(bytes));
        }
        let slices = work.slices.as_deref();
        let encoded = slices.map(|slices| self.encode_slices(slices));
        let has_slices = matches!(encoded, Some(Some(_)));
        match encoded {
            Some(Some(slices)) => wanted.extend(slices),
            Some(None) => left_out = Some(LeftOut::Slices),
            None => {}
        }
        let (mut put, mut delete) = (Vec::new(), Vec::new());
        let gone = self.sent.keys().filter(|id| !wanted.contains_key(*id));
        for id in gone.cloned().collect::<Vec<_>>() {
            if self.forget(&id) {
                delete.push(id);
            }
        }
        for (id, bytes) in wanted {
            put.extend(bytes.filter(|bytes| self.note(id, bytes)));
        }
        self.last = work.clone();
        self.number += 1;
        let commit = v1::CentreWorkCommit {
            number: self.number,
            leading: work.leading,
            slices: has_slices,
            hash: self.total.to_bytes().into(),
        };
        Some(WorkChange {
            put,
            delete,
            commit,
            left_out,
        })
    }

    /// All slices, those encoded that differ from what was sent; `None` beyond a bound.
    fn encode_slices(
        &self,
        slices: &WantedSlices,
    ) -> Option<BTreeMap<v1::ObjectId, Option<Bytes>>> {
        if slices.len() > MAX_SLICES {
            return None;
        }
        let before = self.last.slices.as_deref();
        let (mut all, mut total) = (BTreeMap::new(), 0);
        for (name, slice) in slices {
            let id = id_of(WriteKind::EndpointSlice, name);
            let is_same = before.and_then(|before| before.get(name)) == Some(slice);
            let sent = self.sent.get(&id).filter(|_| is_same);
            let bytes = match sent {
                Some(_) => None,
                None => Some(encode_slice(id.clone(), slice)?),
            };
            total += sent.map_or(0, |sent| sent.bytes) + bytes.as_ref().map_or(0, Bytes::len);
            all.insert(id, bytes);
        }
        (total <= MAX_SLICE_BYTES).then_some(all)
    }

    /// Notes an item that is put. Returns whether it differs from the one that was sent.
    fn note(&mut self, id: v1::ObjectId, bytes: &Bytes) -> bool {
        let hash = hash_of(bytes);
        let sent = Sent {
            hash,
            bytes: bytes.len(),
        };
        let old = self.sent.insert(id, sent);
        if let Some(old) = &old {
            self.total.remove(old.hash);
        }
        self.total.insert(hash);
        old.is_none_or(|old| old.hash != hash)
    }

    fn forget(&mut self, id: &v1::ObjectId) -> bool {
        let old = self.sent.remove(id);
        if let Some(old) = &old {
            self.total.remove(old.hash);
        }
        old.is_some()
    }
}

impl WorkChange {
    /// The parts of the change, each with about `bytes` bytes of items, in order.
    pub fn into_parts(self, bytes: usize) -> (Vec<v1::CentreWork>, v1::CentreWorkCommit) {
        let mut parts = Split::new(v1::CentreWork::default(), bytes);
        for id in self.delete {
            parts.add(id.encoded_len(), |part| part.delete.push(id));
        }
        for item in self.put {
            parts.add(item.len(), |part| part.put.push(item));
        }
        (parts.finish(), self.commit)
    }
}

/// A write with its id; `None` if it is too large.
fn encode(write: &Write) -> Option<(v1::ObjectId, Bytes)> {
    let json = |object: &serde_json::Value| object.to_string().into_bytes();
    let action = match &write.action {
        Action::Create(object) => Message::Create(json(object)),
        Action::Apply(object) => Message::Apply(json(object)),
        Action::ApplyStatus(object) => Message::ApplyStatus(json(object)),
        Action::Delete { uid } => Message::Delete((**uid).to_owned()),
    };
    let Target { kind, name } = &write.target;
    let id = id_of(*kind, name);
    Some((id.clone(), item(id, action)?))
}

fn encode_slice(id: v1::ObjectId, slice: &WantedSlice) -> Option<Bytes> {
    let object = slice.object.to_string();
    item(id, Message::Keep(object.into_bytes()))
}

fn item(id: v1::ObjectId, action: Message) -> Option<Bytes> {
    let item = v1::WorkItem {
        id: Some(id),
        action: Some(action),
    };
    (item.encoded_len() <= MAX_ITEM_BYTES).then(|| item.encode_to_vec().into())
}
