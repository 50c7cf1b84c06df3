// SPDX-License-Identifier: Apache-2.0

//! The director's own link to its backends.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::wait::wait_for;

use super::standby::{LONG, pass};
use super::via::run;
use super::world::{CHECKS, PORT, World, balancer, serve};

/// Notes each change of state.
const PROGRAM: &str = "#!/bin/sh\necho \"$1 $PORTOLAN_STATE\" >>\"$0.log\"\n";

/// Waits until so many changes of state are noted, and returns them.
fn noted(log: &Path, changes: usize) -> String {
    let mut text = String::new();
    let are_there = || {
        text = std::fs::read_to_string(log).unwrap_or_default();
        (text.lines().count() >= changes).then_some(())
    };
    let waited = wait_for("the programs", PATIENT, are_there);
    assert!(waited.is_ok(), "{text:?}, expected {changes} lines");
    text
}

/// A director with two checked backends and programs. Its link is taken away and given back: neither the kernel nor the
/// programs learn of it.
fn survives(director: &str, cut: fn(&World, bool)) {
    let world = World::new(3);
    let (a, b, sorry) = (world.real(0), world.real(1), world.real(2));
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("note");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = program.display();
    let spec = format!(
        "  scheduler: rr\n  checks: {CHECKS}\n  sorryServer: {{address: {}, port: {PORT}}}\n  \
         hooks: {{onQuorum: [{path}, quorum], onBackend: [{path}, backend]}}\n",
        sorry.v4()
    );
    let text = balancer(&spec, &[(a, ""), (b, "")]);
    world.write(&format!("{text}{director}"));
    let _serving = [serve(a), serve(b), serve(sorry)];
    let mut agent = world.start_agent();
    world.wait_for_answers(&[a.name(), b.name()]);
    let log = programs.path().join("note.log");
    let first = noted(&log, 3);
    let before = world.ipvsadm();

    cut(&world, true);
    agent
        .wait_for_log("checks give no verdicts because of this machine", PATIENT)
        .unwrap();
    pass(LONG);
    assert_eq!(world.ipvsadm(), before);
    assert_eq!(noted(&log, 3), first);

    cut(&world, false);
    world.wait_for_answers(&[a.name(), b.name()]);
    pass(LONG);
    assert_eq!(world.ipvsadm(), before);
    assert_eq!(noted(&log, 3), first);
}

#[test]
fn a_director_without_its_own_link_keeps_its_backends_and_starts_no_program() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    // The routes of the link go with it.
    survives("", |world, is_cut| {
        let state = if is_cut { "down" } else { "up" };
        run(world.director(), &format!("ip link set eth0 {state}"));
    });
}

/// The setting by which routes go with the carrier.
const DIRECTOR: &str = "---\napiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {name: node1}\n\
    spec: {sysctls: {values: {net.ipv4.conf.all.ignore_routes_with_linkdown: 1}}}\n";

#[test]
fn a_director_whose_link_lost_its_carrier_keeps_its_backends_where_routes_go_with_it() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    survives(DIRECTOR, World::unplug);
}
