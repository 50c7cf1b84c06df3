// SPDX-License-Identifier: Apache-2.0

//! Commands to a running director, over its socket, and their effect in the kernel.

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Host, Protocol};

use super::world::{CHECKS, PORT, VIP, World, balancer, serve, vip};

/// The line of a real server in the kernel, without its weight; `None` if it is not there.
fn weight(world: &World, host: &Host) -> Option<u32> {
    let server = format!("-r {}:{PORT} ", host.v4());
    let state = world.ipvsadm();
    let line = state.lines().find(|line| line.contains(&server))?;
    let weight = line.split(" -w ").nth(1)?;
    weight.split(' ').next()?.parse().ok()
}

#[test]
fn a_backend_is_drained_disabled_and_enabled() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    let _serving = [serve(a), serve(b)];
    let text = balancer(
        &format!("  scheduler: rr\n  checks: {CHECKS}\n"),
        &[(a, ""), (b, "")],
    );
    world.write(&text);
    let mut agent = world.start_agent();
    world.wait_for_answers(&[a.name(), b.name()]);
    let connect = || {
        world
            .client()
            .connect(Protocol::Tcp, vip(VIP), PROMPT)
            .unwrap()
    };
    let mut both = [connect(), connect()];
    let mut servers = both.each_mut().map(|each| each.ask().unwrap().name);
    servers.sort();
    assert_eq!(servers, [a.name(), b.name()]);
    let of_a = format!("web/{}", a.v4());
    let of_b_alone = [(b.name().to_owned(), 12)].into();

    // The kernel has it when the command ends, and nobody is refused.
    let backend = |command: &str, rest: &[&str]| {
        let (code, text) = world.ask_agent(&[&["backend", command][..], rest].concat());
        println!("backend {command} {rest:?}: {code:?}: {text}");
        (code, text)
    };
    let (code, text_of_drain) = backend("drain", &[&of_a]);
    assert_eq!(code, Some(0), "{text_of_drain}");
    let state = format!("default/{of_a}:{PORT}: drain (by command)");
    assert!(text_of_drain.contains(&state), "{text_of_drain}");
    assert_eq!((weight(&world, a), weight(&world, b)), (Some(0), Some(1)));
    assert_eq!(world.count(12), of_b_alone);
    // Present connections go on.
    for connection in &mut both {
        connection.ask().unwrap();
    }
    let (code, shown) = world.ask_agent(&["status", "web"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("drain (command)"), "{shown}");
    assert!(
        shown.contains(&format!("# default/{of_a}: drain by command")),
        "{shown}"
    );

    // Neither the file nor a restart ends it.
    world.write(&text.replace("scheduler: rr", "scheduler: wrr"));
    assert_eq!(world.ask_agent(&["reload"]).0, Some(0));
    assert!(world.ipvsadm().contains("-s wrr"), "{}", world.ipvsadm());
    assert_eq!(weight(&world, a), Some(0));
    agent.kill9().unwrap();
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    assert_eq!(world.count(12), of_b_alone);
    let (code, answer) = backend("enable", &[&of_a]);
    assert_eq!(code, Some(0), "{answer}");
    world.wait_for_answers(&[a.name(), b.name()]);

    // A disabled one leaves when its connections have ended.
    assert_eq!(backend("disable", &[&of_a, "--for=1h"]).0, Some(0));
    assert_eq!(world.count(12), of_b_alone);
    for connection in &mut both {
        connection.ask().unwrap();
    }
    assert_eq!(weight(&world, a), Some(0), "{}", world.ipvsadm());
    assert_eq!(backend("enable", &[&of_a]).0, Some(0));
    world.wait_for_answers(&[a.name(), b.name()]);

    // The command wins over the file.
    let drained = text.replace(
        &format!("address: {}, port", a.v4()),
        &format!("address: {}, administrativeState: Drain, port", a.v4()),
    );
    world.write(&drained);
    assert_eq!(world.ask_agent(&["reload"]).0, Some(0));
    assert_eq!(weight(&world, a), Some(0), "{}", world.ipvsadm());
    let (code, answer) = backend("enable", &[&of_a]);
    assert_eq!(
        (code, answer.contains("enabled (by command)")),
        (Some(0), true),
        "{answer}"
    );
    world.wait_for_answers(&[a.name(), b.name()]);

    let (code, error) = backend("drain", &["web/192.0.2.99"]);
    assert_eq!(code, Some(1), "{error}");
    let known = format!("there are {}:{PORT}, {}:{PORT}", a.v4(), b.v4());
    assert!(error.contains(&known), "{error}");
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
