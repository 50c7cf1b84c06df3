// SPDX-License-Identifier: Apache-2.0

//! Tests of what is admitted: all that this crate plans, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{ExportPort, ImportSpec};
use portolan_model::{Family, Protocol};
use serde_json::json;

use super::*;
use crate::condition::{WantedCondition, affinity_partial};
use crate::manifest::{self, Target};
use crate::wanted::WantedImport;
use crate::{WantedEndpoint, WantedEndpoints, slices};

fn name() -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: "web".into(),
    }
}

fn wanted() -> WantedImport {
    let port = |name: &str, protocol| ExportPort {
        name: name.into(),
        protocol,
        port: 80,
        app_protocol: Some("kubernetes.io/h2c".into()),
    };
    WantedImport {
        winner: "us-1.example".into(),
        labels: [("example.com/a".to_owned(), "1".to_owned())].into(),
        annotations: [
            ("note".to_owned(), "a b".to_owned()),
            ("portolan.dev/gateway-ports".to_owned(), "80=1".to_owned()),
        ]
        .into(),
        spec: ImportSpec {
            headless: false,
            ports: vec![port("", Protocol::Tcp), port("b", Protocol::Sctp)],
            ips: vec![[10, 112, 0, 1].into(), "fd00::1".parse().unwrap()],
            families: vec![Family::V4, Family::V6],
            affinity_seconds: Some(10_800),
            internal_local: true,
            traffic_distribution: Some("PreferClose".into()),
        },
        clusters: BTreeSet::from(["us-1.example".into(), "eu-1".into()]),
        conditions: vec![WantedCondition::new("Ready", true, "Ready", "")],
    }
}

/// A write of each sort.
fn planned() -> Vec<Write> {
    let (name, wanted) = (name(), wanted());
    let plain = WantedImport {
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        spec: ImportSpec {
            headless: true,
            ..ImportSpec::default()
        },
        ..wanted.clone()
    };
    let conditions = [
        WantedCondition::new("Valid", true, "Valid", ""),
        WantedCondition::new("Conflict", true, "PortConflict,TypeConflict", "ports"),
    ];
    let mut all = vec![
        manifest::export_status(&name, &conditions, 1, &[]),
        manifest::export_status(&name, &[], 0, &[]),
        manifest::delete(WriteKind::ServiceImport, &name, &"u".into()),
    ];
    for import in [&wanted, &plain] {
        all.push(manifest::create(&name, import));
        all.push(manifest::apply(&name, import, "u"));
        let partial = affinity_partial(&["us-1".into()]);
        let conditions: Vec<_> = import.conditions.iter().cloned().chain(partial).collect();
        let status = manifest::apply_status(&name, import, &conditions, ("u", 3), &[]);
        all.push(status);
    }
    all
}

/// Slices of both families.
fn planned_slices() -> BTreeMap<ImportName, WantedSlice> {
    let endpoint = |address: &str| WantedEndpoint {
        address: address.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        zone: Some("a".into()),
        hostname: Some("web-0".into()),
    };
    let ports: BTreeMap<(Arc<str>, Protocol), u16> = [(("http".into(), Protocol::Tcp), 80)].into();
    let endpoints = ["10.1.0.1", "fd00::1"].map(|address| (endpoint(address), ports.clone()));
    slices(&name(), "us-1", &WantedEndpoints::from(endpoints))
}

#[test]
fn all_that_is_planned_is_admitted() {
    for write in planned() {
        assert_eq!(admit(&write), Ok(()), "{write:?}");
    }
    let slices = planned_slices();
    assert_eq!(slices.len(), 2);
    for (name, slice) in slices {
        assert_eq!(admit_slice(&name, slice.object.clone()), Ok(slice));
    }
}

/// Any field that is added to any object, at any depth, is refused.
#[test]
fn no_other_field_is_admitted() {
    let mut added = 0;
    for write in planned() {
        for path in paths(write.action.object()) {
            let mut more = write.clone();
            add(more.action.object_mut(), &path);
            assert!(admit(&more).is_err(), "{path}: {more:?}");
            added += 1;
        }
    }
    for (name, slice) in planned_slices() {
        for path in paths(Some(&slice.object)) {
            let mut more = slice.object.clone();
            add(Some(&mut more), &path);
            assert!(admit_slice(&name, more).is_err(), "{path}");
            added += 1;
        }
    }
    assert!(added > 40, "{added}");
}

impl Action {
    fn object(&self) -> Option<&Value> {
        match self {
            Self::Create(object) | Self::Apply(object) | Self::ApplyStatus(object) => Some(object),
            Self::Delete { .. } => None,
        }
    }

    fn object_mut(&mut self) -> Option<&mut Value> {
        match self {
            Self::Create(object) | Self::Apply(object) | Self::ApplyStatus(object) => Some(object),
            Self::Delete { .. } => None,
        }
    }
}

/// The paths of all objects within an object, but for exported labels and annotations: an export may have any.
fn paths(object: Option<&Value>) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = vec![(String::new(), object.cloned().unwrap_or_default())];
    while let Some((path, value)) = rest.pop() {
        match value {
            Value::Object(fields) => {
                let below = fields.into_iter();
                rest.extend(below.map(|(key, value)| (format!("{path}/{key}"), value)));
                let is_free = path == "/metadata/annotations" || path == "/metadata/labels";
                if !is_free {
                    all.push(path);
                }
            }
            Value::Array(list) => {
                let below = list.into_iter().enumerate();
                rest.extend(below.map(|(number, value)| (format!("{path}/{number}"), value)));
            }
            _ => {}
        }
    }
    all
}

fn add(object: Option<&mut Value>, path: &str) {
    object.unwrap().pointer_mut(path).unwrap()["finalizers"] = json!(["x"]);
}

fn refused(write: &Write) -> &'static str {
    admit(write).unwrap_err().field
}

#[test]
fn other_objects_are_refused() {
    let [status, _, _, create, apply, apply_status, ..] = &planned()[..] else {
        panic!("too few");
    };
    let change = |write: &Write, path: &str, value: Value| {
        let mut write = write.clone();
        *write
            .action
            .object_mut()
            .unwrap()
            .pointer_mut(path)
            .unwrap() = value;
        write
    };
    for (write, field) in [
        (change(create, "/kind", "Secret".into()), "kind"),
        (change(apply, "/apiVersion", "v1".into()), "kind"),
        (change(create, "/metadata/name", "api".into()), "metadata"),
        (
            change(apply, "/metadata/namespace", "kube-system".into()),
            "metadata",
        ),
        (change(apply, "/metadata/uid", "".into()), "metadata.uid"),
        (
            change(apply_status, "/metadata/uid", "".into()),
            "metadata.uid",
        ),
        (
            change(apply, "/metadata/labels", json!({"portolan.dev/a": "1"})),
            "metadata.labels",
        ),
        (
            change(
                apply,
                "/metadata/annotations",
                json!({"note": "without the mark"}),
            ),
            "metadata.annotations",
        ),
        (
            change(apply, "/spec/type", "ExternalName".into()),
            "spec.type",
        ),
        (change(apply, "/spec/ports/0/port", 0.into()), "spec.ports"),
        (change(apply, "/spec/ports/0/port", 65_536.into()), "apply"),
        (change(apply, "/spec/ips/0", "nonsense".into()), "apply"),
        (
            change(status, "/status/conditions/0/type", "Hostile".into()),
            "status.conditions",
        ),
        (
            change(
                status,
                "/status/conditions/0/message",
                "x".repeat(40_000).into(),
            ),
            "status.conditions",
        ),
        (
            change(apply_status, "/status/clusters/0/cluster", "a b".into()),
            "status.clusters",
        ),
    ] {
        assert_eq!(refused(&write), field, "{write:?}");
    }
}

#[test]
fn other_actions_are_refused() {
    let [_, _, delete, create, apply, ..] = &planned()[..] else {
        panic!("too few");
    };
    let of = |kind, action: &Action| Write {
        target: Target { kind, name: name() },
        action: action.clone(),
    };
    for (kind, write) in [
        (WriteKind::ServiceExport, delete),
        (WriteKind::ServiceExport, create),
        (WriteKind::ServiceExport, apply),
        (WriteKind::EndpointSlice, delete),
        (WriteKind::EndpointSlice, apply),
    ] {
        assert_eq!(refused(&of(kind, &write.action)), "action");
    }
    let gone = Action::Delete { uid: "".into() };
    assert_eq!(refused(&of(WriteKind::ServiceImport, &gone)), "delete");
    let mut outside = delete.clone();
    outside.target.name.namespace = "a/b".into();
    assert_eq!(refused(&outside), "id");
}

#[test]
fn a_slice_belongs_to_an_import_alone() {
    let (name, slice) = planned_slices().pop_first().unwrap();
    let refused = |path: &str, value: Value| {
        let mut object = slice.object.clone();
        *object.pointer_mut(path).unwrap() = value;
        admit_slice(&name, object).unwrap_err().field
    };
    let mut labels = slice.object["metadata"]["labels"].clone();
    // That of slices of Services: it would bring endpoints to one of the cluster's own.
    labels["kubernetes.io/service-name"] = "web".into();
    assert_eq!(refused("/metadata/labels", labels), "metadata.labels");
    let label = "/metadata/labels/endpointslice.kubernetes.io~1managed-by";
    assert_eq!(
        refused(label, "endpointslice-controller.k8s.io".into()),
        "metadata.labels"
    );
    assert_eq!(refused("/kind", "Secret".into()), "kind");
    assert_eq!(refused("/metadata/name", "other".into()), "metadata");
    assert_eq!(
        refused("/endpoints/0/addresses/0", "fd00::1".into()),
        "endpoints.addresses"
    );
    let many = vec![slice.object["endpoints"][0].clone(); 101];
    assert_eq!(refused("/endpoints", many.into()), "endpoints");
    assert_eq!(
        refused("/endpoints/0/hostname", "a.b".into()),
        "endpoints.hostname"
    );
}
