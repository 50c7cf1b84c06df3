// SPDX-License-Identifier: Apache-2.0

//! EndpointSlices of imports: read once, and every few minutes, since few clusters have any; between, what was
//! written is remembered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{DynamicObject, ListParams};
use portolan_federate::imports::ImportName;
use portolan_mcs::{Action, Target, Write, WriteKind};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::request::{Failure, api, failure};
use super::{Spared, Work};

/// The label of the slices that are ours, and its value.
const OURS: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "portolan.dev");
/// The time between two listings: so long a slice that somebody else changes stays changed.
const PERIOD: Duration = Duration::from_secs(300);
/// The same while none is wanted and none was found: for clusters without slices, of which there are many.
const UNUSED_PERIOD: Duration = Duration::from_secs(3600);
/// The time until a listing or a write that failed is tried again.
const AGAIN: Duration = Duration::from_secs(30);
/// Time limit of a listing.
const PATIENCE: Duration = Duration::from_secs(30);
/// Objects of one page of a listing.
const PAGE: u32 = 500;
/// The fields of a slice that are written.
const FIELDS: [&str; 3] = ["addressType", "ports", "endpoints"];

/// A slice that is there.
#[derive(Debug, Clone)]
struct Found {
    uid: Arc<str>,
    /// Object as it was listed, or written; `Null` if unknown.
    object: Value,
}

/// The slices of one cluster.
#[derive(Debug, Default)]
pub(super) struct Slices {
    found: BTreeMap<ImportName, Found>,
    listed: Option<Instant>,
    failed: Option<Instant>,
    /// Returns `true` if none is wanted.
    is_unused: bool,
    /// True if the last listing was not permitted while none was wanted.
    is_forbidden: bool,
    /// Slices that could not be written lately.
    paused: BTreeMap<ImportName, Instant>,
}

impl Slices {
    /// The next write; none if all slices are as they should be.
    pub(super) async fn next(
        &mut self,
        client: &Client,
        work: &Work,
    ) -> Result<Option<Write>, Failure> {
        let Some(wanted) = &work.slices else {
            *self = Self::default();
            return Ok(None);
        };
        let now = Instant::now();
        if self.failed.is_some_and(|failed| now < failed + AGAIN) {
            return Ok(None);
        }
        self.is_unused = wanted.is_empty();
        if self.is_forbidden && !self.is_unused {
            // What is there must be known before any is written.
            self.listed = None;
        }
        let period = self.period();
        if self.listed.is_none_or(|listed| now >= listed + period) {
            self.failed = Some(now);
            let listing = list(client).await;
            // Whoever wants no slices need not permit to write any.
            let is_denied = |failure: &Failure| failure.result == "forbidden";
            self.is_forbidden = self.is_unused && listing.as_ref().is_err_and(is_denied);
            self.found = match self.is_forbidden {
                true => BTreeMap::new(),
                false => listing?,
            };
            self.failed = None;
            self.listed = Some(now);
        }
        self.paused.retain(|_, until| *until > now);
        for (name, slice) in wanted.iter() {
            // Its owner must be known.
            let Some(owner) = work.owners.get(&slice.import) else {
                continue;
            };
            if self.paused.contains_key(name) {
                continue;
            }
            let object = owned(&slice.object, &slice.import, owner);
            match self.found.get(name) {
                None => return Ok(Some(write(name, Action::Create(object)))),
                Some(found) if !is_same(&found.object, &object) => {
                    let mut object = object;
                    object["metadata"]["uid"] = (*found.uid).into();
                    return Ok(Some(write(name, Action::Apply(object))));
                }
                Some(_) => {}
            }
        }
        let mut found = self.found.iter();
        let gone = found.find(|(name, found)| {
            let is_left = wanted.contains_key(*name) || self.paused.contains_key(*name);
            !is_left && !is_spared(&work.spared, name, &found.object)
        });
        Ok(gone.map(|(name, found)| {
            let uid = Arc::clone(&found.uid);
            write(name, Action::Delete { uid })
        }))
    }

    /// The time between two listings.
    fn period(&self) -> Duration {
        match self.is_unused && self.found.is_empty() {
            true => UNUSED_PERIOD,
            false => PERIOD,
        }
    }

    /// When a listing or a failed write is due.
    pub(super) fn due(&self) -> Option<Instant> {
        // Nothing is written between a listing that failed and the next one.
        if let Some(failed) = self.failed {
            return Some(failed + AGAIN);
        }
        let listed = self.listed.map(|listed| listed + self.period());
        let paused = self.paused.values().min().copied();
        [listed, paused].into_iter().flatten().min()
    }

    /// Notes a write.
    pub(super) fn wrote(&mut self, write: &Write, uid: Result<Option<&str>, ()>) {
        if write.target.kind != WriteKind::EndpointSlice {
            return;
        }
        let name = &write.target.name;
        let Ok(uid) = uid else {
            self.paused.insert(name.clone(), Instant::now() + AGAIN);
            return;
        };
        match &write.action {
            Action::Create(object) => {
                let found = Found {
                    uid: uid.unwrap_or_default().into(),
                    object: object.clone(),
                };
                self.found.insert(name.clone(), found);
            }
            Action::Apply(object) | Action::ApplyStatus(object) => {
                if let Some(found) = self.found.get_mut(name) {
                    found.object = object.clone();
                }
            }
            Action::Delete { .. } => _ = self.found.remove(name),
        }
    }
}

fn write(name: &ImportName, action: Action) -> Write {
    Write {
        target: Target {
            kind: WriteKind::EndpointSlice,
            name: name.clone(),
        },
        action,
    }
}

/// A slice with the import as its owner.
fn owned(object: &Value, import: &ImportName, owner: &str) -> Value {
    let mut object = object.clone();
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": WriteKind::ServiceImport.api_version(),
        "kind": WriteKind::ServiceImport.as_str(),
        "name": &*import.name,
        "uid": owner,
    }]);
    object
}

/// Returns `true` if a slice stays because members have not sent their objects yet. A slice without the labels of its
/// import and its cluster stays, since it may be from one of these members.
fn is_spared(spared: &Spared, name: &ImportName, slice: &Value) -> bool {
    if spared.sources.is_empty() {
        return false;
    }
    let label = |label: &str| slice.get("metadata")?.get("labels")?.get(label)?.as_str();
    let labels = label("multicluster.kubernetes.io/service-name")
        .zip(label("multicluster.kubernetes.io/source-cluster"));
    labels.is_none_or(|(service, source)| {
        let import = ImportName {
            namespace: Arc::clone(&name.namespace),
            name: service.into(),
        };
        spared.sources.contains(source) || spared.imports.contains(&import)
    })
}

/// Returns `true` if a slice has what is wanted, beside what others may have added.
fn is_same(found: &Value, wanted: &Value) -> bool {
    let labels = wanted.pointer("/metadata/labels");
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let of_found = |key: &str| found.get("metadata")?.get("labels")?.get(key);
    let owner = "/metadata/ownerReferences/0/uid";
    let has_labels = labels
        .into_iter()
        .all(|(key, value)| of_found(key) == Some(value));
    has_labels
        && found.pointer(owner) == wanted.pointer(owner)
        && FIELDS
            .iter()
            .all(|field| found.get(*field) == wanted.get(*field))
}

async fn list(client: &Client) -> Result<BTreeMap<ImportName, Found>, Failure> {
    let listing = timeout(PATIENCE, list_all(client)).await;
    match listing {
        Ok(listed) => listed.map_err(|error| failure(&error)),
        Err(_) => Err(Failure {
            result: "error",
            refused: false,
            message: format!("no answer in {PATIENCE:?}"),
        }),
    }
}

async fn list_all(client: &Client) -> kube::Result<BTreeMap<ImportName, Found>> {
    let api = api(client, WriteKind::EndpointSlice, None);
    let (label, ours) = OURS;
    let selector = format!("{label}={ours}");
    let mut params = ListParams::default().labels(&selector).limit(PAGE);
    let mut all = BTreeMap::new();
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items.iter().filter_map(found));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(all);
        }
    }
}

fn found(object: &DynamicObject) -> Option<(ImportName, Found)> {
    let metadata = &object.metadata;
    // What has not the label is somebody else's, even if the server lists it: it would be deleted.
    let (label, ours) = OURS;
    let labels = metadata.labels.as_ref()?;
    labels.get(label).filter(|value| *value == ours)?;
    let name = ImportName {
        namespace: metadata.namespace.as_deref()?.into(),
        name: metadata.name.as_deref()?.into(),
    };
    let found = Found {
        uid: metadata.uid.as_deref()?.into(),
        object: serde_json::to_value(object).ok()?,
    };
    Some((name, found))
}
