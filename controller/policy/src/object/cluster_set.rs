// SPDX-License-Identifier: Apache-2.0

//! The set of clusters and its defaults.

use std::time::Duration;

use super::{Meta, spec};
use crate::Fault;
use crate::faults::Faults;
use crate::spec::{
    Action, ClusterSetSpec, EndpointSlices, LastResort, LossSpec, OwnerHints, QuotaSpec,
};

/// The set of clusters. Its name is the value of the property `clusterset.k8s.io`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSet {
    /// Name, age and labels.
    pub meta: Meta,
    /// Default for an export that no [`ExportPolicy`](crate::ExportPolicy) selects.
    pub exports: Action,
    /// Whether Services are exported without a ServiceExport, if no policy selects them.
    pub automatic: bool,
    /// Default for an import that no [`ImportPolicy`](crate::ImportPolicy) selects.
    pub imports: Action,
    /// Whether wishes of the Services' owners count.
    pub owner_hints: OwnerHints,
    /// The EndpointSlices that are written into importing clusters.
    pub endpoint_slices: EndpointSlices,
    /// The loss of clusters, and their return.
    pub loss: Loss,
    /// Bounds.
    pub quota: Quota,
}

/// The loss of clusters, and their return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Time after which a stale cluster is lost; zero for never.
    pub stale_ttl: Duration,
    /// Time that a lost cluster is in contact before it returns.
    pub return_after: Duration,
    /// Time over which its share rises again.
    pub ramp_up: Duration,
    /// Percentage of clusters, 0 to 100, that may be out of contact at once before none is lost any
    /// more.
    pub mass_loss: u8,
    /// Treatment of a Service whose clusters are all lost.
    pub last_resort: LastResort,
}

impl Default for Loss {
    fn default() -> Self {
        Self {
            stale_ttl: Duration::from_mins(5),
            return_after: Duration::from_mins(1),
            ramp_up: Duration::from_mins(2),
            mass_loss: 50,
            last_resort: LastResort::default(),
        }
    }
}

impl Loss {
    fn new(loss: &LossSpec, faults: &mut Faults) -> Self {
        let path = spec("loss");
        let default = Self::default();
        let mut duration = |name, text: &Option<String>, default| {
            faults.duration(&path.field(name), text.as_ref(), default)
        };
        Self {
            stale_ttl: duration("staleTTL", &loss.stale_ttl, default.stale_ttl),
            return_after: duration("returnAfter", &loss.return_after, default.return_after),
            ramp_up: duration("rampUp", &loss.ramp_up, default.ramp_up),
            mass_loss: loss.mass_loss.map_or(default.mass_loss, |percent| {
                faults.percent(&path.field("massLoss"), percent, 0)
            }),
            last_resort: loss.last_resort,
        }
    }
}

/// Bounds of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Clusters.
    pub clusters: u32,
    /// Exports of one cluster.
    pub exports_per_cluster: u32,
    /// Endpoints of one export.
    pub endpoints_per_export: u32,
    /// Endpoints of one import in one family, 1 to 4000.
    pub endpoints_per_import: u32,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            clusters: 64,
            exports_per_cluster: 5000,
            endpoints_per_export: 1000,
            endpoints_per_import: 256,
        }
    }
}

impl From<&QuotaSpec> for Quota {
    fn from(spec: &QuotaSpec) -> Self {
        let default = Self::default();
        Self {
            clusters: spec.clusters.unwrap_or(default.clusters),
            exports_per_cluster: spec
                .exports_per_cluster
                .unwrap_or(default.exports_per_cluster),
            endpoints_per_export: spec
                .endpoints_per_export
                .unwrap_or(default.endpoints_per_export),
            endpoints_per_import: spec
                .endpoints_per_import
                .unwrap_or(default.endpoints_per_import),
        }
    }
}

impl Default for ClusterSet {
    /// The set that holds where nobody defines one.
    fn default() -> Self {
        let spec = ClusterSetSpec::default();
        Self {
            meta: Meta {
                name: String::from("default"),
                ..Meta::default()
            },
            exports: spec.exports.default,
            automatic: spec.exports.automatic,
            imports: spec.imports.default,
            owner_hints: spec.owner_hints,
            endpoint_slices: spec.endpoint_slices,
            loss: Loss::default(),
            quota: Quota::default(),
        }
    }
}

impl ClusterSet {
    /// The object that a spec describes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(meta: Meta, spec: &ClusterSetSpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let set = Self {
            meta,
            exports: spec.exports.default,
            automatic: spec.exports.automatic,
            imports: spec.imports.default,
            owner_hints: spec.owner_hints,
            endpoint_slices: spec.endpoint_slices,
            loss: Loss::new(&spec.loss, &mut faults),
            quota: Quota::from(&spec.quota),
        };
        faults.into_result(set)
    }
}
