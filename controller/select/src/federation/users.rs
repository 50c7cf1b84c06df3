// SPDX-License-Identifier: Apache-2.0

//! Which imports the objects of an exported Service decide about.
//!
//! An import that prefers some clusters, and finds enough ready endpoints there, depends on no other cluster.
//! So an event costs what it changes, however many clusters import the Service.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_catalog::ObjectKey;

/// By exported Service, the imports that used it when they were projected last.
///
/// An import that is noted with none of the Services that changed has the same projection as before.
#[derive(Debug, Default)]
pub(super) struct Users(BTreeMap<ObjectKey, Vec<Arc<ObjectKey>>>);

impl Users {
    /// Notes what an import used.
    pub(super) fn note(&mut self, import: &ObjectKey, used: impl IntoIterator<Item = ObjectKey>) {
        let import = Arc::new(import.clone());
        for service in used {
            let of_service = self.0.entry(service).or_default();
            if !of_service.contains(&import) {
                // Most have one.
                of_service.reserve_exact(1);
                of_service.push(Arc::clone(&import));
            }
        }
    }

    /// Takes the imports that use a Service. They must be projected, which notes them again.
    pub(super) fn take(&mut self, service: &ObjectKey) -> Vec<Arc<ObjectKey>> {
        self.0.remove(service).unwrap_or_default()
    }

    /// As [`Self::take`], for all Services of a cluster.
    pub(super) fn take_of_cluster(&mut self, cluster: &Arc<str>) -> Vec<Arc<ObjectKey>> {
        let first = ObjectKey {
            cluster: Arc::clone(cluster),
            namespace: Arc::default(),
            name: Arc::default(),
        };
        let of_cluster = self.0.range_mut(first..);
        let of_cluster = of_cluster.take_while(|(service, _)| service.cluster == *cluster);
        of_cluster
            .flat_map(|(_, imports)| std::mem::take(imports))
            .collect()
    }

    /// Forgets Services that are exported no more.
    pub(super) fn retain(&mut self, is_exported: impl Fn(&ObjectKey) -> bool) {
        self.0.retain(|service, _| is_exported(service));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(cluster: &str, name: &str) -> ObjectKey {
        ObjectKey {
            cluster: cluster.into(),
            namespace: "shop".into(),
            name: name.into(),
        }
    }

    #[test]
    fn imports_are_noted_once_until_they_are_taken() {
        let mut users = Users::default();
        let import = key("a", "web@clusterset");
        users.note(&import, [key("a", "web"), key("b", "web")]);
        users.note(&import, [key("a", "web")]);
        assert_eq!(users.take(&key("a", "web")), [Arc::new(import.clone())]);
        assert!(users.take(&key("a", "web")).is_empty());
        assert_eq!(users.take(&key("b", "web")), [Arc::new(import)]);
    }

    #[test]
    fn the_users_of_a_cluster_are_those_of_all_its_services() {
        let mut users = Users::default();
        let [web, api] = ["web@clusterset", "api@clusterset"].map(|name| key("c", name));
        users.note(&web, [key("a", "web"), key("ab", "web")]);
        users.note(&api, [key("a", "api")]);
        let taken = users.take_of_cluster(&"a".into());
        assert_eq!(taken, [Arc::new(api), Arc::new(web.clone())]);
        assert!(users.take_of_cluster(&"a".into()).is_empty());
        assert_eq!(users.take(&key("ab", "web")), [Arc::new(web)]);
    }
}
