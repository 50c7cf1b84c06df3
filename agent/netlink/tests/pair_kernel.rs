// SPDX-License-Identifier: Apache-2.0

//! Announcements of a director to its neighbours and its routing daemon, on a real kernel: needs root, each test has
//! network namespaces of its own.

#[path = "common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portolan_netlink::announce::Announcer;
use portolan_netlink::announced::AnnouncedRoutes;
use portolan_netlink::neighbour::ProxyNeighbours;
use portolan_netlink::{Errno, SocketError};

use common::{in_netns, output};

const LANES: &[&str] = &["netns", "uml", "debian"];
const V4: &str = "192.0.2.10";
const V6: &str = "2001:db8::10";

fn ip(arguments: &str) -> String {
    output("ip", arguments).expect("ip")
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn refused(errno: Errno) -> Result<(), SocketError> {
    Err(SocketError::Refused(errno))
}

#[test]
fn announced_routes_are_those_of_a_table_and_of_ours() {
    let test = "announced_routes_are_those_of_a_table_and_of_ours";
    let open = || AnnouncedRoutes::open(99);
    in_netns(test, LANES, open, |mut routes| {
        for table in [199, 1000] {
            assert_eq!(routes.read(table), Ok(BTreeSet::new()));
            for vip in [V4, V6].map(address) {
                assert_eq!(routes.add(table, vip), Ok(()));
                assert_eq!(routes.add(table, vip), refused(Errno::EEXIST));
            }
        }
        // Foreign routes stay what they are.
        ip("route add 192.0.2.11/32 dev lo table 199 proto 42");
        ip("route add 192.0.2.12/32 dev lo table 200 proto 99");
        let both: BTreeSet<_> = [V4, V6].map(address).into();
        assert_eq!(routes.read(199), Ok(both.clone()));
        assert_eq!(routes.read(1000), Ok(both));
        let shown = ip("-N route show table 199") + &ip("-N -6 route show table 199");
        assert!(
            shown.contains(&format!("{V4} dev lo proto 99 scope 253")),
            "{shown}"
        );
        assert!(shown.contains(&format!("{V6} dev lo proto 99")), "{shown}");
        for vip in [V4, V6].map(address) {
            assert_eq!(routes.del(199, vip), Ok(()));
            assert_eq!(routes.del(199, vip), refused(Errno::ESRCH));
        }
        assert_eq!(
            routes.del(199, address("192.0.2.11")),
            refused(Errno::ESRCH)
        );
        assert_eq!(routes.read(199), Ok(BTreeSet::new()));
        assert!(ip("route show table 199").contains("192.0.2.11"));
    });
}

/// A pair of interfaces, the second one in the namespace of a neighbour.
fn open<T>(open: impl FnOnce() -> Result<T, SocketError>) -> Result<T, String> {
    for arguments in [
        "link add eth0 type veth peer name eth1",
        "addr add 192.0.2.1/24 dev eth0",
        "addr add 2001:db8::1/64 dev eth0 nodad",
        "link set eth0 up",
        "link set eth1 up",
    ] {
        output("ip", arguments).map_err(|error| error.to_string())?;
    }
    open().map_err(|error| error.to_string())
}

#[test]
fn proxy_neighbours_of_ours_are_told_from_others() {
    let test = "proxy_neighbours_of_ours_are_told_from_others";
    let prepare = || open(|| ProxyNeighbours::open(99));
    in_netns(test, LANES, prepare, |mut neighbours| {
        ip("neighbour add proxy 2001:db8::99 dev eth0");
        let shown = ip("-o link show eth0");
        let index = shown.split(':').next().expect("an index");
        let index: u32 = index.trim().parse().expect("an index");
        let proxy = (index, address(V6));
        assert_eq!(neighbours.read(), Ok(BTreeSet::new()));
        assert_eq!(neighbours.add(proxy), Ok(()));
        assert_eq!(neighbours.add(proxy), Ok(()));
        assert_eq!(neighbours.read(), Ok([proxy].into()));
        assert_eq!(neighbours.add((9999, proxy.1)), refused(Errno::ENODEV));
        assert_eq!(neighbours.del(proxy), Ok(()));
        assert_eq!(neighbours.del(proxy), refused(Errno::ENOENT));
        assert!(ip("-6 neighbour show proxy").contains("2001:db8::99"));
    });
}

/// A neighbour in a namespace of its own, which ends with it.
struct Neighbour(std::process::Child);

impl Neighbour {
    /// Moves an interface there, and gives it addresses beside the VIPs.
    fn with(interface: &str) -> Self {
        let mut sleeping = std::process::Command::new("unshare");
        let child = sleeping.args(["--net", "sleep", "600"]).spawn();
        let this = Self(child.expect("unshare"));
        let own = std::fs::read_link("/proc/thread-self/ns/net").expect("a namespace");
        let there = format!("/proc/{}/ns/net", this.0.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_link(&there).is_ok_and(|link| link == own) {
            assert!(Instant::now() < deadline, "no namespace");
            std::thread::yield_now();
        }
        ip(&format!("link set {interface} netns {}", this.0.id()));
        for arguments in [
            format!("link set {interface} up"),
            format!("addr add 192.0.2.2/24 dev {interface}"),
            format!("addr add 2001:db8::2/64 dev {interface} nodad"),
        ] {
            this.ip(&arguments);
        }
        this
    }

    fn ip(&self, arguments: &str) -> String {
        let arguments = format!("--net=/proc/{}/ns/net ip {arguments}", self.0.id());
        output("nsenter", &arguments).expect("nsenter")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_neighbour_follows_an_announcement() {
    let test = "a_neighbour_follows_an_announcement";
    let prepare = || open(|| Ok(()));
    in_netns(test, LANES, prepare, |()| {
        let neighbour = Neighbour::with("eth1");
        let elsewhere = "02:00:00:00:00:99";
        for vip in [V4, V6] {
            neighbour.ip(&format!(
                "neighbour replace {vip} lladdr {elsewhere} dev eth1 nud reachable"
            ));
        }
        let link = ip("-o link show eth0");
        let hardware = link
            .split("link/ether ")
            .nth(1)
            .expect("an Ethernet address");
        let hardware = hardware.split(' ').next().expect("an Ethernet address");
        let announcer = Announcer::open("eth0").expect("a packet socket");
        for vip in [V4, V6] {
            let entry = || neighbour.ip(&format!("neighbour show {vip}"));
            assert!(entry().contains(elsewhere), "{}", entry());
            let deadline = Instant::now() + Duration::from_secs(10);
            // ARP entries may be locked for a second after a change (`locktime`).
            while !entry().contains(hardware) {
                assert!(Instant::now() < deadline, "{vip}: {}", entry());
                announcer.announce(address(vip)).expect("sent");
            }
        }
    });
}
