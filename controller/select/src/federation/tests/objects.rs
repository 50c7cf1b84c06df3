// SPDX-License-Identifier: Apache-2.0

//! Changes after which the MCS objects of clusters are compared again.

use portolan_catalog::{Condition, ExportStatus, Kind, ObjectRef};
use portolan_mcs::{Action, Awaited, WantedSlice, Write, WriteKind};
use serde_json::Value;

use super::*;

/// Three clusters with a namespace in `a`.
fn begun(set: &str) -> Pipeline {
    let mut pipeline = Pipeline::default();
    pipeline.set_policies(policies(set, &[]));
    pipeline.set_states(full());
    pipeline.apply(namespace("a"));
    pipeline
}

#[test]
fn an_export_that_is_created_again_at_once_gets_its_conditions() {
    let export = |conditions: Vec<Condition>| {
        put(Object::ServiceExport(ServiceExport {
            requested: true,
            service: Some(Arc::new(single())),
            status: ExportStatus {
                generation: 1,
                conditions,
            },
            ..ServiceExport::new(key("a", "web"))
        }))
    };
    let condition = Condition {
        kind: "Valid".into(),
        status: "True".into(),
        reason: "Valid".into(),
        message: "".into(),
        generation: 1,
        since: "2026-01-01T00:00:00Z".into(),
    };
    let mut pipeline = begun("{}");
    pipeline.apply(export(vec![condition]));
    pipeline.flush();
    assert!(pipeline.take_objects_changed());
    assert!(!pipeline.take_objects_changed());
    let gone = ObjectRef {
        kind: Kind::ServiceExport,
        key: key("a", "web"),
    };
    pipeline.apply(ObjectChange::Delete(gone));
    pipeline.apply(export(Vec::new()));
    pipeline.flush();
    assert!(pipeline.take_objects_changed());
    let writes = pipeline.mcs_writes(&"a".into(), &Awaited::default());
    let is_status = |write: &Write| {
        let is_export = write.target.kind == WriteKind::ServiceExport;
        is_export && matches!(write.action, Action::ApplyStatus(_))
    };
    assert!(writes.iter().any(is_status), "{writes:?}");
}

#[test]
fn slices_have_the_zones_that_nodes_have_now() {
    let mut pipeline = begun("{endpointSlices: All}");
    let endpoint = Endpoint {
        node: Some("n0".into()),
        ..Endpoint::new(pod("a", 1))
    };
    pipeline.apply(slice("a", "web", vec![endpoint]));
    pipeline.apply(export("a", "web", single()));
    pipeline.apply(node("a", "n0", None));
    pipeline.flush();
    assert!(pipeline.take_endpoints_changed());
    let zones = |pipeline: &Pipeline| {
        let zone = |slice: &WantedSlice| slice.object["endpoints"][0]["zone"].clone();
        let slices = pipeline.mcs_slices(&"a".into());
        slices.values().map(zone).collect::<Vec<_>>()
    };
    assert_eq!(zones(&pipeline), [Value::Null]);
    let moved = node("a", "n0", Some("eu-2"));
    pipeline.apply(moved.clone());
    pipeline.flush();
    assert!(pipeline.take_endpoints_changed());
    assert_eq!(zones(&pipeline), ["eu-2"]);
    // A Node that says nothing else is no reason to look again.
    pipeline.apply(moved);
    pipeline.flush();
    assert!(!pipeline.take_endpoints_changed());
}
