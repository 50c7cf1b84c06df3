// SPDX-License-Identifier: Apache-2.0

//! The watches of a cluster that shares Services with others.

use std::time::Duration;

use portolan_catalog::{Object, ServiceType};
use tokio::sync::watch;
use tokio::time::Instant;

use super::*;

const NAMESPACES: &str = "/api/v1/namespaces";
const EXPORTS: &str = "/apis/multicluster.x-k8s.io/v1beta1/serviceexports";
const PROPERTIES: &str = "/apis/about.k8s.io/v1beta1/clusterproperties";
const IMPORTS: &str = "/apis/multicluster.x-k8s.io/v1beta1/serviceimports";

fn sharing() -> Rig {
    sharing_after(&Arc::default(), false)
}

/// A source that goes on from what an earlier one has left.
fn sharing_after(holds: &Arc<HeldDeletions>, automatic: bool) -> Rig {
    let (client, server) = server::start();
    let (sink, events) = Sink::channel(1024);
    let stats = Arc::new(Stats::holding(holds));
    let token = CancellationToken::new();
    let (_, automatic) = watch::channel(automatic);
    let (cluster, of_source) = (Arc::from("c"), Arc::clone(&stats));
    let besides = Besides {
        names: None,
        shares: Some(automatic),
    };
    let watch = watch_with(
        client,
        cluster,
        PAGED,
        besides,
        sink,
        of_source,
        token.clone(),
    );
    tokio::spawn(watch);
    Rig {
        server,
        events,
        stats,
        token,
    }
}

fn headless() -> Value {
    let mut service = service("web", "5", json!(80));
    service["spec"]["clusterIP"] = "None".into();
    service
}

fn export() -> Value {
    json!({"metadata": {"name": "web", "namespace": "prod", "resourceVersion": "6", "generation": 1}})
}

/// The Service of the next export that is told.
async fn exported(rig: &mut Rig) -> Option<ServiceType> {
    loop {
        let Event::Changes(changes) = rig.next().await else {
            continue;
        };
        for change in changes {
            if let ObjectChange::Put {
                object: Object::ServiceExport(export),
                ..
            } = change
            {
                return export.service.map(|service| service.kind);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_the_api_is_served_and_asked_again() {
    let mut rig = sharing();
    for path in [NAMESPACES, SLICES, NODES] {
        rig.server.list(path, &[], "1").await;
    }
    rig.server.next(IMPORTS).await.fail(404);
    rig.server.next(EXPORTS).await.fail(404);
    // An account from before this kind was read.
    rig.server.next(PROPERTIES).await.fail(403);
    let request = rig.server.next(SERVICES).await;
    assert!(
        !request.query().contains("labelSelector"),
        "headless ones too"
    );
    request.answer_list(&[headless()], "5", None);
    let told = rig.until("Synced").await;
    assert!(!told.iter().any(|told| told.starts_with("put")), "{told:?}");

    let absent = Instant::now();
    rig.server.list(EXPORTS, &[export()], "6").await;
    assert!(absent.elapsed() >= Duration::from_secs(50));
    // The Service came a minute before.
    assert_eq!(exported(&mut rig).await, Some(ServiceType::Headless));
    let mut services = rig.server.watch(SERVICES).await;
    services.send("DELETED", headless()).await;
    assert_eq!(exported(&mut rig).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_is_forbidden_is_asked_for_rarely() {
    let mut rig = sharing();
    for path in [NAMESPACES, SLICES, SERVICES, EXPORTS, IMPORTS, PROPERTIES] {
        rig.server.list(path, &[], "1").await;
    }
    let mut last = Instant::now();
    for _ in 0..6 {
        rig.server.next(NODES).await.fail(403);
        last = Instant::now();
    }
    rig.server.list(NODES, &[], "1").await;
    assert!(last.elapsed() >= Duration::from_secs(60));
    rig.until("Synced").await;
    assert_eq!(rig.stats.of(Kind::Node).watch_errors(), 6);
}

/// As of a server that starts.
#[tokio::test(start_paused = true)]
async fn what_is_forbidden_once_is_asked_for_soon() {
    let mut rig = sharing();
    for path in [NAMESPACES, SLICES, SERVICES, EXPORTS, IMPORTS, PROPERTIES] {
        rig.server.list(path, &[], "1").await;
    }
    rig.server.next(NODES).await.fail(403);
    let refused = Instant::now();
    rig.server.list(NODES, &[], "1").await;
    let took = refused.elapsed();
    assert!(took <= Duration::from_secs(5), "{took:?}");
    rig.until("Synced").await;
}

#[tokio::test(start_paused = true)]
async fn refusals_before_a_success_do_not_count() {
    let mut rig = sharing();
    for path in [NAMESPACES, SLICES, SERVICES, EXPORTS, IMPORTS, PROPERTIES] {
        rig.server.list(path, &[], "1").await;
    }
    for _ in 0..5 {
        rig.server.next(NODES).await.fail(403);
    }
    rig.server.list(NODES, &[], "1").await;
    let mut nodes = rig.server.watch(NODES).await;
    // The bookmark begins a new series of pauses, and the listing after the error is refused.
    nodes.bookmark("2").await;
    nodes.gone().await;
    rig.server.next(NODES).await.fail(403);
    let refused = Instant::now();
    rig.server.list(NODES, &[], "2").await;
    let took = refused.elapsed();
    assert!(took <= Duration::from_secs(5), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn properties_of_a_cluster_are_followed() {
    let mut rig = sharing();
    for path in [NAMESPACES, SLICES, NODES, SERVICES, EXPORTS, IMPORTS] {
        rig.server.list(path, &[], "1").await;
    }
    let tier = |version: &str, value: &str| json!({"metadata": {"name": "tier", "resourceVersion": version}, "spec": {"value": value}});
    rig.server.list(PROPERTIES, &[tier("2", "prod")], "2").await;
    let next = async |rig: &mut Rig| loop {
        let Event::Changes(changes) = rig.next().await else {
            continue;
        };
        for change in changes {
            match change {
                ObjectChange::Put {
                    object: Object::ClusterProperty(property),
                    ..
                } => return Some(property.value),
                ObjectChange::Delete(of) if of.kind == Kind::ClusterProperty => return None,
                _ => {}
            }
        }
    };
    assert_eq!(next(&mut rig).await.as_deref(), Some("prod"));
    let mut properties = rig.server.watch(PROPERTIES).await;
    properties.send("MODIFIED", tier("3", "test")).await;
    assert_eq!(next(&mut rig).await.as_deref(), Some("test"));
    properties.send("DELETED", tier("4", "test")).await;
    assert_eq!(next(&mut rig).await, None);
}

#[tokio::test(start_paused = true)]
async fn only_what_this_program_wrote_is_read_of_imports() {
    let mut rig = sharing();
    for path in [NAMESPACES, SLICES, NODES, SERVICES, EXPORTS, PROPERTIES] {
        rig.server.list(path, &[], "1").await;
    }
    let managed = json!([
        {"manager": "portolan-controller", "operation": "Apply",
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:ours": {}}}}},
        {"manager": "somebody", "operation": "Update",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:theirs": {}}}}},
    ]);
    let import = |annotations: Value, policy: &str| {
        json!({
            "metadata": {"name": "web", "namespace": "prod", "resourceVersion": "7", "uid": "u", "generation": 2,
                "annotations": annotations, "labels": {"ours": "1", "theirs": "2"}, "managedFields": managed},
            "spec": {"type": "ClusterSetIP", "ports": [{"port": 80}], "ips": ["10.112.0.1"],
                "ipFamilies": ["IPv4"], "sessionAffinity": "None", "internalTrafficPolicy": policy},
            "status": {"clusters": [{"cluster": "us-1"}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "Theirs", "status": "True"}]},
        })
    };
    let ours = import(json!({"portolan.dev/winner": "us-1"}), "Cluster");
    rig.server.list(IMPORTS, &[ours], "7").await;
    let next = async |rig: &mut Rig| loop {
        let Event::Changes(changes) = rig.next().await else {
            continue;
        };
        for change in changes {
            if let ObjectChange::Put {
                object: Object::ServiceImport(import),
                ..
            } = change
            {
                return import;
            }
        }
    };
    let own = next(&mut rig).await.own.expect("ours");
    assert_eq!(&*own.winner, "us-1");
    assert_eq!(own.labels, [("ours".to_owned(), "1".to_owned())].into());
    assert_eq!(own.clusters, ["us-1".into()].into());
    assert_eq!(own.conditions.len(), 1);
    let spec = own.spec.expect("a spec of ours");
    assert_eq!(spec.ips, [std::net::IpAddr::from([10, 112, 0, 1])]);

    let mut imports = rig.server.watch(IMPORTS).await;
    // A value that this program never writes.
    let other = import(json!({"portolan.dev/winner": "us-1"}), "Elsewhere");
    imports.send("MODIFIED", other).await;
    assert_eq!(next(&mut rig).await.own.expect("ours").spec, None);
    imports.send("MODIFIED", import(json!({}), "Cluster")).await;
    assert_eq!(next(&mut rig).await.own, None);
}

#[tokio::test(start_paused = true)]
async fn a_node_is_as_ready_as_its_kubelet_says() {
    let mut rig = sharing();
    let node = |status: &str, version: &str| {
        let condition =
            json!({"type": "Ready", "status": status, "lastHeartbeatTime": "2026-01-01T00:00:00Z"});
        json!({
            "metadata": {"name": "n1", "resourceVersion": version},
            "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, condition]},
        })
    };
    rig.server.list(NODES, &[node("Unknown", "1")], "1").await;
    let mut nodes = rig.server.watch(NODES).await;
    nodes.send("MODIFIED", node("True", "2")).await;
    let mut ready = Vec::new();
    while ready.len() < 2 {
        let Event::Changes(changes) = rig.next().await else {
            continue;
        };
        ready.extend(changes.into_iter().filter_map(|change| match change {
            ObjectChange::Put {
                object: Object::Node(node),
                ..
            } => Some(node.host.unwrap().ready),
            _ => None,
        }));
    }
    assert_eq!(ready, [false, true]);
}

/// Without CRDs there are no ServiceExports: those of the source before are gone.
#[tokio::test(start_paused = true)]
async fn requested_exports_of_a_server_that_knows_none_any_more_are_gone() {
    let holds = Arc::new(HeldDeletions::default());
    let start = async |exports: Option<&[Value]>| {
        let mut rig = sharing_after(&holds, false);
        for path in [NAMESPACES, SLICES, NODES] {
            rig.server.list(path, &[], "1").await;
        }
        let web = service("web", "1", json!(80));
        rig.server.list(SERVICES, &[web], "1").await;
        for path in [IMPORTS, PROPERTIES] {
            rig.server.next(path).await.fail(404);
        }
        match exports {
            Some(exports) => rig.server.list(EXPORTS, exports, "1").await,
            None => rig.server.next(EXPORTS).await.fail(404),
        }
        rig
    };
    let mut rig = start(Some(&[export()])).await;
    let told = rig.until("Synced").await;
    assert!(
        told.iter()
            .any(|told| told.starts_with("put ServiceExport")),
        "{told:?}"
    );
    rig.end().await;
    let mut rig = start(None).await;
    let told = rig.until("Synced").await;
    let kept = |told: &String| told.starts_with("retain ServiceExport") && !told.contains("web");
    assert!(told.iter().any(kept), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn exports_of_a_server_that_knows_none_for_long_are_gone() {
    let mut rig = sharing();
    for path in [NAMESPACES, SLICES, NODES, SERVICES, IMPORTS, PROPERTIES] {
        rig.server.list(path, &[], "1").await;
    }
    rig.server.list(EXPORTS, &[export()], "6").await;
    rig.until("Synced").await;
    drop(rig.server.watch(EXPORTS).await);
    // A server that starts may know its CRDs late.
    for _ in 0..3 {
        rig.server.next(EXPORTS).await.fail(404);
    }
    let mut early = Vec::new();
    while let Ok(Event::Changes(changes)) = rig.events.try_recv() {
        early.extend(changes.iter().map(describe));
    }
    let is_retained = |told: &String| told.starts_with("retain ServiceExport");
    assert!(!early.iter().any(is_retained), "{early:?}");
    for _ in 0..9 {
        rig.server.next(EXPORTS).await.fail(404);
    }
    let told = rig.until("retain ServiceExport").await;
    assert_eq!(told, ["retain ServiceExport c: "]);
    // The CRDs come back: an export that was not changed is told again.
    rig.server.list(EXPORTS, &[export()], "6").await;
    rig.until("put ServiceExport").await;
}

/// The server's storage is empty, also of CRDs.
#[tokio::test(start_paused = true)]
async fn exports_of_services_whose_deletions_are_held_are_told_again_by_the_next_source() {
    let holds = Arc::new(HeldDeletions::default());
    let start = async || {
        let mut rig = sharing_after(&holds, true);
        for path in [NAMESPACES, SLICES, NODES] {
            rig.server.list(path, &[], "1").await;
        }
        for path in [IMPORTS, EXPORTS, PROPERTIES] {
            rig.server.next(path).await.fail(404);
        }
        rig
    };
    let exported = |told: &[String]| {
        let puts = told.iter();
        puts.filter(|told| told.starts_with("put ServiceExport"))
            .count()
    };
    let services: Vec<_> = (0..60)
        .map(|i| service(&format!("s{i}"), "1", json!(80)))
        .collect();
    let mut rig = start().await;
    rig.server.list(SERVICES, &services, "10").await;
    assert_eq!(exported(&rig.until("Synced").await), 60);
    rig.end().await;

    let mut rig = start().await;
    rig.server.list(SERVICES, &[], "20").await;
    rig.server.list(SERVICES, &[], "21").await;
    let told = rig.until("Synced").await;
    assert_eq!(exported(&told), 60);
    assert!(
        !told.iter().any(|told| told.starts_with("delete")),
        "{told:?}"
    );
}
