// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_model::Protocol;
use portolan_model::ipvs::{Tunnel, VirtualServerKey};

use super::*;

const DEFAULTS: ConntrackTuning = ConntrackTuning {
    max_per_core: 32_768,
    min: 131_072,
    tcp_established: 0,
    tcp_close_wait: 0,
    tcp_be_liberal: false,
    udp: 0,
    udp_stream: 0,
};

fn values(tuning: ConntrackTuning, cpus: u32) -> Vec<(&'static str, u32)> {
    let all = of_conntrack(&tuning, cpus);
    all.iter().map(|s| (s.name, s.value)).collect()
}

#[test]
fn conntrack_grows_with_the_processors() {
    let max = "net/netfilter/nf_conntrack_max";
    assert_eq!(values(DEFAULTS, 2), [(max, 131_072), (HASH_SIZE, 32_768)]);
    assert_eq!(values(DEFAULTS, 8), [(max, 262_144), (HASH_SIZE, 65_536)]);
    let none = ConntrackTuning {
        max_per_core: 0,
        ..DEFAULTS
    };
    assert_eq!(values(none, 64), []);
}

#[test]
fn zero_leaves_a_setting_alone() {
    let some = ConntrackTuning {
        tcp_close_wait: 3600,
        tcp_be_liberal: true,
        ..ConntrackTuning::default()
    };
    let expected = [
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", 3600),
        ("net/netfilter/nf_conntrack_tcp_be_liberal", 1),
    ];
    assert_eq!(values(some, 64), expected);
}

#[test]
fn only_a_wrong_setting_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("setting");
    let exact = Setting::new("x/y", 7, Consequence::NoForwarding);
    for (setting, before, after) in [
        (exact, "7\n", "7\n"),
        (exact, "6\n", "7"),
        (exact, "8\n", "7"),
        (exact.at_least(), "6\n", "7"),
        (exact.at_least(), "8\n", "8\n"),
    ] {
        fs::write(&path, before).unwrap();
        let is_right = before == after;
        assert_eq!(setting.compare_at(&path).is_ok(), is_right, "{before:?}");
        setting.write_at(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), after, "{before:?}");
    }
}

#[test]
fn wrong_setting_is_named_with_its_value_and_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("setting");
    let setting = Setting::new("x/y", 7, Consequence::NoForwarding);
    let error = setting.write_at(&path).unwrap_err().to_string();
    assert!(error.starts_with("x/y must be 7 (No such file"), "{error}");
    fs::write(&path, "3\n").unwrap();
    let error = setting.at_least().compare_at(&path).unwrap_err();
    assert_eq!(error.to_string(), "x/y is 3, and must be at least 7");
    fs::write(&path, "many\n").unwrap();
    assert!(setting.compare_at(&path).unwrap_err().error.is_some());
}

#[test]
fn conn_reuse_mode_is_cleared_for_old_kernels() {
    for (version, expected) in [
        ((4, 0), None),
        ((4, 1), Some(0)),
        ((4, 19), Some(0)),
        ((5, 8), Some(0)),
        ((5, 9), None),
        ((5, 10), None),
        ((6, 1), None),
    ] {
        assert_eq!(conn_reuse_mode(version), expected, "{version:?}");
        let written = required(Some(version));
        let mut names = written.iter().map(Setting::name);
        assert_eq!(
            names.any(|name| name == CONN_REUSE_MODE),
            expected.is_some()
        );
    }
}

#[test]
fn conntrack_comes_with_the_rules() {
    let tuning = Tuning::default();
    let names = |mode| {
        let all = settings_at_start(&tuning, mode);
        all.iter().map(Setting::name).collect::<Vec<_>>()
    };
    let (always, on_demand) = (names(RulesMode::Always), names(RulesMode::OnDemand));
    assert!(always.contains(&CONNTRACK.name()));
    assert!(!on_demand.contains(&CONNTRACK.name()));
    assert_eq!(always.len(), on_demand.len() + 1);
}

#[test]
fn only_masqueraded_servers_need_conntrack() {
    let key = VirtualServerKey::new(Protocol::Tcp, [192, 0, 2, 1].into(), 80);
    let address = ([10, 0, 0, 1], 80).into();
    for (forwarding, expected) in [
        (ForwardingMethod::Masquerade, true),
        (ForwardingMethod::Direct, false),
        (ForwardingMethod::Tunnel(Tunnel::Ipip), false),
    ] {
        let config = RealServerConfig {
            forwarding,
            ..RealServerConfig::masquerade(1)
        };
        let real_servers = Arc::new([(address, config)].into_iter().collect());
        let add = Step::AddRealServer {
            key,
            address,
            config,
        };
        let fill = Step::FillVirtualServer { key, real_servers };
        assert_eq!(masquerades(&add), expected, "{forwarding:?}");
        assert_eq!(masquerades(&fill), expected, "{forwarding:?}");
        assert!(!masquerades(&Step::DelRealServer { key, address }));
    }
}

#[test]
fn strict_arp_is_written_on_request() {
    let count = |strict_arp| {
        let tuning = Tuning {
            strict_arp,
            ..Tuning::default()
        };
        settings(&tuning).len()
    };
    assert_eq!(count(true), count(false) + 2);
}
