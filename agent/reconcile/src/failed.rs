//! What the kernel refused and lacks since.

use std::sync::Arc;

use portolan_model::{NodeTable, RecordKey};

/// What went wrong, with the record that it belongs to where it belongs to one.
pub(crate) type Error = (Option<RecordKey>, String);

/// What did not work at its last attempt.
#[derive(Debug, Default)]
pub(crate) struct Failed(Vec<Error>);

impl Failed {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Error> {
        self.0.iter()
    }

    pub(crate) fn add(&mut self, errors: Vec<Error>) {
        self.0.extend(errors);
    }

    /// Keeps what was not tried again because its record has not changed since a table; nothing
    /// without that.
    pub(crate) fn keep_unchanged(&mut self, before: Option<&NodeTable>, now: &NodeTable) {
        let Some(before) = before else {
            self.0.clear();
            return;
        };
        self.0.retain(|(record, _)| {
            let is_unchanged = |key| {
                now.records.contains_key(key)
                    && same(before.records.get(key), now.records.get(key))
                    && same(before.lists.get(key), now.lists.get(key))
            };
            record.as_ref().is_none_or(is_unchanged)
        });
    }
}

fn same<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}
