// SPDX-License-Identifier: Apache-2.0

//! A real API server that is restored from an empty backup, and then from a whole one.

#![cfg(feature = "kubernetes")]

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use portolan_catalog::{Catalog, DirtySet, Kind};
use portolan_e2e::servers::Servers;
use portolan_source::kubernetes::{self, ClusterId, Options, Stats};
use portolan_source::{Event, Sink};
use serde_json::json;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(60);
const SERVICES: usize = 60;

/// Applies events until a condition holds; polls it, since it may depend on more than events.
async fn until(
    what: &str,
    catalog: &mut Catalog,
    events: &mut Receiver<Event>,
    is_so: impl Fn(&Catalog) -> bool,
) {
    let start = Instant::now();
    while !is_so(catalog) {
        assert!(start.elapsed() < LONG, "{what}: not in time");
        let event = timeout(Duration::from_millis(100), events.recv()).await;
        if let Ok(Some(Event::Changes(changes))) = event {
            for change in changes {
                catalog.apply(change, &mut DirtySet::default());
            }
        }
    }
}

/// The newest versions and the identity that the API server states, when it states an identity.
async fn stated(client: &Client) -> (Vec<u64>, String) {
    let ask = async {
        loop {
            let versions = kubernetes::newest_versions(client).await;
            let id = kubernetes::cluster_id(client).await;
            if let (Ok(versions), Ok(ClusterId::Known(id))) = (versions, id) {
                return (versions, id);
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, ask).await.expect("in time")
}

fn write_services(servers: &Servers) {
    let service = |number| {
        let metadata = json!({ "name": format!("s{number}") });
        let spec = json!({ "ports": [{ "port": 80 }] });
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec })
    };
    let services: Vec<_> = (0..SERVICES).map(service).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": services });
    let create = ["create", "-f", "-"];
    servers
        .kubectl_with_input(&create, &list.to_string())
        .expect("Services");
}

#[test]
fn a_server_that_is_restored_is_noticed_and_takes_nothing_away() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut servers) = Servers::start_or_skip("restored", dir.path()) else {
        return;
    };
    write_services(&servers);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(restore(&mut servers, &dir.path().join("aside")));
}

async fn restore(servers: &mut Servers, aside: &std::path::Path) {
    let client = kubernetes::client(Some(servers.kubeconfig()), None).await;
    let client = client.expect("a client");
    let (sink, mut events) = Sink::channel(64);
    let (stats, token) = (Arc::new(Stats::default()), CancellationToken::new());
    let watch = kubernetes::watch(
        client.clone(),
        "".into(),
        Options::default(),
        sink,
        Arc::clone(&stats),
        token.clone(),
    );
    tokio::spawn(watch);
    let mut catalog = Catalog::default();
    // With the API server's own.
    let has_all = |catalog: &Catalog| catalog.count(Kind::Service) == SERVICES + 1;
    until("all Services", &mut catalog, &mut events, has_all).await;

    let (versions, id) = stated(&client).await;
    assert_eq!(versions.len(), 3);

    let emptied = servers.with_storage(|data| Ok(fs::rename(data, aside)?));
    emptied.expect("an empty API server");
    let (lower, other) = stated(&client).await;
    let mut pairs = lower.iter().zip(&versions);
    assert!(
        pairs.all(|(now, before)| now < before),
        "{lower:?}, {versions:?}"
    );
    assert_ne!(id, other);
    let holds = stats.holds();
    let held = || {
        holds
            .held()
            .get(&("".into(), Kind::Service))
            .map(|held| held.lost.objects)
    };
    let all_held = |_: &Catalog| held() == Some(SERVICES);
    until("the guard", &mut catalog, &mut events, all_held).await;
    assert!(has_all(&catalog), "{}", catalog.count(Kind::Service));

    let filled = servers.with_storage(|data| {
        fs::remove_dir_all(data)?;
        Ok(fs::rename(aside, data)?)
    });
    filled.expect("the API server of before");
    let (again, same) = stated(&client).await;
    let mut pairs = again.iter().zip(&versions);
    assert!(
        pairs.all(|(now, before)| now >= before),
        "{again:?}, {versions:?}"
    );
    assert_eq!(id, same);
    let none_held = |_: &Catalog| held().is_none();
    until("nothing held", &mut catalog, &mut events, none_held).await;
    assert!(has_all(&catalog), "{}", catalog.count(Kind::Service));
    token.cancel();
}
