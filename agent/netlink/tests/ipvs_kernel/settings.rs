// SPDX-License-Identifier: Apache-2.0

//! Every setting of a virtual server and of a real server: programmed, read back equal, or refused.

use std::net::SocketAddr;

use portolan_model::ipvs::{
    ForwardingMethod, GueChecksum, RealServerConfig, RealServers, Thresholds, Tunnel,
    VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{Family, Protocol};
use portolan_netlink::Errno;
use portolan_netlink::ipvs::{Ipvs, Request};

use crate::common::in_netns;
use crate::{LANES, add_service, apply, dumped, ip, key, real_server, round_robin, weight};

const TUNNELS: [Tunnel; 6] = [
    Tunnel::Ipip,
    gue(GueChecksum::None),
    gue(GueChecksum::Full),
    gue(GueChecksum::Remote),
    Tunnel::Gre { checksum: false },
    Tunnel::Gre { checksum: true },
];

const fn gue(checksum: GueChecksum) -> Tunnel {
    Tunnel::Gue {
        port: 6080,
        checksum,
    }
}

/// Sets each configuration in turn, and reads it back.
fn set_in_turn(
    ipvs: &mut Ipvs,
    key: VirtualServerKey,
    real_server: SocketAddr,
    configs: &[RealServerConfig],
) {
    let add = Request::AddDest {
        key,
        real_server,
        config: weight(1),
    };
    apply(ipvs, &[add_service(key), add]);
    for config in configs {
        let config = *config;
        let set = Request::SetDest {
            key,
            real_server,
            config,
        };
        apply(ipvs, &[set]);
        let expected = RealServers::from([(real_server, config)]);
        assert_eq!(*dumped(ipvs)[&key].real_servers, expected, "{key}");
        assert_eq!(
            ipvs.connections(&key).expect("reads").len(),
            1,
            "{config:?}"
        );
    }
    apply(ipvs, &[Request::DelService { key }]);
}

#[test]
fn forwarding_methods_are_read_back() {
    let name = "forwarding_methods_are_read_back";
    in_netns(name, LANES, Ipvs::open, |mut ipvs| {
        let methods = TUNNELS.map(ForwardingMethod::Tunnel).into_iter();
        let methods = methods.chain([ForwardingMethod::Direct, ForwardingMethod::Masquerade]);
        let configs: Vec<_> = methods
            .map(|forwarding| RealServerConfig {
                forwarding,
                ..weight(3)
            })
            .collect();
        for family in Family::ALL {
            // Only masquerading could translate the port.
            let real_server = SocketAddr::new(ip(family, 244, 1), 80);
            set_in_turn(&mut ipvs, key(family, 1), real_server, &configs);
            let mark = VirtualServerKey::Mark { family, mark: 7 };
            set_in_turn(
                &mut ipvs,
                mark,
                SocketAddr::new(real_server.ip(), 0),
                &configs,
            );
        }
    });
}

#[test]
fn thresholds_are_read_back() {
    in_netns("thresholds_are_read_back", LANES, Ipvs::open, |mut ipvs| {
        let configs = [(5, 0), (5, 3), (5, 5), (i32::MAX.unsigned_abs(), 1), (0, 0)];
        let configs = configs.map(|(upper, lower)| RealServerConfig {
            thresholds: Thresholds { upper, lower },
            ..weight(1)
        });
        for family in Family::ALL {
            set_in_turn(&mut ipvs, key(family, 1), real_server(family, 1), &configs);
        }
    });
}

#[test]
fn persistence_is_read_back() {
    in_netns("persistence_is_read_back", LANES, Ipvs::open, |mut ipvs| {
        let persistent = |netmask| VirtualServerConfig {
            persistence: Some(360),
            netmask,
            ..round_robin()
        };
        let sip = VirtualServerConfig {
            engine: Some("sip".into()),
            ..persistent(None)
        };
        for family in Family::ALL {
            // Any 32 bits, or a prefix length.
            let netmasks = match family {
                Family::V4 => [0xffff_ff00, 0xff00_00ff, 0],
                Family::V6 => [64, 1, 127],
            };
            let key = VirtualServerKey::new(Protocol::Udp, ip(family, 96, 1), 5060);
            apply(&mut ipvs, &[add_service(key)]);
            let configs = netmasks.map(|netmask| persistent(Some(netmask)));
            let without = [persistent(None), round_robin()];
            // The last ones take the engine and the mask away again.
            for config in configs.into_iter().chain([sip.clone()]).chain(without) {
                let set = Request::SetService {
                    key,
                    config: config.clone().into(),
                };
                apply(&mut ipvs, &[set]);
                assert_eq!(*dumped(&mut ipvs)[&key].config, config, "{key}");
            }
            apply(&mut ipvs, &[Request::DelService { key }]);
            // All ports of an address.
            let config = persistent(None);
            let key = VirtualServerKey::new(Protocol::Tcp, ip(family, 96, 1), 0);
            let add = Request::AddService {
                key,
                config: config.clone().into(),
            };
            apply(&mut ipvs, &[add]);
            assert_eq!(*dumped(&mut ipvs)[&key].config, config);
        }
    });
}

#[test]
fn real_servers_of_the_other_family_are_reached_by_tunnel_only() {
    let name = "real_servers_of_the_other_family_are_reached_by_tunnel_only";
    in_netns(name, LANES, Ipvs::open, |mut ipvs| {
        for (family, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
            let key = key(family, 1);
            apply(&mut ipvs, &[add_service(key)]);
            let add = |forwarding, address| Request::AddDest {
                key,
                real_server: SocketAddr::new(address, 80),
                config: RealServerConfig {
                    forwarding,
                    ..weight(1)
                },
            };
            let address = ip(other, 244, 1);
            for forwarding in [ForwardingMethod::Masquerade, ForwardingMethod::Direct] {
                let refused = ipvs.apply([add(forwarding, address)]).unwrap();
                assert_eq!(refused[0].errno, Errno::EINVAL, "{forwarding:?}");
            }
            let tunnel = ForwardingMethod::Tunnel(Tunnel::Ipip);
            apply(&mut ipvs, &[add(tunnel, address)]);
            let alone: Vec<_> = dumped(&mut ipvs)[&key].real_servers.keys().collect();
            assert_eq!(alone, [SocketAddr::new(address, 80)]);
            apply(&mut ipvs, &[add(tunnel, ip(family, 244, 1))]);
            assert_eq!(dumped(&mut ipvs)[&key].real_servers.len(), 2);
            apply(&mut ipvs, &[Request::DelService { key }]);
        }
    });
}

#[test]
fn impossible_settings_are_refused() {
    in_netns(
        "impossible_settings_are_refused",
        LANES,
        Ipvs::open,
        |mut ipvs| {
            let key = key(Family::V4, 1);
            apply(&mut ipvs, &[add_service(key)]);
            let dest = |config| Request::AddDest {
                key,
                real_server: real_server(Family::V4, 1),
                config,
            };
            let lower_above_upper = RealServerConfig {
                thresholds: Thresholds { upper: 2, lower: 3 },
                ..weight(1)
            };
            let no_port = RealServerConfig {
                forwarding: ForwardingMethod::Tunnel(Tunnel::Gue {
                    port: 0,
                    checksum: GueChecksum::None,
                }),
                ..weight(1)
            };
            let no_engine = VirtualServerConfig {
                persistence: Some(360),
                engine: Some("nosuch".into()),
                ..round_robin()
            };
            let requests = [
                dest(lower_above_upper),
                dest(no_port),
                Request::SetService {
                    key,
                    config: no_engine.into(),
                },
            ];
            let errnos: Vec<_> = ipvs.apply(requests).unwrap();
            let errnos: Vec<_> = errnos.iter().map(|refused| refused.errno).collect();
            assert_eq!(errnos, [Errno::ERANGE, Errno::EINVAL, Errno::ENOENT]);
        },
    );
}

#[test]
fn impossible_addresses_and_prefixes_are_refused() {
    let name = "impossible_addresses_and_prefixes_are_refused";
    in_netns(name, LANES, Ipvs::open, |mut ipvs| {
        let dest = |family, address: &str| Request::AddDest {
            key: key(family, 1),
            real_server: SocketAddr::new(address.parse().unwrap(), 80),
            config: weight(1),
        };
        let prefix = |length| Request::SetService {
            key: key(Family::V6, 1),
            config: VirtualServerConfig {
                persistence: Some(360),
                netmask: Some(length),
                ..round_robin()
            }
            .into(),
        };
        apply(
            &mut ipvs,
            &Family::ALL.map(|family| add_service(key(family, 1))),
        );
        let requests = [
            dest(Family::V4, "224.0.0.1"),
            dest(Family::V4, "255.255.255.255"),
            dest(Family::V6, "ff02::1"),
            dest(Family::V6, "fe80::1"),
            prefix(0),
            prefix(129),
        ];
        for request in requests {
            let refused = ipvs.apply([&request]).unwrap();
            let errnos: Vec<_> = refused.iter().map(|refused| refused.errno).collect();
            assert_eq!(errnos, [Errno::EINVAL], "{request:?}");
        }
    });
}
