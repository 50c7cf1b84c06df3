// SPDX-License-Identifier: Apache-2.0

//! The progress of the writer, and the outcome of publishing.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The progress of the writer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    /// The last revision; 0 before the first.
    pub revision: u64,
    /// Number of clusters whose source has delivered all of its objects. The tables of others are
    /// withheld: a table with half of the Services would make agents delete the other half.
    pub synced: usize,
}

/// The outcome of publishing an update.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The revision of the update; the last revision if the update changed nothing.
    pub revision: u64,
    /// The new heads of the clusters that changed.
    pub heads: BTreeMap<Arc<str>, u64>,
}
