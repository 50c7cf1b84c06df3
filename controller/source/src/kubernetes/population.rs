// SPDX-License-Identifier: Apache-2.0

//! The number of objects of one kind that a cluster may have.

use std::collections::HashSet;

use portolan_catalog::ObjectKey;

use super::trouble::Trouble;

/// The objects of one kind that the server has sent, if there is a bound of them.
#[derive(Debug, Default)]
pub(super) struct Population {
    most: Option<usize>,
    /// Those that were passed on and are not gone: also those of listings that did not end, which no
    /// sweep has removed.
    live: HashSet<ObjectKey>,
    /// Those of the listing in progress.
    listed: HashSet<ObjectKey>,
}

impl Population {
    /// At most so many objects; any number without a bound.
    pub(super) fn new(most: Option<usize>) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Begins a listing.
    pub(super) fn begin(&mut self) {
        self.listed.clear();
    }

    /// An object of a listing.
    ///
    /// # Errors
    /// If there are too many, in it or with those of listings before it: together at most twice as many.
    pub(super) fn list(&mut self, key: Option<ObjectKey>) -> Result<(), Trouble> {
        let together = self.most.map(|most| most.saturating_mul(2));
        insert(&mut self.listed, key.clone(), self.most)?;
        insert(&mut self.live, key, together)
    }

    /// An object that a listing in progress had, and that is gone.
    pub(super) fn unlist(&mut self, key: Option<ObjectKey>) {
        if let Some(key) = key {
            self.listed.remove(&key);
        }
    }

    /// The listing was believed.
    pub(super) fn complete(&mut self) {
        self.live = std::mem::take(&mut self.listed);
    }

    /// An object that is there now.
    ///
    /// # Errors
    /// If there are too many.
    pub(super) fn put(&mut self, key: Option<ObjectKey>) -> Result<(), Trouble> {
        insert(&mut self.live, key, self.most)
    }

    /// An object that is gone.
    pub(super) fn delete(&mut self, key: Option<ObjectKey>) {
        if let Some(key) = key {
            self.live.remove(&key);
        }
    }
}

/// Adds an object, unless that would be one too many. An object without a name is none.
fn insert(
    keys: &mut HashSet<ObjectKey>,
    key: Option<ObjectKey>,
    most: Option<usize>,
) -> Result<(), Trouble> {
    let (Some(most), Some(key)) = (most, key) else {
        return Ok(());
    };
    if keys.len() >= most && !keys.contains(&key) {
        return Err(Trouble::TooMany { most });
    }
    keys.insert(key);
    Ok(())
}
