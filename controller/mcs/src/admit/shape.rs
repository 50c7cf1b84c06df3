// SPDX-License-Identifier: Apache-2.0

//! The fields that this program writes, and their bounds. A field that is not here is an error.

use std::collections::BTreeMap;
use std::net::IpAddr;

use portolan_catalog::CONDITIONS;
use portolan_federate::imports::ImportName;
use portolan_model::Family;
use serde::Deserialize;

use super::{Refused, Result, check_uid};
use crate::labels::{self, is_domain, is_label};
use crate::manifest::{WINNER, WriteKind};
use crate::slice::{MANAGED_BY, PER_SLICE};

/// The annotations that a centre writes beside exported ones.
const OWN_ANNOTATIONS: [&str; 2] = [WINNER, "portolan.dev/gateway-ports"];
/// The most entries of a list.
const MOST: usize = 256;
/// The longest text but for messages and annotations, in bytes.
const MAX_TEXT: usize = 1024;
/// The longest message of a condition, and annotation of a centre, in bytes, as of API servers.
const MAX_MESSAGE: usize = 32 << 10;
/// The labels of an EndpointSlice of an import.
const SERVICE: &str = "multicluster.kubernetes.io/service-name";
const SOURCE: &str = "multicluster.kubernetes.io/source-cluster";
const MANAGER: &str = "endpointslice.kubernetes.io/managed-by";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Import<'o> {
    #[serde(borrow)]
    api_version: &'o str,
    kind: &'o str,
    metadata: Metadata<'o>,
    spec: Spec<'o>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metadata<'o> {
    namespace: &'o str,
    name: &'o str,
    uid: Option<&'o str>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Spec<'o> {
    #[serde(rename = "type", borrow)]
    kind: &'o str,
    ports: Vec<Port<'o>>,
    ips: Option<Vec<IpAddr>>,
    ip_families: Option<Vec<&'o str>>,
    session_affinity: Option<&'o str>,
    session_affinity_config: Option<AffinityConfig>,
    internal_traffic_policy: Option<&'o str>,
    traffic_distribution: Option<&'o str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct AffinityConfig {
    #[serde(rename = "clientIP")]
    _client_ip: ClientIp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ClientIp {
    #[serde(rename = "timeoutSeconds")]
    _timeout_seconds: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Port<'o> {
    #[serde(default, borrow)]
    name: &'o str,
    protocol: &'o str,
    port: u16,
    app_protocol: Option<&'o str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct StatusObject<'o> {
    #[serde(borrow)]
    api_version: &'o str,
    kind: &'o str,
    pub(super) metadata: Metadata<'o>,
    pub(super) status: Status<'o>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Status<'o> {
    #[serde(borrow)]
    pub(super) clusters: Option<Vec<Exporting<'o>>>,
    conditions: Vec<Condition<'o>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exporting<'o> {
    cluster: &'o str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Condition<'o> {
    #[serde(rename = "type", borrow)]
    kind: &'o str,
    status: &'o str,
    reason: &'o str,
    message: String,
    last_transition_time: Option<&'o str>,
    #[serde(rename = "observedGeneration")]
    _observed_generation: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Slice<'o> {
    #[serde(borrow)]
    api_version: &'o str,
    kind: &'o str,
    metadata: Metadata<'o>,
    address_type: &'o str,
    ports: Vec<Port<'o>>,
    endpoints: Vec<Endpoint<'o>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint<'o> {
    addresses: [IpAddr; 1],
    #[serde(rename = "conditions")]
    _conditions: EndpointConditions,
    #[serde(borrow)]
    zone: Option<&'o str>,
    hostname: Option<&'o str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointConditions {
    #[serde(rename = "ready")]
    _ready: bool,
    #[serde(rename = "serving")]
    _serving: bool,
    #[serde(rename = "terminating")]
    _terminating: bool,
}

impl Import<'_> {
    pub(super) fn check_created(&self, name: &ImportName) -> Result<()> {
        kind_is(WriteKind::ServiceImport, self.api_version, self.kind)?;
        self.metadata.check_name(name)?;
        let metadata = &self.metadata;
        if metadata.uid.is_some() || metadata.labels.is_some() {
            return Err(Refused::new("metadata", "more than a new object has"));
        }
        metadata.check_annotations()?;
        self.spec.check()
    }

    pub(super) fn check_applied(&self, name: &ImportName) -> Result<()> {
        kind_is(WriteKind::ServiceImport, self.api_version, self.kind)?;
        self.metadata.check_name(name)?;
        check_uid("metadata.uid", self.metadata.uid.unwrap_or_default())?;
        if let Some(given) = &self.metadata.labels
            && labels::labels(given).len() != given.len()
        {
            return Err(Refused::new("metadata.labels", "not those of an export"));
        }
        self.metadata.check_annotations()?;
        self.spec.check()
    }
}

impl Metadata<'_> {
    fn check_name(&self, name: &ImportName) -> Result<()> {
        if *self.namespace != *name.namespace || *self.name != *name.name {
            return Err(Refused::new("metadata", "the name of another object"));
        }
        Ok(())
    }

    /// A name and nothing else.
    pub(super) fn check_plain(&self, name: &ImportName) -> Result<()> {
        self.check_name(name)?;
        let others = [self.labels.is_some(), self.annotations.is_some()];
        if self.uid.is_some() || others.contains(&true) {
            return Err(Refused::new("metadata", "more than a name"));
        }
        Ok(())
    }

    /// A name with a UID.
    pub(super) fn check_with_uid(&self, name: &ImportName) -> Result<()> {
        self.check_name(name)?;
        if self.labels.is_some() || self.annotations.is_some() {
            return Err(Refused::new("metadata", "more than a name and a UID"));
        }
        check_uid("metadata.uid", self.uid.unwrap_or_default())
    }

    /// The mark, and annotations that an export may have.
    fn check_annotations(&self) -> Result<()> {
        let bad = |why: &str| Err(Refused::new("metadata.annotations", why));
        let mut others = self.annotations.clone().unwrap_or_default();
        let own = OWN_ANNOTATIONS.map(|key| others.remove(key));
        if !own[0].as_deref().is_some_and(is_domain) {
            return bad("without the id of a cluster that won");
        }
        if own.iter().flatten().any(|value| value.len() > MAX_MESSAGE) {
            return bad("too long");
        }
        if labels::annotations(&others).len() != others.len() {
            return bad("not those of an export");
        }
        Ok(())
    }
}

impl Spec<'_> {
    fn check(&self) -> Result<()> {
        one_of("spec.type", self.kind, &["ClusterSetIP", "Headless"])?;
        ports("spec.ports", &self.ports)?;
        let families = self.ip_families.iter().flatten();
        for family in families.clone() {
            one_of("spec.ipFamilies", family, &["IPv4", "IPv6"])?;
        }
        if families.count() > 2 || self.ips.as_ref().is_some_and(|ips| ips.len() > 2) {
            return Err(Refused::new("spec.ips", "more than one of each family"));
        }
        let affinity = self.session_affinity.unwrap_or("None");
        one_of("spec.sessionAffinity", affinity, &["None", "ClientIP"])?;
        if (affinity == "ClientIP") != self.session_affinity_config.is_some() {
            return Err(Refused::new("spec.sessionAffinityConfig", "unexpected"));
        }
        let policy = self.internal_traffic_policy.unwrap_or("Cluster");
        one_of("spec.internalTrafficPolicy", policy, &["Cluster", "Local"])?;
        short("spec.trafficDistribution", self.traffic_distribution)
    }
}

impl StatusObject<'_> {
    pub(super) fn check(&self, kind: WriteKind) -> Result<()> {
        kind_is(kind, self.api_version, self.kind)?;
        let clusters = self.status.clusters.as_deref().unwrap_or_default();
        few("status.clusters", clusters.len())?;
        if clusters.iter().any(|one| !is_domain(one.cluster)) {
            return Err(Refused::new("status.clusters", "no id of a cluster"));
        }
        few("status.conditions", self.status.conditions.len())?;
        self.status.conditions.iter().try_for_each(Condition::check)
    }
}

impl Condition<'_> {
    fn check(&self) -> Result<()> {
        const FIELD: &str = "status.conditions";
        one_of(FIELD, self.kind, &CONDITIONS)?;
        one_of(FIELD, self.status, &["True", "False", "Unknown"])?;
        short(FIELD, Some(self.reason))?;
        short(FIELD, self.last_transition_time)?;
        if self.message.len() > MAX_MESSAGE {
            return Err(Refused::new(FIELD, "a message that is too long"));
        }
        Ok(())
    }
}

impl Slice<'_> {
    pub(super) fn check(&self, name: &ImportName) -> Result<()> {
        kind_is(WriteKind::EndpointSlice, self.api_version, self.kind)?;
        self.metadata.check_name(name)?;
        if self.metadata.uid.is_some() || self.metadata.annotations.is_some() {
            return Err(Refused::new("metadata", "more than a name and labels"));
        }
        // Any other label may make it a slice of somebody else's Service.
        let is_ours = self.metadata.labels.as_ref().is_some_and(|labels| {
            let of = |key: &str| labels.get(key).map_or("", String::as_str);
            labels.len() == 3
                && of(MANAGER) == MANAGED_BY
                && is_label(of(SERVICE))
                && is_domain(of(SOURCE))
        });
        if !is_ours {
            let why = "not those of an EndpointSlice of an import";
            return Err(Refused::new("metadata.labels", why));
        }
        one_of("addressType", self.address_type, &["IPv4", "IPv6"])?;
        ports("ports", &self.ports)?;
        if self.endpoints.len() > PER_SLICE {
            return Err(Refused::new("endpoints", format!("more than {PER_SLICE}")));
        }
        for Endpoint {
            addresses: [address],
            zone,
            hostname,
            ..
        } in &self.endpoints
        {
            if Family::of(*address).as_str() != self.address_type {
                let why = format!("{address} is no {}", self.address_type);
                return Err(Refused::new("endpoints.addresses", why));
            }
            short("endpoints.zone", *zone)?;
            if hostname.is_some_and(|name| !is_label(name)) {
                return Err(Refused::new("endpoints.hostname", "no DNS label"));
            }
        }
        Ok(())
    }

    /// The name of the import; empty before a check.
    pub(super) fn service_name(&self) -> &str {
        let labels = self.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(SERVICE))
            .map_or("", String::as_str)
    }
}

fn kind_is(kind: WriteKind, api_version: &str, given: &str) -> Result<()> {
    if api_version != kind.api_version() || given != kind.as_str() {
        return Err(Refused::new("kind", format!("{api_version} {given:?}")));
    }
    Ok(())
}

fn ports(field: &'static str, ports: &[Port<'_>]) -> Result<()> {
    few(field, ports.len())?;
    for port in ports {
        one_of(field, port.protocol, &["TCP", "UDP", "SCTP"])?;
        short(field, Some(port.name))?;
        short(field, port.app_protocol)?;
        if port.port == 0 {
            return Err(Refused::new(field, "port 0"));
        }
    }
    Ok(())
}

fn one_of(field: &'static str, given: &str, known: &[&str]) -> Result<()> {
    if known.contains(&given) {
        return Ok(());
    }
    let given: String = given.chars().take(64).collect();
    Err(Refused::new(field, format!("{given:?} is unknown")))
}

fn short(field: &'static str, given: Option<&str>) -> Result<()> {
    if given.is_some_and(|given| given.len() > MAX_TEXT) {
        return Err(Refused::new(field, "too long"));
    }
    Ok(())
}

fn few(field: &'static str, count: usize) -> Result<()> {
    if count > MOST {
        return Err(Refused::new(field, format!("more than {MOST}")));
    }
    Ok(())
}
