// SPDX-License-Identifier: Apache-2.0

//! The writer of an edge controller: it serves imports by plans of a centre.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use portolan_select::Pipeline;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::edges::PlanDesk;

/// Time for which agents wait for plans if nobody has told any, since their tables would lack the imports: a centre
/// that is there tells them within that time.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same of a cluster that has imports: longer than a centre that restarts needs.
const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// The plans of the centre.
#[derive(Debug)]
pub(crate) struct Centre {
    cluster: Arc<str>,
    /// Where virtual addresses of imports may be; anywhere if empty.
    ranges: Vec<IpNet>,
    desk: Arc<PlanDesk>,
    news: watch::Receiver<u64>,
    began: Instant,
}

impl Centre {
    pub(crate) fn new(cluster: Arc<str>, ranges: Vec<IpNet>, desk: Arc<PlanDesk>) -> Self {
        Self {
            cluster,
            ranges,
            news: desk.news(),
            desk,
            began: Instant::now(),
        }
    }

    /// Has a pipeline serve imports by plans, with those that are there.
    pub(super) fn begin(&mut self, pipeline: &mut Pipeline) {
        pipeline.follow_centre(&self.cluster, self.ranges.clone());
        self.pass(pipeline);
    }

    /// Passes on what has changed.
    pub(super) fn pass(&mut self, pipeline: &mut Pipeline) {
        self.news.mark_unchanged();
        pipeline.take_plans(self.desk.take());
    }

    /// Waits for changes since the last [`pass`](Self::pass).
    pub(super) async fn changed(centre: &mut Option<Self>) {
        match centre {
            // The sender is in the desk.
            Some(centre) => _ = centre.news.changed().await,
            None => pending().await,
        }
    }

    /// Returns `true` if agents must wait for plans, since nobody has told which there are.
    pub(super) fn is_awaited(&self, pipeline: &Pipeline) -> bool {
        if self.desk.is_known() {
            return false;
        }
        let mut imports = pipeline.catalog().observed_imports(&self.cluster);
        let has_imports = imports.any(|import| {
            let own = import.own.as_deref();
            let spec = own.and_then(|own| own.spec.as_ref());
            spec.is_some_and(|spec| !spec.ips.is_empty())
        });
        let patience = match has_imports {
            true => LONG_PATIENCE,
            false => PATIENCE,
        };
        self.began.elapsed() < patience
    }
}

#[cfg(test)]
mod tests {
    use portolan_catalog::{ImportSpec, Object, ObjectChange, ObjectKey, OwnImport, ServiceImport};
    use tokio::time::advance;

    use super::*;

    /// A ServiceImport of a centre with a virtual address.
    fn import() -> ObjectChange {
        let spec = ImportSpec {
            ips: vec![[10, 112, 0, 1].into()],
            ..ImportSpec::default()
        };
        let own = OwnImport {
            spec: Some(spec),
            ..OwnImport::default()
        };
        let key = ObjectKey {
            cluster: "eu".into(),
            namespace: "shop".into(),
            name: "web".into(),
        };
        ObjectChange::Put {
            object: Object::ServiceImport(ServiceImport {
                key,
                uid: "u".into(),
                generation: 1,
                created: None,
                own: Some(Box::new(own)),
            }),
            problems: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn agents_wait_for_plans_for_longer_if_there_are_imports() {
        let desk = PlanDesk::empty();
        let centre = Centre::new("eu".into(), Vec::new(), Arc::clone(&desk));
        let mut pipeline = Pipeline::default();
        assert!(centre.is_awaited(&pipeline));
        advance(PATIENCE).await;
        assert!(!centre.is_awaited(&pipeline));
        pipeline.apply(import());
        assert!(centre.is_awaited(&pipeline));
        advance(LONG_PATIENCE - PATIENCE).await;
        assert!(!centre.is_awaited(&pipeline));
        // What is known is not awaited.
        let centre = Centre::new("eu".into(), Vec::new(), Arc::clone(&desk));
        assert!(centre.is_awaited(&pipeline));
        desk.know();
        assert!(!centre.is_awaited(&pipeline));
    }
}
