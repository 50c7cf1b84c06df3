// SPDX-License-Identifier: Apache-2.0

//! The watched kinds: selectors and fields.

use std::fmt;
use std::sync::Arc;

use portolan_catalog::Kind;
use serde::Deserialize;

use super::prune::Keep::{self, All, Only};
use crate::objects::{Converted, EndpointSlice, Manifest, Names, Namespace, Node, Pod, Service};

/// Excludes Services of other proxies and headless ones at the API server.
const OURS: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";

const METADATA: Keep = Only(&[
    ("name", All),
    ("namespace", All),
    ("resourceVersion", All),
    ("creationTimestamp", All),
    ("deletionTimestamp", All),
    ("labels", All),
    ("annotations", All),
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

/// A kind that can be watched.
pub(super) trait Watchable: Manifest + Clone + fmt::Debug + Send + 'static {
    const GROUP: &'static str;
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str;
    /// The selector of the objects that the tables need. DNS needs all.
    const SELECTOR: Option<&'static str>;
    /// The field selector, for tables and DNS.
    const FIELDS: Option<&'static str> = None;
    /// Whether only metadata is requested.
    const METADATA_ONLY: bool = false;
    /// The fields to keep.
    const KEEP: &'static Keep;
}

impl Watchable for Service {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "services";
    const SELECTOR: Option<&'static str> = Some(OURS);
    const KEEP: &'static Keep = &Only(&[("metadata", METADATA), ("spec", All), ("status", All)]);
}

impl Watchable for EndpointSlice {
    const GROUP: &'static str = "discovery.k8s.io";
    const PLURAL: &'static str = "endpointslices";
    const SELECTOR: Option<&'static str> = Some(OURS);
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
    const SELECTOR: Option<&'static str> = None;
    const KEEP: &'static Keep = &Only(&[
        ("metadata", METADATA),
        ("spec", All),
        ("status", Only(&[("addresses", All)])),
    ]);
}

impl Watchable for Pod {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "pods";
    // Annotations cannot be selected.
    const SELECTOR: Option<&'static str> = None;
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

    fn convert(self, cluster: &Arc<str>) -> Converted {
        self.0.convert(cluster)
    }

    fn names(&self) -> Names {
        self.0.names()
    }
}

impl Watchable for NamedPod {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "pods";
    const SELECTOR: Option<&'static str> = None;
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
    const SELECTOR: Option<&'static str> = None;
    const METADATA_ONLY: bool = true;
    const KEEP: &'static Keep = &Only(&[("metadata", METADATA)]);
}
