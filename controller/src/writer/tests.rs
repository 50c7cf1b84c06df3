// SPDX-License-Identifier: Apache-2.0

use portolan_catalog::{Object, ObjectChange, ObjectKey, ServiceExport};
use portolan_policy::{File, read};
use portolan_source::FileProblem;
use portolan_tablelog::Retention;
use prometheus_client::registry::Registry;

use super::*;
use crate::clusters::{ClusterSources, ClusterStates, Saved, Saver};

const POLICY: &str = "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {name: eu-1}\n\
     spec: {access: {files: [x]}, network: {podCIDRs: [10.1.0.0/16]}}\n";

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

#[tokio::test]
async fn exports_changes_and_problems_of_clusters_are_counted() {
    let (sources, states) = (ClusterSources::default(), ClusterStates::default());
    let mut writer = writer();
    writer.federated = Federated::new(
        sources,
        states.clone(),
        Saved::default(),
        Saver::default(),
        McsPlanner::default(),
        None,
    );
    let policy = read(&[File {
        name: "p.yaml",
        text: POLICY,
    }]);
    let cluster: Arc<str> = "eu-1".into();
    let key = |namespace: &str, name: &str| ObjectKey {
        cluster: Arc::clone(&cluster),
        namespace: namespace.into(),
        name: name.into(),
    };
    // Without a Service.
    let export = ServiceExport {
        requested: true,
        ..ServiceExport::new(key("shop", "web"))
    };
    let objects = [
        Object::Namespace(key("", "shop")),
        Object::ServiceExport(export),
    ];
    let changes = objects.map(|object| ObjectChange::Put {
        object,
        problems: Vec::new(),
    });
    let mut pipeline = Pipeline::default();
    let mut origins = Origins::new(SystemTime::now());
    let mut take = |input| {
        writer.take(&mut pipeline, &mut origins, input);
    };
    take(Input::Policies(Box::new(policy.objects), true));
    take(Input::Problems(vec!["p.yaml: some problem".to_owned()]));
    take(Input::Joined(Arc::clone(&cluster)));
    let event = |event| Input::Event(Arc::clone(&cluster), event);
    take(event(Event::Changes(changes.into())));
    take(event(Event::Synced));
    {
        let states = states.lock();
        assert_eq!(states.policy_problems, 1);
        assert_eq!(states.changes["eu-1"], 2);
        assert_eq!(states.counts.exports["eu-1"], 0);
        assert_eq!(states.counts.refused["eu-1"]["NoService"], 1);
        let planned = states.planning.values().buckets;
        assert!(planned.iter().any(|(_, count)| *count > 0));
    }
    take(Input::Left(Arc::clone(&cluster)));
    assert!(states.lock().changes.is_empty());
}
