// SPDX-License-Identifier: Apache-2.0

//! Events about problems, at a real API server.

#![cfg(feature = "kubernetes")]

use std::path::Path;
use std::time::Duration;

use portolan_catalog::{FieldProblem, Kind, ObjectKey, ObjectRef, Reason};
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use portolan_source::ObjectProblem;
use portolan_source::kubernetes::{self, problem_channel, report_problems};
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;

const LONG: Duration = Duration::from_secs(60);
/// Services of the flood; each has a problem.
const FLOOD: usize = 100;

fn problem_of(namespace: &str, name: &str) -> ObjectProblem {
    let key = ObjectKey {
        cluster: "".into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let kind = Kind::Service;
    ObjectProblem {
        object: ObjectRef { kind, key },
        problem: FieldProblem::new("spec.externalIPs[0]", Reason::Conflict, "taken"),
    }
}

fn create(servers: &Servers, objects: &[Value]) {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let args = ["create", "-f", "-"];
    servers
        .kubectl_with_input(&args, &list.to_string())
        .expect("objects");
}

fn service(namespace: &str, name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "ports": [{ "port": 80 }] } })
}

/// The Events of the controller in a Namespace.
fn events(servers: &Servers, namespace: &str) -> Vec<Value> {
    let args = ["get", "events.events.k8s.io", "-n", namespace, "-o", "json"];
    let all: Value = serde_json::from_str(&servers.kubectl(&args).expect("Events")).expect("JSON");
    let all = all["items"].as_array().cloned().unwrap_or_default();
    let is_ours = |event: &Value| event["reportingController"] == "portolan-controller";
    all.into_iter().filter(is_ours).collect()
}

/// Starts the reporter, with the credentials of a kubeconfig.
fn reporter(runtime: &tokio::runtime::Runtime, kubeconfig: &Path) -> Sender<ObjectProblem> {
    let (sender, problems) = problem_channel();
    let client = runtime.block_on(kubernetes::client(Some(kubeconfig), None));
    let instance = Some("test".to_owned());
    runtime.spawn(report_problems(
        client.expect("a client"),
        problems,
        instance,
    ));
    sender
}

#[test]
fn problems_become_events_of_their_objects_within_limits() {
    let dir = tempfile::tempdir().unwrap();
    let Some(servers) = Servers::start_or_skip("events", dir.path()) else {
        return;
    };
    for namespace in ["tenant", "other"] {
        let kind = json!({ "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": namespace } });
        create(&servers, &[kind]);
    }
    let names: Vec<_> = (0..FLOOD).map(|number| format!("s{number}")).collect();
    let tenants: Vec<_> = names.iter().map(|name| service("tenant", name)).collect();
    create(&servers, &tenants);
    create(&servers, &[service("other", "web")]);
    let runtime = tokio::runtime::Runtime::new().unwrap();

    // Two replicas write one Event, and one for each problem of a flood would be too many.
    let replicas = [(); 2].map(|()| reporter(&runtime, servers.kubeconfig()));
    for replica in &replicas {
        for name in &names {
            let flood = problem_of("tenant", name);
            runtime.block_on(replica.send(flood)).unwrap();
        }
        runtime
            .block_on(replica.send(problem_of("other", "gone")))
            .unwrap();
        runtime
            .block_on(replica.send(problem_of("other", "web")))
            .unwrap();
    }
    let written = || events(&servers, "other").into_iter().next();
    let event = wait_for("the Event", LONG, written).unwrap();
    let uid = [
        "get",
        "service",
        "web",
        "-n",
        "other",
        "-o",
        "jsonpath={.metadata.uid}",
    ];
    assert_eq!(event["regarding"]["uid"], *servers.kubectl(&uid).unwrap());
    assert_eq!(event["reason"], "Conflict");
    assert_eq!(event["note"], "spec.externalIPs[0]: taken");

    // The reporters work in order: with a marker of each, the flood is over.
    for (marker, replica) in ["a", "b"].into_iter().zip(&replicas) {
        create(&servers, &[service("default", marker)]);
        runtime
            .block_on(replica.send(problem_of("default", marker)))
            .unwrap();
    }
    let markers = || (events(&servers, "default").len() == 2).then_some(());
    wait_for("the markers", LONG, markers).unwrap();
    assert_eq!(events(&servers, "other").len(), 1);
    let flood = events(&servers, "tenant").len();
    assert_eq!(flood, 10, "of {FLOOD} problems");
}
