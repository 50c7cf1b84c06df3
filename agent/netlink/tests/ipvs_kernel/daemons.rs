// SPDX-License-Identifier: Apache-2.0

//! Sync daemons of the kernel: their attributes, and its refusals.

use std::time::{Duration, Instant};

use portolan_model::Family;
use portolan_model::ipvs::{ForwardingMethod, RealServerConfig, SyncDaemon, SyncRole, Tunnel};
use portolan_netlink::ipvs::{Ipvs, IpvsError, Request};
use portolan_netlink::{Errno, SocketError};

use crate::common::{in_netns, output};
use crate::{LANES, add_service, apply, key, real_server};

fn refused(errno: Errno) -> Result<(), IpvsError> {
    Err(IpvsError::Socket(SocketError::Refused(errno)))
}

/// IPVS in a namespace with an interface that multicast can leave by.
fn open() -> Result<Ipvs, String> {
    for arguments in [
        "link add d0 type veth peer name d1",
        "addr add 192.0.2.1/24 dev d0",
        "addr add fd00:2::1/64 dev d0 nodad",
        "link set d0 up",
        "link set d1 up",
    ] {
        output("ip", arguments).map_err(|error| error.to_string())?;
    }
    Ipvs::open().map_err(|error| error.to_string())
}

/// Waits until all threads of sync daemons wait for work. One that is stopped before it ever ran may take
/// seconds to end.
fn wait_for_threads() {
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_waiting = |stat: &str| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" S"))
    };
    loop {
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
        let stats = processes.filter_map(|p| std::fs::read_to_string(p.path().join("stat")).ok());
        let mut threads = stats.filter(|stat| stat.contains("(ipvs-"));
        if threads.all(|stat| is_waiting(&stat)) {
            return;
        }
        assert!(Instant::now() < deadline, "sync threads do not run");
        std::thread::yield_now();
    }
}

/// Daemons with every attribute off its default, and with a group of each family.
fn daemons() -> [SyncDaemon; 3] {
    let all = SyncDaemon {
        id: 255,
        max_length: 1400,
        group: "224.0.0.82".parse().expect("a group"),
        port: 9000,
        ttl: 3,
        ..SyncDaemon::new("d0")
    };
    let v6 = SyncDaemon {
        group: "ff02::81".parse().expect("a group"),
        ..all.clone()
    };
    [SyncDaemon::new("d0"), all, v6]
}

#[test]
fn both_daemons_start_are_read_back_and_stop() {
    let test = "both_daemons_start_are_read_back_and_stop";
    in_netns(test, LANES, open, |mut ipvs| {
        for daemon in daemons() {
            for role in SyncRole::ALL {
                assert_eq!(ipvs.add_daemon(role, &daemon), Ok(()), "{role} {daemon:?}");
                assert_eq!(ipvs.add_daemon(role, &daemon), refused(Errno::EEXIST));
            }
            wait_for_threads();
            let found = ipvs.daemons().expect("daemons");
            for role in SyncRole::ALL {
                assert!(daemon.is_in_force(role, &found[&role]), "{found:?}");
            }
            for role in SyncRole::ALL {
                assert_eq!(ipvs.del_daemon(role), Ok(()));
                assert_eq!(ipvs.del_daemon(role), refused(Errno::ESRCH));
            }
            assert_eq!(ipvs.daemons().expect("daemons").len(), 0);
        }
    });
}

#[test]
fn lengths_are_what_the_kernel_makes_of_them() {
    let test = "lengths_are_what_the_kernel_makes_of_them";
    in_netns(test, LANES, open, |mut ipvs| {
        for max_length in [1, 500, 1472, 8972, 65_535] {
            for group in ["224.0.0.81", "ff02::81"] {
                for role in SyncRole::ALL {
                    let daemon = SyncDaemon {
                        max_length,
                        group: group.parse().expect("a group"),
                        ..SyncDaemon::new("d0")
                    };
                    assert_eq!(ipvs.add_daemon(role, &daemon), Ok(()));
                    wait_for_threads();
                    let found = ipvs.daemons().expect("daemons").remove(&role);
                    let found = found.expect("the daemon");
                    assert!(
                        daemon.is_in_force(role, &found),
                        "{role} {daemon:?}: {found:?}"
                    );
                    assert_eq!(ipvs.del_daemon(role), Ok(()));
                }
            }
        }
    });
}

#[test]
fn a_daemon_needs_its_interface_and_one_family() {
    let test = "a_daemon_needs_its_interface_and_one_family";
    in_netns(test, LANES, open, |mut ipvs| {
        let (master, daemon) = (SyncRole::Master, SyncDaemon::new("d0"));
        let missing = SyncDaemon::new("missing");
        assert_eq!(ipvs.add_daemon(master, &missing), refused(Errno::ENODEV));

        let virtual_server = key(Family::V4, 1);
        let mixed = Request::AddDest {
            key: virtual_server,
            real_server: real_server(Family::V6, 1),
            config: RealServerConfig {
                forwarding: ForwardingMethod::Tunnel(Tunnel::Ipip),
                ..RealServerConfig::masquerade(1)
            },
        };
        let service = add_service(virtual_server);
        apply(&mut ipvs, &[service, mixed.clone()]);
        assert_eq!(ipvs.add_daemon(master, &daemon), refused(Errno::EINVAL));
        let delete = Request::DelService {
            key: virtual_server,
        };
        apply(&mut ipvs, &[delete, add_service(virtual_server)]);
        assert_eq!(ipvs.add_daemon(master, &daemon), Ok(()));
        let errors = ipvs.apply([&mixed]).expect("answers");
        assert_eq!(errors.first().map(|error| error.errno), Some(Errno::EINVAL));
    });
}
