// SPDX-License-Identifier: Apache-2.0

//! Virtual and real servers, as programmed and as read.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::Family;
use portolan_model::ipvs::{
    Flags, RealServers, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_netlink::ipvs::{Ipvs, Request};

use crate::common::{in_netns, output, require};
use crate::{
    LANES, PROTOCOLS, State, add_dest, add_service, apply, dumped, ip, key, many, real_server,
    round_robin, weight,
};

#[test]
fn all_protocols_and_families() {
    in_netns(
        "all_protocols_and_families",
        LANES,
        Ipvs::open,
        |mut ipvs| {
            assert_eq!(ipvs.info().unwrap().version, (1, 2, 1));
            let mut expected = State::new();
            for family in Family::ALL {
                for protocol in PROTOCOLS {
                    let key = VirtualServerKey::new(protocol, ip(family, 96, 1), 80);
                    let real = real_server(family, 1);
                    apply(&mut ipvs, &[add_service(key), add_dest(key, real)]);
                    let real_servers = Arc::new([(real, weight(1))].into());
                    expected.insert(
                        key,
                        VirtualServer {
                            config: round_robin().into(),
                            real_servers,
                        },
                    );
                    assert_eq!(dumped(&mut ipvs), expected, "{key}");
                }
            }
            for key in expected.keys() {
                apply(&mut ipvs, &[Request::DelService { key: *key }]);
            }
            assert_eq!(dumped(&mut ipvs), State::new());
        },
    );
}

#[test]
fn a_glance_shows_what_virtual_servers_of_ipv4_are() {
    let name = "a_glance_shows_what_virtual_servers_of_ipv4_are";
    in_netns(name, LANES, Ipvs::open, |mut ipvs| {
        let config = VirtualServerConfig {
            scheduler: "mh".into(),
            flags: Flags(Flags::SCHED1),
            persistence: Some(60),
            netmask: Some(0xffff_0000),
            engine: None,
        };
        let (one, other) = (key(Family::V4, 1), key(Family::V4, 2));
        let requests = [
            Request::AddService {
                key: one,
                config: config.clone().into(),
            },
            add_dest(one, real_server(Family::V4, 1)),
            add_dest(one, real_server(Family::V4, 2)),
            add_service(other),
            add_service(key(Family::V6, 1)),
        ];
        apply(&mut ipvs, &requests);
        let mut seen = BTreeMap::new();
        ipvs.glance(|key, glimpse| {
            assert_eq!(glimpse.is(&config), key == one);
            assert_eq!(glimpse.is(&round_robin()), key == other);
            seen.insert(key, (glimpse.config(), glimpse.real_servers));
        })
        .unwrap();
        let expected = [(one, (config.clone(), 2)), (other, (round_robin(), 0))];
        assert_eq!(seen, BTreeMap::from(expected));
    });
}

#[test]
fn changes_objects() {
    in_netns("changes_objects", LANES, Ipvs::open, |mut ipvs| {
        for family in Family::ALL {
            let (key, real) = (key(family, 1), real_server(family, 1));
            let other = real_server(family, 2);
            let config = VirtualServerConfig {
                scheduler: "mh".into(),
                flags: Flags(Flags::SCHED1 | Flags::SCHED2),
                persistence: Some(10_800),
                netmask: None,
                engine: None,
            };
            let requests = [
                Request::AddService {
                    key,
                    config: config.clone().into(),
                },
                add_dest(key, real),
                add_dest(key, other),
            ];
            apply(&mut ipvs, &requests);
            assert_eq!(*dumped(&mut ipvs)[&key].config, config);

            for config in [
                VirtualServerConfig {
                    persistence: None,
                    ..config
                },
                round_robin(),
            ] {
                apply(
                    &mut ipvs,
                    &[Request::SetService {
                        key,
                        config: config.clone().into(),
                    }],
                );
                assert_eq!(*dumped(&mut ipvs)[&key].config, config);
            }
            for new in [0, 7, i32::MAX.unsigned_abs()] {
                let request = Request::SetDest {
                    key,
                    real_server: real,
                    config: weight(new),
                };
                apply(&mut ipvs, &[request]);
                let expected = RealServers::from([(real, weight(new)), (other, weight(1))]);
                assert_eq!(*dumped(&mut ipvs)[&key].real_servers, expected);
            }
            apply(
                &mut ipvs,
                &[Request::DelDest {
                    key,
                    real_server: real,
                }],
            );
            let expected = RealServers::from([(other, weight(1))]);
            assert_eq!(*dumped(&mut ipvs)[&key].real_servers, expected);
        }
    });
}

#[test]
fn many_objects() {
    in_netns("many_objects", LANES, Ipvs::open, |mut ipvs| {
        let mut expected = State::new();
        for family in Family::ALL {
            let (requests, state) = many(family, 1000, 5);
            apply(&mut ipvs, &requests);
            let all = dumped(&mut ipvs);
            let missing: Vec<_> = state.keys().filter(|key| !all.contains_key(key)).collect();
            assert!(
                missing.is_empty(),
                "{family}: {} of them lack: {missing:?}",
                missing.len()
            );
            let services = ipvs.dump_services(family).unwrap();
            assert!(
                services.keys().all(|key| state.contains_key(key)),
                "{family}"
            );
            let dests = (family == Family::V4).then_some(5);
            assert!(
                services
                    .values()
                    .all(|s| s.config == round_robin() && s.real_servers == dests)
            );
            expected.extend(state);
        }
        assert_eq!(dumped(&mut ipvs), expected);
    });
}

/// More than the first guess at the size of a table, and more than a part of a dump.
#[test]
fn one_service_of_many_dests() {
    in_netns(
        "one_service_of_many_dests",
        LANES,
        Ipvs::open,
        |mut ipvs| {
            for family in Family::ALL {
                let (requests, state) = many(family, 1, 300);
                apply(&mut ipvs, &requests);
                let key = key(family, 1);
                assert_eq!(dumped(&mut ipvs)[&key], state[&key]);
                assert_eq!(ipvs.connections(&key).unwrap().len(), 300);
            }
        },
    );
}

fn mark(family: Family, mark: u32) -> VirtualServerKey {
    VirtualServerKey::Mark { family, mark }
}

#[test]
fn firewall_marks_of_both_families() {
    in_netns(
        "firewall_marks_of_both_families",
        LANES,
        Ipvs::open,
        |mut ipvs| {
            let mut expected = State::new();
            for family in Family::ALL {
                let (requests, state) = many(family, 2, 1);
                apply(&mut ipvs, &requests);
                expected.extend(state);
                // The same mark of both families, and one with its highest bit set.
                for number in [0x3000_0001, 0x8000_0000] {
                    let (key, real) = (mark(family, number), real_server(family, 1));
                    apply(&mut ipvs, &[add_service(key), add_dest(key, real)]);
                    let server = VirtualServer {
                        config: round_robin().into(),
                        real_servers: Arc::new([(real, weight(1))].into()),
                    };
                    expected.insert(key, server);
                    assert_eq!(dumped(&mut ipvs), expected, "{key}");
                    assert_eq!(ipvs.connections(&key).unwrap().len(), 1);
                }
            }
            for family in Family::ALL {
                let (key, real) = (mark(family, 0x3000_0001), real_server(family, 1));
                let config = VirtualServerConfig {
                    scheduler: "mh".into(),
                    ..round_robin()
                };
                let requests = [
                    Request::SetService {
                        key,
                        config: config.clone().into(),
                    },
                    Request::SetDest {
                        key,
                        real_server: real,
                        config: weight(0),
                    },
                    Request::DelService {
                        key: mark(family, 0x8000_0000),
                    },
                ];
                apply(&mut ipvs, &requests);
                let server = VirtualServer {
                    config: config.into(),
                    real_servers: Arc::new([(real, weight(0))].into()),
                };
                expected.insert(key, server);
                expected.remove(&mark(family, 0x8000_0000));
                assert_eq!(dumped(&mut ipvs), expected, "{key}");
                assert!(ipvs.dump_services(family).unwrap().contains_key(&key));
            }
        },
    );
}

#[test]
fn firewall_marks_of_others_are_listed() {
    in_netns(
        "firewall_marks_of_others_are_listed",
        LANES,
        Ipvs::open,
        |mut ipvs| {
            for arguments in [
                "-A -f 1 -s rr",
                "-A -f 2 -6 -s rr",
                "-a -f 1 -r 10.0.0.1:80 -m",
            ] {
                if require("firewall_marks", &[], output("ipvsadm", arguments)).is_none() {
                    return;
                }
            }
            let state = dumped(&mut ipvs);
            assert!(state.keys().eq(&[mark(Family::V4, 1), mark(Family::V6, 2)]));
            let real_servers: Vec<_> = state.values().map(|s| s.real_servers.len()).collect();
            assert_eq!(real_servers, [1, 0]);
        },
    );
}

#[test]
fn real_servers_of_one_virtual_server() {
    in_netns(
        "real_servers_of_one_virtual_server",
        LANES,
        Ipvs::open,
        |mut ipvs| {
            for family in Family::ALL {
                let [one, other] = [7, 8].map(|number| mark(family, number));
                let real = real_server(family, 1);
                apply(&mut ipvs, &[add_service(one), add_dest(one, real)]);
                assert_eq!(ipvs.real_servers(&one).unwrap(), [(real, weight(1))].into());
                assert_eq!(ipvs.real_servers(&other).unwrap(), [].into());
            }
        },
    );
}
