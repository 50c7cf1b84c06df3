// SPDX-License-Identifier: Apache-2.0

//! Imports that depend on the objects of an exported Service.
//!
//! An import that prefers some clusters, and finds enough ready endpoints there, depends on no other cluster.
//! So an event costs what it changes, however many clusters import the Service.

use std::sync::Arc;

use portolan_catalog::{ObjectKey, QuickMap};

/// By cluster and exported Service, the imports that used it when they were projected last, sorted. A Service of which
/// all were taken keeps its place: mostly they are noted again.
///
/// An import that is noted with none of the Services that changed has the same projection as before.
#[derive(Debug, Default)]
pub(super) struct Users(QuickMap<Arc<str>, QuickMap<ObjectKey, Vec<Arc<ObjectKey>>>>);

impl Users {
    /// Notes that imports, which are sorted, used Services.
    pub(super) fn note<'s>(
        &mut self,
        imports: &[Arc<ObjectKey>],
        used: impl IntoIterator<Item = &'s ObjectKey>,
    ) {
        for service in used {
            let of_cluster = self.0.entry(Arc::clone(&service.cluster)).or_default();
            match of_cluster.get_mut(service) {
                // All are known but where they were taken.
                Some(known) if *known == *imports => {}
                Some(known) if known.is_empty() => *known = imports.to_vec(),
                Some(known) => merge(known, imports),
                None => _ = of_cluster.insert(service.clone(), imports.to_vec()),
            }
        }
    }

    /// Takes the imports that use a Service. They must be projected, which notes them again.
    pub(super) fn take(&mut self, service: &ObjectKey) -> Vec<Arc<ObjectKey>> {
        let of_cluster = self.0.get_mut(&service.cluster);
        let of_service = of_cluster.and_then(|of_cluster| of_cluster.get_mut(service));
        of_service.map(std::mem::take).unwrap_or_default()
    }

    /// Forgets a Service that is exported no more, and its place. The imports that use it must be projected.
    pub(super) fn forget(&mut self, service: &ObjectKey) {
        let Some(of_cluster) = self.0.get_mut(&service.cluster) else {
            return;
        };
        of_cluster.remove(service);
        if of_cluster.is_empty() {
            self.0.remove(&service.cluster);
        }
    }

    /// As [`Self::take`], for all Services of a cluster.
    pub(super) fn take_of_cluster(&mut self, cluster: &str) -> Vec<Arc<ObjectKey>> {
        let of_cluster = self.0.remove(cluster).unwrap_or_default();
        of_cluster.into_values().flatten().collect()
    }

    /// Forgets Services that are exported no more.
    pub(super) fn retain(&mut self, is_exported: impl Fn(&ObjectKey) -> bool) {
        for of_cluster in self.0.values_mut() {
            of_cluster.retain(|service, _| is_exported(service));
        }
        self.0.retain(|_, of_cluster| !of_cluster.is_empty());
    }
}

fn merge(known: &mut Vec<Arc<ObjectKey>>, imports: &[Arc<ObjectKey>]) {
    let news = imports
        .iter()
        .filter(|one| known.binary_search(one).is_err());
    let news: Vec<_> = news.cloned().collect();
    if !news.is_empty() {
        known.reserve_exact(news.len());
        known.extend(news);
        known.sort();
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
        let [a, b, c] = ["a", "b", "c"].map(|cluster| Arc::new(key(cluster, "web@clusterset")));
        let all = [&a, &b, &c].map(Arc::clone);
        users.note(&[Arc::clone(&b)], &[key("a", "web"), key("b", "web")]);
        users.note(&[Arc::clone(&b)], &[key("a", "web")]);
        users.note(&all, &[key("a", "web")]);
        assert_eq!(users.take(&key("a", "web")), all);
        assert!(users.take(&key("a", "web")).is_empty());
        assert_eq!(users.take(&key("b", "web")), [b]);
        users.note(&all, &[key("a", "web")]);
        assert_eq!(users.take(&key("a", "web")), all);
    }

    #[test]
    fn a_service_that_is_forgotten_keeps_no_place() {
        let mut users = Users::default();
        let import = [Arc::new(key("c", "web@clusterset"))];
        users.note(&import, &[key("a", "web"), key("a", "api")]);
        users.take(&key("a", "web"));
        users.forget(&key("a", "web"));
        let left: Vec<_> = users.0["a"].keys().cloned().collect();
        assert_eq!(left, [key("a", "api")]);
        users.forget(&key("a", "api"));
        users.forget(&key("b", "api"));
        assert!(users.0.is_empty());
    }

    #[test]
    fn the_users_of_a_cluster_are_those_of_all_its_services() {
        let mut users = Users::default();
        let imports = ["web@clusterset", "api@clusterset"].map(|name| [Arc::new(key("c", name))]);
        let [web, api] = &imports;
        users.note(web, &[key("a", "web"), key("ab", "web")]);
        users.note(api, &[key("a", "api")]);
        let mut taken = users.take_of_cluster("a");
        taken.sort();
        assert_eq!(taken, [Arc::clone(&api[0]), Arc::clone(&web[0])]);
        assert!(users.take_of_cluster("a").is_empty());
        assert_eq!(users.take(&key("ab", "web")), *web);
    }
}
