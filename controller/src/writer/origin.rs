// SPDX-License-Identifier: Apache-2.0

//! Origins of published revisions: source versions and trigger times.

use std::time::{Instant, SystemTime};

use portolan_select::Pipeline;
use portolan_tablelog::Origin;

/// Origins of the changes that wait to be published.
#[derive(Debug)]
pub(super) struct Origins {
    /// Start of the writer, in milliseconds of Unix time. Earlier triggers are ignored: they would
    /// measure the time that the controller was away.
    began_ms: u64,
    observed: Option<Instant>,
    published: Vec<u64>,
}

impl Origins {
    pub(super) fn new(began: SystemTime) -> Self {
        let began = began.duration_since(SystemTime::UNIX_EPOCH);
        let began_ms = began.map_or(0, |since| since.as_millis());
        Self {
            began_ms: u64::try_from(began_ms).unwrap_or(u64::MAX),
            observed: None,
            published: Vec::new(),
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

    /// The origin of the last revision without its times, for a repair.
    pub(super) fn repeat(&self) -> Origin {
        Origin {
            source_versions: self.published.clone(),
            ..Origin::default()
        }
    }

    /// Whether the source has newer versions than the published ones.
    pub(super) fn is_news(&self, pipeline: &Pipeline) -> bool {
        pipeline.catalog().source_versions() != self.published
    }

    /// Takes the origin of the next flush; to be called before it. There are no trigger times until the
    /// source has synced.
    pub(super) fn take_origin(&mut self, pipeline: &mut Pipeline, synced: bool) -> Origin {
        let mut triggers = pipeline.take_triggers();
        triggers.retain(|trigger| synced && *trigger > self.began_ms);
        self.published = pipeline.catalog().source_versions();
        Origin {
            source_versions: self.published.clone(),
            trigger_times_ms: triggers,
            observed: self.observed.take(),
        }
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
        assert_eq!(origins.take_origin(&mut pipeline, false), Origin::default());
        pipeline.flush();
        let now = Instant::now();
        origins.observe(now);
        origins.observe(now + Duration::from_secs(1));
        pipeline.apply(slice("b", 1000));
        pipeline.apply(slice("c", 1001));
        let origin = origins.take_origin(&mut pipeline, true);
        assert_eq!(origin.trigger_times_ms, [1001]);
        assert_eq!(origin.observed, Some(now));
        assert_eq!(origins.take_origin(&mut pipeline, true), Origin::default());
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
        let origin = origins.take_origin(&mut pipeline, true);
        assert_eq!(origin.source_versions, [0, 0, 7]);
        assert!(!origins.is_news(&pipeline));
    }
}
