//! From a Service and its slices to its records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::Protocol;

use crate::config::ZoneConfig;
use crate::input::{Endpoint, Kind, Port, Service, Slice};
use crate::label;
use crate::name;
use crate::problem::{Object, Problem};
use crate::records::{Owner, RecordSet, ServiceRecords, Srv};

/// Something that can be connected to: where an A, AAAA or SRV record leads. Without a port it
/// has no SRV record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Goal<'a> {
    host: Arc<str>,
    address: IpAddr,
    port: Option<&'a Port>,
}

/// The records of a Service, and what of it could not become one.
pub(crate) fn compile<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Slice>,
    config: &ZoneConfig,
) -> (ServiceRecords, Vec<Problem>) {
    let mut compiler = Compiler {
        config,
        service,
        records: ServiceRecords::default(),
        problems: Vec::new(),
    };
    if compiler.base() {
        compiler.names(slices.collect());
    }
    compiler.records.pointers.sort();
    compiler.records.pointers.dedup();
    (compiler.records, compiler.problems)
}

struct Compiler<'a> {
    config: &'a ZoneConfig,
    service: &'a Service,
    records: ServiceRecords,
    problems: Vec<Problem>,
}

impl Compiler<'_> {
    fn object(&self) -> Object {
        Object::Service(self.service.key.clone())
    }

    /// Sets the Service's name, if it can be one.
    fn base(&mut self) -> bool {
        let key = &self.service.key;
        let labels = [
            ("metadata.name", &key.name),
            ("metadata.namespace", &key.namespace),
        ];
        let mut base = String::new();
        for (field, value) in labels {
            match label::host(value) {
                Ok(label) => base = base + &label + ".",
                Err(why) => {
                    let reason = format!("{value:?} {why}; the Service has no records");
                    self.problems
                        .push(Problem::new(self.object(), field, reason));
                    return false;
                }
            }
        }
        self.records.base = base + "svc";
        true
    }

    fn names(&mut self, slices: Vec<&Slice>) {
        match &self.service.kind {
            Kind::ExternalName { target } => self.alias(target),
            Kind::ClusterIp { ips } => {
                self.cluster_ips(ips);
                self.endpoints(&slices, false);
            }
            Kind::Headless => {
                self.records.headless = true;
                self.endpoints(&slices, true);
            }
        }
    }

    fn alias(&mut self, target: &str) {
        let why = match name::absolute(target) {
            Some(name) if !name.is_root() && target.parse::<IpAddr>().is_err() => {
                let set = RecordSet {
                    alias: Some(name),
                    ..RecordSet::default()
                };
                self.records.names.insert(String::new(), set);
                return;
            }
            Some(_) => "is an address or empty, not a name",
            None => "is no domain name",
        };
        let reason = format!("{target:?} {why}; the Service has no records");
        self.problems
            .push(Problem::new(self.object(), "spec.externalName", reason));
    }

    fn cluster_ips(&mut self, ips: &[IpAddr]) {
        let service = self.service;
        let host: Arc<str> = "".into();
        let mut goals = BTreeSet::new();
        for address in ips.iter().map(IpAddr::to_canonical) {
            self.records
                .pointers
                .push((address, Owner::Service, self.records.base.clone()));
            goals.extend(with_ports(&host, address, &service.ports));
        }
        self.check_ports(self.object(), "spec.ports", &service.ports);
        // Without an address yet, the name exists and has nothing.
        self.records
            .names
            .insert(String::new(), RecordSet::default());
        self.insert_all(&goals);
    }

    /// The endpoints' own names, and for a headless Service the Service's name too.
    fn endpoints(&mut self, slices: &[&Slice], headless: bool) {
        let mut goals = BTreeSet::new();
        let mut zones: BTreeMap<String, BTreeSet<Goal<'_>>> = BTreeMap::new();
        for slice in slices {
            self.check_ports(Object::Slice(slice.key.clone()), "ports", &slice.ports);
            for (index, endpoint) in slice.endpoints.iter().enumerate() {
                if !endpoint.ready && !self.service.publish_not_ready {
                    continue;
                }
                let of_endpoint = self.endpoint(slice, index, endpoint);
                if let Some(zone) = &endpoint.zone {
                    let zone = zones.entry(zone.to_ascii_lowercase()).or_default();
                    zone.extend(of_endpoint.iter().cloned());
                }
                goals.extend(of_endpoint);
            }
        }
        if headless {
            self.insert_all(&goals);
            if self.config.zonal {
                let zones = zones
                    .iter()
                    .map(|(zone, goals)| (zone.clone(), set_of(goals.iter())));
                self.records.zones = Some(zones.collect());
            }
        }
        self.insert_hosts(&goals);
    }

    fn endpoint<'a>(&mut self, slice: &'a Slice, index: usize, from: &Endpoint) -> Vec<Goal<'a>> {
        let named = self.endpoint_label(slice, index, from);
        let mut goals = Vec::new();
        for address in from.addresses.iter().map(IpAddr::to_canonical) {
            let label = named.clone().unwrap_or_else(|| label::dashed(address));
            let host: Arc<str> = label.into();
            let name = format!("{host}.{}", self.records.base);
            self.records.pointers.push((address, Owner::Endpoint, name));
            goals.extend(with_ports(&host, address, &slice.ports));
        }
        goals
    }

    /// The endpoint's label, if it is not named after its address.
    fn endpoint_label(&mut self, slice: &Slice, index: usize, from: &Endpoint) -> Option<String> {
        if let Some(hostname) = from.hostname.as_deref().filter(|name| !name.is_empty()) {
            match label::host(hostname) {
                Ok(label) => return Some(label),
                Err(why) => self.problems.push(Problem::new(
                    Object::Slice(slice.key.clone()),
                    format!("endpoints[{index}].hostname"),
                    format!("{hostname:?} {why}; the endpoint is named after its address"),
                )),
            }
        }
        let pod = from
            .pod
            .as_deref()
            .filter(|_| self.config.endpoint_pod_names)?;
        // A Pod's name may have dots or be too long for a label: that is no mistake.
        label::host(pod).ok()
    }

    fn check_ports(&mut self, object: Object, field: &str, ports: &[Port]) {
        for (index, port) in ports.iter().enumerate() {
            if let (false, Err(why)) = (port.name.is_empty(), label::host(&port.name)) {
                self.problems.push(Problem::new(
                    object.clone(),
                    format!("{field}[{index}].name"),
                    format!("{:?} {why}; the port has no SRV name", port.name),
                ));
            }
        }
    }

    /// Records at the Service's name, and at the name of each named port.
    fn insert_all(&mut self, goals: &BTreeSet<Goal<'_>>) {
        if goals.is_empty() {
            return;
        }
        self.records
            .names
            .insert(String::new(), set_of(goals.iter()));
        let mut ports: BTreeMap<(&'static str, String), Vec<&Goal<'_>>> = BTreeMap::new();
        for goal in goals {
            let Some(port) = goal.port else { continue };
            if let Ok(label) = label::host(&port.name) {
                let key = (protocol_label(port.protocol), label);
                ports.entry(key).or_default().push(goal);
            }
        }
        for ((protocol, port), goals) in ports {
            let set = RecordSet {
                addresses: Vec::new(),
                ..set_of(goals.into_iter())
            };
            // The protocol's own label is between two names, so it exists too.
            self.records.names.entry(protocol.to_owned()).or_default();
            self.records
                .names
                .insert(format!("_{port}.{protocol}"), set);
        }
    }

    /// Records at the name of each endpoint.
    fn insert_hosts(&mut self, goals: &BTreeSet<Goal<'_>>) {
        let mut hosts: BTreeMap<&str, Vec<&Goal<'_>>> = BTreeMap::new();
        for goal in goals {
            hosts.entry(&goal.host).or_default().push(goal);
        }
        for (host, goals) in hosts {
            self.records
                .names
                .insert(host.to_owned(), set_of(goals.into_iter()));
        }
    }
}

fn with_ports<'a>(
    host: &Arc<str>,
    address: IpAddr,
    ports: &'a [Port],
) -> impl Iterator<Item = Goal<'a>> {
    let portless = ports.is_empty().then_some(None);
    let goal = {
        let host = Arc::clone(host);
        move |port| Goal {
            host: Arc::clone(&host),
            address,
            port,
        }
    };
    ports.iter().map(Some).chain(portless).map(goal)
}

/// The address and SRV records that lead to all of these.
fn set_of<'a>(goals: impl Iterator<Item = &'a Goal<'a>> + Clone) -> RecordSet {
    let addresses: BTreeSet<_> = goals.clone().map(|goal| goal.address).collect();
    // As CoreDNS has it: what divides the weight is the number of ways in, not of SRV records.
    let weight =
        u16::try_from(100 / goals.clone().count().max(1)).map_or(1, |weight| weight.max(1));
    let srv: BTreeSet<_> = goals
        .filter_map(|goal| {
            Some(Srv {
                port: goal.port?.number?,
                host: Arc::clone(&goal.host),
                weight,
            })
        })
        .collect();
    RecordSet {
        addresses: addresses.into_iter().collect(),
        srv: srv.into_iter().collect(),
        ..RecordSet::default()
    }
}

fn protocol_label(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "_tcp",
        Protocol::Udp => "_udp",
        Protocol::Sctp => "_sctp",
    }
}
