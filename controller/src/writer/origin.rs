// SPDX-License-Identifier: Apache-2.0

//! Origins of published revisions: source versions and trigger times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use portolan_select::Pipeline;
use portolan_tablelog::{ClusterOrigin, Origin};

/// Origins of the changes that wait to be published.
#[derive(Debug)]
pub(super) struct Origins {
    /// Start of the writer, in milliseconds of Unix time. Earlier triggers are ignored: they would
    /// measure the time that the controller was away.
    began_ms: u64,
    observed: Option<Instant>,
    published: BTreeMap<Arc<str>, [u64; 3]>,
}

impl Origins {
    pub(super) fn new(began: SystemTime) -> Self {
        let began = began.duration_since(SystemTime::UNIX_EPOCH);
        let began_ms = began.map_or(0, |since| since.as_millis());
        Self {
            began_ms: u64::try_from(began_ms).unwrap_or(u64::MAX),
            observed: None,
            published: BTreeMap::new(),
        }
    }

    /// Notes the arrival of an event.
    pub(super) fn observe(&mut self, now: Instant) {
        self.observed.get_or_insert(now);
    }

    /// Notes that the events changed nothing.
    pub(super) fn forget(&mut self) {
        self.observed = None;
    }

    /// Forgets the versions of a cluster that left.
    pub(super) fn forget_cluster(&mut self, cluster: &str) {
        self.published.remove(cluster);
    }

    /// The origin of the last revision without its times, for a repair.
    pub(super) fn repeat(&self) -> Origin {
        let of_cluster = |versions: &[u64; 3]| ClusterOrigin {
            source_versions: versions.to_vec(),
            ..ClusterOrigin::default()
        };
        let clusters = self.published.iter();
        Origin {
            clusters: clusters
                .map(|(name, versions)| (Arc::clone(name), of_cluster(versions)))
                .collect(),
            observed: None,
        }
    }

    /// Returns `true` if a source has newer versions than the published ones.
    pub(super) fn is_news(&self, pipeline: &Pipeline) -> bool {
        pipeline.catalog().source_versions() != self.published
    }

    /// Takes the origin of the next flush; to be called before it. Clusters whose source has not synced
    /// have no trigger times.
    pub(super) fn take_origin(
        &mut self,
        pipeline: &mut Pipeline,
        synced: impl Fn(&str) -> bool,
    ) -> Origin {
        let triggers = pipeline.take_triggers();
        self.published = pipeline.catalog().source_versions();
        let mut origin = self.repeat();
        for (cluster, mut times) in triggers {
            times.retain(|time| synced(&cluster) && *time > self.began_ms);
            if !times.is_empty() {
                origin.clusters.entry(cluster).or_default().trigger_times_ms = times;
            }
        }
        origin.observed = self.observed.take();
        origin
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_catalog::{EndpointSlice, Kind, Object, ObjectChange, ObjectKey};
    use portolan_model::Family;

    use super::*;

    fn slice(name: &str, triggered_ms: u64) -> ObjectChange {
        let object = Object::EndpointSlice(EndpointSlice {
            key: ObjectKey {
                cluster: "".into(),
                namespace: "ns".into(),
                name: name.into(),
            },
            service: "web".into(),
            family: Family::V4,
            ports: vec![],
            endpoints: vec![],
            triggered_ms: Some(triggered_ms),
        });
        ObjectChange::Put {
            object,
            problems: vec![],
        }
    }

    #[test]
    fn triggers_before_the_start_are_ignored() {
        let began = SystemTime::UNIX_EPOCH + Duration::from_millis(1000);
        let mut origins = Origins::new(began);
        let mut pipeline = Pipeline::default();
        pipeline.apply(slice("a", 2000));
        assert_eq!(
            origins.take_origin(&mut pipeline, |_| false),
            Origin::default()
        );
        pipeline.flush();
        let now = Instant::now();
        origins.observe(now);
        origins.observe(now + Duration::from_secs(1));
        pipeline.apply(slice("b", 1000));
        pipeline.apply(slice("c", 1001));
        let origin = origins.take_origin(&mut pipeline, |_| true);
        assert_eq!(origin.clusters[""].trigger_times_ms, [1001]);
        assert_eq!(origin.observed, Some(now));
        assert_eq!(
            origins.take_origin(&mut pipeline, |_| true),
            Origin::default()
        );
    }

    #[test]
    fn a_cluster_that_left_returns_with_its_own_versions() {
        let mut origins = Origins::new(SystemTime::UNIX_EPOCH);
        let mut pipeline = Pipeline::default();
        for version in [10, 3] {
            pipeline.apply(ObjectChange::Reached {
                kind: Kind::Node,
                cluster: "".into(),
                version,
            });
            let origin = origins.take_origin(&mut pipeline, |_| true);
            assert_eq!(origin.clusters[""].source_versions, [0, 0, version]);
            pipeline.forget_versions("");
            origins.forget_cluster("");
            assert_eq!(origins.repeat(), Origin::default());
        }
    }

    #[test]
    fn newer_versions_are_noticed_until_they_are_published() {
        let mut origins = Origins::new(SystemTime::UNIX_EPOCH);
        let mut pipeline = Pipeline::default();
        assert!(!origins.is_news(&pipeline));
        pipeline.apply(ObjectChange::Reached {
            kind: Kind::Node,
            cluster: "".into(),
            version: 7,
        });
        assert!(!pipeline.is_dirty());
        assert!(origins.is_news(&pipeline));
        let origin = origins.take_origin(&mut pipeline, |_| true);
        assert_eq!(origin.clusters[""].source_versions, [0, 0, 7]);
        assert!(!origins.is_news(&pipeline));
    }
}
