// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{Thresholds, VirtualServer};

use super::*;

fn server(scheduler: &'static str, persistence: Option<u32>, flags: u32) -> VirtualServer {
    let config = VirtualServerConfig {
        scheduler: scheduler.into(),
        flags: Flags(flags),
        persistence,
        ..VirtualServerConfig::round_robin()
    };
    let real_server = RealServerConfig::masquerade(3);
    let address = "10.0.0.11:8080".parse().unwrap();
    VirtualServer {
        config: config.into(),
        real_servers: Arc::new([(address, real_server)].into()),
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
    let of_family = save_families(&state, Families::from_iter([Family::V6]), false);
    assert_eq!(of_family.lines().count(), 4, "{of_family}");
}

#[test]
fn sets_routes_and_rules_follow_as_comments() {
    let mut state = KernelState::default();
    let key = VirtualServerKey::new(Protocol::Tcp, [192, 0, 2, 10].into(), 80);
    state.virtual_servers.insert(key, server("rr", None, 0));
    let config = crate::Config::default();
    let node = portolan_model::NodeInfo::default();
    for family in Family::ALL {
        let rules = crate::rules(family, &config, &node);
        state.rules.insert(family, rules);
    }
    let header = SetHeader {
        kind: SetKind::HashIpPort,
        family: Family::V4,
        max_entries: 64,
    };
    let set = Set {
        header,
        entries: [SetEntry::IpPort([192, 0, 2, 10].into(), Protocol::Tcp, 80)].into(),
    };
    state.sets.insert("KUBE-CLUSTER-IP".to_owned(), set);
    state.routes.insert([192, 0, 2, 10].into(), None);
    let text = save_families(&state, Families::from_iter([Family::V4]), true);
    let (commands, others): (Vec<_>, Vec<_>) =
        text.lines().partition(|line| !line.starts_with('#'));
    assert_eq!(commands.len(), 2, "{text}");
    for line in [
        "# ipset create KUBE-CLUSTER-IP hash:ip,port family inet maxelem 64",
        "# ipset add KUBE-CLUSTER-IP 192.0.2.10,tcp:80",
        "# ip route add local 192.0.2.10 dev lo proto 99",
        "# iptables-restore --noflush",
        "# *mangle",
        "# -I PREROUTING 1 -j KUBE-SERVICES",
        "# COMMIT",
    ] {
        assert!(others.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains("ip6tables"), "{text}");
}

#[test]
fn a_director_s_settings_have_the_format_of_ipvsadm() {
    let key = VirtualServerKey::new(Protocol::Udp, [192, 0, 2, 10].into(), 5060);
    let config = VirtualServerConfig {
        persistence: Some(360),
        netmask: Some(0xffff_ff00),
        engine: Some("sip".into()),
        ..VirtualServerConfig::round_robin()
    };
    assert_eq!(
        add_service(&key, &config),
        "-A -u 192.0.2.10:5060 -s rr -p 360 -M 255.255.255.0 --pe sip"
    );
    let config = |tunnel| RealServerConfig {
        forwarding: ForwardingMethod::Tunnel(tunnel),
        thresholds: Thresholds { upper: 9, lower: 5 },
        ..RealServerConfig::masquerade(1)
    };
    let gue = |checksum| Tunnel::Gue {
        port: 6080,
        checksum,
    };
    for (tunnel, options) in [
        (Tunnel::Ipip, " --tun-type ipip"),
        (
            gue(GueChecksum::Remote),
            " --tun-type gue --tun-port 6080 --tun-remcsum",
        ),
        (
            gue(GueChecksum::None),
            " --tun-type gue --tun-port 6080 --tun-nocsum",
        ),
        (Tunnel::Gre { checksum: true }, " --tun-type gre --tun-csum"),
    ] {
        let address = "10.0.0.11:5060".parse().unwrap();
        assert_eq!(
            add_real_server(&key, address, config(tunnel)),
            format!("-a -u 192.0.2.10:5060 -r 10.0.0.11:5060 -i -w 1{options} -x 9 -y 5")
        );
    }
}
