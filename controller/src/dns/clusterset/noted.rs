// SPDX-License-Identifier: Apache-2.0

//! Changes that the writer noted and no zone has yet: of each import the newest state, so that they never take more
//! room than the imports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_dns::{Listing, NamesChange, ServiceKey};
use tokio::sync::Notify;

/// The writer's end: it never waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterNames(Arc<Inbox>);

#[derive(Debug, Default)]
struct Inbox {
    noted: Mutex<BTreeMap<Arc<str>, Noted>>,
    /// The clusters that are known to be complete.
    complete: Mutex<BTreeSet<Arc<str>>>,
    filled: Notify,
}

/// Changes of one cluster that were noted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// Whether the cluster left, before everything else.
    pub(super) has_left: bool,
    namespaces: Option<BTreeSet<String>>,
    imports: BTreeMap<ServiceKey, NamesChange>,
    is_complete: bool,
}

impl Noted {
    /// Returns `true` if no zone has anything to do.
    pub(super) fn is_empty(&self) -> bool {
        self.namespaces.is_none() && self.imports.is_empty() && !self.is_complete
    }

    /// Returns these changes and those noted after them.
    pub(super) fn then(mut self, later: Self) -> Self {
        if later.has_left {
            return later;
        }
        self.namespaces = later.namespaces.or(self.namespaces);
        self.imports.extend(later.imports);
        self.is_complete |= later.is_complete;
        self
    }

    /// All changes in order: that everything is known comes last.
    pub(super) fn into_changes(self) -> Vec<NamesChange> {
        let namespaces = self.namespaces.iter().flatten();
        let mut changes: Vec<_> = namespaces
            .map(|name| NamesChange::Namespace(name.clone()))
            .collect();
        let listed = self.namespaces.map(Listing::Namespaces);
        changes.extend(listed.map(NamesChange::Listed));
        changes.extend(self.imports.into_values());
        changes.extend(self.is_complete.then_some(NamesChange::Synced));
        changes
    }
}

impl ClusterNames {
    /// Notes the namespaces of a cluster, in place of those before.
    pub(crate) fn namespaces(&self, cluster: &Arc<str>, names: BTreeSet<String>) {
        self.note(cluster, |noted| noted.namespaces = Some(names));
    }

    /// Notes the whole state of an import of a cluster.
    pub(crate) fn import(&self, cluster: &Arc<str>, change: NamesChange) {
        let NamesChange::Whole { key, .. } = &change else {
            return;
        };
        let key = key.clone();
        self.note(cluster, |noted| _ = noted.imports.insert(key, change));
    }

    /// Notes that all imports of a cluster are known, if that is new.
    pub(crate) fn complete(&self, cluster: &Arc<str>) {
        let mut complete = lock(&self.0.complete);
        if complete.insert(Arc::clone(cluster)) {
            self.note(cluster, |noted| noted.is_complete = true);
        }
    }

    /// Notes that a cluster left.
    pub(crate) fn left(&self, cluster: &Arc<str>) {
        lock(&self.0.complete).remove(cluster);
        self.note(cluster, |noted| {
            *noted = Noted {
                has_left: true,
                ..Noted::default()
            }
        });
    }

    /// Everything that was noted since the last call; waits until there is something.
    pub(super) async fn next(&self) -> BTreeMap<Arc<str>, Noted> {
        loop {
            let noted = std::mem::take(&mut *lock(&self.0.noted));
            if !noted.is_empty() {
                return noted;
            }
            self.0.filled.notified().await;
        }
    }

    /// Everything that was noted since the last call: whether the cluster left, and the changes since.
    #[cfg(test)]
    pub(crate) fn take(&self) -> BTreeMap<Arc<str>, (bool, Vec<NamesChange>)> {
        let noted = std::mem::take(&mut *lock(&self.0.noted)).into_iter();
        let told = |noted: Noted| (noted.has_left, noted.into_changes());
        noted.map(|(cluster, of)| (cluster, told(of))).collect()
    }

    fn note(&self, cluster: &Arc<str>, change: impl FnOnce(&mut Noted)) {
        change(lock(&self.0.noted).entry(Arc::clone(cluster)).or_default());
        self.0.filled.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(name: &str) -> NamesChange {
        NamesChange::Whole {
            key: ServiceKey::new("ns", name),
            service: None,
            slices: Vec::new(),
        }
    }

    #[tokio::test]
    async fn the_newest_state_of_each_import_comes_before_completeness() {
        let names = ClusterNames::default();
        let eu: Arc<str> = "eu-1".into();
        names.complete(&eu);
        names.import(&eu, gone("b"));
        names.import(&eu, gone("a"));
        names.import(&eu, gone("a"));
        names.namespaces(&eu, ["ns".to_owned()].into());
        let mut all = names.next().await;
        let expected = [
            NamesChange::Namespace("ns".to_owned()),
            NamesChange::Listed(Listing::Namespaces(["ns".to_owned()].into())),
            gone("a"),
            gone("b"),
            NamesChange::Synced,
        ];
        assert_eq!(all.remove(&eu).unwrap().into_changes(), expected);
        // Only the first time.
        names.complete(&eu);
        names.import(&eu, gone("a"));
        let mut all = names.next().await;
        assert_eq!(all.remove(&eu).unwrap().into_changes(), [gone("a")]);
    }

    fn noted(namespace: &str, imports: &[&str], is_complete: bool) -> Noted {
        let imports = imports.iter().copied();
        Noted {
            has_left: false,
            namespaces: Some([namespace.to_owned()].into()),
            imports: imports
                .map(|name| (ServiceKey::new("ns", name), gone(name)))
                .collect(),
            is_complete,
        }
    }

    #[test]
    fn what_was_noted_later_takes_the_place_of_the_same_before() {
        let both = noted("old", &["a"], true).then(noted("ns", &["b"], false));
        assert!(!both.is_empty());
        let expected = [
            NamesChange::Namespace("ns".to_owned()),
            NamesChange::Listed(Listing::Namespaces(["ns".to_owned()].into())),
            gone("a"),
            gone("b"),
            NamesChange::Synced,
        ];
        assert_eq!(both.into_changes(), expected);
        let left = Noted {
            has_left: true,
            ..Noted::default()
        };
        let after = noted("ns", &["a"], true).then(left);
        assert!(after.has_left && after.is_empty());
    }

    #[tokio::test]
    async fn a_cluster_that_left_begins_anew() {
        let names = ClusterNames::default();
        let eu: Arc<str> = "eu-1".into();
        names.complete(&eu);
        names.import(&eu, gone("a"));
        names.left(&eu);
        names.complete(&eu);
        let noted = names.next().await.remove(&eu).unwrap();
        assert!(noted.has_left);
        assert_eq!(noted.into_changes(), [NamesChange::Synced]);
    }
}
