// SPDX-License-Identifier: Apache-2.0

//! Lookup of names. Each costs a few hash lookups, whatever the cluster's size.

use std::borrow::Cow;
use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::service::ServiceEntry;
use super::{Namespace, Zone};
use crate::config::PodMode;
use crate::label;
use crate::name;
use crate::records::{RecordSet, ServiceRecords, join, without_underscore};

/// A zone that a name is in.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    /// The zone's name, spelled as in the question.
    pub(super) zone: Name,
    /// The rest of the name, in lower case.
    pub(super) labels: Vec<String>,
    pub(super) reverse: bool,
}

impl Origin {
    /// Returns `true` if the zone's name is spelled in lower case.
    pub(super) fn is_lower(&self) -> bool {
        self.zone
            .iter()
            .all(|label| !label.iter().any(u8::is_ascii_uppercase))
    }
}

/// The records of an existing name.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    pub(super) set: Cow<'a, RecordSet>,
    /// The base of SRV records' targets, relative to the zone.
    pub(super) base: Cow<'a, str>,
    /// The records with the targets' addresses; `None` if the base is the only target.
    pub(super) service: Option<&'a ServiceRecords>,
    /// Whether it is a topology zone's name, which exists for every type.
    pub(super) zonal: bool,
}

impl Node<'_> {
    /// The addresses of an SRV record's target that count here.
    pub(super) fn addresses_of(&self, host: &str) -> impl Iterator<Item = IpAddr> {
        let own = match self.service {
            Some(service) => service.names.get(host).map(|set| &set.addresses),
            None => Some(&self.set.addresses),
        };
        let here = &self.set.addresses;
        own.into_iter()
            .flatten()
            .copied()
            .filter(|address| here.binary_search(address).is_ok())
    }

    /// A name that exists and has nothing.
    fn empty() -> Self {
        Self::of(RecordSet::default(), "")
    }

    fn of(set: RecordSet, base: &str) -> Self {
        Self {
            set: Cow::Owned(set),
            base: Cow::Owned(base.to_owned()),
            service: None,
            zonal: false,
        }
    }
}

impl Zone {
    /// The zone that a name is in: the smallest, if there are several.
    pub(super) fn origin(&self, name: &Name) -> Option<Origin> {
        let forward = self.config.zones.iter().map(|zone| (zone, false));
        let reverse = self.config.reverse.iter().map(|zone| (zone, true));
        forward
            .chain(reverse)
            .filter_map(|(zone, reverse)| {
                Some(Origin {
                    labels: name::relative(name, zone)?,
                    zone: name::suffix(name, zone),
                    reverse,
                })
            })
            .min_by_key(|origin| origin.labels.len())
    }

    /// The records of a name; `None` if it does not exist for CoreDNS.
    pub(super) fn find(&self, origin: &Origin) -> Option<Node<'_>> {
        if origin.labels == ["ns", "dns"] {
            return self.name_server_node(origin);
        }
        self.find_object(origin)
    }

    /// The records of objects' names. In the reverse tree objects are found by PTR only.
    pub(super) fn find_object(&self, origin: &Origin) -> Option<Node<'_>> {
        let (tree, rest) = match origin.labels.as_slice() {
            [] => return Some(Node::empty()),
            [rest @ .., tree] => (tree.as_str(), rest),
        };
        match (tree, rest) {
            ("svc" | "pod", []) => Some(Node::empty()),
            _ if origin.reverse => None,
            ("svc", rest) => self.find_service(rest),
            ("pod", rest) => self.find_pod(rest),
            _ => None,
        }
    }

    /// `ns.dns.<zone>`, the name in every SOA record, has the addresses of the name servers. CoreDNS
    /// does not know it where the zone's name is spelled with capitals.
    fn name_server_node(&self, origin: &Origin) -> Option<Node<'_>> {
        let servers = self.name_servers(&origin.zone);
        let addresses = servers.into_iter().flat_map(|(_, addresses)| addresses);
        let set = RecordSet {
            addresses: addresses.collect(),
            ..RecordSet::default()
        };
        origin.is_lower().then(|| Node::of(set, ""))
    }

    /// The name servers of a zone with their addresses: the name servers' Service, or, if it is
    /// headless, its endpoints; and `ns.dns.<zone>` while there is no such Service. CoreDNS looks for
    /// the Services of which it is an endpoint itself, and names them in the zone that was asked for
    /// even if that is one of the reverse tree.
    pub(crate) fn name_servers(&self, zone: &Name) -> Vec<(Name, Vec<IpAddr>)> {
        let Some(records) = self.name_server_records() else {
            let nobody = name::below("ns.dns", zone).map(|name| (name, Vec::new()));
            return nobody.into_iter().collect();
        };
        let hosts = records.names.iter().filter(|(host, _)| {
            let is_endpoint = !host.is_empty() && !host.starts_with('_');
            is_endpoint == records.headless && !host.starts_with('_')
        });
        hosts
            .filter_map(|(host, set)| {
                let name = name::below(&join(host, &records.base), zone)?;
                Some((name, set.addresses.clone()))
            })
            .collect()
    }

    /// The records of the name servers' Service, if it exists and is no alias.
    fn name_server_records(&self) -> Option<&ServiceRecords> {
        let key = self.config.name_server.as_ref()?;
        let entry = self
            .namespaces
            .get(&key.namespace)?
            .services
            .get(&key.name)?;
        let own = entry.records.names.get("")?;
        own.alias.is_none().then_some(&entry.records)
    }

    fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces
            .get(name)
            .filter(|namespace| namespace.exists())
    }

    fn find_service(&self, labels: &[String]) -> Option<Node<'_>> {
        let (namespace, rest) = labels.split_last()?;
        let namespace = self.namespace(namespace)?;
        let Some((service, rest)) = rest.split_last() else {
            return Some(Node::empty());
        };
        let entry = namespace.services.get(service);
        let entry = entry.filter(|entry| entry.records.exist())?;
        let set = match entry.records.get(rest) {
            Some(set) => Cow::Borrowed(set),
            // Of any port and any protocol.
            None if rest == ["_", "_"] => Cow::Borrowed(entry.records.get(&[])?),
            None => Cow::Owned(self.find_ports(entry, rest)?),
        };
        Some(Node {
            set,
            base: Cow::Borrowed(&entry.records.base),
            service: Some(&entry.records),
            zonal: entry.records.is_zonal(rest),
        })
    }

    /// The records of a name that leaves the port or the protocol open.
    fn find_ports(&self, entry: &ServiceEntry, labels: &[String]) -> Option<RecordSet> {
        let [port, protocol] = labels else {
            return None;
        };
        let (port, protocol) = (without_underscore(port), without_underscore(protocol));
        if !port.is_empty() && !protocol.is_empty() {
            return None;
        }
        entry.matching(port, protocol, &self.config)
    }

    fn find_pod(&self, labels: &[String]) -> Option<Node<'_>> {
        let (name, rest) = labels.split_last()?;
        if self.config.pods == PodMode::Disabled {
            return None;
        }
        let namespace = self.namespace(name)?;
        // For CoreDNS, names below a Pod's name stand for the Pod.
        let pod = match rest {
            [] => return Some(Node::empty()),
            [pod] | [_, pod] | [_, _, pod] => pod,
            _ => return None,
        };
        let address = label::undashed(pod)?;
        let count = match self.config.pods {
            PodMode::Disabled => 0,
            PodMode::Insecure => 1,
            PodMode::Verified if label::of_pod(address) != *pod => 0,
            PodMode::Verified => namespace.pods.get(&address).copied().unwrap_or_default(),
        };
        (count > 0).then(|| {
            Node::of(
                RecordSet::of_pod(address, count),
                &format!("{pod}.{name}.pod"),
            )
        })
    }
}
