// SPDX-License-Identifier: Apache-2.0

//! MCS objects as a cluster has them: what was written there before, to compare with what should be there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::Family;
use serde::Serialize;

use super::{ExportPort, ObjectKey};

/// A ServiceImport as its cluster has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceImport {
    /// Its name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.generation`; 0 if unknown.
    pub generation: i64,
    /// `metadata.creationTimestamp` in seconds since 1970; `None` if unknown.
    pub created: Option<i64>,
    /// Its content; `None` for one without our mark, which another program or a person wrote.
    pub own: Option<Box<OwnImport>>,
}

/// The content of a ServiceImport of ours.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OwnImport {
    /// The annotation `portolan.dev/winner`: the id of the cluster whose export won.
    pub winner: Arc<str>,
    /// The labels that this program applied, as the object's managed fields tell.
    pub labels: BTreeMap<String, String>,
    /// The annotations that this program applied, but for the winner's.
    pub annotations: BTreeMap<String, String>,
    /// The spec; `None` if it is none that this program writes.
    pub spec: Option<ImportSpec>,
    /// `status.clusters`: the ids of exporting clusters.
    pub clusters: BTreeSet<Arc<str>>,
    /// Those of `status.conditions` that this program writes.
    pub conditions: Vec<Condition>,
}

/// `spec` of a ServiceImport.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportSpec {
    /// Whether `type` is `Headless` instead of `ClusterSetIP`.
    pub headless: bool,
    /// `ports`.
    pub ports: Vec<ExportPort>,
    /// `ips`.
    pub ips: Vec<IpAddr>,
    /// `ipFamilies`.
    pub families: Vec<Family>,
    /// The timeout of ClientIP affinity in seconds; `None` without affinity.
    pub affinity_seconds: Option<u32>,
    /// Whether `internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// `trafficDistribution`.
    pub traffic_distribution: Option<Arc<str>>,
}

/// Type of the condition of a ServiceImport whose affinity reaches a gateway alone.
pub const AFFINITY_PARTIAL: &str = "AffinityPartial";
/// Types of all conditions that controllers write into ServiceExports and ServiceImports. No others are read.
pub const CONDITIONS: [&str; 4] = ["Valid", "Ready", "Conflict", AFFINITY_PARTIAL];

/// A condition of a status, as in `metav1.Condition`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// `type`.
    pub kind: Arc<str>,
    /// `status`: `True`, `False` or `Unknown`.
    pub status: Arc<str>,
    /// `reason`.
    pub reason: Arc<str>,
    /// `message`.
    pub message: Arc<str>,
    /// `observedGeneration`; 0 without one.
    pub generation: i64,
    /// `lastTransitionTime` as written.
    pub since: Arc<str>,
}

/// State of a ServiceExport in its cluster, beyond the fields that imports are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExportStatus {
    /// `metadata.generation`; 0 if unknown.
    pub generation: i64,
    /// Those of `status.conditions` that this program writes.
    pub conditions: Vec<Condition>,
}
