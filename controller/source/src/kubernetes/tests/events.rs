// SPDX-License-Identifier: Apache-2.0

//! Events, and refusals of them. (A real API server writes them in `tests/events.rs`.)

use std::sync::Arc;

use portolan_catalog::{FieldProblem, Kind, ObjectKey, ObjectRef, Reason};

use super::*;
use crate::deletions::{HeldLoss, Size};
use crate::{HeldDeletions, HoldReport, ObjectProblem};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/prod/events";
const NAMED: &str = "/api/v1/namespaces/prod/services";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn problem(name: &str) -> ObjectProblem {
    problem_of(Kind::Service, name)
}

fn problem_of(kind: Kind, name: &str) -> ObjectProblem {
    let key = ObjectKey {
        cluster: "".into(),
        namespace: "prod".into(),
        name: name.into(),
    };
    ObjectProblem {
        object: ObjectRef { kind, key },
        problem: FieldProblem::new("spec.clusterIPs[0]", Reason::Conflict, "taken"),
    }
}

/// Lets the reporter find the object, and refuses its Event. The permission is as `allowed` says.
async fn refuse(server: &mut Server, name: &str, allowed: bool) {
    let found = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": name, "namespace": "prod", "uid": "u-1"}});
    server.list(NAMED, &[found], "1").await;
    server.next(EVENTS).await.fail(403);
    let review = json!({"apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview", "metadata": {}, "spec": {},
        "status": {"allowed": allowed}});
    server.next(REVIEWS).await.answer(&review);
}

#[tokio::test(start_paused = true)]
async fn a_refused_event_ends_events_only_without_the_permission() {
    let (client, mut server) = server::start();
    let (sender, problems) = problem_channel();
    tokio::spawn(report_problems(client, problems, None));
    // A full quota of one Namespace, for instance.
    sender.send(problem("a")).await.unwrap();
    refuse(&mut server, "a", true).await;
    sender.send(problem("b")).await.unwrap();
    refuse(&mut server, "b", false).await;
    sender.closed().await;
    // Nothing waits for an answer for ever either.
    assert!(sender.send(problem("c")).await.is_err());
}

/// The next Event in a Namespace, which the server accepts.
async fn created(server: &mut Server, namespace: &str) -> Value {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let mut call = server.next(&path).await;
    let event = call.object().await;
    call.answer(&event);
    event
}

#[tokio::test(start_paused = true)]
async fn an_event_names_the_version_of_its_object() {
    let (client, mut server) = server::start();
    let (sender, problems) = problem_channel();
    tokio::spawn(report_problems(client, problems, None));
    for (kind, version, plural) in [
        (
            Kind::ServiceExport,
            "multicluster.x-k8s.io/v1beta1",
            "serviceexports",
        ),
        (
            Kind::ServiceImport,
            "multicluster.x-k8s.io/v1beta1",
            "serviceimports",
        ),
        (Kind::EndpointSlice, "discovery.k8s.io/v1", "endpointslices"),
    ] {
        sender.send(problem_of(kind, "web")).await.unwrap();
        let found = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "web", "namespace": "prod", "uid": "u-1"}});
        let path = format!("/apis/{version}/namespaces/prod/{plural}");
        server.list(&path, &[found], "1").await;
        let event = created(&mut server, "prod").await;
        assert_eq!(event["regarding"]["apiVersion"], version);
    }
}

/// The permission to create Events is the only one.
#[tokio::test(start_paused = true)]
async fn each_change_of_held_deletions_is_an_event_of_its_own() {
    let (client, mut server) = server::start();
    let held = Arc::new(HeldDeletions::default());
    let instance = Some("pod-1".to_owned());
    tokio::spawn(report_held(client, Arc::clone(&held), instance));
    tokio::task::yield_now().await;
    let report = |kind| HoldReport::new(("".into(), kind), Arc::clone(&held));
    let (services, slices) = (report(Kind::Service), report(Kind::EndpointSlice));
    let loss = |objects| HeldLoss {
        lost: Size { objects, ready: 0 },
        of: Size {
            objects: 100,
            ready: 0,
        },
        until: None,
    };
    services.report(Some(loss(90)));
    let first = created(&mut server, "default").await;
    assert_eq!(first["reason"], "DeletionsHeld");
    assert_eq!(first["reportingInstance"], "pod-1");
    slices.report(Some(loss(80)));
    let second = created(&mut server, "default").await;
    let note = second["note"].as_str().unwrap();
    assert!(
        note.contains("90 of 100 Services, 80 of 100 Endpoint"),
        "{note}"
    );
    assert_ne!(first["metadata"]["name"], second["metadata"]["name"]);
    services.report(None);
    slices.report(None);
    let third = created(&mut server, "default").await;
    assert_eq!(third["reason"], "DeletionsReleased");
}
