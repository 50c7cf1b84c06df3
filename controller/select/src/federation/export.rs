// SPDX-License-Identifier: Apache-2.0

//! The endpoints that a cluster exports, and the problems of exports.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_catalog::{
    Catalog, ClusterProperty, Endpoints, ExportPort, FieldProblem, Kind, ObjectKey, ObjectRef,
    Reason, ServiceFacts, ServicePort,
};
use portolan_federate::gateway::Gateways;
use portolan_federate::imports::{ExportStatus, Ready, Valid};
use portolan_federate::merge::{ImportPort, condition};
use portolan_model::Family;
use portolan_policy::{Network, NotAdmitted};

use super::{Federation, is_imported, service_key};

/// Addresses that one problem names.
const NAMED: usize = 4;

/// Returns `true` if a port of a Service is that of an import: with its name, protocol and number.
pub(super) fn is_port(one: &ServicePort, port: &ImportPort) -> bool {
    let wanted = &port.port;
    (&one.name, one.protocol, one.port) == (&wanted.name, wanted.protocol, wanted.number)
}

/// The port of an exported Service that an import has: with its name, protocol and number.
pub(super) fn export_port_of<'f>(
    facts: &'f ServiceFacts,
    port: &ImportPort,
) -> Option<&'f ExportPort> {
    let wanted = &port.port;
    let mut ports = facts.ports.iter();
    ports.find(|one| {
        (&one.name, one.protocol, one.port) == (&wanted.name, wanted.protocol, wanted.number)
    })
}

/// The endpoints of a port that other clusters may use, by address: those in the networks of their
/// cluster, at most so many of each family, the first ones.
pub(super) fn admitted<'c>(
    network: &Network,
    most: u32,
    mut endpoints: Endpoints<'c>,
) -> Endpoints<'c> {
    endpoints.retain(|(address, _)| network.admits(address.ip()).is_ok());
    first_of_families(&mut endpoints, most, SocketAddr::ip);
    endpoints
}

/// Keeps the first ones of each family, at most so many.
pub(super) fn first_of_families<K>(
    endpoints: &mut Endpoints<'_, K>,
    most: u32,
    address: impl Fn(&K) -> IpAddr,
) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if endpoints.len() <= most {
        return;
    }
    let mut counts = BTreeMap::<Family, usize>::new();
    endpoints.retain(|(place, _)| {
        let count = counts.entry(Family::of(address(place))).or_default();
        *count += 1;
        *count <= most
    });
}

fn property(cluster: &str, name: &str) -> ObjectRef {
    ObjectRef {
        kind: Kind::ClusterProperty,
        key: ObjectKey {
            cluster: cluster.into(),
            namespace: Arc::default(),
            name: name.into(),
        },
    }
}

pub(super) fn object(service: &ObjectKey) -> ObjectRef {
    ObjectRef {
        kind: Kind::ServiceExport,
        key: service.clone(),
    }
}

/// The field of problems with endpoints.
pub(super) const ENDPOINTS: &str = "endpoints";

impl Federation {
    /// Notes what the plan says about exports.
    pub(super) fn check_statuses(&mut self) {
        let mut problems = BTreeMap::new();
        for (cluster, exports) in &self.plan.exports {
            for (name, status) in exports {
                let found = of_status(status);
                if !found.is_empty() {
                    problems.insert(object(&service_key(cluster, name)), found);
                }
            }
        }
        // Endpoints are checked one Service at a time.
        for (export, before) in &self.problems {
            let of_endpoints = before.iter().filter(|problem| problem.field == ENDPOINTS);
            let of_endpoints: Vec<_> = of_endpoints.cloned().collect();
            if !of_endpoints.is_empty() && is_imported(&self.plan, &export.key) {
                let all: &mut Vec<_> = problems.entry(export.clone()).or_default();
                all.extend(of_endpoints);
            }
        }
        let of_others = self.problems.iter();
        let of_others = of_others.filter(|(of, _)| of.kind != Kind::ServiceExport);
        problems.extend(of_others.map(|(of, found)| (of.clone(), found.clone())));
        self.problems_changed |= self.problems != problems;
        self.problems = problems;
    }

    /// Notes what members say of themselves that the policy says otherwise.
    pub(super) fn check_properties(&mut self, catalog: &Catalog) {
        let mut problems = self.problems.clone();
        problems.retain(|of, _| of.kind != Kind::ClusterProperty);
        for (cluster, member) in self.objects.members() {
            let set = self.objects.set.as_ref();
            let expected = [
                (ClusterProperty::ID, Some(member.id.as_str())),
                (ClusterProperty::SET, set.map(|set| set.meta.name.as_str())),
            ];
            for (name, expected) in expected {
                let said = catalog.properties(cluster).and_then(|all| all.get(name));
                let (Some(said), Some(expected)) = (said, expected) else {
                    continue;
                };
                if **said == *expected {
                    continue;
                }
                let message = format!("{said:?}: the policy says {expected:?}, which holds");
                let problem = FieldProblem::new("spec.value", Reason::Conflict, message);
                problems.insert(property(cluster, name), vec![problem]);
            }
        }
        self.problems_changed |= self.problems != problems;
        self.problems = problems;
    }

    /// Notes the addresses of Nodes that cannot be those of gateways.
    pub(super) fn check_hosts(&mut self, cluster: &Arc<str>, gateways: &Gateways) {
        let is_of = |of: &ObjectRef| of.kind == Kind::Node && of.key.cluster == *cluster;
        let mut problems = self.problems.clone();
        problems.retain(|of, _| !is_of(of));
        for (node, refused) in &gateways.refused {
            let of = ObjectRef {
                kind: Kind::Node,
                key: ObjectKey {
                    cluster: Arc::clone(cluster),
                    namespace: Arc::default(),
                    name: Arc::clone(node),
                },
            };
            let message = format!(
                "AddressOutsideNetwork: {}: no gateway has them",
                in_words(refused)
            );
            let reason = Reason::AddressOutsideNetwork;
            let problem = FieldProblem::new("status.addresses", reason, message);
            problems.insert(of, vec![problem]);
        }
        self.problems_changed |= self.problems != problems;
        self.problems = problems;
    }

    /// Notes the endpoints of an exported Service that no import uses.
    ///
    /// `is_used` says that an import uses the Service; else that is looked up.
    pub(super) fn check_endpoints(
        &mut self,
        catalog: &Catalog,
        service: &ObjectKey,
        is_used: bool,
    ) {
        let is_used = is_used || is_imported(&self.plan, service);
        let may_have = is_used && !self.admits_all(catalog, service);
        let found = may_have.then(|| self.of_endpoints(catalog, service));
        let found = found.unwrap_or_default();
        let object = object(service);
        let before = self.problems.remove(&object).unwrap_or_default();
        let others = before.iter().filter(|problem| problem.field != ENDPOINTS);
        let after: Vec<_> = others.cloned().chain(found).collect();
        self.problems_changed |= before != after;
        if !after.is_empty() {
            self.problems.insert(object, after);
        }
    }

    /// Returns `true` if no endpoint of a Service can be a problem, whichever ports are exported. Mostly so, and the
    /// export, which is in no cache, is not looked at.
    pub(super) fn admits_all(&self, catalog: &Catalog, key: &ObjectKey) -> bool {
        let Some(cluster) = self.objects.clusters.get(&*key.cluster) else {
            return true;
        };
        let bound = self.set.quota.endpoints_per_export;
        let mut room = usize::try_from(bound).unwrap_or(usize::MAX);
        let mut addresses = catalog.addresses_of(key);
        let are_few = addresses.all(|(address, ports)| {
            // All ports of a slice may have one name: then each is an endpoint.
            let endpoints = ports.max(1);
            let fits = endpoints <= room && cluster.network.admits(address).is_ok();
            room = room.saturating_sub(endpoints);
            fits
        });
        are_few && self.gateway_range(&key.cluster).is_none()
    }

    /// The problems with the endpoints of an exported Service.
    pub(super) fn of_endpoints(&self, catalog: &Catalog, key: &ObjectKey) -> Vec<FieldProblem> {
        let cluster = self.objects.clusters.get(&*key.cluster);
        let facts = catalog
            .export(key)
            .and_then(|export| export.service.as_deref());
        let (Some(cluster), Some(facts)) = (cluster, facts) else {
            return Vec::new();
        };
        let network = &cluster.network;
        let bound = self.set.quota.endpoints_per_export;
        let mut refused = BTreeMap::new();
        let mut most = 0;
        for port in &facts.ports {
            let name = (&*port.name, port.protocol);
            let copies = catalog.exported_addresses(key, &facts.families, name);
            let mut count = count_admitted(network, copies, &mut refused);
            if count > bound {
                // Copies count once.
                let merged = catalog.exported_endpoints(key, &facts.families, name);
                let addresses = merged.into_iter().map(|(address, _)| address.ip());
                count = count_admitted(network, addresses, &mut refused);
            }
            most = most.max(count);
        }
        if facts.ports.is_empty() {
            let hosts = catalog.exported_hosts(key, &facts.families);
            let hosts = hosts.into_iter().map(|(ip, _)| ip);
            most = count_admitted(network, hosts, &mut refused);
        }
        let excess = (most > bound).then(|| {
            let message = format!("{most} of one family: imports use the first {bound}");
            FieldProblem::new(ENDPOINTS, Reason::TooMany, message)
        });
        let of_gateways = self.of_gateways(key, facts);
        let of_endpoints = outside(&refused).into_iter().chain(excess);
        of_endpoints.chain(of_gateways).collect()
    }
}

/// The number of admitted addresses of the family that has more of them. Notes the others.
fn count_admitted(
    network: &Network,
    addresses: impl Iterator<Item = IpAddr>,
    refused: &mut BTreeMap<IpAddr, NotAdmitted>,
) -> u32 {
    let [mut v4, mut v6] = [0; 2];
    for address in addresses {
        match (network.admits(address), Family::of(address)) {
            (Ok(()), Family::V4) => v4 += 1,
            (Ok(()), Family::V6) => v6 += 1,
            (Err(why), _) => _ = refused.insert(address, why),
        }
    }
    v4.max(v6)
}

/// One problem for all addresses, so that their number is bounded.
fn outside(refused: &BTreeMap<IpAddr, NotAdmitted>) -> Option<FieldProblem> {
    (!refused.is_empty()).then(|| {
        let message = format!(
            "AddressOutsideNetwork: {}: no import uses them",
            in_words(refused)
        );
        FieldProblem::new(ENDPOINTS, Reason::AddressOutsideNetwork, message)
    })
}

/// The first of some addresses, each with the reason.
fn in_words(refused: &BTreeMap<IpAddr, NotAdmitted>) -> String {
    let named = refused.iter().take(NAMED);
    let named: Vec<String> = named.map(|(ip, why)| format!("{ip} ({why})")).collect();
    let more = refused.len().saturating_sub(NAMED);
    let named = named.join(", ");
    if more > 0 {
        format!("{named} and {more} more")
    } else {
        named
    }
}

pub(super) fn of_status(status: &ExportStatus) -> Vec<FieldProblem> {
    let problem = |reason, message: &str| Some(FieldProblem::new("", reason, message));
    let of_validity = match status.valid {
        Valid::Valid => None,
        Valid::NoService => problem(Reason::InvalidValue, "NoService: there is no such Service"),
        Valid::InvalidServiceType => {
            let message = "InvalidServiceType: a Service of this type cannot be exported";
            problem(Reason::Unsupported, message)
        }
    };
    let of_quota = match status.ready {
        Ready::QuotaExceeded(quota) => problem(Reason::TooMany, &format!("QuotaExceeded: {quota}")),
        _ => None,
    };
    let conflicts = (!status.conflicts.is_empty()).then(|| {
        let (reason, message) = condition(&status.conflicts);
        FieldProblem::new("", Reason::Conflict, format!("{reason}: {message}"))
    });
    of_validity
        .into_iter()
        .chain(of_quota)
        .chain(conflicts)
        .collect()
}
