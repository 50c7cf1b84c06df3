// SPDX-License-Identifier: Apache-2.0

//! Batches of changes for DNS, from the watches of the catalog and others.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::{Kind, ObjectKey};
use portolan_dns::{Listing, NamesChange, PodKey, ServiceKey, SliceKey};

use super::feed::Pending;
use crate::names::NameSink;
use crate::sink::Closed;

/// The part of one watch for DNS.
#[derive(Debug)]
pub(super) struct NameFeed {
    kind: Kind,
    sink: NameSink,
    pending: Arc<Pending>,
    listed: bool,
    /// Changes that were not sent yet.
    batch: Vec<NamesChange>,
    /// Namespace and name of the listing's objects so far.
    keep: BTreeSet<(String, String)>,
}

impl NameFeed {
    pub(super) fn new(kind: Kind, sink: NameSink, pending: Arc<Pending>) -> Self {
        Self {
            kind,
            sink,
            pending,
            listed: false,
            batch: Vec::new(),
            keep: BTreeSet::new(),
        }
    }

    pub(super) fn begin(&mut self) {
        self.keep.clear();
    }

    /// The listing in progress has an object.
    pub(super) fn keep(&mut self, object: &ObjectKey) {
        self.keep.insert(key(object));
    }

    /// The listing in progress has an object no longer.
    pub(super) fn forget(&mut self, object: &ObjectKey) {
        self.keep.remove(&key(object));
    }

    /// Adds a change to the next batch.
    pub(super) fn push(&mut self, change: Option<NamesChange>) {
        self.batch.extend(change);
    }

    pub(super) async fn complete(&mut self) -> Result<(), Closed> {
        let keep = std::mem::take(&mut self.keep).into_iter();
        let listing = match self.kind {
            Kind::Namespace => Some(Listing::Namespaces(keep.map(|(_, name)| name).collect())),
            Kind::Service => {
                let keys = keep.map(|(namespace, name)| ServiceKey { namespace, name });
                Some(Listing::Services(keys.collect()))
            }
            Kind::EndpointSlice => {
                let keys = keep.map(|(namespace, name)| SliceKey { namespace, name });
                Some(Listing::Slices(keys.collect()))
            }
            Kind::Pod => {
                let keys = keep.map(|(namespace, name)| PodKey { namespace, name });
                Some(Listing::Pods(keys.collect()))
            }
            Kind::Node
            | Kind::ServiceExport
            | Kind::ServiceImport
            | Kind::ClusterProperty
            | Kind::LoadBalancer
            | Kind::Director
            | Kind::Policy => None,
        };
        self.batch.extend(listing.map(NamesChange::Listed));
        if !std::mem::replace(&mut self.listed, true) && self.pending.done() {
            self.batch.push(NamesChange::Synced);
        }
        self.flush().await
    }

    pub(super) async fn flush(&mut self) -> Result<(), Closed> {
        self.sink.send(std::mem::take(&mut self.batch)).await
    }
}

fn key(object: &ObjectKey) -> (String, String) {
    (object.namespace.to_string(), object.name.to_string())
}
