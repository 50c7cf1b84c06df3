// SPDX-License-Identifier: Apache-2.0

//! From a Service and its slices to its records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::Protocol;

use crate::config::{ZoneConfig, ZoneKind};
use crate::input::{Endpoint, Kind, Port, Service, ServiceKey, Slice};
use crate::label;
use crate::name;
use crate::problem::{Object, RecordProblem};
use crate::records::{Owner, RecordSet, ServiceRecords, Srv, join, share, without_underscore};

/// Something that can be connected to: where an A, AAAA or SRV record leads. Without a port it
/// has no SRV record. An endpoint that is in two slices is two of them: in CoreDNS it counts twice.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Goal<'a> {
    host: Arc<str>,
    address: IpAddr,
    port: Option<&'a Port>,
    /// The topology zone.
    zone: Option<&'a str>,
}

impl Goal<'_> {
    /// Returns `true` if it is of this port and protocol; of any, if a label is empty.
    fn is_of(&self, port: &str, protocol: &str) -> bool {
        let own = self.port.map_or("", |port| port.name.as_str());
        let own_protocol = self.port.map_or("", |port| protocol_label(port.protocol));
        let of = |asked: &str, own: &str| asked.is_empty() || asked.eq_ignore_ascii_case(own);
        of(port, own) && of(protocol, without_underscore(own_protocol))
    }
}

/// Compiles the records of a Service, and the problems of fields that could not become records.
pub(crate) fn compile<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Slice>,
    config: &ZoneConfig,
) -> (ServiceRecords, Vec<RecordProblem>) {
    let mut compiler = Compiler::new(service, config);
    if compiler.base() {
        compiler.names(slices.collect());
    }
    if !config.exposes(&service.key.namespace) || config.kind == ZoneKind::ClusterSet {
        compiler.records.pointers.clear();
    }
    compiler.records.pointers.sort();
    compiler.records.pointers.dedup();
    (compiler.records, compiler.problems)
}

/// The records of slices whose Service is not there: as in CoreDNS, their addresses have the names
/// that they would have if it were.
pub(crate) fn compile_alone<'a>(
    key: &ServiceKey,
    slices: impl Iterator<Item = &'a Slice>,
    config: &ZoneConfig,
) -> ServiceRecords {
    let service = Service {
        key: key.clone(),
        kind: Kind::Headless,
        ports: Vec::new(),
        publish_not_ready: false,
    };
    let (records, _) = compile(&service, slices, config);
    ServiceRecords {
        base: records.base,
        pointers: records.pointers,
        ..ServiceRecords::default()
    }
}

/// The records of all ports of a Service with this name and protocol, both without their
/// underscores. An empty one is any, as it is in CoreDNS: `_._tcp.<service>`.
pub(crate) fn matching<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Slice>,
    config: &ZoneConfig,
    port: &str,
    protocol: &str,
) -> Option<RecordSet> {
    let mut compiler = Compiler::new(service, config);
    let slices: Vec<_> = slices.collect();
    let mut goals = match &service.kind {
        Kind::ExternalName { .. } => Vec::new(),
        Kind::ClusterIp { ips } => own_goals(service, ips),
        Kind::Headless => compiler.endpoint_goals(&slices),
    };
    goals.retain(|goal| goal.is_of(port, protocol));
    (!goals.is_empty()).then(|| set_of(goals.iter()))
}

struct Compiler<'a> {
    config: &'a ZoneConfig,
    service: &'a Service,
    records: ServiceRecords,
    problems: Vec<RecordProblem>,
}

impl<'c> Compiler<'c> {
    fn new(service: &'c Service, config: &'c ZoneConfig) -> Self {
        Self {
            config,
            service,
            records: ServiceRecords::default(),
            problems: Vec::new(),
        }
    }

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
                        .push(RecordProblem::new(self.object(), field, reason));
                    return false;
                }
            }
        }
        self.records.base = base + "svc";
        self.records.of_clusters = self.is_clusterset();
        true
    }

    fn names(&mut self, slices: Vec<&Slice>) {
        match &self.service.kind {
            Kind::ExternalName { target } => self.alias(target),
            Kind::ClusterIp { ips } => {
                self.cluster_ips(ips);
                // The endpoints of an import with addresses have no names.
                if !self.is_clusterset() {
                    self.endpoints(&slices, false);
                }
                if self.config.ignore_empty && !self.has_endpoints() {
                    self.records.names.clear();
                }
            }
            Kind::Headless => {
                self.records.headless = true;
                self.endpoints(&slices, true);
            }
        }
    }

    /// Returns `true` if an endpoint is ready: each has a PTR record.
    fn has_endpoints(&self) -> bool {
        let mut owners = self.records.pointers.iter().map(|(_, owner, _)| owner);
        owners.any(|owner| *owner == Owner::Endpoint)
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
        self.problems.push(RecordProblem::new(
            self.object(),
            "spec.externalName",
            reason,
        ));
    }

    fn cluster_ips(&mut self, ips: &[IpAddr]) {
        for address in ips.iter().map(IpAddr::to_canonical) {
            self.records
                .pointers
                .push((address, Owner::Service, self.records.base.clone()));
        }
        self.check_ports(self.object(), "spec.ports", &self.service.ports);
        // Without an address yet, the name exists and has nothing.
        self.records
            .names
            .insert(String::new(), RecordSet::default());
        self.insert_all(&own_goals(self.service, ips));
    }

    /// The endpoints' own names, and for a headless Service the Service's name too.
    fn endpoints(&mut self, slices: &[&Slice], headless: bool) {
        for slice in slices {
            self.check_ports(Object::Slice(slice.key.clone()), "ports", &slice.ports);
        }
        let goals = self.endpoint_goals(slices);
        let pointers = goals.iter().map(|goal| {
            let name = format!("{}.{}", goal.host, self.records.base);
            (goal.address, Owner::Endpoint, name)
        });
        self.records.pointers.extend(pointers.collect::<Vec<_>>());
        if headless {
            self.insert_all(&goals);
            if self.config.zonal {
                self.records.zones = Some(zones(&goals));
            }
        }
        self.insert_hosts(&goals);
    }

    fn endpoint_goals<'a>(&mut self, slices: &[&'a Slice]) -> Vec<Goal<'a>> {
        let mut goals = Vec::new();
        for slice in slices {
            for (index, endpoint) in slice.endpoints.iter().enumerate() {
                if endpoint.ready || self.service.publish_not_ready {
                    goals.extend(self.endpoint(slice, index, endpoint));
                }
            }
        }
        goals
    }

    fn endpoint<'a>(
        &mut self,
        slice: &'a Slice,
        index: usize,
        from: &'a Endpoint,
    ) -> Vec<Goal<'a>> {
        let Some(cluster) = self.cluster_label(slice) else {
            return Vec::new();
        };
        let named = self.endpoint_label(slice, index, from);
        let mut goals = Vec::new();
        for address in from.addresses.iter().map(IpAddr::to_canonical) {
            let label = named.clone().unwrap_or_else(|| label::dashed(address));
            let host: Arc<str> = join(&label, &cluster).into();
            let of_address = with_ports(&host, address, &slice.ports);
            goals.extend(of_address.map(|goal| Goal {
                zone: from.zone.as_deref(),
                ..goal
            }));
        }
        goals
    }

    fn is_clusterset(&self) -> bool {
        self.config.kind == ZoneKind::ClusterSet
    }

    /// The label between those of an endpoint and its Service: that of its cluster, or none in a zone of one
    /// cluster. `None` if the endpoints can have no names.
    fn cluster_label(&mut self, slice: &Slice) -> Option<String> {
        if !self.is_clusterset() {
            return Some(String::new());
        }
        let cluster = slice.cluster.as_deref().unwrap_or_default();
        match label::host(cluster) {
            Ok(label) => Some(label),
            Err(why) => {
                let reason = format!("{cluster:?} {why}; the endpoints have no names");
                let object = Object::Slice(slice.key.clone());
                self.problems
                    .push(RecordProblem::new(object, "cluster", reason));
                None
            }
        }
    }

    /// The endpoint's label, if it is not named after its address.
    fn endpoint_label(&mut self, slice: &Slice, index: usize, from: &Endpoint) -> Option<String> {
        if let Some(hostname) = from.hostname.as_deref().filter(|name| !name.is_empty()) {
            match label::host(hostname) {
                Ok(label) => return Some(label),
                Err(why) => self.problems.push(RecordProblem::new(
                    Object::Slice(slice.key.clone()),
                    format!("endpoints[{index}].hostname"),
                    format!("{hostname:?} {why}; the endpoint is named after its address"),
                )),
            }
        }
        // A Pod's name may have dots. It is used as in CoreDNS, which lists such a name but does
        // not find it.
        let is_on = self.config.endpoint_pod_names;
        let pod = from.pod.as_deref().filter(|_| is_on);
        let pod = pod.filter(|pod| !pod.is_empty() && pod.len() < 64)?;
        // The API server checks no targetRef: whoever writes slices chooses this text.
        let labels: Result<Vec<_>, _> = pod.split('.').map(label::host).collect();
        match labels {
            Ok(labels) => Some(labels.join(".")),
            Err(why) => {
                self.problems.push(RecordProblem::new(
                    Object::Slice(slice.key.clone()),
                    format!("endpoints[{index}].targetRef.name"),
                    format!("{pod:?} {why}; the endpoint is named after its address"),
                ));
                None
            }
        }
    }

    fn check_ports(&mut self, object: Object, field: &str, ports: &[Port]) {
        for (index, port) in ports.iter().enumerate() {
            if let (false, Err(why)) = (port.name.is_empty(), label::host(&port.name)) {
                self.problems.push(RecordProblem::new(
                    object.clone(),
                    format!("{field}[{index}].name"),
                    format!("{:?} {why}; the port has no SRV name", port.name),
                ));
            }
        }
    }

    /// Records at the Service's name, and at the name of each named port.
    fn insert_all(&mut self, goals: &[Goal<'_>]) {
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
            let set = set_of(goals.into_iter());
            let name = format!("_{port}.{protocol}");
            self.records.names.insert(name, set);
        }
    }

    /// Records at the name of each endpoint.
    fn insert_hosts(&mut self, goals: &[Goal<'_>]) {
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

/// A Service's own addresses, each with each port.
fn own_goals<'a>(service: &'a Service, ips: &[IpAddr]) -> Vec<Goal<'a>> {
    let host: Arc<str> = "".into();
    ips.iter()
        .flat_map(|address| with_ports(&host, address.to_canonical(), &service.ports))
        .collect()
}

/// The records by topology zone.
fn zones(goals: &[Goal<'_>]) -> BTreeMap<String, RecordSet> {
    let mut zones: BTreeMap<String, Vec<&Goal<'_>>> = BTreeMap::new();
    for goal in goals {
        if let Some(zone) = goal.zone {
            zones
                .entry(zone.to_ascii_lowercase())
                .or_default()
                .push(goal);
        }
    }
    zones
        .into_iter()
        .map(|(zone, goals)| (zone, set_of(goals.into_iter())))
        .collect()
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
            zone: None,
        }
    };
    ports.iter().map(Some).chain(portless).map(goal)
}

/// The address and SRV records that lead to all of these.
fn set_of<'a>(goals: impl Iterator<Item = &'a Goal<'a>> + Clone) -> RecordSet {
    let addresses: BTreeSet<_> = goals.clone().map(|goal| goal.address).collect();
    // As in CoreDNS, the weight is divided by the number of targets, not of SRV records.
    let weight = share(goals.clone().count());
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
