// SPDX-License-Identifier: Apache-2.0

//! Writes as an API server takes them.

use std::fmt;
use std::sync::Arc;

use portolan_catalog::{Condition, ImportSpec};
use portolan_federate::imports::ImportName;
use serde_json::{Map, Value, json};

use crate::condition::WantedCondition;
use crate::wanted::WantedImport;

const API_VERSION: &str = "multicluster.x-k8s.io/v1beta1";
/// Marks a ServiceImport as ours, and says whose export won.
pub(crate) const WINNER: &str = "portolan.dev/winner";
/// In place of the time of the write.
const NOW: Value = Value::Null;

/// The kind of a written object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteKind {
    /// A ServiceExport: its status.
    ServiceExport,
    /// A ServiceImport.
    ServiceImport,
    /// An EndpointSlice.
    EndpointSlice,
}

impl WriteKind {
    /// The kind as in an object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServiceExport => "ServiceExport",
            Self::ServiceImport => "ServiceImport",
            Self::EndpointSlice => "EndpointSlice",
        }
    }

    /// `apiVersion`.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::ServiceExport | Self::ServiceImport => API_VERSION,
            Self::EndpointSlice => "discovery.k8s.io/v1",
        }
    }

    /// The name in paths.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::ServiceExport => "serviceexports",
            Self::ServiceImport => "serviceimports",
            Self::EndpointSlice => "endpointslices",
        }
    }
}

impl fmt::Display for WriteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A written object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Its kind.
    pub kind: WriteKind,
    /// Its namespace and name.
    pub name: ImportName,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// A write that makes an object as it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The object.
    pub target: Target,
    /// Action on it.
    pub action: Action,
}

/// Action on an object. Objects of others are safe from all of them: creation fails where one is, and the others name
/// the UID.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Create it, if there is none.
    Create(Value),
    /// Apply these fields, and give up those that were applied before.
    Apply(Value),
    /// Apply these fields of its status.
    ApplyStatus(Value),
    /// Delete it.
    Delete {
        /// Its UID.
        uid: Arc<str>,
    },
}

impl Action {
    /// A word for logs and metrics.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Apply(_) => "apply",
            Self::ApplyStatus(_) => "apply status",
            Self::Delete { .. } => "delete",
        }
    }
}

/// An object with the time of its write in the place of new transition times.
#[must_use]
pub fn at(object: &Value, now: &str) -> Value {
    let mut object = object.clone();
    let conditions = object.pointer_mut("/status/conditions");
    let conditions = conditions.and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if condition["lastTransitionTime"] == NOW {
            condition["lastTransitionTime"] = now.into();
        }
    }
    object
}

fn target(kind: WriteKind, name: &ImportName) -> Target {
    Target {
        kind,
        name: name.clone(),
    }
}

fn object(kind: WriteKind, name: &ImportName, uid: Option<&str>) -> Map<String, Value> {
    let mut metadata = json!({"namespace": &*name.namespace, "name": &*name.name});
    if let Some(uid) = uid.filter(|uid| !uid.is_empty()) {
        metadata["uid"] = uid.into();
    }
    let object = json!({
        "apiVersion": kind.api_version(),
        "kind": kind.as_str(),
        "metadata": metadata,
    });
    match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Creates a ServiceImport with as little as it may have: what is applied next can be taken back, what is created
/// cannot.
pub(crate) fn create(name: &ImportName, wanted: &WantedImport) -> Write {
    let kind = WriteKind::ServiceImport;
    let mut fields = object(kind, name, None);
    fields["metadata"]["annotations"] = json!({WINNER: &*wanted.winner});
    let spec = json!({"type": type_of(&wanted.spec), "ports": ports(&wanted.spec)});
    fields.insert("spec".to_owned(), spec);
    Write {
        target: target(kind, name),
        action: Action::Create(Value::Object(fields)),
    }
}

pub(crate) fn apply(name: &ImportName, wanted: &WantedImport, uid: &str) -> Write {
    let kind = WriteKind::ServiceImport;
    let mut fields = object(kind, name, Some(uid));
    let mut annotations = json!(wanted.annotations);
    annotations[WINNER] = (*wanted.winner).into();
    fields["metadata"]["annotations"] = annotations;
    fields["metadata"]["labels"] = json!(wanted.labels);
    fields.insert("spec".to_owned(), spec(&wanted.spec));
    Write {
        target: target(kind, name),
        action: Action::Apply(Value::Object(fields)),
    }
}

pub(crate) fn apply_status(
    name: &ImportName,
    wanted: &WantedImport,
    wanted_conditions: &[WantedCondition],
    (uid, generation): (&str, i64),
    found: &[Condition],
) -> Write {
    let kind = WriteKind::ServiceImport;
    let mut fields = object(kind, name, Some(uid));
    let clusters = wanted.clusters.iter().map(|id| json!({"cluster": &**id}));
    let status = json!({
        "clusters": clusters.collect::<Vec<_>>(),
        "conditions": conditions(wanted_conditions, found, generation),
    });
    fields.insert("status".to_owned(), status);
    Write {
        target: target(kind, name),
        action: Action::ApplyStatus(Value::Object(fields)),
    }
}

pub(crate) fn delete(kind: WriteKind, name: &ImportName, uid: &Arc<str>) -> Write {
    Write {
        target: target(kind, name),
        action: Action::Delete {
            uid: Arc::clone(uid),
        },
    }
}

pub(crate) fn export_status(
    name: &ImportName,
    wanted: &[WantedCondition],
    generation: i64,
    found: &[Condition],
) -> Write {
    let kind = WriteKind::ServiceExport;
    let mut fields = object(kind, name, None);
    let status = json!({"conditions": conditions(wanted, found, generation)});
    fields.insert("status".to_owned(), status);
    Write {
        target: target(kind, name),
        action: Action::ApplyStatus(Value::Object(fields)),
    }
}

fn conditions(wanted: &[WantedCondition], found: &[Condition], generation: i64) -> Vec<Value> {
    let spelled = wanted.iter().map(|one| {
        let since = one.since(found);
        let mut condition = json!({
            "type": one.kind,
            "status": one.status(),
            "reason": one.reason,
            "message": one.message,
            "lastTransitionTime": since.map_or(NOW, |since| (*since).into()),
        });
        if generation > 0 {
            condition["observedGeneration"] = generation.into();
        }
        condition
    });
    spelled.collect()
}

fn type_of(spec: &ImportSpec) -> &'static str {
    if spec.headless {
        "Headless"
    } else {
        "ClusterSetIP"
    }
}

fn ports(spec: &ImportSpec) -> Vec<Value> {
    let spelled = spec.ports.iter().map(|port| {
        let mut fields = json!({"port": port.port, "protocol": port.protocol.as_str()});
        if !port.name.is_empty() {
            fields["name"] = (*port.name).into();
        }
        if let Some(protocol) = &port.app_protocol {
            fields["appProtocol"] = (**protocol).into();
        }
        fields
    });
    spelled.collect()
}

fn spec(spec: &ImportSpec) -> Value {
    let families = spec.families.iter().map(|family| family.as_str());
    let ips = spec.ips.iter().map(ToString::to_string);
    let policy = if spec.internal_local {
        "Local"
    } else {
        "Cluster"
    };
    let mut fields = json!({
        "type": type_of(spec),
        "ports": ports(spec),
        "ips": ips.collect::<Vec<_>>(),
        "ipFamilies": families.collect::<Vec<_>>(),
        "internalTrafficPolicy": policy,
        "sessionAffinity": "None",
    });
    if let Some(seconds) = spec.affinity_seconds {
        fields["sessionAffinity"] = "ClientIP".into();
        fields["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
    }
    if let Some(distribution) = &spec.traffic_distribution {
        fields["trafficDistribution"] = (**distribution).into();
    }
    fields
}
