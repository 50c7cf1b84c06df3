// SPDX-License-Identifier: Apache-2.0

use portolan_source::FileProblem;
use portolan_tablelog::Retention;
use prometheus_client::registry::Registry;

use super::*;

/// A writer that serves no cluster yet.
fn writer() -> Writer {
    let (publisher, _) = Publisher::new(Retention::default());
    Writer {
        select: SelectConfig::default(),
        publisher,
        problems: ProblemLog::default(),
        metrics: CatalogMetrics::register(&mut Registry::default()),
        trouble: SharedTrouble::default(),
        sessions: Arc::default(),
        refuses_unknown_nodes: false,
        clusters: ServedClusters::new(None),
        unready: None,
        audit_period: None,
        cores: 1,
        known: Known::default(),
        federated: Federated::default(),
        centre: None,
    }
}

#[tokio::test]
async fn problems_of_files_end_with_the_source_that_found_them() {
    let mut writer = writer();
    let trouble = Arc::clone(&writer.trouble);
    let files = || trouble.lock().unwrap().files.clone();
    let mut pipeline = Pipeline::default();
    let mut origins = Origins::new(SystemTime::now());
    let mut take = |input| {
        writer.take(&mut pipeline, &mut origins, input);
    };
    let cluster: Arc<str> = "eu-1".into();
    let event = |event| Input::Event(Arc::clone(&cluster), event);
    let problem = FileProblem {
        file: "a.yaml".into(),
        line: None,
        column: None,
        field: String::new(),
        message: "not text".to_owned(),
    };
    take(Input::Joined(Arc::clone(&cluster)));
    take(event(Event::FileProblems(vec![problem])));
    take(event(Event::Synced));
    assert_eq!(files(), ["a.yaml: not text"]);
    // From now on the cluster is read at its API server.
    take(Input::Joined(Arc::clone(&cluster)));
    take(event(Event::Synced));
    assert!(files().is_empty(), "{:?}", files());
}
