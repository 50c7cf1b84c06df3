// SPDX-License-Identifier: Apache-2.0

//! Tests of the pace of writes, and of what is tried again, with paused time.

use portolan_federate::imports::ImportName;
use portolan_mcs::{Action, WantedSlice, WriteKind};
use serde_json::json;
use tokio::time::sleep;

use super::*;
use crate::fake_api::FakeApi;
use crate::mcs::Works;

const SECOND: Duration = Duration::from_secs(1);

fn write(name: &str, action: Action) -> Write {
    let (namespace, name) = ("shop".into(), name.into());
    Write {
        target: Target {
            kind: WriteKind::ServiceImport,
            name: ImportName { namespace, name },
        },
        action,
    }
}

fn create(number: usize) -> Write {
    let object = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
        "metadata": {"namespace": "shop", "name": format!("s{number}")},
    });
    write(&format!("s{number}"), Action::Create(object))
}

struct Rig {
    api: FakeApi,
    works: Works,
    leading: watch::Sender<bool>,
}

impl Rig {
    fn new() -> Self {
        let (api, works) = (FakeApi::default(), Works::default());
        let cluster: Arc<str> = "eu-1".into();
        let (leading, told) = watch::channel(false);
        let executor = Executor {
            client: api.client(),
            work: works.join(&cluster),
            cluster,
            leading: Leading::told(told),
            counts: WriteCounts::default(),
        };
        tokio::spawn(executor.run());
        Self {
            api,
            works,
            leading,
        }
    }

    fn set(&self, writes: Vec<Write>) {
        let work = Work {
            writes: Arc::new(writes),
            ..Work::default()
        };
        self.works.set("eu-1", work);
    }

    /// The number of requests within a time.
    async fn requests_in(&self, time: Duration) -> usize {
        self.api.requests();
        sleep(time).await;
        self.api.requests().len()
    }
}

#[tokio::test(start_paused = true)]
async fn one_replica_writes_at_a_pace() {
    let rig = Rig::new();
    rig.set((0..100).map(create).collect());
    assert_eq!(rig.requests_in(60 * SECOND).await, 0, "it does not lead");
    rig.leading.send_replace(true);
    let count = rig.requests_in(SECOND).await;
    assert!((15..=21).contains(&count), "{count} in a second");
    rig.leading.send_replace(false);
    // One is under way.
    assert!(rig.requests_in(60 * SECOND).await <= 1);
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_ever_more_rarely() {
    let rig = Rig::new();
    rig.leading.send_replace(true);
    // The namespace is missing.
    rig.set(vec![create(1)]);
    let first = rig.requests_in(8 * SECOND).await;
    assert!((2..=4).contains(&first), "{first}");
    assert!(rig.requests_in(600 * SECOND).await <= 20);
    // Something else of the same object does not come sooner, and nothing holds up other objects.
    rig.set(vec![create(1), create(2)]);
    assert!(rig.requests_in(SECOND).await >= 1);
    rig.set(Vec::new());
    rig.requests_in(120 * SECOND).await;
    assert_eq!(rig.requests_in(600 * SECOND).await, 0);
}

#[tokio::test(start_paused = true)]
async fn writes_that_fail_hold_up_no_others() {
    let rig = Rig::new();
    rig.leading.send_replace(true);
    // None of the objects is there, and each write is due again before all were tried once.
    let apply = |number| write(&format!("s{number}"), Action::Apply(json!({})));
    rig.set((0..300).map(apply).collect());
    rig.api.requests();
    sleep(20 * SECOND).await;
    let requests = rig.api.requests();
    let mut requests = requests.iter();
    assert!(
        requests.any(|request| request.contains("/s299 ")),
        "the last of 300 has its turn in 15 seconds"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_not_permitted_is_tried_once_a_minute() {
    let rig = Rig::new();
    let path = "/apis/multicluster.x-k8s.io/v1beta1/namespaces/shop/serviceimports/web";
    rig.api.put(path, json!({"metadata": {"name": "web"}}));
    rig.leading.send_replace(true);
    rig.set(vec![write("web", Action::Delete { uid: "u".into() })]);
    assert_eq!(rig.requests_in(59 * SECOND).await, 1);
    assert_eq!(rig.requests_in(60 * SECOND).await, 1);
}

#[tokio::test(start_paused = true)]
async fn slices_that_cannot_be_listed_again_are_due_later() {
    let api = FakeApi::default();
    let path = "/apis/discovery.k8s.io/v1/endpointslices";
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []});
    api.put(path, list);
    let work = Work {
        slices: Some(Arc::default()),
        ..Work::default()
    };
    let mut slices = Slices::default();
    let client = api.client();
    assert!(slices.next(&client, &work).await.unwrap().is_none());
    sleep_until(slices.due().unwrap()).await;
    api.remove(path);
    assert!(slices.next(&client, &work).await.is_err());
    let due = slices.due().unwrap();
    assert!(due > Instant::now(), "an executor would not pause");
    // Nor does it once the listing is due and no answer has come.
    assert!(slices.next(&client, &work).await.unwrap().is_none());
    assert_eq!(slices.due(), Some(due));
}

#[tokio::test(start_paused = true)]
async fn slices_that_may_not_be_listed_matter_only_if_some_are_wanted() {
    let api = FakeApi::default();
    api.forbid("/apis/discovery.k8s.io/v1/endpointslices");
    let work = |names: &[&str]| {
        let named = |name: &str| ImportName {
            namespace: "shop".into(),
            name: name.into(),
        };
        let slices = names.iter().map(|name| {
            let (import, object) = (named("web"), json!({}));
            (named(name), WantedSlice { import, object })
        });
        Work {
            slices: Some(Arc::new(slices.collect())),
            ..Work::default()
        }
    };
    let mut slices = Slices::default();
    let client = api.client();
    for _ in 0..2 {
        let next = slices.next(&client, &work(&[])).await;
        assert!(next.unwrap().is_none());
    }
    assert_eq!(api.requests().len(), 1);
    assert!(slices.due().unwrap() > Instant::now() + 600 * SECOND);
    // What is there must be known before any is written.
    let failure = slices.next(&client, &work(&["web-1"])).await.unwrap_err();
    assert_eq!(failure.result, "forbidden");
    sleep_until(slices.due().unwrap()).await;
    assert!(slices.next(&client, &work(&[])).await.unwrap().is_none());
}
