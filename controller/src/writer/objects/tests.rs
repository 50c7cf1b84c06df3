// SPDX-License-Identifier: Apache-2.0

//! Tests of what becomes of EndpointSlices, with an API server and paused time.

use std::time::Duration;

use portolan_catalog::{Object, ObjectChange, ObjectKey, OwnImport, ServiceImport};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::fake_api::FakeApi;
use crate::mcs::{Executor, WriteCounts};

const ALL: &str = "/apis/discovery.k8s.io/v1/endpointslices";

/// An API server with slices of imports from `eu-1` and `us-1` and one of somebody else, and who writes there.
struct Rig {
    api: FakeApi,
    planner: McsPlanner,
    pipeline: Pipeline,
}

impl Rig {
    fn new() -> Self {
        let (api, works) = (FakeApi::default(), Works::default());
        let slice = |name: &str, manager: &str, source: &str| -> Value {
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": "shop",
                    "name": name,
                    "uid": name,
                    "labels": {
                        "endpointslice.kubernetes.io/managed-by": manager,
                        "multicluster.kubernetes.io/service-name": name,
                        "multicluster.kubernetes.io/source-cluster": source,
                    },
                },
            })
        };
        let items = [
            slice("web-1", "portolan.dev", "eu-1"),
            slice("db-1", "portolan.dev", "us-1"),
            slice("api-1", "other.example", "eu-1"),
        ];
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
        api.put(ALL, list);
        let cluster: Arc<str> = "eu-1".into();
        let executor = Executor {
            client: api.client(),
            work: works.join(&cluster),
            cluster,
            leading: Leading::always(),
            counts: WriteCounts::default(),
        };
        tokio::spawn(executor.run());
        Self {
            api,
            planner: McsPlanner::new(works, Leading::always()),
            pipeline: Pipeline::default(),
        }
    }

    /// The requests of a minute after a plan, while these members are awaited.
    async fn requests(&mut self, slices: SliceUse, awaited: &[&str]) -> Vec<String> {
        let inputs = Inputs {
            reached: ["eu-1".into()].into(),
            awaited: Awaited {
                ids: awaited.iter().map(|id| Arc::from(*id)).collect(),
                ..Awaited::default()
            },
            slices,
            is_leading: true,
        };
        self.planner.plan(&mut self.pipeline, inputs, false);
        sleep(Duration::from_secs(60)).await;
        self.api.requests()
    }
}

#[tokio::test(start_paused = true)]
async fn slices_that_are_not_wanted_any_more_are_deleted() {
    let mut rig = Rig::new();
    // The server answers that they are gone.
    let expected = [
        format!("GET {ALL} 200"),
        deletion("db-1"),
        deletion("web-1"),
    ];
    assert_eq!(rig.requests(SliceUse::Unwanted, &[]).await, expected);
}

#[tokio::test(start_paused = true)]
async fn slices_of_members_that_are_awaited_stay_and_others_go() {
    let mut rig = Rig::new();
    let expected = [format!("GET {ALL} 200"), deletion("web-1")];
    let found = rig.requests(SliceUse::Written, &["us-1"]).await;
    assert_eq!(found, expected);
    // It exports it no more.
    let found = rig.requests(SliceUse::Written, &[]).await;
    assert_eq!(found, [deletion("db-1")]);
}

#[tokio::test(start_paused = true)]
async fn slices_of_imports_that_members_who_are_awaited_may_export_stay() {
    let mut rig = Rig::new();
    let own = OwnImport {
        clusters: ["eu-1".into(), "us-1".into()].into(),
        ..OwnImport::default()
    };
    let import = ServiceImport {
        key: ObjectKey {
            cluster: "eu-1".into(),
            namespace: "shop".into(),
            name: "web-1".into(),
        },
        uid: "u".into(),
        generation: 1,
        created: None,
        own: Some(Box::new(own)),
    };
    rig.pipeline.apply(ObjectChange::Put {
        object: Object::ServiceImport(import),
        problems: Vec::new(),
    });
    let found = rig.requests(SliceUse::Written, &["us-1"]).await;
    assert_eq!(found, [format!("GET {ALL} 200")]);
    // Nobody exports it: once all is known, the slices go, and before them the import.
    let found = rig.requests(SliceUse::Written, &[]).await;
    assert!(found.contains(&deletion("web-1")), "{found:?}");
}

/// The request that deletes a slice, which the server does not know by its path.
fn deletion(name: &str) -> String {
    format!("DELETE /apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/{name} 404")
}

#[tokio::test(start_paused = true)]
async fn slices_stay_while_it_is_not_known_whether_they_are_wanted() {
    let mut rig = Rig::new();
    assert_eq!(rig.requests(SliceUse::Unknown, &[]).await, [""; 0]);
    assert_eq!(rig.requests(SliceUse::Unknown, &["us-1"]).await, [""; 0]);
}
