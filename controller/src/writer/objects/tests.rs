// SPDX-License-Identifier: Apache-2.0

//! Tests of what becomes of EndpointSlices, with an API server and paused time.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::fake_api::FakeApi;
use crate::mcs::{Executor, WriteCounts};

const ALL: &str = "/apis/discovery.k8s.io/v1/endpointslices";

/// An API server with a slice of an import and one of somebody else, and who writes there.
struct Rig {
    api: FakeApi,
    planner: McsPlanner,
    pipeline: Pipeline,
}

impl Rig {
    fn new() -> Self {
        let (api, works) = (FakeApi::default(), Works::default());
        let slice = |name: &str, manager: &str| -> Value {
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": "shop",
                    "name": name,
                    "uid": name,
                    "labels": {"endpointslice.kubernetes.io/managed-by": manager},
                },
            })
        };
        let items = [
            slice("web-1", "portolan.dev"),
            slice("api-1", "other.example"),
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
    let deleted = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1";
    // The server answers that it is gone.
    let expected = [format!("GET {ALL} 200"), format!("DELETE {deleted} 404")];
    assert_eq!(rig.requests(SliceUse::Unwanted, &[]).await, expected);
}

#[tokio::test(start_paused = true)]
async fn slices_stay_while_it_is_not_known_whether_they_are_wanted() {
    let mut rig = Rig::new();
    let awaited = ["us-1"];
    assert_eq!(rig.requests(SliceUse::Unknown, &[]).await, [""; 0]);
    assert_eq!(rig.requests(SliceUse::Unwanted, &awaited).await, [""; 0]);
    assert_eq!(rig.requests(SliceUse::Written, &awaited).await, [""; 0]);
}
