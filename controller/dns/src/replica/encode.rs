// SPDX-License-Identifier: Apache-2.0

//! From a zone to the items that make a copy of it.

use std::net::IpAddr;

use prost::Message as _;

use super::pb::item::Item as Kind;
use super::pb::{self, Item};
use crate::config::{PodMode, ZoneConfig, ZoneKind};
use crate::input::{self, ServiceKey, Slice, Subject};
use crate::walk::{self, ReadZone};
use crate::zone::Zone;

fn item(kind: Kind) -> Item {
    Item { item: Some(kind) }
}

/// Everything, without the Commit. An item whose subject changes meanwhile may be the old or the new one.
pub(super) fn all_items(zone: &impl ReadZone) -> impl Iterator<Item = Item> {
    let begin = item(Kind::Begin(settings(zone.guard().config())));
    let items = items(zone, walk::objects(zone)).filter(|item| !is_gone(item));
    std::iter::once(begin).chain(items)
}

/// The items of subjects.
pub(super) fn items(
    zone: &impl ReadZone,
    subjects: impl Iterator<Item = Subject>,
) -> impl Iterator<Item = Item> {
    walk::in_pieces(zone, subjects, of_subject)
}

/// Returns `true` if an item stands for something that is not there, or for a Service without records.
fn is_gone(item: &Item) -> bool {
    match &item.item {
        Some(Kind::Service(service)) => service.spec.is_none() && service.slices.is_empty(),
        Some(Kind::Namespace(namespace)) => !namespace.exists,
        Some(Kind::Pod(pod)) => pod.count == 0,
        _ => false,
    }
}

/// The item of one subject; `None` if other items imply it.
pub(super) fn of_subject(zone: &Zone, subject: &Subject) -> Option<Item> {
    match subject {
        Subject::Apex | Subject::Address(_) => None,
        Subject::Namespace(name) => Some(namespace(name, zone.has_namespace(name))),
        Subject::Service(key) => Some(whole_service(zone, key)),
        Subject::Pod { namespace, address } => Some(pod(zone, namespace, *address)),
    }
}

pub(super) fn commit(serial: u32) -> Item {
    item(Kind::Commit(pb::Commit { serial }))
}

/// A number that is equal for zones with equal items, independent of their order.
#[must_use]
pub fn digest(zone: &Zone) -> [u8; 16] {
    let mut sum = ItemSum::default();
    all_items(zone).for_each(|item| sum.add(&item));
    sum.digest()
}

/// The sum of the hashes of items.
#[derive(Debug, Default)]
pub(super) struct ItemSum(u128);

impl ItemSum {
    pub(super) fn add(&mut self, item: &Item) {
        let hash = blake3::hash(&item.encode_to_vec());
        let mut first = [0; 16];
        first.copy_from_slice(&hash.as_bytes()[..16]);
        self.0 = self.0.wrapping_add(u128::from_le_bytes(first));
    }

    pub(super) fn digest(&self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

fn settings(config: &ZoneConfig) -> pb::Settings {
    let names = |zones: &[crate::Name]| zones.iter().map(ToString::to_string).collect();
    let server = config.name_server.clone();
    let server = server.unwrap_or_else(|| ServiceKey::new("", ""));
    pb::Settings {
        zones: names(&config.zones),
        reverse_zones: names(&config.reverse),
        ttl_seconds: config.ttl,
        pods: match config.pods {
            PodMode::Disabled => 0,
            PodMode::Insecure => 1,
            PodMode::Verified => 2,
        },
        endpoint_pod_names: config.endpoint_pod_names,
        zonal: config.zonal,
        name_server_namespace: server.namespace,
        name_server: server.name,
        ignore_empty: config.ignore_empty,
        namespaces: config.namespaces.iter().cloned().collect(),
        no_endpoints: !config.endpoints,
        clusterset: config.kind == ZoneKind::ClusterSet,
    }
}

fn namespace(name: &str, exists: bool) -> Item {
    item(Kind::Namespace(pb::Namespace {
        name: name.to_owned(),
        exists,
    }))
}

fn pod(zone: &Zone, namespace: &str, address: IpAddr) -> Item {
    let count = zone.pods_with(namespace, address);
    item(Kind::Pod(pb::Pod {
        namespace: namespace.to_owned(),
        address: address.to_string(),
        count: u32::try_from(count).unwrap_or(u32::MAX),
    }))
}

fn whole_service(zone: &Zone, key: &ServiceKey) -> Item {
    match zone.service_object(key) {
        Some((service, slices)) => of_service(&key.namespace, &key.name, service, slices),
        None => of_service(&key.namespace, &key.name, None, std::iter::empty()),
    }
}

fn of_service<'a>(
    namespace: &str,
    name: &str,
    service: Option<&input::Service>,
    slices: impl Iterator<Item = &'a Slice>,
) -> Item {
    item(Kind::Service(pb::Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        spec: service.map(spec),
        slices: slices
            .map(|of| slice(of, service.is_some_and(|service| service.publish_not_ready)))
            .filter(|slice| !slice.endpoints.is_empty())
            .collect(),
    }))
}

fn spec(service: &input::Service) -> pb::ServiceSpec {
    let (mut cluster_ips, mut headless, mut external_name) = (Vec::new(), false, None);
    match &service.kind {
        input::Kind::ClusterIp { ips } => {
            cluster_ips = ips.iter().map(ToString::to_string).collect();
        }
        input::Kind::Headless => headless = true,
        input::Kind::ExternalName { target } => external_name = Some(target.clone()),
    }
    pb::ServiceSpec {
        cluster_ips,
        headless,
        external_name,
        ports: service.ports.iter().map(port).collect(),
    }
}

/// A slice reduced to the endpoints with records: others are not streamed and do not affect the
/// digest.
fn slice(slice: &Slice, publish_not_ready: bool) -> pb::Slice {
    let counting = slice.endpoints.iter();
    let counting = counting.filter(|from| from.ready || publish_not_ready);
    let endpoints = counting.map(|from| pb::Endpoint {
        addresses: from.addresses.iter().map(ToString::to_string).collect(),
        hostname: from.hostname.clone().unwrap_or_default(),
        pod: from.pod.clone().unwrap_or_default(),
        zone: from.zone.clone().unwrap_or_default(),
    });
    pb::Slice {
        name: slice.key.name.clone(),
        endpoints: endpoints.collect(),
        ports: slice.ports.iter().map(port).collect(),
        cluster: slice.cluster.clone().unwrap_or_default(),
    }
}

fn port(port: &input::Port) -> pb::Port {
    pb::Port {
        name: port.name.clone(),
        protocol: port.protocol.to_string(),
        number: port.number.map_or(0, u32::from),
    }
}
