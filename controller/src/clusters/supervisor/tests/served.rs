// SPDX-License-Identifier: Apache-2.0

//! Clusters of a policy at an API server.

use portolan_source::kubernetes::Resource;
use serde_json::json;

use super::*;
use crate::clusters::resources;

/// A supervisor without files, and what it tells.
fn start() -> (
    watch::Sender<Resources>,
    mpsc::Receiver<ClusterChange>,
    DropGuard,
) {
    let (sender, changes) = mpsc::channel(8);
    let (served, of_supervisor) = watch::channel(Resources::default());
    let supervisor = Supervisor::new(
        Vec::new(),
        INTERVAL,
        (GuardConfig::default(), Arc::default()),
        sender,
        ClusterSources::default(),
        ClusterStates::default(),
        Mcs::alone().members(),
    );
    let token = CancellationToken::new();
    tokio::spawn(supervisor.with_policy(of_supervisor).run(token.clone()));
    (served, changes, token.drop_guard())
}

/// The next change but for the policy.
async fn next(changes: &mut mpsc::Receiver<ClusterChange>) -> ClusterChange {
    loop {
        match changes.recv().await.unwrap() {
            ClusterChange::Policies { .. } => {}
            other => return other,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn clusters_of_an_api_server_join_and_leave_once_all_kinds_are_listed() {
    let (served, mut changes, _stop) = start();
    served.send_modify(|served| {
        let spec = json!({"access": {"edge": {}}, "network": {"podCIDRs": ["10.1.0.0/16"]}});
        let object = Resource {
            spec,
            ..Resource::default()
        };
        let key = ("Cluster", String::from("eu-1"));
        served.objects.insert(key, object);
        served.listed.insert("Cluster");
    });
    // Another kind may deny something.
    let early = timeout(INTERVAL * 60, next(&mut changes)).await;
    assert!(early.is_err(), "{early:?}");
    let all = || resources().iter().map(|kind| kind.kind).collect();
    served.send_modify(|served| served.listed = all());
    let change = next(&mut changes).await;
    let is_joined =
        matches!(&change, ClusterChange::Joined { cluster, .. } if &**cluster == "eu-1");
    assert!(is_joined, "{change:?}");
    served.send_modify(|served| served.objects.clear());
    loop {
        match next(&mut changes).await {
            ClusterChange::Left(cluster) => {
                assert_eq!(&*cluster, "eu-1");
                return;
            }
            // It had no stream.
            ClusterChange::Problems(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_created_again_with_another_id_leaves_and_joins() {
    let (served, mut changes, _stop) = start();
    let put = |uid: &str, id: &str| {
        let network = json!({"podCIDRs": ["10.1.0.0/16"]});
        let object = Resource {
            uid: Some(uid.to_owned()),
            spec: json!({"id": id, "access": {"edge": {}}, "network": network}),
            ..Resource::default()
        };
        served.send_modify(|served| {
            served.listed = resources().iter().map(|kind| kind.kind).collect();
            let key = ("Cluster", String::from("eu-1"));
            served.objects.insert(key, object);
        });
    };
    put("u-1", "a");
    let change = next(&mut changes).await;
    assert!(matches!(change, ClusterChange::Joined { .. }), "{change:?}");
    // Its deletion is no news of its own.
    put("u-2", "b");
    let mut found = Vec::new();
    while found.len() < 2 {
        let change = timeout(INTERVAL * 60, next(&mut changes)).await;
        match change.expect("a change in time") {
            ClusterChange::Left(_) => found.push("left"),
            ClusterChange::Joined { .. } => found.push("joined"),
            ClusterChange::Problems(_) | ClusterChange::None => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(found, ["left", "joined"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_without_clusters_leaves_nothing_to_wait_for() {
    let (served, mut changes, _stop) = start();
    served.send_modify(|served| {
        served.listed = resources().iter().map(|kind| kind.kind).collect();
    });
    let change = next(&mut changes).await;
    assert!(matches!(change, ClusterChange::None), "{change:?}");
}
