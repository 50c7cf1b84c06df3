// SPDX-License-Identifier: Apache-2.0

//! Refusals of Events. (A real API server writes them in `tests/events.rs`.)

use portolan_catalog::{FieldProblem, ObjectKey, ObjectRef, Reason};

use super::*;
use crate::ObjectProblem;

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/prod/events";
const NAMED: &str = "/api/v1/namespaces/prod/services";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn problem(name: &str) -> ObjectProblem {
    let key = ObjectKey {
        cluster: "".into(),
        namespace: "prod".into(),
        name: name.into(),
    };
    let kind = Kind::Service;
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
