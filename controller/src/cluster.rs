// SPDX-License-Identifier: Apache-2.0

//! The identity of the cluster: learned from the API server, and compared with it from then on.

use std::fmt::Display;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use portolan_runtime::{BlockReady, Readiness};
use portolan_source::kubernetes::ClusterId;
use portolan_tablelog::ClusterIdentity;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::sleep;
use tracing::{error, info, warn};

/// First and longest pause between questions that get no answer.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Pause after an answer. A restored API server has all its objects again at once.
const PERIOD: Duration = Duration::from_secs(15);

/// Metrics of the cluster's identity.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterMetrics {
    known: Gauge<u64, AtomicU64>,
    differs: Gauge<u64, AtomicU64>,
}

impl ClusterMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        registry.register(
            "cluster_identity_known",
            "Whether the API server has stated the identity of its cluster",
            this.known.clone(),
        );
        registry.register(
            "cluster_identity_differs",
            "Whether the API server states another identity than at first: it was replaced by that of \
             another cluster",
            this.differs.clone(),
        );
        this
    }
}

/// The one owner of the cluster's identity with an API server as the source. The first identity stays
/// in force: a different one is logged, counted, and keeps the controller unready.
pub(crate) struct ClusterWatch {
    identity: ClusterIdentity,
    readiness: Readiness,
    metrics: ClusterMetrics,
    /// Present while the API server states another identity.
    unready: Option<BlockReady>,
    /// The last other identity that was logged.
    other: Option<String>,
    /// Whether the lack of an answer was logged.
    has_warned: bool,
    pause: Duration,
}

impl ClusterWatch {
    /// Withholds the tables until the first answer.
    pub(crate) fn new(
        identity: ClusterIdentity,
        readiness: Readiness,
        metrics: ClusterMetrics,
    ) -> Self {
        identity.awaited();
        Self {
            identity,
            readiness,
            metrics,
            unready: None,
            other: None,
            has_warned: false,
            pause: FIRST_PAUSE,
        }
    }

    /// Asks for the identity again and again.
    pub(crate) async fn run<F, E>(mut self, mut ask: impl FnMut() -> F)
    where
        F: Future<Output = Result<ClusterId, E>>,
        E: Display,
    {
        loop {
            let pause = match ask().await {
                Ok(ClusterId::Known(id)) => self.known(&id),
                Ok(ClusterId::Unobtainable(reason)) => self.unobtainable(&reason),
                Err(error) => self.unanswered(&error),
            };
            sleep(pause).await;
        }
    }

    fn known(&mut self, id: &str) -> Duration {
        self.pause = FIRST_PAUSE;
        let ours = match self.identity.set(Some(id)) {
            Ok(()) if self.metrics.known.set(1) == 0 => {
                info!(cluster = id, "cluster identified");
                return PERIOD;
            }
            Ok(()) => {
                if self.unready.take().is_some() {
                    self.metrics.differs.set(0);
                    self.other = None;
                    info!(cluster = id, "the API server is that of our cluster again");
                }
                return PERIOD;
            }
            Err(ours) => ours,
        };
        self.metrics.differs.set(1);
        if self.unready.is_none() {
            self.unready = Some(self.readiness.block("cluster identity"));
        }
        if self.other.as_deref() != Some(id) {
            error!(%ours, theirs = id,
                "the API server is that of another cluster (UID of the namespace kube-system); not \
                 ready; restart the controller to serve that cluster's agents");
            self.other = Some(id.to_owned());
        }
        PERIOD
    }

    fn unobtainable(&mut self, reason: &str) -> Duration {
        self.pause = FIRST_PAUSE;
        // The tables are not withheld any longer. An identity that is known stays.
        let _ = self.identity.set(None);
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!(
                reason,
                "cannot get the namespace kube-system: agents cannot tell this cluster from others; \
                 it takes permission to `get` it, or --cluster-id; asking again (logged once)"
            );
        }
        PERIOD
    }

    fn unanswered(&mut self, error: &impl Display) -> Duration {
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!(%error, "the cluster's identity is not known yet; asking again (logged once)");
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use portolan_tablelog::{Publisher, Retention, TableReader};
    use tokio::task::JoinHandle;

    use super::*;

    type Answer = Result<ClusterId, &'static str>;

    struct Rig {
        tables: TableReader,
        readiness: Readiness,
        metrics: ClusterMetrics,
        answer: Arc<Mutex<Answer>>,
        watch: JoinHandle<()>,
        _publisher: Publisher,
    }

    impl Rig {
        fn new(answer: Answer) -> Self {
            let (publisher, tables) = Publisher::new(Retention::default());
            let (readiness, metrics) = (Readiness::default(), ClusterMetrics::default());
            let answer = Arc::new(Mutex::new(answer));
            let watch = ClusterWatch::new(
                publisher.identity(&"".into()),
                readiness.clone(),
                metrics.clone(),
            );
            let given = Arc::clone(&answer);
            let watch = tokio::spawn(watch.run(move || {
                let answer = given.lock().unwrap().clone();
                async { answer }
            }));
            Self {
                tables,
                readiness,
                metrics,
                answer,
                watch,
                _publisher: publisher,
            }
        }

        async fn answers(&self, answer: Answer) {
            *self.answer.lock().unwrap() = answer;
            self.asked().await;
        }

        /// Waits for longer than the pause between two questions.
        async fn asked(&self) {
            sleep(PERIOD * 2).await;
        }

        fn id(&self) -> Option<Arc<str>> {
            self.tables.feed(&"".into()).cluster_id().cloned()
        }

        async fn is_awaited(&self) -> bool {
            let feed = self.tables.feed(&"".into());
            let known = self.tables.cluster_id_known(&feed);
            tokio::time::timeout(PERIOD, known).await.is_err()
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            self.watch.abort();
        }
    }

    fn known(id: &str) -> Answer {
        Ok(ClusterId::Known(id.to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_identity_is_learned_when_the_server_answers() {
        let rig = Rig::new(Err("connection refused"));
        rig.asked().await;
        assert!(rig.is_awaited().await);
        rig.answers(known("a")).await;
        assert!(!rig.is_awaited().await);
        assert_eq!(
            (rig.id().as_deref(), rig.metrics.known.get()),
            (Some("a"), 1)
        );
        assert!(rig.readiness.pending().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_that_is_forbidden_at_first_is_learned_later() {
        let rig = Rig::new(Ok(ClusterId::Unobtainable("forbidden".to_owned())));
        rig.asked().await;
        assert!(!rig.is_awaited().await);
        assert_eq!((rig.id().as_deref(), rig.metrics.known.get()), (None, 0));
        rig.answers(known("a")).await;
        assert_eq!(
            (rig.id().as_deref(), rig.metrics.known.get()),
            (Some("a"), 1)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_identity_is_reported_and_never_taken() {
        let rig = Rig::new(known("a"));
        rig.asked().await;
        rig.answers(known("b")).await;
        assert_eq!(
            (rig.id().as_deref(), rig.metrics.differs.get()),
            (Some("a"), 1)
        );
        assert_eq!(rig.readiness.pending(), ["cluster identity"]);
        // Without an answer it is still the other cluster's server.
        rig.answers(Err("connection refused")).await;
        assert_eq!(rig.readiness.pending(), ["cluster identity"]);
        rig.answers(known("a")).await;
        assert_eq!(
            (rig.id().as_deref(), rig.metrics.differs.get()),
            (Some("a"), 0)
        );
        assert!(rig.readiness.pending().is_empty());
    }
}
