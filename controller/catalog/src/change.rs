//! What a source tells the catalog.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{Kind, Object, ObjectKey, ObjectRef, Problem};

/// One thing that a source saw. Applying a change twice is the same as once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// This object is so now. What could not be used of it is in `problems`.
    Put {
        /// The object.
        object: Object,
        /// What was left out of it.
        problems: Vec<Problem>,
    },
    /// This object could not be read. Its last good version stays in force.
    Refused {
        /// Which object.
        object: ObjectRef,
        /// Why.
        problems: Vec<Problem>,
    },
    /// This object is gone, or no longer ours to serve.
    Delete(ObjectRef),
    /// A listing is complete: of this kind and cluster there are just these. Everything else was
    /// deleted while the source did not look (mark and sweep).
    Retain {
        /// The kind that was listed.
        kind: Kind,
        /// The cluster that was listed.
        cluster: Arc<str>,
        /// All that the listing had.
        keep: BTreeSet<ObjectKey>,
    },
    /// With all changes so far, this kind is as it was at this version of the source.
    Reached {
        /// The kind that was watched.
        kind: Kind,
        /// The cluster that was watched.
        cluster: Arc<str>,
        /// A number that only grows: the API server's resourceVersion.
        version: u64,
    },
}
