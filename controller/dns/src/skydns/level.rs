// SPDX-License-Identifier: Apache-2.0

//! The keys of one zone, level by level: see [`layout`](super::layout).

use std::collections::BTreeSet;
use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::layout::{Keys, Layout};
use super::message::Message;
use crate::config::PodMode;
use crate::input::ServiceKey;
use crate::label;
use crate::name;
use crate::records::{RecordSet, ServiceRecords, join};
use crate::zone::{VERSION_TTL, Zone};

/// A name as the plugin expects it in `host`: without a dot at its end.
pub(super) fn text(name: &Name) -> String {
    name.to_ascii().trim_end_matches('.').to_owned()
}

/// Writes the keys of one zone.
pub(super) struct Level<'a> {
    pub(super) layout: &'a Layout,
    pub(super) zone: &'a Zone,
    pub(super) origin: &'a Name,
    pub(super) ttl: u32,
    pub(super) keys: &'a mut Keys,
}

impl Level<'_> {
    fn put(&mut self, name: &str, below: &str, message: Message) {
        if let Some(name) = name::below(name, self.origin) {
            let key = self.layout.key(&name) + below;
            self.keys.insert(key, message);
        }
    }

    /// Makes a name exist for the types that are read at its own key: PTR and CNAME.
    fn shadow(&mut self, name: &str) {
        self.put(name, "", Message::default());
    }

    /// A shadow and a marker.
    fn mark(&mut self, name: &str, group: &str) {
        self.shadow(name);
        let host = name::below(&join("_", name), self.origin);
        let marker = Message {
            host: host.map(|host| text(&host)).unwrap_or_default(),
            port: -1,
            priority: u16::MAX,
            group: group.to_owned(),
            ..Message::default()
        };
        self.put(name, "/_", marker);
    }

    pub(super) fn apex(&mut self) {
        self.mark("", "z");
        self.mark("svc", "k");
        self.mark("pod", "k");
        self.shadow("apex.dns");
        self.shadow("ns.dns");
        let version = Message {
            text: self.zone.config().kind.schema_version().to_owned(),
            ttl: VERSION_TTL,
            ..Message::default()
        };
        self.put("dns-version", "", version);
        let servers = self.zone.name_servers(self.origin).into_iter();
        let addresses = servers.flat_map(|(_, addresses)| addresses);
        for (index, address) in addresses.enumerate() {
            self.put(
                "ns.dns",
                &format!("/_x{index}"),
                self.address(address, 1, "d"),
            );
        }
    }

    pub(super) fn namespace(&mut self, name: &str) {
        if !self.zone.has_namespace(name) {
            return;
        }
        self.mark(&format!("{name}.svc"), "n");
        if self.zone.config().pods != PodMode::Disabled {
            self.mark(&format!("{name}.pod"), "n");
        }
    }

    pub(super) fn pod(&mut self, namespace: &str, address: IpAddr) {
        if self.zone.has_pod_address(namespace, address) {
            let name = format!("{}.{namespace}.pod", label::of_pod(address));
            // With the SRV record, without a port, that CoreDNS has.
            let message = Message {
                port: 0,
                ..self.address(address, 1, "p")
            };
            self.shadow(&name);
            self.put(&name, "/_x0", message);
        }
    }

    /// A message with an address and no SRV record.
    fn address(&self, address: IpAddr, target_strip: u8, group: &str) -> Message {
        Message {
            host: address.to_string(),
            port: -1,
            ttl: self.ttl,
            target_strip,
            group: group.to_owned(),
            ..Message::default()
        }
    }

    pub(super) fn service(&mut self, key: &ServiceKey) {
        let zone = self.zone;
        let Some(records) = zone.service(key) else {
            return;
        };
        let Some(own) = records.names.get("") else {
            return;
        };
        if let Some(target) = &own.alias {
            // In its Namespace's group: another group would conflict with the marker on the same
            // level, and none would show at `svc.<zone>`.
            let message = Message {
                host: text(target),
                port: -1,
                ttl: self.ttl,
                group: "n".to_owned(),
                ..Message::default()
            };
            self.put(&records.base, "", message);
            return;
        }
        self.mark(&records.base, "s");
        // What is below a cluster's name must not show there.
        let hosts = records.names.keys().filter(|_| records.of_clusters);
        let clusters =
            hosts.filter_map(|name| name.split_once('.').filter(|_| !name.starts_with('_')));
        let clusters: BTreeSet<&str> = clusters.map(|(_, cluster)| cluster).collect();
        for cluster in clusters {
            self.mark(&join(cluster, &records.base), "c");
        }
        for (name, set) in &records.names {
            match name.as_str() {
                "" => self.own(records, own),
                name if name.starts_with('_') => self.port(records, name, set, own),
                name => self.host(records, name, set),
            }
        }
    }

    /// The records at the Service's own name: unnamed ports, and the addresses if there are no
    /// ports. None for a headless Service, whose endpoints show there.
    fn own(&mut self, records: &ServiceRecords, own: &RecordSet) {
        if records.headless {
            return;
        }
        let ports = records
            .names
            .iter()
            .filter(|(name, _)| name.starts_with('_'));
        let named: BTreeSet<_> = ports
            .flat_map(|(_, set)| &set.srv)
            .map(|srv| (srv.port, &srv.host))
            .collect();
        let unnamed = own
            .srv
            .iter()
            .filter(|srv| !named.contains(&(srv.port, &srv.host)));
        let unnamed = RecordSet {
            srv: unnamed.cloned().collect(),
            ..RecordSet::default()
        };
        self.port(records, "", &unnamed, own);
        if own.srv.is_empty() {
            for (index, address) in own.addresses.iter().enumerate() {
                let message = self.address(*address, 1, "s");
                self.put(&records.base, &format!("/_x{index}"), message);
            }
        }
    }

    /// The SRV records of a port: with addresses for a Service that has its own, with names of
    /// endpoints for a headless one.
    fn port(&mut self, records: &ServiceRecords, name: &str, set: &RecordSet, own: &RecordSet) {
        let at = join(name, &records.base);
        let strip = if name.is_empty() { 1 } else { 3 };
        if !name.is_empty() {
            self.shadow(&at);
        }
        let mut count = 0;
        for srv in &set.srv {
            let mut messages = Vec::new();
            if records.headless {
                let target = name::below(&join(&srv.host, &records.base), self.origin);
                // In a group of its own, since the endpoints show at the Service's name already.
                messages.extend(target.map(|target| ("s", text(&target), 0, "p")));
            } else {
                let addresses = own.addresses.iter();
                let message = |address: &IpAddr| ("x", address.to_string(), strip, "s");
                messages.extend(addresses.map(message));
            }
            for (letter, host, target_strip, group) in messages {
                let message = Message {
                    host,
                    port: srv.port.into(),
                    ttl: self.ttl,
                    target_strip,
                    group: group.to_owned(),
                    ..Message::default()
                };
                self.put(&at, &format!("/_{letter}{count}"), message);
                count += 1;
            }
        }
    }

    /// The addresses and ports of an endpoint's name. Those of a Service with addresses of its own must not
    /// show at the Service's name, so their group is another.
    fn host(&mut self, records: &ServiceRecords, name: &str, set: &RecordSet) {
        let group = if records.headless { "s" } else { "e" };
        let at = join(name, &records.base);
        self.shadow(&at);
        let ports: Vec<_> = match set.srv.as_slice() {
            [] => vec![-1],
            srv => srv.iter().map(|srv| srv.port.into()).collect(),
        };
        let all = set.addresses.iter();
        let all = all.flat_map(|address| ports.iter().map(move |port| (address, *port)));
        for (index, (address, port)) in all.enumerate() {
            let message = Message {
                port,
                ..self.address(*address, 1, group)
            };
            self.put(&at, &format!("/_x{index}"), message);
        }
    }
}
