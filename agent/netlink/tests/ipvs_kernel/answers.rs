// SPDX-License-Identifier: Apache-2.0

//! Answers of the kernel besides objects.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};

use portolan_model::ipvs::{Connections, VirtualServerConfig, VirtualServerKey};
use portolan_model::{Family, Protocol};
use portolan_netlink::Errno;
use portolan_netlink::ipvs::{Ipvs, Request, RequestError};

use crate::common::{in_netns, output};
use crate::{
    LANES, add_dest, add_service, apply, dumped, ip, key, many, real_server, round_robin, weight,
};

#[test]
fn tells_exactly_which_requests_failed() {
    in_netns(
        "tells_exactly_which_requests_failed",
        LANES,
        Ipvs::open,
        |mut ipvs| {
            let (mut requests, expected) = many(Family::V4, 2000, 1);
            apply(&mut ipvs, &[add_service(key(Family::V4, 1000))]);
            let errors = ipvs.apply(&requests).unwrap();
            let index = requests
                .iter()
                .position(|r| *r == add_service(key(Family::V4, 1000)));
            assert_eq!(
                errors,
                [RequestError {
                    index: index.unwrap(),
                    errno: Errno::EEXIST
                }]
            );
            assert_eq!(dumped(&mut ipvs), expected);

            // Everything fails, and every failure is told.
            let errors = ipvs.apply(&requests).unwrap();
            assert!(errors.iter().map(|error| error.index).eq(0..requests.len()));
            assert!(errors.iter().all(|error| error.errno == Errno::EEXIST));
            requests.clear();
            apply(&mut ipvs, &requests);
        },
    );
}

#[test]
fn names_the_reason() {
    in_netns("names_the_reason", LANES, Ipvs::open, |mut ipvs| {
        for family in Family::ALL {
            let (here, gone) = (key(family, 1), key(family, 2));
            let (real, other) = (real_server(family, 1), real_server(family, 2));
            let scheduler = VirtualServerConfig {
                scheduler: "nonsense".into(),
                ..round_robin()
            };
            let port_zero = VirtualServerKey::new(Protocol::Tcp, ip(family, 96, 2), 0);
            let foreign = real_server(
                if family == Family::V4 {
                    Family::V6
                } else {
                    Family::V4
                },
                1,
            );
            apply(&mut ipvs, &[add_service(here), add_dest(here, real)]);
            let set = |real_server| Request::SetDest {
                key: here,
                real_server,
                config: weight(2),
            };
            let cases = [
                (Request::DelService { key: gone }, Errno::ESRCH),
                (
                    Request::SetService {
                        key: gone,
                        config: round_robin().into(),
                    },
                    Errno::ESRCH,
                ),
                (add_dest(gone, real), Errno::ESRCH),
                (add_dest(here, real), Errno::EEXIST),
                (set(other), Errno::ENOENT),
                (
                    Request::DelDest {
                        key: here,
                        real_server: other,
                    },
                    Errno::ENOENT,
                ),
                (
                    Request::AddService {
                        key: gone,
                        config: scheduler.into(),
                    },
                    Errno::ENOENT,
                ),
                (add_service(port_zero), Errno::EINVAL),
                (add_dest(here, foreign), Errno::EINVAL),
            ];
            let requests: Vec<Request> = cases.iter().map(|(request, _)| request.clone()).collect();
            let expected: Vec<RequestError> = cases
                .iter()
                .enumerate()
                .map(|(index, (_, errno))| RequestError {
                    index,
                    errno: *errno,
                })
                .collect();
            assert_eq!(ipvs.apply(&requests).unwrap(), expected);
            assert_eq!(ipvs.connections(&gone).unwrap(), BTreeMap::new());
        }
    });
}

#[test]
fn tells_which_schedulers_there_are() {
    in_netns(
        "tells_which_schedulers_there_are",
        LANES,
        Ipvs::open,
        |mut ipvs| {
            assert!(ipvs.has_scheduler("mh").unwrap());
            assert!(!ipvs.has_scheduler("nonsense").unwrap());
            for family in Family::ALL {
                assert_eq!(ipvs.probe(family, "rr").unwrap(), None);
                let missing = ipvs.probe(family, "nonsense").unwrap();
                assert_eq!(missing, Some(Errno::ENOENT));
            }
            assert_eq!(dumped(&mut ipvs), BTreeMap::new());
            // Left by a process killed during a probe.
            let left = Request::AddService {
                key: VirtualServerKey::new(Protocol::Tcp, "198.51.100.0".parse().unwrap(), 20_000),
                config: VirtualServerConfig::round_robin().into(),
            };
            assert_eq!(ipvs.apply([left]).unwrap(), []);
            assert!(ipvs.has_scheduler("mh").unwrap());
            assert_eq!(dumped(&mut ipvs), BTreeMap::new());

            // A foreign virtual server at the probed address stays, and does not prevent the probe.
            let taken = ["198.51.100.0", "2001:db8::c633:6400"];
            let taken =
                taken.map(|ip| VirtualServerKey::new(Protocol::Tcp, ip.parse().unwrap(), 20_000));
            apply(&mut ipvs, &taken.map(add_service));
            apply(&mut ipvs, &[add_dest(taken[0], real_server(Family::V4, 1))]);
            let before = dumped(&mut ipvs);
            for family in Family::ALL {
                assert_eq!(ipvs.probe(family, "wrr").unwrap(), None);
                let missing = ipvs.probe(family, "nonsense").unwrap();
                assert_eq!(missing, Some(Errno::ENOENT));
            }
            assert_eq!(dumped(&mut ipvs), before);
        },
    );
}

/// A client, the virtual server and the real server are all on the loopback device.
#[test]
fn counts_connections() {
    in_netns("counts_connections", LANES, Ipvs::open, |mut ipvs| {
        for family in Family::ALL {
            let (key, real) = (key(family, 1), real_server(family, 1));
            let vip = key.socket().unwrap();
            for address in [vip.ip(), real.ip()] {
                let option = if family == Family::V6 { "nodad" } else { "" };
                output("ip", &format!("address add {address} dev lo {option}")).unwrap();
            }
            let listener = TcpListener::bind(real).unwrap();
            apply(&mut ipvs, &[add_service(key), add_dest(key, real)]);
            let idle = BTreeMap::from([(real, Connections::default())]);
            assert_eq!(ipvs.connections(&key).unwrap(), idle);

            let client = TcpStream::connect(vip).unwrap();
            let accepted = listener.accept().unwrap();
            let active = Connections {
                active: 1,
                ..Connections::default()
            };
            assert_eq!(
                ipvs.connections(&key).unwrap(),
                BTreeMap::from([(real, active)])
            );
            assert_eq!(ipvs.usage(&key).unwrap()[&real].connections, active);
            // Every 2 s the kernel brings its counters up to date.
            let start = std::time::SystemTime::now();
            let used = loop {
                let used = ipvs.usage(&key).unwrap()[&real];
                let waited = start.elapsed().unwrap_or_default();
                if used.total_connections > 0 || waited.as_secs() > 60 {
                    break used;
                }
                std::thread::yield_now();
            };
            assert_eq!(used.total_connections, 1);
            assert!(used.bytes_in > 0 && used.bytes_out > 0, "{used:?}");
            drop((client, accepted));
            let inactive = Connections {
                inactive: 1,
                ..Connections::default()
            };
            assert_eq!(
                ipvs.connections(&key).unwrap(),
                BTreeMap::from([(real, inactive)])
            );
        }
    });
}
