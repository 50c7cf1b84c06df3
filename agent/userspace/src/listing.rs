// SPDX-License-Identifier: Apache-2.0

//! Lists of the served ways, for people and for /etc/hosts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use rustix::thread::{CapabilitySet, capabilities};

use crate::listen::Transport;
use crate::places::{Listed, service_of};

/// Where the kernel says which ports need a right.
const START: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// The first port that this process may bind.
#[must_use]
pub fn unprivileged_port() -> u16 {
    let may_bind = |sets: rustix::thread::CapabilitySets| {
        sets.effective.contains(CapabilitySet::NET_BIND_SERVICE)
    };
    if capabilities(None).is_ok_and(may_bind) {
        return 0;
    }
    let start = std::fs::read_to_string(START).ok();
    start
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1024)
}

/// Lines of /etc/hosts for all Services, with their ports as comments. Names of the namespace `default` are short too.
#[must_use]
pub fn hosts(listed: &[Listed], zone: &str) -> String {
    let mut services: BTreeMap<_, (Option<IpAddr>, Vec<String>)> = BTreeMap::new();
    for item in listed {
        let (address, ports) = services.entry(service_of(&item.record)).or_default();
        let at = item.listen.at;
        if at.is_ipv4() && !item.is_node_port {
            *address = Some(at.ip());
        }
        let transport = match item.listen.transport {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
        };
        let kind = if item.is_node_port { "node port " } else { "" };
        ports.push(format!("{kind}{}/{transport} at {at}", item.port));
    }
    let mut text = String::new();
    for ((_, namespace, service), (address, ports)) in services {
        let name = format!("{service}.{namespace}");
        // Writing to a string does not fail.
        let _ = writeln!(text, "# {name}: {}", ports.join(", "));
        let Some(address) = address else {
            continue;
        };
        let _ = write!(text, "{address} {name}.svc.{zone} {name}.svc {name}");
        if &*namespace == "default" {
            let _ = write!(text, " {service}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use portolan_model::{Protocol, RecordKey};

    use super::*;
    use crate::listen::Listen;

    #[test]
    fn each_service_has_a_line_and_its_ports() {
        let item = |name: &str, port, at: &str, is_node_port| Listed {
            record: RecordKey {
                cluster: "".into(),
                namespace: if name == "web" { "default" } else { "shop" }.into(),
                service: name.into(),
                port: "".into(),
                protocol: Protocol::Tcp,
            },
            port,
            is_node_port,
            listen: Listen {
                transport: Transport::Tcp,
                at: at.parse().unwrap(),
            },
        };
        let text = hosts(
            &[
                item("web", 80, "127.70.1.2:10080", false),
                item("web", 30080, "127.0.0.1:30080", true),
                item("api", 8080, "127.71.0.9:8080", false),
                item("six", 80, "[::1]:20001", false),
            ],
            "cluster.local",
        );
        let expected = "\
# web.default: 80/TCP at 127.70.1.2:10080, node port 30080/TCP at 127.0.0.1:30080
127.70.1.2 web.default.svc.cluster.local web.default.svc web.default web
# api.shop: 8080/TCP at 127.71.0.9:8080
127.71.0.9 api.shop.svc.cluster.local api.shop.svc api.shop
# six.shop: 80/TCP at [::1]:20001
";
        assert_eq!(text, expected);
    }
}
