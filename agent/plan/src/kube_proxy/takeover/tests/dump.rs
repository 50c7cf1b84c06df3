// SPDX-License-Identifier: Apache-2.0

//! Parser of the output of `ipvsadm -Sn`, `ipset save` and `ip -o addr`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{
    ForwardingMethod, RealServerConfig, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{Family, Protocol};

use crate::KernelState;

/// A state, and the addresses of the device.
pub(super) fn read(text: &str) -> (KernelState, BTreeSet<IpAddr>) {
    let mut state = KernelState::default();
    let mut bound = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["-A", protocol, at, ref options @ ..] => {
                let server = VirtualServer {
                    config: VirtualServerConfig {
                        scheduler: option(options, "-s").unwrap().to_owned().into(),
                        persistence: option(options, "-p").map(|p| p.parse().unwrap()),
                        ..VirtualServerConfig::round_robin()
                    }
                    .into(),
                    real_servers: Default::default(),
                };
                state.virtual_servers.insert(key(protocol, at), server);
            }
            ["-a", protocol, at, "-r", address, method, "-w", weight] => {
                let forwarding = match method {
                    "-m" => ForwardingMethod::Masquerade,
                    _ => ForwardingMethod::Direct,
                };
                let weight = weight.parse().unwrap();
                let server = state.virtual_servers.get_mut(&key(protocol, at)).unwrap();
                let config = RealServerConfig {
                    forwarding,
                    ..RealServerConfig::masquerade(weight)
                };
                Arc::make_mut(&mut server.real_servers).insert(address.parse().unwrap(), config);
            }
            ["create", name, kind, ref options @ ..] => {
                let header = SetHeader {
                    kind: SetKind::from_type_name(kind, false).unwrap(),
                    family: match option(options, "family") {
                        Some("inet6") => Family::V6,
                        _ => Family::V4,
                    },
                    max_entries: 65_536,
                };
                let entries = BTreeSet::new();
                state.sets.insert(name.to_owned(), Set { header, entries });
            }
            ["add", name, text] => {
                let set = state.sets.get_mut(name).unwrap();
                set.entries.insert(entry(set.header.kind, text));
            }
            [_, "kube-ipvs0", "inet" | "inet6", address, ..] => {
                bound.insert(address.split('/').next().unwrap().parse().unwrap());
            }
            _ => assert!(line.is_empty() || line.starts_with('#'), "{line}"),
        }
    }
    (state, bound)
}

fn option<'a>(options: &[&'a str], name: &str) -> Option<&'a str> {
    let at = options.iter().position(|option| *option == name)?;
    options.get(at + 1).copied()
}

fn protocol(text: &str) -> Protocol {
    match text {
        "-t" | "tcp" => Protocol::Tcp,
        "-u" | "udp" => Protocol::Udp,
        _ => Protocol::Sctp,
    }
}

fn key(kind: &str, at: &str) -> VirtualServerKey {
    let at: SocketAddr = at.parse().unwrap();
    VirtualServerKey::new(protocol(kind), at.ip(), at.port())
}

fn entry(kind: SetKind, text: &str) -> SetEntry {
    let parts: Vec<&str> = text.split(',').collect();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let port = |text: &str| {
        let (name, port) = text.split_once(':').unwrap();
        (protocol(name), port.parse::<u16>().unwrap())
    };
    match (kind, &parts[..]) {
        (SetKind::BitmapPort, [number]) => SetEntry::Port(number.parse().unwrap()),
        (SetKind::HashIp, [address]) => SetEntry::Ip(ip(address)),
        (SetKind::HashIpPort, [address, at]) => {
            SetEntry::IpPort(ip(address), port(at).0, port(at).1)
        }
        (SetKind::HashIpPortIp, [address, at, other]) => {
            SetEntry::IpPortIp(ip(address), port(at).0, port(at).1, ip(other))
        }
        (SetKind::HashIpPortNet, [address, at, net]) => {
            let net = net.parse().unwrap();
            SetEntry::IpPortNet(ip(address), port(at).0, port(at).1, net)
        }
        _ => panic!("{kind:?} {text}"),
    }
}
