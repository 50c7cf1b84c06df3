// SPDX-License-Identifier: Apache-2.0

//! Conversion of Services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{self as catalog, Kind, Object, Reason, ServiceFacts, TrafficPolicy};
use portolan_model::Family;

use super::address::{self, Wanted};
use super::balancer::{Balancer, health_check_port};
use super::problems::Problems;
use super::{
    Converted, Manifest, Names, Scope, Service, ServicePort, ServiceSpec, annotations, names, ports,
};

/// The API server's default and limit of `timeoutSeconds`.
const AFFINITY_DEFAULT_SECONDS: u32 = 10_800;
const AFFINITY_MAX_SECONDS: u32 = 86_400;

pub(super) const POLICIES: [(&str, TrafficPolicy); 2] = [
    ("Cluster", TrafficPolicy::Cluster),
    ("Local", TrafficPolicy::Local),
];

impl Manifest for Service {
    const KIND: Kind = Kind::Service;

    fn facts(&self, scope: &Scope) -> Option<Arc<ServiceFacts>> {
        super::export::of_service(self.clone(), scope)
    }

    fn convert(self, scope: &Scope) -> Converted {
        let service = match self
            .metadata
            .reference_of_service(Self::KIND, &scope.cluster)
        {
            Ok(service) => service,
            Err((object, problem)) => return Converted::refused(object, problem),
        };
        let spec = self.spec.unwrap_or_default();
        if !scope.selects(self.metadata.labels.as_ref()) || !spec.has_cluster_ip() {
            return Converted::NotOurs(service);
        }
        let mut problems = Problems::default();
        let created = self.metadata.created(&mut problems);
        let cluster_ips = cluster_ips(&spec, &mut problems);
        let external_ips = external_ips(&spec, &cluster_ips, &mut problems);
        let balancer = Balancer::new(self.status, &cluster_ips, &mut problems);
        let source_ranges = address::source_ranges(
            spec.load_balancer_source_ranges.as_deref().unwrap_or(&[]),
            &mut problems,
        );
        let external_policy = external_policy(&spec, &mut problems);
        let object = catalog::Service {
            created,
            cluster_ips,
            external_ips,
            load_balancer_ips: balancer.ips,
            balancer_keeps_sources: balancer.keeps_sources,
            source_ranges,
            external_policy,
            internal_policy: problems.choose(
                "spec.internalTrafficPolicy",
                spec.internal_traffic_policy.as_deref(),
                POLICIES,
            ),
            affinity_seconds: affinity_seconds(&spec, &mut problems),
            scheduling: annotations::scheduling(&self.metadata, &mut problems),
            drain_seconds: annotations::drain_seconds(&self.metadata, &mut problems),
            health_check_port: health_check_port(&spec, external_policy, &mut problems),
            ports: service_ports(spec.ports.as_deref().unwrap_or(&[]), &mut problems),
            ..catalog::Service::new(service.key)
        };
        annotations::unsupported(&self.metadata, &mut problems);
        if scope.shares {
            check_exported(spec.ports.as_deref().unwrap_or(&[]), &mut problems);
        }
        Converted::Put {
            object: Object::Service(object),
            problems: problems.into_vec(),
        }
    }

    fn names(&self) -> Names {
        names::of_service(self)
    }
}

impl ServiceSpec {
    /// `clusterIPs`, or `clusterIP` with the field's name.
    pub(super) fn cluster_ip_fields(&self) -> Vec<(String, &str)> {
        let list = self.cluster_ips.as_deref().unwrap_or(&[]);
        if list.is_empty() {
            let single = self.cluster_ip.as_deref().unwrap_or_default();
            return vec![("spec.clusterIP".to_owned(), single)];
        }
        list.iter()
            .enumerate()
            .map(|(index, ip)| (format!("spec.clusterIPs[{index}]"), ip.as_str()))
            .collect()
    }

    pub(super) fn has_cluster_ip(&self) -> bool {
        let first = self.cluster_ip_fields()[0].1;
        let own = self.cluster_ip.as_deref().unwrap_or(first);
        let is_set = |ip: &str| !matches!(ip, "" | "None");
        self.type_.as_deref() != Some("ExternalName") && is_set(first) && own != "None"
    }
}

/// The addresses of the Service, one of each family at most. If `ipFamilies` is set, its length
/// limits them, as upstream.
pub(super) fn cluster_ips(spec: &ServiceSpec, problems: &mut Problems) -> Vec<IpAddr> {
    let families = spec.ip_families.as_deref().unwrap_or(&[]);
    let mut fields = spec.cluster_ip_fields();
    if !families.is_empty() {
        fields.truncate(families.len());
    }
    let mut ips: Vec<IpAddr> = Vec::new();
    for (index, (field, text)) in fields.into_iter().enumerate() {
        let ip = match address::parse(text) {
            Ok(ip) => ip,
            Err(error) => {
                problems.invalid(field, error.to_string());
                continue;
            }
        };
        let family = Family::of(ip);
        let expected = families.get(index).map_or(family.as_str(), String::as_str);
        if expected != family.as_str() {
            problems.add(
                field,
                Reason::WrongFamily,
                format!("{ip} is {family}: expected {expected}, as spec.ipFamilies[{index}] says"),
            );
        } else if ips.iter().any(|other| Family::of(*other) == family) {
            problems.add(
                field,
                Reason::WrongFamily,
                format!("{ip} is a second {family} address: expected one of each family"),
            );
        } else {
            ips.push(ip);
        }
    }
    ips
}

fn external_ips(
    spec: &ServiceSpec,
    cluster_ips: &[IpAddr],
    problems: &mut Problems,
) -> Vec<IpAddr> {
    let mut wanted = Wanted::new(cluster_ips);
    for (index, text) in spec.external_ips.iter().flatten().enumerate() {
        wanted.push(format!("spec.externalIPs[{index}]"), text, problems);
    }
    wanted.ips
}

/// `externalTrafficPolicy`, if the Service has external frontends.
fn external_policy(spec: &ServiceSpec, problems: &mut Problems) -> TrafficPolicy {
    let policy = problems.choose(
        "spec.externalTrafficPolicy",
        spec.external_traffic_policy.as_deref(),
        POLICIES,
    );
    let has_external_ips = !spec.external_ips.as_deref().unwrap_or(&[]).is_empty();
    let external = problems.choose(
        "spec.type",
        spec.type_.as_deref(),
        [
            ("ClusterIP", has_external_ips),
            ("NodePort", true),
            ("LoadBalancer", true),
        ],
    );
    if external {
        policy
    } else {
        TrafficPolicy::Cluster
    }
}

pub(super) fn affinity_seconds(spec: &ServiceSpec, problems: &mut Problems) -> Option<u32> {
    let has_affinity = problems.choose(
        "spec.sessionAffinity",
        spec.session_affinity.as_deref(),
        [("None", false), ("ClientIP", true)],
    );
    let config = spec.session_affinity_config.as_ref();
    let seconds = config
        .and_then(|config| config.client_ip.as_ref())
        .and_then(|client_ip| client_ip.timeout_seconds);
    if !has_affinity {
        return None;
    }
    let Some(seconds) = seconds else {
        return Some(AFFINITY_DEFAULT_SECONDS);
    };
    let valid = u32::try_from(seconds)
        .ok()
        .filter(|seconds| (1..=AFFINITY_MAX_SECONDS).contains(seconds));
    if valid.is_none() {
        problems.invalid(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format!(
                "{seconds} is out of range: expected 1 to {AFFINITY_MAX_SECONDS}; \
                 taken as {AFFINITY_DEFAULT_SECONDS}"
            ),
        );
    }
    valid.or(Some(AFFINITY_DEFAULT_SECONDS))
}

/// Ports that other clusters are not sent.
fn check_exported(ports: &[ServicePort], problems: &mut Problems) {
    const MOST: usize = catalog::ServiceExport::MAX_PORTS;
    if ports.len() > MOST {
        let message = format!("{} ports: an export has the first {MOST}", ports.len());
        problems.add("spec.ports", Reason::Unsupported, message);
    }
}

fn service_ports(ports: &[ServicePort], problems: &mut Problems) -> Vec<catalog::ServicePort> {
    let mut seen = BTreeSet::new();
    let mut good = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        let Some(port) = service_port(&field, port, problems) else {
            continue;
        };
        if seen.insert((Arc::clone(&port.name), port.protocol)) {
            good.push(port);
        } else {
            problems.invalid(
                format!("{field}.name"),
                format!(
                    "{:?} is the name of another {} port: expected one of its own; left out",
                    port.name, port.protocol
                ),
            );
        }
    }
    good
}

fn service_port(
    field: &str,
    port: &ServicePort,
    problems: &mut Problems,
) -> Option<catalog::ServicePort> {
    let protocol = ports::protocol(
        &format!("{field}.protocol"),
        port.protocol.as_deref(),
        problems,
    );
    let number = ports::number(&format!("{field}.port"), port.port, problems);
    let node_port = match port.node_port {
        None | Some(0) => None,
        given => ports::number(&format!("{field}.nodePort"), given, problems),
    };
    Some(catalog::ServicePort {
        name: port.name.as_deref().unwrap_or_default().into(),
        protocol: protocol?,
        port: number?,
        node_port,
    })
}
