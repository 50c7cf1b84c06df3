// SPDX-License-Identifier: Apache-2.0

//! The status of Clusters, with paused time.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body as RequestBody;
use portolan_federate::Moment;
use tower::service_fn;

use super::*;

/// The writes so far, and the code of the next answers.
type Writes = Arc<Mutex<(Vec<Value>, u16)>>;

struct Rig {
    writes: Writes,
    served: watch::Sender<Resources>,
    states: ClusterStates,
    leading: watch::Sender<bool>,
}

impl Rig {
    fn new(clusters: &[&str]) -> Self {
        let writes = Writes::default();
        writes.lock().unwrap().1 = 200;
        let mut resources = Resources {
            listed: Kind::ALL.iter().map(|kind| kind.as_str()).collect(),
            ..Resources::default()
        };
        for name in clusters {
            let object = Resource {
                generation: Some(3),
                ..Resource::default()
            };
            let key = (Kind::Cluster.as_str(), (*name).to_owned());
            resources.objects.insert(key, object);
        }
        let (served, of_writer) = watch::channel(resources);
        let (leading, told) = watch::channel(true);
        let states = ClusterStates::default();
        let writer = StatusWriter {
            client: client(&writes),
            served: of_writer,
            states: states.clone(),
            leading: Leading::told(told),
            counts: WriteCounts::default(),
        };
        tokio::spawn(writer.run());
        Self {
            writes,
            served,
            states,
            leading,
        }
    }

    fn set(&self, name: &str, phase: Phase, contact: u64) {
        let status = Status {
            phase,
            step: 20,
            reach_step: 20,
            drain_step: 20,
            drained: false,
            last_contact: Some(Moment(Duration::from_secs(contact))),
            stale_for: Duration::ZERO,
            recent_losses: Vec::new(),
            losses: 1,
        };
        self.states.lock().statuses.insert(name.into(), status);
    }

    /// The writes within a time.
    async fn writes(&self, time: Duration) -> Vec<Value> {
        sleep(time).await;
        std::mem::take(&mut self.writes.lock().unwrap().0)
    }

    /// Has the API server show what was written.
    fn show(&self, write: &Value) {
        self.served.send_modify(|served| {
            let name = write["metadata"]["name"].as_str().unwrap().to_owned();
            let object = served.objects.get_mut(&("Cluster", name)).unwrap();
            object.status = write["status"].clone();
        });
    }
}

fn client(writes: &Writes) -> Client {
    let writes = Arc::clone(writes);
    let service = service_fn(move |request: Request<RequestBody>| {
        let writes = Arc::clone(&writes);
        async move {
            let path = request.uri().path().to_owned();
            assert!(path.ends_with("/status"), "{path}");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let object: Value = serde_json::from_slice(&body).unwrap();
            let mut writes = writes.lock().unwrap();
            let answer = match writes.1 {
                200 => object.clone(),
                code => json!({
                    "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                    "message": "refused", "reason": "Refused", "code": code,
                }),
            };
            let status = writes.1;
            writes.0.push(object);
            let answer = Response::builder()
                .status(status)
                .body(Body::from(answer.to_string()));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    Client::new(service, "default")
}

fn condition<'v>(status: &'v Value, kind: &str) -> &'v Value {
    let mut all = status["conditions"].as_array().unwrap().iter();
    all.find(|one| one["type"] == kind).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_when_it_differs_and_not_again() {
    let rig = Rig::new(&["eu-1"]);
    rig.set("eu-1", Phase::Ready, 1_000);
    rig.states.lock().counts.exports.insert("eu-1".into(), 4);
    let writes = rig.writes(Duration::from_secs(5)).await;
    assert_eq!(writes.len(), 1, "{writes:#?}");
    let status = &writes[0]["status"];
    assert_eq!(
        (&status["phase"], &status["step"]),
        (&json!("Ready"), &json!(20))
    );
    assert_eq!(status["lastContact"], "1970-01-01T00:16:00Z");
    assert_eq!(status["counts"], json!({"exports": 4, "imports": 0}));
    assert_eq!(condition(status, "Connected")["status"], "True");
    assert_eq!(condition(status, "Accepted")["observedGeneration"], 3);
    rig.show(&writes[0]);
    // Another second of the same minute is no change.
    rig.set("eu-1", Phase::Ready, 1_019);
    assert!(rig.writes(AGAIN * 3).await.is_empty());

    rig.set("eu-1", Phase::Stale, 1_019);
    let writes = rig.writes(Duration::from_secs(5)).await;
    assert_eq!(writes.len(), 1);
    let after = &writes[0]["status"];
    assert_eq!(condition(after, "Connected")["reason"], "Unreachable");
    let since = |status, kind| condition(status, kind)["lastTransitionTime"].clone();
    assert_eq!(since(after, "Accepted"), since(status, "Accepted"));
}

#[tokio::test(start_paused = true)]
async fn the_leading_replica_alone_writes_at_its_pace() {
    let names: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rig = Rig::new(&names);
    rig.leading.send_replace(false);
    for name in &names {
        rig.set(name, Phase::Ready, 60);
    }
    assert!(rig.writes(Duration::from_secs(30)).await.is_empty());
    rig.leading.send_replace(true);
    let first = rig.writes(Duration::from_millis(1_500)).await.len();
    assert!((1..=30).contains(&first), "{first}");
    let rest = rig.writes(Duration::from_secs(5)).await.len();
    assert_eq!(first + rest, names.len());
}

#[tokio::test(start_paused = true)]
async fn each_of_many_clusters_that_change_all_the_time_has_its_turn_and_its_newest_status() {
    let names: Vec<String> = (0..100).map(|number| format!("c{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rig = Rig::new(&names);
    let mut written = BTreeMap::new();
    for minute in 1..=10 {
        names
            .iter()
            .for_each(|name| rig.set(name, Phase::Ready, minute * 60));
        for write in rig.writes(PERIOD).await {
            let name = write["metadata"]["name"].as_str().unwrap().to_owned();
            let contact = write["status"]["lastContact"].as_str().unwrap_or_default();
            // That of this second, or of the one before.
            let recent = [minute, minute - 1].map(|minute| at(i64::try_from(minute).unwrap() * 60));
            assert!(
                recent.iter().any(|time| time == contact),
                "{minute} {contact}"
            );
            *written.entry(name).or_insert(0) += 1;
        }
    }
    assert_eq!(written.len(), names.len());
    assert!(written.values().all(|count| *count <= 3), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_cluster_says_why_and_a_forbidden_write_is_tried_rarely() {
    let rig = Rig::new(&["eu-1"]);
    rig.writes.lock().unwrap().1 = 403;
    let why = (
        String::from("InvalidNetwork"),
        String::from("spec.network.podCIDRs: empty"),
    );
    rig.states.lock().refused.insert(String::from("eu-1"), why);
    let writes = rig.writes(RARELY - PERIOD).await;
    assert_eq!(writes.len(), 1);
    let accepted = condition(&writes[0]["status"], "Accepted");
    assert_eq!(
        (&accepted["status"], &accepted["reason"]),
        (&json!("False"), &json!("InvalidNetwork"))
    );
    assert!(writes[0]["status"]["phase"].is_null());
    assert_eq!(rig.writes(RARELY).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_before_all_kinds_are_listed() {
    let rig = Rig::new(&["eu-1"]);
    let last = rig.served.borrow().listed.last().copied().unwrap();
    rig.served.send_modify(|served| {
        served.listed.remove(last);
    });
    assert!(rig.writes(Duration::from_secs(5)).await.is_empty());
    rig.served.send_modify(|served| {
        served.listed.insert(last);
    });
    assert_eq!(rig.writes(Duration::from_secs(5)).await.len(), 1);
}
