//! The records of one name, and all records of one Service, independent of any zone.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;

/// The records of one name. All lists are sorted and without duplicates. A name with none exists
/// all the same: it has names below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordSet {
    /// A and AAAA.
    pub addresses: Vec<IpAddr>,
    /// SRV.
    pub srv: Vec<Srv>,
    /// CNAME: the absolute name that this one stands for. Then there is nothing else.
    pub alias: Option<Name>,
    /// PTR: names relative to the first zone.
    pub pointers: Vec<String>,
    /// TXT, one string.
    pub text: Option<String>,
}

impl RecordSet {
    pub(crate) fn of_address(address: IpAddr) -> Self {
        Self {
            addresses: vec![address],
            ..Self::default()
        }
    }
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
    /// The names at and below the base, relative to it, in lower case: "", `web-0`, `_http._tcp`.
    /// No "" means that the Service's name does not exist.
    pub names: BTreeMap<String, RecordSet>,
    /// What the name of each topology zone stands for, if the Service has such names.
    pub zones: Option<BTreeMap<String, RecordSet>>,
    /// The PTR records: the address, and the name relative to the zone.
    pub(crate) pointers: Vec<(IpAddr, Owner, String)>,
}

impl ServiceRecords {
    /// Whether there is any name.
    pub(crate) fn exist(&self) -> bool {
        !self.names.is_empty() || self.zones.is_some()
    }

    /// Whether all is the same but for PTR records. (A headless Service may have the same records
    /// as one that is not, if neither has any; for exporters they differ all the same.)
    pub(crate) fn same_names(&self, other: &Self) -> bool {
        (self.headless, &self.names, &self.zones) == (other.headless, &other.names, &other.zones)
    }

    /// The name of an SRV record's target, relative to the zone.
    pub(crate) fn target(&self, srv: &Srv) -> String {
        join(&srv.host, &self.base)
    }

    /// What is at `labels` (outermost first), relative to the Service's name.
    pub(crate) fn get(&self, labels: &[String]) -> Option<&RecordSet> {
        match labels.split_last() {
            Some((last, rest)) if last == ZONE_LABEL && self.zones.is_some() => self.zonal(rest),
            _ => self.names.get(&labels.join(".")),
        }
    }

    /// The names `<topology zone>.{pin,prefer}._zone`. A zone's name exists whether anything is in
    /// the zone or not, so that a drained zone looks the same on every replica.
    fn zonal(&self, labels: &[String]) -> Option<&RecordSet> {
        static EMPTY: RecordSet = RecordSet {
            addresses: Vec::new(),
            srv: Vec::new(),
            alias: None,
            pointers: Vec::new(),
            text: None,
        };
        let Some((directive, zone)) = labels.split_last() else {
            return Some(&EMPTY);
        };
        let here = self.zones.as_ref()?.get(&zone.join("."));
        match directive.as_str() {
            "pin" | "prefer" if zone.is_empty() => Some(&EMPTY),
            "pin" => Some(here.unwrap_or(&EMPTY)),
            "prefer" => Some(here.or_else(|| self.names.get("")).unwrap_or(&EMPTY)),
            _ => None,
        }
    }
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
