// SPDX-License-Identifier: Apache-2.0

//! Changes from a source to the catalog.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_model::{ByRecord, Record};

use crate::{FieldProblem, Kind, Object, ObjectKey, ObjectRef};

/// One thing that a source saw. Applying a change twice is the same as once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectChange {
    /// An object was added or changed.
    Put {
        /// The object.
        object: Object,
        /// Parts of the object that could not be used and were left out.
        problems: Vec<FieldProblem>,
    },
    /// This object could not be read. Its last good version stays in force.
    Refused {
        /// The object.
        object: ObjectRef,
        /// Reason.
        problems: Vec<FieldProblem>,
    },
    /// The object was deleted, or the controller no longer serves it.
    Delete(ObjectRef),
    /// A listing of a kind and cluster is complete. Objects that it does not have were deleted
    /// while the source did not watch (mark and sweep).
    Retain {
        /// The kind that was listed.
        kind: Kind,
        /// The cluster that was listed.
        cluster: Arc<str>,
        /// The objects of the listing.
        keep: BTreeSet<ObjectKey>,
    },
    /// The problems of an object whose content comes in another change, in place of those before; none if
    /// empty.
    Problems {
        /// The object.
        object: ObjectRef,
        /// All of its problems.
        problems: Vec<FieldProblem>,
    },
    /// All load balancers of a cluster, in place of those before: one generation of them takes effect at
    /// once.
    LoadBalancers {
        /// The cluster that was read.
        cluster: Arc<str>,
        /// Its records, whose keys have the cluster's name.
        records: ByRecord<Record>,
    },
    /// After the changes so far, this kind is at this version of the source.
    Reached {
        /// The kind that was watched.
        kind: Kind,
        /// The cluster that was watched.
        cluster: Arc<str>,
        /// A number that only grows: the API server's resourceVersion.
        version: u64,
    },
}
