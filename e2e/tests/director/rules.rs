// SPDX-License-Identifier: Apache-2.0

//! iptables rules and sets exist from the first load balancer on that needs some.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::Protocol;
use portolan_e2e::wait::wait_for;

use super::world::{VIP, World, balancer, serve, vip};

/// Tools of iptables that note each run in a file, and then do their work.
fn noting_tools(directory: &Path) -> (String, PathBuf) {
    let (tools, runs) = (directory.join("tools"), directory.join("runs"));
    std::fs::create_dir(&tools).unwrap();
    let path = std::env::var("PATH").unwrap();
    for family in ["iptables", "ip6tables"] {
        for variant in ["", "-nft", "-legacy"] {
            for deed in ["save", "restore"] {
                let name = format!("{family}{variant}-{deed}");
                let script = format!(
                    "#!/bin/sh\necho {name} >>{}\nPATH={path} exec {name} \"$@\"\n",
                    runs.display()
                );
                let file = tools.join(name);
                std::fs::write(&file, script).unwrap();
                let executable = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(&file, executable).unwrap();
            }
        }
    }
    (format!("{}:{path}", tools.display()), runs)
}

fn on_director(world: &World, command: &str) -> String {
    let words: Vec<_> = command.split(' ').collect();
    world.director().exec(&words).unwrap()
}

fn sets(world: &World) -> BTreeSet<String> {
    let names = on_director(world, "ipset list -n");
    names.lines().map(str::to_owned).collect()
}

/// The setting by which connections of IPVS are in conntrack.
pub(super) fn conntrack(world: &World) -> String {
    let value = on_director(world, "cat /proc/sys/net/ipv4/vs/conntrack");
    value.trim().to_owned()
}

pub(super) fn set_conntrack(world: &World, value: &str) {
    let namespace = world.director().namespace();
    namespace.sysctl(&[("ipv4/vs/conntrack", value)]).unwrap();
}

/// Waits until a real server sees this source of the client's connections.
fn wait_for_source(world: &World, expected: IpAddr) {
    let mut last = None;
    let seen = || {
        last = Some(world.client().request(Protocol::Tcp, vip(VIP), PROMPT));
        let answer = last.as_ref()?.as_ref().ok()?;
        (answer.source == expected).then_some(())
    };
    let waited = wait_for("the right source", PATIENT, seen);
    assert!(waited.is_ok(), "{last:?}, expected {expected}");
}

#[test]
fn a_director_that_needs_no_rules_has_none_until_it_does() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    let client = world.client().v4();
    for real in [a, b] {
        let quiet = [
            ("ipv4/conf/all/accept_redirects", "0"),
            ("ipv4/conf/eth0/accept_redirects", "0"),
        ];
        real.namespace().sysctl(&quiet).unwrap();
        let director = world.director().v4().into();
        real.add_route(&format!("{client}/32"), director).unwrap();
    }
    let _serving = [serve(a), serve(b)];
    let needs = balancer("  scheduler: rr\n", &[(a, ""), (b, "")]);
    let plain = needs.replace("  sourceNat: true\n", "");
    assert_ne!(plain, needs);
    world.write(&plain);
    set_conntrack(&world, "0");

    let (path, runs) = noting_tools(world.directory.path());
    let start = || {
        world.start_agent_by(|command| {
            command.env("PATH", &path);
        })
    };
    let mut agent = start();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    world.wait_for_answers(&[a.name(), b.name()]);
    wait_for_source(&world, client.into());
    assert!(!runs.exists(), "{:?}", std::fs::read_to_string(&runs));
    assert_eq!(conntrack(&world), "1", "answers pass firewalls of the host");
    let owned = ["KUBE-6-PORTOLAN-OWNED", "KUBE-PORTOLAN-OWNED"].map(str::to_owned);
    assert_eq!(sets(&world), owned.into());
    assert!(!on_director(&world, "iptables-save").contains("KUBE-"));

    // The first one that needs rules, of IPv4 alone.
    world.write(&needs);
    wait_for_source(&world, world.director().v4().into());
    world.wait_for_answers(&[a.name(), b.name()]);
    assert!(on_director(&world, "iptables-save").contains("-j KUBE-SERVICES"));
    assert!(!on_director(&world, "ip6tables-save").contains("KUBE-"));
    assert!(sets(&world).contains("KUBE-EXTERNAL-IP"));
    assert!(!sets(&world).contains("KUBE-6-EXTERNAL-IP"));
    assert!(runs.exists());

    // A restart finds them in place.
    let rules = on_director(&world, "iptables-save -t nat");
    let rules_of = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("-A "));
        lines.map(str::to_owned).collect()
    };
    agent.kill9().unwrap();
    set_conntrack(&world, "0");
    let mut agent = start();
    let is_set = || (conntrack(&world) == "1").then_some(());
    wait_for("conntrack", PATIENT, is_set).unwrap();
    world.wait_for_answers(&[a.name(), b.name()]);
    wait_for_source(&world, world.director().v4().into());

    // They stay, and match nothing, when nothing needs them any more.
    world.write(&plain);
    wait_for_source(&world, client.into());
    let after = on_director(&world, "iptables-save -t nat");
    assert_eq!(rules_of(&after), rules_of(&rules));
    let set = on_director(&world, "ipset list KUBE-EXTERNAL-IP");
    assert!(!set.contains(VIP), "{set}");
    assert_eq!(conntrack(&world), "1", "connections may depend on it");
    // The sets of all families go with them.
    agent.kill9().unwrap();
    let directory = world.directory.path().join("state");
    let state = format!("--state-dir={}", directory.display());
    let (code, said) = world.agent(&["cleanup", &state]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(sets(&world), BTreeSet::new());
    assert!(!on_director(&world, "iptables-save").contains("KUBE-"));
}
