// SPDX-License-Identifier: Apache-2.0

//! The watched kinds: selectors and fields.

use std::fmt;

use portolan_catalog::Kind;
use serde::Deserialize;

use super::prune::Keep::{self, All, Only};
use crate::objects::{
    ClusterProperty, Converted, EndpointSlice, Manifest, Names, Namespace, Node, Pod, Scope,
    Service, ServiceExport, ServiceImport,
};

const METADATA: Keep = Only(&[
    ("name", All),
    ("namespace", All),
    ("resourceVersion", All),
    ("creationTimestamp", All),
    ("deletionTimestamp", All),
    ("labels", All),
    ("annotations", All),
]);

const MCS_METADATA: Keep = Only(&[
    ("name", All),
    ("namespace", All),
    ("uid", All),
    ("generation", All),
    ("resourceVersion", All),
    ("creationTimestamp", All),
    ("deletionTimestamp", All),
    ("labels", All),
    ("annotations", All),
    (
        "managedFields",
        Only(&[
            ("manager", All),
            ("operation", All),
            ("subresource", All),
            ("fieldsV1", Only(&[("f:metadata", All)])),
        ]),
    ),
]);

const ENDPOINT: Keep = Only(&[
    ("addresses", All),
    ("conditions", All),
    ("nodeName", All),
    ("hostname", All),
    ("zone", All),
    ("targetRef", Only(&[("kind", All), ("name", All)])),
    ("hints", All),
]);

/// Without the times of heartbeats, which change every few minutes.
const CONDITION: Keep = Only(&[("type", All), ("status", All)]);

/// A kind that can be watched.
pub(super) trait Watchable: Manifest + Clone + fmt::Debug + Send + 'static {
    const GROUP: &'static str;
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str;
    /// Whether the tables need the objects of our Services only. DNS needs all.
    const OF_SERVICES: bool = false;
    /// The field selector, for tables and DNS.
    const FIELDS: Option<&'static str> = None;
    /// Whether only metadata is requested.
    const METADATA_ONLY: bool = false;
    /// Whether the server may lack the kind: it is defined by a CRD.
    const OPTIONAL: bool = false;
    /// Whether the server need not permit it either.
    const DISPENSABLE: bool = false;
    /// The fields to keep.
    const KEEP: &'static Keep;
}

impl Watchable for Service {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "services";
    const OF_SERVICES: bool = true;
    const KEEP: &'static Keep = &Only(&[("metadata", METADATA), ("spec", All), ("status", All)]);
}

impl Watchable for EndpointSlice {
    const GROUP: &'static str = "discovery.k8s.io";
    const PLURAL: &'static str = "endpointslices";
    const OF_SERVICES: bool = true;
    const KEEP: &'static Keep = &Only(&[
        ("metadata", METADATA),
        ("addressType", All),
        ("ports", All),
        ("endpoints", ENDPOINT),
    ]);
}

impl Watchable for Node {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "nodes";
    const KEEP: &'static Keep = &Only(&[
        ("metadata", METADATA),
        ("spec", All),
        (
            "status",
            Only(&[("addresses", All), ("conditions", CONDITION)]),
        ),
    ]);
}

impl Watchable for Pod {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "pods";
    // Pods are many, and their spec and status are most of their bytes.
    const METADATA_ONLY: bool = true;
    const KEEP: &'static Keep = &Only(&[("metadata", METADATA)]);
}

/// A Pod with its addresses, for DNS; its weight is read too.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct NamedPod(Pod);

impl Manifest for NamedPod {
    const KIND: Kind = Kind::Pod;

    fn convert(self, scope: &Scope) -> Converted {
        self.0.convert(scope)
    }

    fn names(&self) -> Names {
        self.0.names()
    }
}

impl Watchable for NamedPod {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "pods";
    // As CoreDNS: Pods that have ended have no address of their own.
    const FIELDS: Option<&'static str> =
        Some("status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown");
    const KEEP: &'static Keep = &Only(&[
        ("metadata", METADATA),
        (
            "status",
            Only(&[("phase", All), ("podIP", All), ("podIPs", All)]),
        ),
    ]);
}

impl Watchable for Namespace {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "namespaces";
    const METADATA_ONLY: bool = true;
    const KEEP: &'static Keep = &Only(&[("metadata", METADATA)]);
}

const MCS: &str = "multicluster.x-k8s.io";

const CONDITIONS: Keep = Only(&[
    ("type", All),
    ("status", All),
    ("reason", All),
    ("message", All),
    ("observedGeneration", All),
    ("lastTransitionTime", All),
]);

impl Watchable for ServiceExport {
    const GROUP: &'static str = MCS;
    const VERSION: &'static str = "v1beta1";
    const PLURAL: &'static str = "serviceexports";
    const OPTIONAL: bool = true;
    const KEEP: &'static Keep = &Only(&[
        ("metadata", MCS_METADATA),
        ("spec", All),
        ("status", Only(&[("conditions", CONDITIONS)])),
    ]);
}

impl Watchable for ServiceImport {
    const GROUP: &'static str = MCS;
    const VERSION: &'static str = "v1beta1";
    const PLURAL: &'static str = "serviceimports";
    const OPTIONAL: bool = true;
    const KEEP: &'static Keep = &Only(&[
        ("metadata", MCS_METADATA),
        ("spec", All),
        (
            "status",
            Only(&[("conditions", CONDITIONS), ("clusters", All)]),
        ),
    ]);
}

impl Watchable for ClusterProperty {
    const GROUP: &'static str = "about.k8s.io";
    const VERSION: &'static str = "v1beta1";
    const PLURAL: &'static str = "clusterproperties";
    const OPTIONAL: bool = true;
    const DISPENSABLE: bool = true;
    const KEEP: &'static Keep = &Only(&[("metadata", METADATA), ("spec", All)]);
}
