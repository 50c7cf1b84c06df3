// SPDX-License-Identifier: Apache-2.0

//! Conversion of ServiceExports, and of what an export needs of its Service.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_catalog::{
    self as catalog, ExportPort, ExportStatus, Kind, Object, Reason, ServiceFacts, ServiceType,
    TrafficPolicy,
};
use portolan_model::Family;
use serde_json::Value;

use super::metadata::IMPORT;
use super::problems::Problems;
use super::service::{POLICIES, affinity_seconds, cluster_ips};
use super::{
    Converted, Manifest, Metadata, Scope, Service, ServiceExport, ServiceSpec, decode, import,
    ports,
};

/// Annotation of a ServiceExport: the weight of its cluster.
const WEIGHT: &str = "portolan.dev/cluster-weight";

impl Manifest for ServiceExport {
    const KIND: Kind = Kind::ServiceExport;

    fn convert(self, scope: &Scope) -> Converted {
        let export = match self
            .metadata
            .reference_of_service(Self::KIND, &scope.cluster)
        {
            Ok(export) => export,
            Err((object, problem)) => return Converted::refused(object, problem),
        };
        if !scope.shares {
            return Converted::NotOurs(export);
        }
        let mut problems = Problems::default();
        let spec = self.spec.unwrap_or_default();
        if spec.cluster_selectors.is_some() {
            problems.add(
                "spec.clusterSelectors",
                Reason::Unsupported,
                "KEP-5939 is not supported: a TrafficPolicy has tiers; ignored",
            );
        }
        let object = catalog::ServiceExport {
            requested: true,
            created: self.metadata.created(&mut problems),
            labels: texts(spec.exported_labels),
            annotations: texts(spec.exported_annotations),
            weight: weight(&self.metadata, &mut problems),
            status: ExportStatus {
                generation: self.metadata.generation.unwrap_or_default(),
                conditions: import::conditions(self.status),
            },
            ..catalog::ServiceExport::new(export.key)
        };
        Converted::Put {
            object: Object::ServiceExport(object),
            problems: problems.into_vec(),
        }
    }
}

fn texts(given: Option<BTreeMap<String, Option<String>>>) -> BTreeMap<String, String> {
    let given = given.into_iter().flatten();
    given
        .map(|(key, value)| (key, value.unwrap_or_default()))
        .collect()
}

fn weight(metadata: &Metadata, problems: &mut Problems) -> Option<u16> {
    const MOST: u16 = catalog::ServiceExport::MAX_WEIGHT;
    let text = metadata.annotation(WEIGHT)?.trim();
    let is_plain = text.bytes().all(|c| c.is_ascii_digit());
    let weight = text.parse().ok();
    let weight = weight.filter(|weight| is_plain && *weight <= MOST);
    if weight.is_none() {
        problems.invalid(
            format!("metadata.annotations[{WEIGHT}]"),
            format!("{text:?}: expected 0 to {MOST}; ignored"),
        );
    }
    weight
}

/// Returns the facts that an export needs of its Service: none of a Service that is unreadable, or another proxy's.
pub(crate) fn facts(value: &Value, scope: &Scope) -> Option<Arc<ServiceFacts>> {
    of_service(decode::<Service>(value).ok()?, scope)
}

/// All that is wrong with the Service is told when the Service itself is converted.
pub(super) fn of_service(service: Service, scope: &Scope) -> Option<Arc<ServiceFacts>> {
    let name = service.metadata.name.as_deref().unwrap_or_default();
    if name.contains(IMPORT) {
        return None;
    }
    let spec = service.spec.unwrap_or_default();
    let kind = if spec.type_.as_deref() == Some("ExternalName") {
        ServiceType::ExternalName
    } else if !spec.has_cluster_ip() {
        ServiceType::Headless
    } else if scope.selects(service.metadata.labels.as_ref()) {
        ServiceType::ClusterIp
    } else {
        return None;
    };
    let mut unheard = Problems::default();
    let internal = spec.internal_traffic_policy.as_deref();
    let internal = unheard.choose("spec.internalTrafficPolicy", internal, POLICIES);
    Some(Arc::new(ServiceFacts {
        kind,
        labels: texts(service.metadata.labels),
        ports: export_ports(&spec, &mut unheard),
        families: families(&spec, kind, &mut unheard),
        affinity_seconds: affinity_seconds(&spec, &mut unheard),
        internal_local: internal == TrafficPolicy::Local,
        traffic_distribution: spec
            .traffic_distribution
            .filter(|text| !text.is_empty())
            .map(Arc::from),
    }))
}

fn export_ports(spec: &ServiceSpec, unheard: &mut Problems) -> Vec<ExportPort> {
    let given = spec.ports.iter().flatten();
    let given = given.take(catalog::ServiceExport::MAX_PORTS);
    let good = given.filter_map(|port| {
        Some(ExportPort {
            name: port.name.as_deref().unwrap_or_default().into(),
            protocol: ports::protocol("", port.protocol.as_deref(), unheard)?,
            port: ports::number("", port.port, unheard)?,
            app_protocol: port.app_protocol.as_deref().map(Arc::from),
        })
    });
    good.collect()
}

/// The families of the Service's addresses; of a headless one those that `ipFamilies` names, or IPv4.
fn families(spec: &ServiceSpec, kind: ServiceType, unheard: &mut Problems) -> Vec<Family> {
    if kind == ServiceType::ClusterIp {
        let ips = cluster_ips(spec, unheard);
        return ips.into_iter().map(Family::of).collect();
    }
    let named = spec.ip_families.iter().flatten();
    let mut families: Vec<Family> = Vec::new();
    for name in named {
        let family = Family::ALL.into_iter().find(|one| one.as_str() == name);
        families.extend(family.filter(|one| !families.contains(one)));
    }
    if families.is_empty() {
        families.push(Family::V4);
    }
    families
}
