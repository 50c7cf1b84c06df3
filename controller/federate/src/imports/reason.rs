// SPDX-License-Identifier: Apache-2.0

//! Reasons of conditions, and why an export is not visible in a cluster.

use std::fmt;

use portolan_model::Family;
use portolan_policy::Because;

use super::ImportName;
use crate::gateway::NoPath;

/// The condition `Valid` of a ServiceExport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Valid {
    /// It is.
    Valid,
    /// There is no such Service.
    NoService,
    /// The Service cannot be exported.
    InvalidServiceType,
}

impl Valid {
    /// The reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "Valid",
            Self::NoService => "NoService",
            Self::InvalidServiceType => "InvalidServiceType",
        }
    }
}

/// The condition `Ready` of a ServiceExport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ready {
    /// It is exported.
    Exported,
    /// It is not valid.
    Failed,
    /// A policy denies it.
    DeniedByPolicy,
    /// It is beyond a quota of its cluster.
    QuotaExceeded(Quota),
}

/// A bound of a cluster that an export is beyond, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quota {
    /// There are as many older exports.
    Exports(u32),
    /// The export and the older ones have more ready endpoints.
    Endpoints(u32),
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exports(most) => {
                write!(f, "spec.quota.exports: {most} older exports are the most")
            }
            Self::Endpoints(most) => write!(
                f,
                "spec.quota.endpoints: with the older exports it has more ready endpoints than {most}"
            ),
        }
    }
}

impl Ready {
    /// The reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exported => "Exported",
            Self::Failed => "Failed",
            Self::DeniedByPolicy => "DeniedByPolicy",
            Self::QuotaExceeded(_) => "QuotaExceeded",
        }
    }
}

/// Reason why a Service of one cluster is not visible in another: the first reason, in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invisible {
    /// There is no ServiceExport, and no policy exports the Service without one.
    NoExport,
    /// There is no such Service.
    NoService,
    /// The Service cannot be exported.
    WrongType,
    /// An ExportPolicy, or the set's default, denies the export.
    ExportDenied(Because),
    /// The ExportPolicy does not name the importing cluster in `to`.
    NotTo(Because),
    /// An ImportPolicy, or the set's default, denies the import.
    ImportDenied(Because),
    /// The importing cluster has no such namespace.
    NoNamespace(String),
    /// The export is beyond a quota of its cluster.
    Quota(Quota),
    /// The exporting cluster cannot be reached: why.
    Unreachable(String),
    /// One of both clusters is behind gateways, and connections have no way.
    NoPath(NoPath),
    /// The Service is headless, and one of both clusters is behind gateways: clients cannot connect to the addresses of
    /// its pods, which are all that it has.
    HeadlessBehindGateway,
    /// The exporting cluster exports another Service that has this name here.
    NameTaken(ImportName),
    /// The importing cluster has no range of virtual addresses for the Service.
    NoFamily,
    /// The import has virtual addresses here, but none of a family of the Service.
    OtherFamilies,
    /// No virtual address of this family is left.
    NoVip(Family),
    /// The exporting cluster is lost.
    Lost,
}

impl fmt::Display for Invisible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoExport => f.write_str("not exported: no ServiceExport"),
            Self::NoService => f.write_str("not exported: no such Service"),
            Self::WrongType => f.write_str("not exported: a Service of this type cannot be"),
            Self::ExportDenied(because) => {
                write!(f, "not exported: {}", denied("ExportPolicy", because))
            }
            Self::NotTo(because) => {
                let policy = because.policy().unwrap_or_default();
                write!(f, "not exported to this cluster: ExportPolicy {policy}")
            }
            Self::ImportDenied(because) => {
                write!(f, "not imported: {}", denied("ImportPolicy", because))
            }
            Self::NoNamespace(namespace) => {
                write!(f, "not imported: no namespace {namespace} in this cluster")
            }
            Self::Quota(quota) => write!(f, "not exported: {quota}"),
            Self::Unreachable(why) => write!(f, "not imported: {why}"),
            Self::NoPath(why) => write!(f, "not imported: {why}"),
            Self::HeadlessBehindGateway => {
                f.write_str("not imported: a headless Service, and no route to its pods")
            }
            Self::NameTaken(other) => write!(f, "not imported: {other} has this name here"),
            Self::NoFamily => f.write_str("not imported: no clusterSetIPs of its families"),
            Self::OtherFamilies => {
                f.write_str("not reached: the import has no address of its families here")
            }
            Self::NoVip(family) => {
                write!(
                    f,
                    "not imported: no address of family {family} is left in clusterSetIPs"
                )
            }
            Self::Lost => f.write_str("the cluster is lost"),
        }
    }
}

fn denied(kind: &str, because: &Because) -> String {
    match because {
        Because::Default => String::from("denied by the default of the ClusterSet"),
        because => format!("denied by {kind} {because}"),
    }
}
