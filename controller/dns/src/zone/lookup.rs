//! From a name to what is there. Each name costs a few hash look-ups, whatever the cluster's size.

use std::borrow::Cow;
use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::{Namespace, Zone};
use crate::config::PodMode;
use crate::label;
use crate::name;
use crate::records::{RecordSet, ServiceRecords};

/// The version of the DNS specification that the records follow.
pub(crate) const SCHEMA_VERSION: &str = "1.1.0";

/// A zone that a name is in.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    /// The zone's name, spelled as in the question.
    pub(super) zone: Name,
    /// The rest of the name, in lower case, outermost label first.
    pub(super) labels: Vec<String>,
    pub(super) reverse: bool,
}

/// What is at a name that exists.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    pub(super) set: Cow<'a, RecordSet>,
    /// Where the targets of SRV records are found.
    pub(super) service: Option<&'a ServiceRecords>,
}

impl Node<'_> {
    /// A name that exists because others are below it.
    fn empty() -> Self {
        Self::of(RecordSet::default())
    }

    fn of(set: RecordSet) -> Self {
        Self {
            set: Cow::Owned(set),
            service: None,
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

    /// What is at a name; `None` if it does not exist.
    pub(super) fn find(&self, name: &Name, origin: &Origin) -> Option<Node<'_>> {
        if origin.labels.is_empty() {
            return Some(Node::empty());
        }
        if origin.reverse {
            self.find_reverse(name)
        } else {
            self.find_forward(&origin.labels)
        }
    }

    pub(super) fn find_forward(&self, labels: &[String]) -> Option<Node<'_>> {
        let (last, rest) = labels.split_last()?;
        match (last.as_str(), rest) {
            ("svc", _) => self.find_service(rest),
            ("pod", _) => self.find_pod(rest),
            ("dns", []) => Some(Node::empty()),
            ("dns", [ns]) if ns == "ns" => Some(self.name_server_node()),
            ("dns-version", []) => Some(Node::of(RecordSet {
                text: Some(SCHEMA_VERSION.to_owned()),
                ..RecordSet::default()
            })),
            _ => None,
        }
    }

    /// `ns.dns.<zone>`, the name in every SOA record, has the addresses of the name server's
    /// Service.
    fn name_server_node(&self) -> Node<'_> {
        let records = self.name_server_records();
        let set = records.and_then(|records| records.names.get(""));
        Node::of(RecordSet {
            addresses: set.map(|set| set.addresses.clone()).unwrap_or_default(),
            ..RecordSet::default()
        })
    }

    /// The records of the name servers' Service, if it exists and is in the zone.
    pub(super) fn name_server_records(&self) -> Option<&ServiceRecords> {
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
        let Some((namespace, rest)) = labels.split_last() else {
            return Some(Node::empty());
        };
        let namespace = self.namespace(namespace)?;
        let Some((service, rest)) = rest.split_last() else {
            return Some(Node::empty());
        };
        let records = &namespace.services.get(service)?.records;
        Some(Node {
            set: Cow::Borrowed(records.get(rest)?),
            service: Some(records),
        })
    }

    fn find_pod(&self, labels: &[String]) -> Option<Node<'_>> {
        let Some((namespace, rest)) = labels.split_last() else {
            return Some(Node::empty());
        };
        if self.config.pods == PodMode::Disabled {
            return None;
        }
        let namespace = self.namespace(namespace)?;
        match rest {
            [] => Some(Node::empty()),
            [pod] => self
                .pod_address(namespace, pod)
                .map(RecordSet::of_address)
                .map(Node::of),
            _ => None,
        }
    }

    fn pod_address(&self, namespace: &Namespace, pod: &str) -> Option<IpAddr> {
        let address = label::undashed(pod)?;
        let exists = match self.config.pods {
            PodMode::Disabled => false,
            PodMode::Insecure => true,
            PodMode::Verified => {
                namespace.pods.contains_key(&address) && label::dashed(address) == pod
            }
        };
        exists.then_some(address)
    }

    fn find_reverse(&self, name: &Name) -> Option<Node<'_>> {
        let range = name::reverse_range(name)?;
        if range.start() != range.end() {
            return self.reverse.any(range).then(Node::empty);
        }
        let names = self.reverse.get(*range.start())?.visible();
        Some(Node::of(RecordSet {
            pointers: names.iter().cloned().collect(),
            ..RecordSet::default()
        }))
    }
}
