// SPDX-License-Identifier: Apache-2.0

use clap::Parser as _;
use portolan_dns::{Kind, NamesChange, Service, ServiceKey};

use super::*;
use crate::args::Cli;

fn follower() -> Follower {
    follower_with(&[])
}

fn follower_with(more: &[&str]) -> Follower {
    let flags = [
        "portolan-controller",
        "--source",
        "clusters",
        "--dns-clusterset-zone",
        "clusterset.local",
        "--policy-file",
        "/policy",
    ];
    let flags = flags.iter().chain(more).copied();
    let args = Cli::try_parse_from(flags).unwrap().run;
    let (vital, _failures) = Vital::new(CancellationToken::new());
    Follower::new(&args.dns, &vital).unwrap()
}

/// Everything that the writer says of a cluster with one import.
fn complete(cluster: &Arc<str>, import: &str) -> ClusterNames {
    let names = ClusterNames::default();
    let key = ServiceKey::new("ns", import);
    let ips = vec!["10.112.0.1".parse().unwrap()];
    let service = Service {
        key: key.clone(),
        kind: Kind::ClusterIp { ips },
        ports: Vec::new(),
        publish_not_ready: false,
    };
    let change = NamesChange::Whole {
        key,
        service: Some(service),
        slices: Vec::new(),
    };
    names.import(cluster, change);
    names.complete(cluster);
    names
}

async fn apply(follower: &mut Follower, names: &ClusterNames) {
    for (cluster, noted) in names.next().await {
        follower.apply(&cluster, noted).unwrap();
    }
}

fn imports(zone: &SharedZone) -> Vec<String> {
    let keys = zone.read().services();
    keys.into_iter().map(|key| key.name).collect()
}

#[tokio::test]
async fn names_of_a_zone_that_could_not_begin_are_not_lost() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("zones");
    // A file is in the way of the directory.
    std::fs::write(&place, "").unwrap();
    let mut follower = follower_with(&["--dns-zone-dir", place.to_str().unwrap()]);
    let eu: Arc<str> = "eu-1".into();
    for import in ["a", "b"] {
        for (cluster, noted) in complete(&eu, import).next().await {
            assert!(follower.apply(&cluster, noted).is_err());
        }
        assert!(follower.zones.get(&eu).is_none() && follower.retry_at.is_some());
    }
    std::fs::remove_file(&place).unwrap();
    for (cluster, noted) in follower.take_unapplied() {
        follower.apply(&cluster, noted).unwrap();
    }
    let zone = follower.zones.get(&eu).unwrap();
    assert_eq!(imports(&zone), ["a", "b"]);
    assert!(zone.read().is_synced());
    assert!(follower.unapplied.is_empty() && follower.retry_at.is_none());
}

#[tokio::test]
async fn the_lag_of_a_way_is_that_of_the_zone_that_is_most_behind() {
    let follower = follower();
    let mut subscriptions = Vec::new();
    for cluster in ["eu-1", "late-1", "us-1"] {
        let zone = follower.begin(cluster).unwrap();
        let mut subscription = zone.subscribe("etcd");
        match cluster {
            "eu-1" => drop(zone.apply([NamesChange::Synced])),
            "us-1" => {
                zone.apply([NamesChange::Synced]);
                subscription.changed().await;
                subscription.done();
            }
            // What is not known yet is not exported.
            _ => subscriptions.push(zone.subscribe("zone_file")),
        }
        subscriptions.push(subscription);
        follower.zones.lock().insert(cluster.into(), zone);
    }
    let lags = follower.zones.lags();
    assert_eq!(lags.len(), 1, "{lags:?}");
    assert!(lags["etcd"] > Duration::ZERO, "{lags:?}");
}

#[tokio::test]
async fn a_listener_answers_for_a_cluster_that_left_and_came_back() {
    let mut follower = follower();
    let eu: Arc<str> = "eu-1".into();
    let listener = follower.listener(&eu).unwrap();
    assert!(!listener.read().is_synced());
    apply(&mut follower, &complete(&eu, "a")).await;
    assert_eq!(imports(&listener), ["a"]);

    // As the tables of its agents the last answers stay.
    let left = ClusterNames::default();
    left.left(&eu);
    apply(&mut follower, &left).await;
    assert_eq!(imports(&listener), ["a"]);
    assert!(follower.zones.get(&eu).is_none());

    // It begins anew, without what it had.
    let (serial, namespaces) = (listener.read().serial(), ClusterNames::default());
    namespaces.namespaces(&eu, ["ns".to_owned()].into());
    apply(&mut follower, &namespaces).await;
    assert!(!listener.read().is_synced());
    apply(&mut follower, &complete(&eu, "b")).await;
    assert_eq!(imports(&listener), ["b"]);
    let zone = listener.read();
    assert!(zone.is_synced() && zone.serial() > serial);
}
