// SPDX-License-Identifier: Apache-2.0

//! Local routes on a real kernel: needs root, each test has a network namespace of its own.

#[path = "common/mod.rs"]
mod common;

use std::net::IpAddr;

use portolan_model::Family;
use portolan_netlink::Errno;
use portolan_netlink::route::{LocalRoutes, Mark, Request, RequestError, Route};

use common::{in_netns, output};

const LANES: &[&str] = &["netns", "uml", "debian"];
const MARK: Mark = Mark {
    protocol: 99,
    metric: 1099,
};

/// Foreign routes of VIPs: some equal to the agent's, one that differs, and a virtual address of a
/// kube-proxy's device (any device will do).
const OTHERS: [&str; 8] = [
    "link add kube-ipvs0 type veth peer name theirs",
    "link set kube-ipvs0 up",
    "addr add 10.96.0.3/32 dev kube-ipvs0",
    "addr add fd00:96::3/128 dev kube-ipvs0 nodad",
    "route add local 10.96.0.1/32 dev lo table local proto 42",
    "-6 route add local fd00:96::1/128 dev lo table local proto 42",
    "route add blackhole 10.96.0.2/32 table local proto 42",
    "-6 route add blackhole fd00:96::2/128 table local proto 42",
];

fn ip(arguments: &str) -> String {
    output("ip", arguments).expect("ip")
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn vips() -> Vec<IpAddr> {
    let of = |start| (1..5).map(move |last| address(&format!("{start}{last}")));
    ["10.96.0.", "fd00:96::"].into_iter().flat_map(of).collect()
}

/// The node has an address of each family, to be the source, and others have theirs.
fn open() -> Result<LocalRoutes, String> {
    for arguments in [
        "addr add 192.0.2.1/32 dev lo",
        "addr add 2001:db8::1/128 dev lo nodad",
        "addr add 192.0.2.2/32 dev lo",
        "addr add 2001:db8::2/128 dev lo nodad",
    ]
    .iter()
    .chain(&OTHERS)
    {
        output("ip", arguments).map_err(|error| error.to_string())?;
    }
    LocalRoutes::open(MARK).map_err(|error| error.to_string())
}

/// The routes of VIPs that have `proto 99`, or have not.
fn shown(ours: bool) -> Vec<String> {
    let all = ip("-4 route show table local") + &ip("-6 route show table local");
    let lines = all.lines().filter(|line| line.contains("96"));
    let is_ours = |line: &&str| line.contains("metric 1099") == ours;
    lines.filter(is_ours).map(str::to_owned).collect()
}

fn source(vip: IpAddr, last: u8) -> Option<IpAddr> {
    Some(match vip {
        IpAddr::V4(_) => address(&format!("192.0.2.{last}")),
        IpAddr::V6(_) => address(&format!("2001:db8::{last}")),
    })
}

fn apply(routes: &mut LocalRoutes, request: impl Fn(IpAddr) -> Request) -> Vec<RequestError> {
    let requests: Vec<_> = vips().into_iter().map(request).collect();
    routes.apply(&requests).expect("answers")
}

fn read(routes: &mut LocalRoutes) -> Vec<Route> {
    let mut all = Vec::new();
    for family in Family::ALL {
        let add = |found: &mut Vec<Route>, route| found.push(route);
        all.extend(routes.read(family, add).expect("routes"));
    }
    all
}

#[test]
fn routes_of_others_stay_as_they_are() {
    let test = "routes_of_others_stay_as_they_are";
    in_netns(test, LANES, open, |mut routes| {
        let before = shown(false);
        assert_eq!(before.len(), 6, "{before:?}");
        let foreign = ["10.96.0.1", "10.96.0.2", "fd00:96::1", "fd00:96::2"].map(|text| {
            let address = address(text);
            Route::Foreign { address }
        });
        // Routes that the kernel adds for addresses are left out, and shown apart.
        assert_eq!(read(&mut routes), foreign);
        for (family, ip) in [(Family::V4, "10.96.0.3"), (Family::V6, "fd00:96::3")] {
            let found = routes.of_addresses(family).expect("routes");
            assert!(found.contains(&address(ip)), "{found:?}");
            assert!(
                found.iter().all(|ip| Family::of(*ip) == family),
                "{found:?}"
            );
        }

        let add = |vip| Request::Add(vip, source(vip, 1));
        assert_eq!(apply(&mut routes, add), []);
        assert_eq!((shown(false), shown(true).len()), (before.clone(), 8));
        let found = read(&mut routes);
        for vip in vips() {
            let (address, source) = (vip, source(vip, 1));
            assert!(found.contains(&Route::Ours { address, source }), "{vip}");
        }
        assert_eq!(found.len(), 8 + foreign.len(), "{found:?}");
        let again = apply(&mut routes, add);
        assert_eq!(again.len(), 8, "{again:?}");
        assert!(again.iter().all(|error| error.errno == Errno::EEXIST));

        assert_eq!(
            apply(&mut routes, |vip| Request::Set(vip, source(vip, 2))),
            []
        );
        assert_eq!(shown(false), before);
        let ours = shown(true);
        let set = |line: &String| line.contains("192.0.2.2") || line.contains("2001:db8::2");
        assert!(ours.len() == 8 && ours.iter().all(set), "{ours:?}");

        assert_eq!(apply(&mut routes, Request::Del), []);
        assert_eq!((shown(false), shown(true).len()), (before.clone(), 0));
        let gone = apply(&mut routes, Request::Del);
        assert!(gone.iter().all(|error| error.errno == Errno::ESRCH));
        assert_eq!((shown(false), gone.len()), (before, 8));
    });
}

#[test]
fn our_route_counts_as_soon_as_nobody_else_has_one() {
    let test = "our_route_counts_as_soon_as_nobody_else_has_one";
    in_netns(test, LANES, open, |mut routes| {
        let add = |vip| Request::Add(vip, source(vip, 1));
        assert_eq!(apply(&mut routes, add), []);
        for arguments in &OTHERS[2..] {
            ip(&arguments.replace(" add ", " del ").replace(" nodad", ""));
        }
        assert_eq!(shown(false), Vec::<String>::new());
        for vip in vips() {
            let source = source(vip, 1).expect("one");
            let found = ip(&format!("route get {vip}"));
            assert!(found.contains("local"), "{found}");
            assert!(found.contains(&format!("src {source}")), "{found}");
        }
    });
}
