// SPDX-License-Identifier: Apache-2.0

//! Commands to a running director, over its socket, and their effect in the kernel.

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Connection, EchoServer, Host, Protocol};
use portolan_e2e::wait::wait_for;

use super::rows::apply;
use super::world::{CHECKS, PORT, VIP, World, balancer, serve, vip};

/// The line of a real server in the kernel, without its weight; `None` if it is not there.
fn weight(world: &World, host: &Host) -> Option<u32> {
    let server = format!("-r {}:{PORT} ", host.v4());
    let state = world.ipvsadm();
    let line = state.lines().find(|line| line.contains(&server))?;
    let weight = line.split(" -w ").nth(1)?;
    weight.split(' ').next()?.parse().ok()
}

/// A director whose two real servers are checked and serve.
fn two() -> (World, [EchoServer; 2], String) {
    let world = World::new(2);
    let serving = [serve(world.real(0)), serve(world.real(1))];
    let spec = format!("  scheduler: rr\n  checks: {CHECKS}\n");
    let text = balancer(&spec, &[(world.real(0), ""), (world.real(1), "")]);
    world.write(&text);
    (world, serving, text)
}

/// Runs a command about the first real server; gives what it prints.
fn backend(world: &World, command: &str, rest: &[&str]) -> String {
    let name = format!("web/{}", world.real(0).v4());
    let (code, text) = world.ask_agent(&[&["backend", command, &name], rest].concat());
    assert_eq!(code, Some(0), "{text}");
    text
}

/// A connection to each real server.
fn connect_to_both(world: &World) -> [Connection; 2] {
    let connect = || {
        let connected = world.client().connect(Protocol::Tcp, vip(VIP), PROMPT);
        connected.unwrap()
    };
    let mut both = [connect(), connect()];
    let mut servers = both.each_mut().map(|each| each.ask().unwrap().name);
    servers.sort();
    assert_eq!(servers, [world.real(0).name(), world.real(1).name()]);
    both
}

#[test]
fn a_backend_is_drained_until_it_is_enabled() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let (world, _serving, text) = two();
    let (a, b) = (world.real(0), world.real(1));
    let mut agent = world.start_agent();
    world.wait_for_answers(&[a.name(), b.name()]);
    let mut both = connect_to_both(&world);
    let of_b_alone = [(b.name().to_owned(), 12)].into();

    // The kernel has it when the command ends, and nobody is refused.
    let answer = backend(&world, "drain", &[]);
    let state = format!("default/web/{}:{PORT}: drain (by command)", a.v4());
    assert!(answer.contains(&state), "{answer}");
    assert_eq!((weight(&world, a), weight(&world, b)), (Some(0), Some(1)));
    assert_eq!(world.count(12), of_b_alone);
    // Present connections go on.
    both.iter_mut().for_each(|each| drop(each.ask().unwrap()));
    let (code, shown) = world.ask_agent(&["status", "web"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("drain (command)"), "{shown}");
    let note = format!("# default/web/{}: drain by command", a.v4());
    assert!(shown.contains(&note), "{shown}");

    // Neither the file nor a restart ends it.
    world.write(&text.replace("scheduler: rr", "scheduler: wrr"));
    assert_eq!(world.ask_agent(&["reload"]).0, Some(0));
    assert!(world.ipvsadm().contains("-s wrr"), "{}", world.ipvsadm());
    assert_eq!(weight(&world, a), Some(0));
    world.wait_for_saved(&[(a, "Up"), (b, "Up")]);
    agent.kill9().unwrap();
    let _agent = world.start_agent();
    let is_there = || (world.ask_agent(&["status", "--healthy"]).0 == Some(0)).then_some(());
    wait_for("the next agent", PATIENT, is_there).unwrap();
    assert_eq!(world.count(12), of_b_alone);
    backend(&world, "enable", &[]);
    assert_eq!(weight(&world, a), Some(1), "{}", world.ipvsadm());
    world.wait_for_answers(&[a.name(), b.name()]);
}

#[test]
fn a_disabled_backend_leaves_and_a_command_wins_over_the_file() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let (world, _serving, text) = two();
    let (a, b) = (world.real(0), world.real(1));
    let _agent = world.start_agent();
    world.wait_for_answers(&[a.name(), b.name()]);
    let mut both = connect_to_both(&world);
    let answer = backend(&world, "disable", &["--for=1h"]);
    assert!(answer.contains("disabled (by command, until 2"), "{answer}");
    // It leaves after 5 s, so the looks that need it come first.
    assert_eq!(weight(&world, a), Some(0), "{}", world.ipvsadm());
    both.iter_mut().for_each(|each| drop(each.ask().unwrap()));
    assert_eq!(world.count(12), [(b.name().to_owned(), 12)].into());
    let is_gone = || weight(&world, a).is_none().then_some(());
    wait_for("the end of the drain", PATIENT, is_gone).unwrap();
    backend(&world, "enable", &[]);
    world.wait_for_answers(&[a.name(), b.name()]);

    let address = format!("address: {}, ", a.v4());
    let drained = format!("{address}administrativeState: Drain, ");
    world.write(&text.replace(&address, &drained));
    assert_eq!(world.ask_agent(&["reload"]).0, Some(0));
    assert_eq!(weight(&world, a), Some(0), "{}", world.ipvsadm());
    let answer = backend(&world, "enable", &[]);
    assert!(answer.contains("enabled (by command)"), "{answer}");
    world.wait_for_answers(&[a.name(), b.name()]);

    let (code, error) = world.ask_agent(&["backend", "drain", "web/192.0.2.99"]);
    assert_eq!(code, Some(1), "{error}");
    let known = format!("there are {}:{PORT}, {}:{PORT}", a.v4(), b.v4());
    assert!(error.contains(&known), "{error}");
}

#[test]
fn checks_are_run_once_without_an_agent() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let (world, [_serving, stopped], _) = two();
    let (a, b) = (world.real(0), world.real(1));
    let file = world.directory.path().join("lb.yaml");
    let run = |name: &str| world.agent(&["check", "run", file.to_str().unwrap(), name]);
    let line = |host: &Host, result: &str, text: &str| {
        let name = format!("default/web/{}:{PORT}", host.v4());
        let mut lines = text.lines().map(|line| line.split_whitespace());
        let is_it = |mut words: std::str::SplitWhitespace<'_>| {
            (words.next(), words.next(), words.next()) == (Some(&name), Some("tcp"), Some(result))
        };
        lines.any(is_it)
    };
    let (code, text) = run("web");
    assert_eq!(code, Some(0), "{text}");
    assert!(
        line(a, "passes", &text) && line(b, "passes", &text),
        "{text}"
    );
    stopped.stop();
    let (code, text) = run("web");
    assert_eq!(code, Some(3), "{text}");
    assert!(
        line(a, "passes", &text) && line(b, "fails", &text),
        "{text}"
    );
    assert!(text.contains("refused"), "{text}");
    let (code, text) = run(&format!("web/{}", a.v4()));
    assert_eq!((code, text.lines().count()), (Some(0), 2), "{text}");
    let (code, text) = run("mail");
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(world.ipvsadm(), "", "nothing is programmed");
}

#[test]
fn a_checked_backend_gets_another_weight_without_an_agent() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(1);
    let a = world.real(0);
    let _serving = serve(a);
    let spec = format!("  checks: {CHECKS}\n");
    world.write(&balancer(&spec, &[(a, "")]));
    let mut agent = world.start_agent();
    world.wait_for_answers(&[a.name()]);
    agent.stop(PATIENT).unwrap();
    assert_eq!(weight(&world, a), Some(1), "{}", world.ipvsadm());

    world.write(&balancer(&spec, &[(a, ", weight: 3")]));
    let (code, plan) = world.once(&["plan"]);
    assert_eq!(code, Some(2), "{plan}");
    let server = format!("-t {VIP}:{PORT} -r {}:{PORT}", a.v4());
    let step = format!("~ -e {server} -m -w 3  # was 1");
    assert!(plan.contains(&step), "no {step:?} in {plan}");
    assert_eq!(weight(&world, a), Some(1), "a plan changes nothing");
    apply(&world);
    assert_eq!(weight(&world, a), Some(3), "{}", world.ipvsadm());
}

#[test]
fn a_director_stands_by_and_takes_over_again() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(1);
    let a = world.real(0);
    let _serving = serve(a);
    let director = "---\napiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {name: node1}\n\
                    spec:\n  vips: {role: Command}\n";
    world.write(&format!("{}{director}", balancer("", &[(a, "")])));
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    let routes = || {
        world
            .director()
            .exec(&["ip", "route", "show", "table", "local"])
            .unwrap()
    };
    let role = |command: &str| {
        let (code, text) = world.ask_agent(&["director", command]);
        assert_eq!(code, Some(0), "{text}");
        text
    };
    // Before the first command it answers for nothing.
    assert!(role("show").contains("standby (by command)"));
    assert!(!routes().contains(VIP), "{}", routes());
    assert_eq!(weight(&world, a), Some(1), "{}", world.ipvsadm());
    assert!(role("active").contains("active (by command)"));
    assert!(routes().contains(VIP), "{}", routes());
    world.wait_for_answers(&[a.name()]);
    role("standby");
    assert!(!routes().contains(VIP), "{}", routes());
    role("active");
    world.wait_for_answers(&[a.name()]);
}

/// Returns the state that a director leaves in the kernel besides its virtual servers.
fn left(world: &World) -> String {
    let show = |command: &str| {
        let words: Vec<_> = command.split(' ').collect();
        world.director().exec(&words).unwrap()
    };
    [
        show("ip route show table all proto 99"),
        show("ip -6 route show table all proto 99"),
        show("ip -6 neighbour show proxy"),
        show("ipvsadm --list --daemon"),
        world.ipvsadm(),
    ]
    .concat()
}

#[test]
fn a_cleanup_removes_what_a_director_made() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(1);
    let a = world.real(0);
    let director = "---\napiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {name: node1}\nspec:\n  \
                    vips: {interface: eth0}\n  sync: {interface: eth0, id: 1}\n  announceTable: 199\n";
    let text = balancer("", &[(a, "")]);
    let of_v6 = "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {name: six}\nspec:\n  \
                 frontends: [{addresses: [\"2001:db8::10\"], port: 80}]\n  \
                 backends: [{address: \"fd00::1\"}]\n";
    world.write(&format!("{text}{of_v6}{director}"));
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    let made = left(&world);
    let parts = [
        VIP,
        "table 199",
        "2001:db8::10 dev",
        "master sync daemon",
        "backup sync daemon",
        "-A -t",
    ];
    for part in parts {
        assert!(made.contains(part), "{part}: {made}");
    }
    agent.stop(PATIENT).unwrap();
    assert_eq!(left(&world), made, "an agent that ends leaves the kernel");
    let state = format!(
        "--state-dir={}",
        world.directory.path().join("state").display()
    );
    for _ in 0..2 {
        let (code, text) = world.agent(&["cleanup", &state]);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(left(&world).trim(), "");
    }
}
