// SPDX-License-Identifier: Apache-2.0

//! Debian's BIRD beside two directors: a router learns by BGP which of them answers.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::programs::{Unpacked, unpacked};
use portolan_e2e::rig::{Host, Process, Protocol};
use portolan_e2e::wait::wait_for;

use super::pair::{Pair, Survival, VIP, vip};

/// The table of the agents' announcements, as the documentation has it.
const DIRECTORS: &str = "vips: {role: Command}\n  announceTable: 199";
const BIRD: &str = "usr/sbin/bird";

/// Settings of all routers.
fn head(own: Ipv4Addr) -> String {
    format!("log stderr all;\nrouter id {own};\nprotocol device {{ scan time 1; }}\n")
}

fn session(name: &str, own: (Ipv4Addr, u32), other: (Ipv4Addr, u32), channel: &str) -> String {
    format!(
        "protocol bgp {name} {{\n    local {} as {};\n    neighbor {} as {};\n    connect delay time 1;\n    \
         connect retry time 1;\n    error wait time 1, 2;\n    hold time 9;\n    ipv4 {{ {channel} }};\n}}\n",
        own.0, own.1, other.0, other.1
    )
}

/// A director's daemon: the announcements go to the router.
fn of_director(own: Ipv4Addr, router: Ipv4Addr) -> String {
    let mut text = head(own);
    text.push_str(
        "protocol kernel announced {\n    kernel table 199;\n    learn;\n    scan time 1;\n    \
         ipv4 { import all; export none; };\n}\n",
    );
    text + &session(
        "to_router",
        (own, 65001),
        (router, 65000),
        "import none; export all; next hop self;",
    )
}

/// The router's daemon: what the directors tell goes to the kernel.
fn of_router(own: Ipv4Addr, directors: [Ipv4Addr; 2]) -> String {
    let mut text = head(own);
    text.push_str("protocol kernel {\n    ipv4 { import none; export all; };\n}\n");
    for (number, director) in directors.into_iter().enumerate() {
        let name = format!("director{number}");
        let _ = writeln!(
            text,
            "{}",
            session(
                &name,
                (own, 65000),
                (director, 65001),
                "import all; export none;"
            )
        );
    }
    text
}

fn start(pair: &Pair, host: &Host, bird: &Unpacked, configuration: &str) -> Process {
    let directory = pair.directory.path();
    let path = |end: &str| directory.join(format!("bird-{}.{end}", host.name()));
    std::fs::write(path("conf"), configuration).unwrap();
    let mut command = bird.command(BIRD);
    command
        .arg("-f")
        .arg("-c")
        .arg(path("conf"))
        .arg("-s")
        .arg(path("socket"));
    let name = format!("bird-{}", host.name());
    Process::spawn(host.namespace(), &name, &mut command, directory).unwrap()
}

#[test]
fn a_router_learns_by_bgp_which_director_answers() {
    let test = "a_router_learns_by_bgp_which_director_answers";
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let Some(bird) = unpacked("bird2", BIRD) else {
        lane::missing(test, "no bird: e2e/lanes/unpack bird2");
        return;
    };
    let pair = Pair::start(Survival::Neither, DIRECTORS);
    let router = pair.client();
    let directors = [0, 1].map(|number| pair.rig.node(number).v4());
    let daemons = [
        start(
            &pair,
            pair.rig.node(0),
            &bird,
            &of_director(directors[0], router.v4()),
        ),
        start(
            &pair,
            pair.rig.node(1),
            &bird,
            &of_director(directors[1], router.v4()),
        ),
        start(&pair, router, &bird, &of_router(router.v4(), directors)),
    ];
    let route = || {
        router
            .exec(&["ip", "-4", "route", "show", &format!("{VIP}/32")])
            .unwrap()
    };
    let learns = |what: &str, is_so: &dyn Fn(&str) -> bool| {
        let learned = wait_for(what, PATIENT, || is_so(&route()).then_some(()));
        learned.unwrap_or_else(|error| {
            let logs = daemons
                .iter()
                .map(|daemon| daemon.log().unwrap())
                .collect::<Vec<_>>()
                .join("\n");
            panic!("{error}: {:?}: {logs}", route())
        });
    };
    let by = |number: usize| format!("via {} ", directors[number]);
    let is_answered = || {
        let answered = router.request(Protocol::Tcp, vip(), PROMPT);
        answered.unwrap_or_else(|error| panic!("{error}: {}", route()));
    };
    // Both are on standby.
    assert_eq!(route(), "");
    for (active, standby) in [(0, 1), (1, 0)] {
        pair.command(standby, "standby");
        pair.command(active, "active");
        learns("the way to the active director", &|route| {
            route.contains(&by(active)) && !route.contains(&by(standby))
        });
        is_answered();
    }
    pair.command(1, "standby");
    learns("no way to the address", &|route| route.is_empty());
}
