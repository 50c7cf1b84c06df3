// SPDX-License-Identifier: Apache-2.0

//! Virtual servers as arguments of `ipvsadm`, whose `-R` reads what [`save`] writes.

use std::fmt::Write as _;
use std::net::SocketAddr;

use portolan_model::ipvs::{
    Flags, ForwardingMethod, RealServerConfig, VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{Family, Protocol};

use crate::KernelState;

/// All virtual servers of a state, one command a line, as `ipvsadm -Sn` prints them.
#[must_use]
pub fn save(state: &KernelState) -> String {
    let mut text = String::new();
    for (key, server) in &state.virtual_servers {
        // Writing to a string never fails.
        let _ = writeln!(text, "{}", add_service(key, &server.config));
        for (address, config) in server.real_servers.iter() {
            let _ = writeln!(text, "{}", add_real_server(key, *address, *config));
        }
    }
    text
}

pub(super) fn add_service(key: &VirtualServerKey, config: &VirtualServerConfig) -> String {
    format!("-A {}", service(key, config))
}

pub(super) fn edit_service(key: &VirtualServerKey, config: &VirtualServerConfig) -> String {
    format!("-E {}", service(key, config))
}

pub(super) fn delete_service(key: &VirtualServerKey) -> String {
    format!("-D {}", identity(key))
}

pub(super) fn add_real_server(
    key: &VirtualServerKey,
    address: SocketAddr,
    config: RealServerConfig,
) -> String {
    format!("-a {}", real_server(key, address, config))
}

pub(super) fn edit_real_server(
    key: &VirtualServerKey,
    address: SocketAddr,
    config: RealServerConfig,
) -> String {
    format!("-e {}", real_server(key, address, config))
}

pub(super) fn delete_real_server(key: &VirtualServerKey, address: SocketAddr) -> String {
    format!("-d {} -r {address}", identity(key))
}

/// The virtual server alone.
fn identity(key: &VirtualServerKey) -> String {
    match key {
        VirtualServerKey::Address {
            protocol,
            address,
            port,
        } => {
            let option = match protocol {
                Protocol::Tcp => "-t",
                Protocol::Udp => "-u",
                Protocol::Sctp => "--sctp-service",
            };
            format!("{option} {}", SocketAddr::new(*address, *port))
        }
        VirtualServerKey::Mark {
            family: Family::V4,
            mark,
        } => format!("-f {mark}"),
        VirtualServerKey::Mark {
            family: Family::V6,
            mark,
        } => format!("-f {mark} -6"),
    }
}

fn service(key: &VirtualServerKey, config: &VirtualServerConfig) -> String {
    let mut text = format!("{} -s {}", identity(key), config.scheduler);
    if let Some(seconds) = config.persistence {
        let _ = write!(text, " -p {seconds}");
    }
    let Flags(flags) = config.flags;
    if flags & Flags::ONE_PACKET != 0 {
        text.push_str(" -o");
    }
    let names = [
        (Flags::SCHED1, "flag-1"),
        (Flags::SCHED2, "flag-2"),
        (Flags::SCHED3, "flag-3"),
    ];
    let set = names.into_iter().filter(|(flag, _)| flags & flag != 0);
    let set: Vec<_> = set.map(|(_, name)| name).collect();
    if !set.is_empty() {
        let _ = write!(text, " -b {}", set.join(","));
    }
    text
}

fn real_server(key: &VirtualServerKey, address: SocketAddr, config: RealServerConfig) -> String {
    let method = match config.forwarding {
        ForwardingMethod::Masquerade | ForwardingMethod::Local => "-m",
        ForwardingMethod::Tunnel => "-i",
        ForwardingMethod::Direct => "-g",
    };
    let weight = config.weight;
    format!("{} -r {address} {method} -w {weight}", identity(key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use portolan_model::ipvs::VirtualServer;

    use super::*;

    fn server(scheduler: &'static str, persistence: Option<u32>, flags: u32) -> VirtualServer {
        let config = VirtualServerConfig {
            scheduler: scheduler.into(),
            flags: Flags(flags),
            persistence,
        };
        let real_server = RealServerConfig {
            weight: 3,
            forwarding: ForwardingMethod::Masquerade,
        };
        let address = "10.0.0.11:8080".parse().unwrap();
        VirtualServer {
            config,
            real_servers: Arc::new(BTreeMap::from([(address, real_server)])),
        }
    }

    #[test]
    fn saved_virtual_servers_have_the_format_of_ipvsadm() {
        let ip = |text: &str| text.parse().unwrap();
        let mark = |family, mark| VirtualServerKey::Mark { family, mark };
        let servers = [
            (
                VirtualServerKey::new(Protocol::Tcp, ip("192.0.2.10"), 80),
                server("wlc", None, 0),
            ),
            (
                VirtualServerKey::new(Protocol::Udp, ip("2001:db8::10"), 53),
                server("rr", None, Flags::ONE_PACKET),
            ),
            (
                VirtualServerKey::new(Protocol::Sctp, ip("192.0.2.10"), 80),
                server("mh", Some(360), Flags::SCHED1 | Flags::SCHED2),
            ),
            (mark(Family::V4, 7), server("rr", None, 0)),
            (mark(Family::V6, 7), server("rr", None, 0)),
        ];
        let mut state = KernelState::default();
        state.virtual_servers.extend(servers);
        let text = save(&state);
        let lines: std::collections::BTreeSet<_> = text.lines().collect();
        for line in [
            "-A -t 192.0.2.10:80 -s wlc",
            "-a -t 192.0.2.10:80 -r 10.0.0.11:8080 -m -w 3",
            "-A -u [2001:db8::10]:53 -s rr -o",
            "-A --sctp-service 192.0.2.10:80 -s mh -p 360 -b flag-1,flag-2",
            "-A -f 7 -s rr",
            "-A -f 7 -6 -s rr",
        ] {
            assert!(lines.contains(line), "{line}\n{text}");
        }
        assert_eq!(text.lines().count(), 10);
    }
}
