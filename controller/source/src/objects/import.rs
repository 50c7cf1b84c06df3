// SPDX-License-Identifier: Apache-2.0

//! Conversion of ServiceImports, and of the conditions that this program writes. What is read is bounded: a
//! cluster decides what its objects have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{self as catalog, ExportPort, ImportSpec, Kind, Object, OwnImport};
use portolan_model::Family;

use super::problems::Problems;
use super::{
    ClusterStatus, Converted, Manifest, McsStatus, Metadata, Scope, ServiceImport,
    ServiceImportSpec, ports,
};

/// The annotation that marks a ServiceImport as ours, with the id of the cluster whose export won.
pub const WINNER: &str = "portolan.dev/winner";
/// The name under which this program applies fields.
pub const FIELD_MANAGER: &str = "portolan-controller";

/// The longest text of a condition that is read, in bytes; a longer one is none of ours.
const LONGEST: usize = 4096;
/// The most entries of a list or map that are read; more are not ours.
const MOST: usize = 256;

impl Manifest for ServiceImport {
    const KIND: Kind = Kind::ServiceImport;

    fn convert(self, scope: &Scope) -> Converted {
        let import = match self.metadata.reference(Self::KIND, &scope.cluster) {
            Ok(import) => import,
            Err(problem) => return Converted::refused(None, problem),
        };
        if !scope.shares {
            return Converted::NotOurs(import);
        }
        // Of a time that cannot be read, nothing is said: API servers alone set it.
        let created = self.metadata.created(&mut Problems::default());
        let winner = self.metadata.annotation(WINNER).map(short);
        let own = winner.map(|winner| OwnImport {
            winner,
            labels: applied(&self.metadata, "f:labels"),
            annotations: applied(&self.metadata, "f:annotations"),
            spec: self.spec.and_then(|spec| read_spec(&spec)),
            clusters: clusters(self.status.as_ref()),
            conditions: conditions(self.status),
        });
        Converted::Put {
            object: Object::ServiceImport(catalog::ServiceImport {
                key: import.key,
                uid: short(self.metadata.uid.as_deref().unwrap_or_default()),
                generation: self.metadata.generation.unwrap_or_default(),
                created,
                own: own.map(Box::new),
            }),
            problems: Vec::new(),
        }
    }
}

/// A text, empty if it is too long.
fn short(text: &str) -> Arc<str> {
    if text.len() <= LONGEST {
        text.into()
    } else {
        Arc::default()
    }
}

/// The labels or annotations that this program applied, with their values of now.
fn applied(metadata: &Metadata, field: &str) -> BTreeMap<String, String> {
    let managed = metadata.managed_fields.iter().flatten();
    let ours = managed.filter(|fields| {
        let is_status = fields
            .subresource
            .as_deref()
            .is_some_and(|of| !of.is_empty());
        let is_applied = fields.operation.as_deref() == Some("Apply");
        is_applied && !is_status && fields.manager.as_deref() == Some(FIELD_MANAGER)
    });
    let keys = ours.filter_map(|fields| {
        let of_metadata = fields.fields_v1.as_ref()?.get("f:metadata")?;
        of_metadata.get(field)?.as_object()
    });
    let keys = keys.flat_map(serde_json::Map::keys);
    let keys = keys.filter_map(|key| key.strip_prefix("f:")).take(MOST);
    let value = |key: &str| -> Option<String> {
        if field == "f:annotations" {
            return metadata.annotation(key).map(str::to_owned);
        }
        metadata.labels.as_ref()?.get(key)?.clone()
    };
    let pairs = keys.filter(|key| *key != WINNER);
    pairs
        .map(|key| (key.to_owned(), value(key).unwrap_or_default()))
        .collect()
}

/// The spec, if every field is one that this program writes.
fn read_spec(spec: &ServiceImportSpec) -> Option<ImportSpec> {
    let mut problems = Problems::default();
    let given = spec.ports.iter().flatten().take(MOST + 1);
    let read: Option<Vec<ExportPort>> = given
        .map(|port| {
            Some(ExportPort {
                name: port.name.as_deref().unwrap_or_default().into(),
                protocol: ports::protocol("", port.protocol.as_deref(), &mut problems)?,
                port: ports::number("", port.port, &mut problems)?,
                app_protocol: port.app_protocol.as_deref().map(Arc::from),
            })
        })
        .collect();
    let ips = spec.ips.iter().flatten().take(MOST);
    let ips: Option<Vec<IpAddr>> = ips.map(|text| text.parse().ok()).collect();
    let families = spec.ip_families.iter().flatten().take(MOST);
    let families: Option<Vec<Family>> = families
        .map(|text| Family::ALL.into_iter().find(|one| one.as_str() == text))
        .collect();
    let affinity = spec.session_affinity.as_deref().unwrap_or("None");
    let timeout = spec.session_affinity_config.as_ref();
    let timeout = timeout.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    let affinity_seconds = match (affinity, timeout) {
        ("None", None) => None,
        ("ClientIP", Some(seconds)) => Some(u32::try_from(seconds).ok()?),
        _ => return None,
    };
    let one_of = |text: Option<&str>, [no, yes]: [&str; 2]| match text {
        Some(text) if text == yes => Some(true),
        Some(text) if text == no => Some(false),
        _ => None,
    };
    Some(ImportSpec {
        headless: one_of(spec.type_.as_deref(), ["ClusterSetIP", "Headless"])?,
        ports: read.filter(|ports| ports.len() <= MOST)?,
        ips: ips?,
        families: families?,
        affinity_seconds,
        internal_local: one_of(
            spec.internal_traffic_policy.as_deref(),
            ["Cluster", "Local"],
        )?,
        traffic_distribution: spec.traffic_distribution.as_deref().map(short),
    })
}

fn clusters(status: Option<&McsStatus>) -> BTreeSet<Arc<str>> {
    let given = status.into_iter().flat_map(|status| &status.clusters);
    let ids = given
        .flatten()
        .filter_map(|ClusterStatus { cluster }| cluster.as_deref());
    ids.take(MOST).map(short).collect()
}

/// Those conditions that this program writes.
pub(super) fn conditions(status: Option<McsStatus>) -> Vec<catalog::Condition> {
    let given = status.and_then(|status| status.conditions);
    let ours = given.into_iter().flatten().filter(|condition| {
        let kind = condition.type_.as_deref().unwrap_or_default();
        catalog::CONDITIONS.contains(&kind)
    });
    let text = |text: Option<String>| short(&text.unwrap_or_default());
    let ours = ours.take(catalog::CONDITIONS.len());
    ours.map(|condition| catalog::Condition {
        kind: text(condition.type_),
        status: text(condition.status),
        reason: text(condition.reason),
        message: text(condition.message),
        generation: condition.observed_generation.unwrap_or_default(),
        since: text(condition.last_transition_time),
    })
    .collect()
}
