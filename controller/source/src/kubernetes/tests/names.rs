// SPDX-License-Identifier: Apache-2.0

//! Changes for DNS from shared watches and its own.

use portolan_dns::{Listing, NamesChange as Name};

use super::*;

const NAMESPACES: &str = "/api/v1/namespaces";

fn named(name: &str, version: &str, spec: Value) -> Value {
    let metadata = json!({"name": name, "namespace": "prod", "resourceVersion": version});
    json!({"metadata": metadata, "spec": spec})
}

struct Names {
    rig: Rig,
    names: Receiver<Vec<Name>>,
}

impl Names {
    fn start(pods: bool) -> Self {
        let (client, server) = server::start();
        let (sink, events) = Sink::channel(64);
        let (names, batches) = NameSink::channel(64);
        let (stats, token) = (Arc::new(Stats::default()), CancellationToken::new());
        let options = NameOptions { sink: names, pods };
        let besides = Besides {
            names: Some(options),
            shares: None,
        };
        let watch = watch_with(
            client,
            Arc::from("c"),
            PAGED,
            besides,
            sink,
            Arc::clone(&stats),
            token.clone(),
        );
        tokio::spawn(watch);
        let rig = Rig {
            server,
            events,
            stats,
            token,
        };
        Self {
            rig,
            names: batches,
        }
    }

    async fn next(&mut self) -> Vec<String> {
        let batch = tokio::time::timeout(Duration::from_secs(3600), self.names.recv());
        let batch = batch.await.expect("a batch in time").expect("a source");
        batch.iter().map(say).collect()
    }

    /// All changes up to the batches with these; a listing comes in more than one.
    async fn until(&mut self, wanted: &[&str]) -> Vec<String> {
        let mut told = Vec::new();
        while !wanted
            .iter()
            .all(|wanted| told.iter().any(|told| told == wanted))
        {
            told.extend(self.next().await);
        }
        told
    }
}

fn say(change: &Name) -> String {
    match change {
        Name::Namespace(name) => format!("namespace {name}"),
        Name::NamespaceRemoved(name) => format!("no namespace {name}"),
        Name::Service(service) => format!("service {} {:?}", service.key.name, service.kind),
        Name::ServiceRemoved(key) => format!("no service {}", key.name),
        Name::Slice(slice) => {
            let hosts = slice.endpoints.iter().map(|of| of.hostname.as_deref());
            let hosts = hosts.map(|host| host.unwrap_or("-")).collect::<Vec<_>>();
            format!(
                "slice {} of {}: {}",
                slice.key.name,
                slice.service,
                hosts.join(" ")
            )
        }
        Name::SliceRemoved(key) => format!("no slice {}", key.name),
        Name::Pod(pod) => format!("pod {} {:?}", pod.key.name, pod.addresses),
        Name::PodRemoved(key) => format!("no pod {}", key.name),
        Name::Listed(listing) => match listing {
            Listing::Namespaces(all) => format!("namespaces {}", all.len()),
            Listing::Services(all) => format!("services {}", all.len()),
            Listing::Slices(all) => format!("slices {}", all.len()),
            Listing::Pods(all) => format!("pods {}", all.len()),
        },
        Name::Whole { key, .. } => format!("whole {}", key.name),
        Name::PodAddress { address, .. } => format!("address {address}"),
        Name::Synced => "synced".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn dns_gets_objects_that_the_tables_do_not_have() {
    let mut all = Names::start(false);
    let server = &mut all.rig.server;
    server.list(NODES, &[], "1").await;
    let call = server.next(SERVICES).await;
    assert!(!call.query().contains("labelSelector"), "{}", call.query());
    let services = [
        named("db", "1", json!({"clusterIP": "None"})),
        named(
            "out",
            "2",
            json!({"type": "ExternalName", "externalName": "a.test"}),
        ),
        named("web", "3", json!({"clusterIP": "10.0.0.1"})),
    ];
    call.answer_list(&services, "10", None);
    let slice = json!({
        "metadata": {"name": "db-1", "namespace": "prod", "resourceVersion": "4",
            "labels": {"kubernetes.io/service-name": "db", "service.kubernetes.io/headless": ""}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.1"], "hostname": "db-0"}, {"addresses": ["10.1.0.2"]}],
    });
    server.list(SLICES, &[slice], "10").await;
    // The tables need no Namespaces.
    let told = all.rig.until("Synced").await;
    assert!(
        told.contains(&"put Service c/prod/web".to_owned()),
        "{told:?}"
    );
    assert!(
        !told
            .iter()
            .any(|told| told.starts_with("put") && told.contains("db"))
    );
    let mut names = all.until(&["services 3", "slices 1"]).await;
    names.sort();
    let expected = [
        "service db Headless",
        "service out ExternalName { target: \"a.test\" }",
        "service web ClusterIp { ips: [10.0.0.1] }",
        "services 3",
        "slice db-1 of db: db-0 -",
        "slices 1",
    ];
    assert_eq!(names, expected);

    let namespace = json!({"metadata": {"name": "prod", "resourceVersion": "1"}});
    all.rig.server.list(NAMESPACES, &[namespace], "10").await;
    let told = all.until(&["synced"]).await;
    assert_eq!(told, ["namespace prod", "namespaces 1", "synced"]);

    let mut services = all.rig.server.watch(SERVICES).await;
    services.send("DELETED", named("db", "11", json!({}))).await;
    assert_eq!(all.next().await, ["no service db"]);
    let broken = named("out", "12", json!({"type": 7}));
    services.send("MODIFIED", broken).await;
    let last = named("web", "13", json!({"clusterIP": "10.0.0.2"}));
    services.send("MODIFIED", last).await;
    // An unreadable object stays unchanged.
    assert_eq!(
        all.next().await,
        ["service web ClusterIp { ips: [10.0.0.2] }"]
    );
    let mut namespaces = all.rig.server.watch(NAMESPACES).await;
    let gone = json!({"metadata": {"name": "prod", "resourceVersion": "11"}});
    namespaces.send("DELETED", gone).await;
    assert_eq!(all.next().await, ["no namespace prod"]);
}

#[tokio::test(start_paused = true)]
async fn pods_are_watched_with_their_addresses_if_names_need_them() {
    let mut all = Names::start(true);
    for path in [SERVICES, SLICES, NODES, NAMESPACES] {
        all.rig.server.list(path, &[], "1").await;
    }
    let call = all.rig.server.next(PODS).await;
    assert!(call.query().contains("fieldSelector"), "{}", call.query());
    let pod = |name: &str, version: &str, status: Value| {
        let metadata = json!({"name": name, "namespace": "prod", "resourceVersion": version});
        json!({"metadata": metadata, "status": status})
    };
    let both = json!({"phase": "Running", "podIP": "10.2.0.1", "podIPs": [{"ip": "10.2.0.1"}, {"ip": "fd00::1"}]});
    let waiting = json!({"phase": "Pending"});
    call.answer_list(&[pod("a", "1", both), pod("b", "2", waiting)], "3", None);
    let told = all.until(&["synced"]).await;
    let mut pods: Vec<_> = told.iter().filter(|told| told.contains("pod")).collect();
    pods.sort();
    assert_eq!(pods, ["pod a [10.2.0.1, fd00::1]", "pods 1"]);
    let mut watch = all.rig.server.watch(PODS).await;
    let mut ending = pod("a", "4", json!({"phase": "Running", "podIP": "10.2.0.1"}));
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    watch.send("MODIFIED", ending).await;
    assert_eq!(all.next().await, ["no pod a"]);
}
