// SPDX-License-Identifier: Apache-2.0

//! IPVS on a real kernel that has it: needs root, each test has a network namespace of its own.

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod daemons;
mod objects;
mod settings;
mod timeouts;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use portolan_model::ipvs::{
    RealServerConfig, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{Family, Protocol};
use portolan_netlink::ipvs::{Ipvs, Request};

pub(crate) const LANES: &[&str] = &["uml", "debian"];
pub(crate) const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

pub(crate) type State = BTreeMap<VirtualServerKey, VirtualServer>;

pub(crate) fn ip(family: Family, net: u8, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    match family {
        Family::V4 => Ipv4Addr::new(10, net, high, low).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, net.into(), number).into(),
    }
}

pub(crate) fn key(family: Family, number: u16) -> VirtualServerKey {
    VirtualServerKey::new(Protocol::Tcp, ip(family, 96, number), 80)
}

pub(crate) fn real_server(family: Family, number: u16) -> SocketAddr {
    SocketAddr::new(ip(family, 244, number), 8080)
}

pub(crate) fn round_robin() -> VirtualServerConfig {
    VirtualServerConfig::round_robin()
}

pub(crate) fn weight(weight: u32) -> RealServerConfig {
    RealServerConfig::masquerade(weight)
}

pub(crate) fn add_service(key: VirtualServerKey) -> Request {
    Request::AddService {
        key,
        config: round_robin().into(),
    }
}

pub(crate) fn add_dest(key: VirtualServerKey, real_server: SocketAddr) -> Request {
    Request::AddDest {
        key,
        real_server,
        config: weight(1),
    }
}

/// `count` virtual servers of a family with `dests` real servers each, with the requests for them.
pub(crate) fn many(family: Family, count: u16, dests: u16) -> (Vec<Request>, State) {
    let (mut requests, mut state) = (Vec::new(), State::new());
    for key in (1..=count).map(|number| key(family, number)) {
        requests.push(add_service(key));
        let addresses = || (1..=dests).map(|number| real_server(family, number));
        requests.extend(addresses().map(|address| add_dest(key, address)));
        let real_servers = addresses().map(|address| (address, weight(1)));
        let virtual_server = VirtualServer {
            config: round_robin().into(),
            real_servers: Arc::new(real_servers.collect()),
        };
        state.insert(key, virtual_server);
    }
    (requests, state)
}

pub(crate) fn apply(ipvs: &mut Ipvs, requests: &[Request]) {
    assert_eq!(ipvs.apply(requests), Ok(Vec::new()));
}

pub(crate) fn dumped(ipvs: &mut Ipvs) -> State {
    let state = ipvs.dump().expect("a dump");
    assert_eq!(state.skipped, 0);
    state.virtual_servers
}
