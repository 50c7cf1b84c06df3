// SPDX-License-Identifier: Apache-2.0

//! The policy of several clusters: objects of `portolan.dev/v1alpha1`, their checks, and which of
//! them applies.
//!
//! Pure: texts and values in, values out; no files, no network, no clock.
//!
//! [`spec`] has the objects as YAML and the API server spell them, with their JSON schema. A spec
//! becomes a checked object ([`ClusterSet`], [`Cluster`], [`ExportPolicy`], [`ImportPolicy`],
//! [`TrafficPolicy`]) or a list of [`Fault`]s, whose texts are the same in conditions and for files.
//! [`read()`] does both for files, and adds line and column; [`read_all`] for objects of an API server
//! too. [`Objects`] are all objects together.
//!
//! Of several policies one applies: [`export_decision`], [`import_decision`] and [`traffic_decision`]
//! name it and the reason.
//!
//! The types have no derive of `kube::CustomResource`: it would bring the client's dependencies into
//! a pure crate. [`crd`] makes the resources' definitions of the schemas of [`spec`].

#![forbid(unsafe_code)]

pub mod crd;
mod error;
mod faults;
mod name;
mod object;
mod objects;
mod overlap;
mod precedence;
mod reader;
mod selector;
mod served;
pub mod spec;

pub use error::{Fault, PolicyError, Reason};
pub use name::{Kind, ObjectName};
pub use object::{
    Access, ClientTokens, Cluster, ClusterLoss, ClusterQuota, ClusterSet, Drain, ExportPolicy,
    Gateway, ImportPolicy, Loss, MAX_TIERS, MAX_WEIGHT, Member, Meta, Network, NotAdmitted,
    PortRange, PortRangeError, Quota, REGION, Threshold, Tier, TokenKeys, TrafficPolicy,
};
pub use objects::{Object, ObjectFault, Objects};
pub use overlap::{MayBeNodePorts, Overlap, may_be_node_ports, overlaps};
pub use portolan_director::{File, NotOurs, Position, SchedulerName};
pub use precedence::{
    Because, ExportDecision, ImportDecision, ResolvedTier, Rule, TrafficDecision, export_decision,
    import_decision, resolve_tiers, traffic_decision,
};
pub use reader::{FileProblem, Reading, read, read_after, read_all};
pub use selector::{
    Closeness, ClusterFacts, Labels, Pattern, Patterns, Requirement, Selector, ServiceFacts,
    Services,
};
pub use served::Served;
