// SPDX-License-Identifier: Apache-2.0

//! The log of problems: each is logged and counted once when it appears, and once when it is solved.

use std::collections::{BTreeMap, BTreeSet};

use portolan_catalog::{FieldProblem, ObjectRef};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;

/// The labels of the problem metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ProblemLabels {
    kind: String,
    reason: &'static str,
}

/// A new problem with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectProblem {
    /// The object.
    pub object: ObjectRef,
    /// The problem.
    pub problem: FieldProblem,
}

type Problems = BTreeMap<ObjectRef, Vec<FieldProblem>>;

/// Compares the problems of now with those of before; logs and counts the difference.
#[derive(Debug, Default)]
pub struct ProblemLog {
    known: BTreeSet<(ObjectRef, FieldProblem)>,
    total: Family<ProblemLabels, Counter>,
    current: Family<ProblemLabels, Gauge>,
    files: BTreeSet<String>,
    files_current: Gauge,
    reporter: Option<mpsc::Sender<ObjectProblem>>,
}

impl ProblemLog {
    /// Sends new problems with objects to a reporter too, as long as it has room for them.
    pub fn report_to(&mut self, reporter: mpsc::Sender<ObjectProblem>) {
        self.reporter = Some(reporter);
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "problems",
            "Fields and objects that could not be used, by kind and reason",
            self.total.clone(),
        );
        registry.register(
            "problems_current",
            "Fields and objects that cannot be used at present, by kind and reason",
            self.current.clone(),
        );
        registry.register(
            "file_problems_current",
            "Parts of the files that cannot be read at present",
            self.files_current.clone(),
        );
    }

    /// Replaces all problems with files that are not problems of one known object.
    pub fn update_files<T: ToString>(&mut self, problems: &[T]) {
        let now: BTreeSet<String> = problems.iter().map(ToString::to_string).collect();
        for problem in now.difference(&self.files) {
            tracing::warn!("{problem}");
        }
        for problem in self.files.difference(&now) {
            tracing::info!("solved: {problem}");
        }
        self.files_current
            .set(i64::try_from(now.len()).unwrap_or(i64::MAX));
        self.files = now;
    }

    /// The problems with files.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        self.files.iter().cloned().collect()
    }

    /// Replaces all problems with objects.
    pub fn update(&mut self, problems: &Problems) {
        let now: BTreeSet<_> = problems
            .iter()
            .flat_map(|(object, found)| found.iter().map(|p| (object.clone(), p.clone())))
            .collect();
        for (object, problem) in now.difference(&self.known) {
            tracing::warn!(%object, field = problem.field, reason = problem.reason.as_str(),
                "{object}: {problem}");
            self.total.get_or_create(&labels(object, problem)).inc();
            self.current.get_or_create(&labels(object, problem)).inc();
            if let Some(reporter) = &self.reporter {
                let (object, problem) = (object.clone(), problem.clone());
                // A reporter without room is behind its rate limit.
                let _ = reporter.try_send(ObjectProblem { object, problem });
            }
        }
        for (object, problem) in self.known.difference(&now) {
            tracing::info!(%object, field = problem.field, "{object}: solved: {problem}");
            self.current.get_or_create(&labels(object, problem)).dec();
        }
        self.known = now;
    }
}

fn labels(object: &ObjectRef, problem: &FieldProblem) -> ProblemLabels {
    ProblemLabels {
        kind: object.kind.to_string(),
        reason: problem.reason.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use portolan_catalog::{Kind, ObjectKey, Reason};

    use super::*;

    #[test]
    fn a_problem_is_counted_once_until_it_is_solved() {
        let key = ObjectKey {
            cluster: "".into(),
            namespace: "ns".into(),
            name: "svc".into(),
        };
        let object = ObjectRef {
            kind: Kind::Service,
            key,
        };
        let problem = FieldProblem::new("spec.clusterIPs[0]", Reason::InvalidValue, "not an IP");
        let wrong = BTreeMap::from([(object.clone(), vec![problem.clone()])]);
        let labels = labels(&object, &problem);

        let mut log = ProblemLog::default();
        let counts = |log: &ProblemLog| {
            (
                log.total.get_or_create(&labels).get(),
                log.current.get_or_create(&labels).get(),
            )
        };
        let (reporter, mut reported) = mpsc::channel(8);
        log.report_to(reporter);
        log.update(&wrong);
        log.update(&wrong);
        assert_eq!(counts(&log), (1, 1));
        let expected = ObjectProblem { object, problem };
        assert_eq!(reported.try_recv(), Ok(expected));
        assert!(reported.try_recv().is_err(), "once");
        log.update(&BTreeMap::new());
        assert_eq!(counts(&log), (1, 0));
        log.update(&wrong);
        assert_eq!(counts(&log), (2, 1));
    }
}
