// SPDX-License-Identifier: Apache-2.0

//! The records of one name, and all records of one Service, independent of any zone.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;

/// The records of one name. All lists are sorted and without duplicates. A name without records
/// still exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordSet {
    /// A and AAAA.
    pub addresses: Vec<IpAddr>,
    /// SRV.
    pub srv: Vec<Srv>,
    /// CNAME: the absolute target. It excludes other records.
    pub alias: Option<Name>,
    /// PTR: names relative to the first zone.
    pub pointers: Vec<String>,
    /// TXT, one string.
    pub text: Option<String>,
}

impl RecordSet {
    /// The records of a Pod's address, with the number of Pods that have it. As in CoreDNS it has
    /// an SRV record, without a port.
    pub(crate) fn of_pod(address: IpAddr, count: usize) -> Self {
        let srv = Srv {
            port: 0,
            host: "".into(),
            weight: share(count),
        };
        Self {
            addresses: vec![address],
            srv: vec![srv],
            ..Self::default()
        }
    }
}

/// The weight of one of so many: 1 at least, as in CoreDNS.
pub(crate) fn share(count: usize) -> u16 {
    u16::try_from(100 / count.max(1)).map_or(1, |weight| weight.max(1))
}

/// An SRV record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Srv {
    /// The port.
    pub port: u16,
    /// The target, relative to the Service's name; empty for the Service itself.
    pub host: Arc<str>,
    /// The weight among the records of the name. The priority is always 0.
    pub weight: u16,
}

/// Whether an address is a Service's own or an endpoint's. A Service's hides the endpoints'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Service,
    Endpoint,
}

/// All records of one Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceRecords {
    /// `<service>.<namespace>.svc`.
    pub base: String,
    /// Whether the base stands for the endpoints.
    pub headless: bool,
    /// Whether endpoints are named below their clusters: `web-0.eu-1`.
    pub of_clusters: bool,
    /// The names at and below the base, relative to it, in lower case: "", `web-0`, `_http._tcp`.
    /// No "" means that the Service's name does not exist. (CoreDNS gives the name of a port
    /// addresses too.)
    pub names: BTreeMap<String, RecordSet>,
    /// The records of each topology zone's name, if the Service has such names.
    pub zones: Option<BTreeMap<String, RecordSet>>,
    /// The PTR records: the address, and the name relative to the zone.
    pub(crate) pointers: Vec<(IpAddr, Owner, String)>,
}

impl ServiceRecords {
    /// Returns `true` if any name exists.
    pub(crate) fn exist(&self) -> bool {
        !self.names.is_empty() || self.zones.is_some()
    }

    /// Returns `true` if all names are equal. PTR records follow from the names, except those of
    /// slices without their Service. (A headless Service and another one may have equal records, if
    /// neither has any; they differ for exporters.)
    pub(crate) fn same_names(&self, other: &Self) -> bool {
        (self.headless, &self.names, &self.zones) == (other.headless, &other.names, &other.zones)
            && (self.exist() || self.pointers == other.pointers)
    }

    /// The records at `labels`, relative to the Service's name. Ports may be written without their
    /// underscores, as in CoreDNS; unnamed ports are not found here.
    pub(crate) fn get(&self, labels: &[String]) -> Option<&RecordSet> {
        match labels {
            [rest @ .., _] if self.is_zonal(labels) => self.zonal(rest),
            [] => self.names.get(""),
            [host] => self.names.get(host),
            [host, cluster] if self.is_host(host, cluster) => {
                self.names.get(&format!("{host}.{cluster}"))
            }
            [port, protocol] => {
                let (port, protocol) = (without_underscore(port), without_underscore(protocol));
                self.names.get(&format!("_{port}._{protocol}"))
            }
            _ => None,
        }
    }

    /// Returns `true` if two labels are those of an endpoint and its cluster, as in CoreDNS: none
    /// has an underscore.
    fn is_host(&self, host: &str, cluster: &str) -> bool {
        self.of_clusters && !host.starts_with('_') && !cluster.starts_with('_')
    }

    /// Returns `true` if `labels` are below the name of a topology zone.
    pub(crate) fn is_zonal(&self, labels: &[String]) -> bool {
        self.zones.is_some() && labels.last().is_some_and(|last| last == ZONE_LABEL)
    }

    /// The names `<topology zone>.{pin,prefer}._zone`. A zone's name exists even if the zone is
    /// empty, so that a drained zone is equal on every replica. The names between do not exist, as
    /// in CoreDNS.
    fn zonal(&self, labels: &[String]) -> Option<&RecordSet> {
        static EMPTY: RecordSet = RecordSet {
            addresses: Vec::new(),
            srv: Vec::new(),
            alias: None,
            pointers: Vec::new(),
            text: None,
        };
        let (directive, zone) = labels.split_last().filter(|(_, zone)| !zone.is_empty())?;
        let here = self.zones.as_ref()?.get(&zone.join("."));
        match directive.as_str() {
            "pin" => Some(here.unwrap_or(&EMPTY)),
            "prefer" => Some(here.or_else(|| self.names.get("")).unwrap_or(&EMPTY)),
            _ => None,
        }
    }
}

/// A port's or protocol's label without the underscore that it should begin with.
pub(crate) fn without_underscore(label: &str) -> &str {
    label.strip_prefix('_').unwrap_or(label)
}

/// The label between a Service's name and those of its topology zones.
const ZONE_LABEL: &str = "_zone";

/// `relative` below `base`, either of which may be empty.
pub(crate) fn join(relative: &str, base: &str) -> String {
    match (relative, base) {
        ("", name) | (name, "") => name.to_owned(),
        _ => format!("{relative}.{base}"),
    }
}
