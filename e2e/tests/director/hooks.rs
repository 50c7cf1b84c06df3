// SPDX-License-Identifier: Apache-2.0

//! Programs that changes of state start.

use std::os::unix::fs::PermissionsExt as _;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::wait::wait_for;

use super::world::{CHECKS, PORT, VIP, World, balancer, serve};

/// Notes its variables and its user.
const PROGRAM: &str = r#"#!/bin/sh
echo "$(id -un) $1 $PORTOLAN_NAME $PORTOLAN_FRONTEND$PORTOLAN_ADDRESS:$PORTOLAN_PORT $PORTOLAN_STATE" >>"$0.log"
"#;

#[test]
fn changes_of_state_start_programs() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    let programs = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(programs.path(), open).unwrap();
    let program = programs.path().join("note");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = program.display();
    let spec = format!(
        "  checks: {CHECKS}\n  hooks:\n    onQuorum: [{path}, quorum]\n    onBackend: [{path}, backend]\n"
    );
    // The program's file is outside of the agent's own directory, which is closed to others.
    let director = format!(
        "---\napiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {{name: node1}}\nspec:\n  \
         scripts: {{user: nobody, directories: [{}]}}\n",
        programs.path().display()
    );
    let text = balancer(&spec, &[(a, ""), (b, "")]) + &director;
    world.write(&text);
    let (serving_a, serving_b) = (serve(a), serve(b));
    let _agent = world.start_agent();

    let log = programs.path().join("note.log");
    let mut lines = 0;
    // Programs of one load balancer run one after the other, in any order of their subjects.
    let mut expect = |expected: &[String]| {
        let mut new = Vec::new();
        let waited = wait_for("the programs", PATIENT, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            new = text.lines().skip(lines).map(str::to_owned).collect();
            (new.len() >= expected.len()).then_some(())
        });
        assert!(waited.is_ok(), "{new:?}, expected {expected:?}");
        lines += new.len();
        new.sort();
        assert_eq!(new, expected);
    };
    let backend = |host: std::net::Ipv4Addr, state| {
        format!("nobody backend default/web {host}:{PORT} {state}")
    };
    let quorum = |state| format!("nobody quorum default/web TCP/{VIP}:{PORT}: {state}");
    let mut all = [backend(a.v4(), "up"), backend(b.v4(), "up"), quorum("up")];
    all.sort();
    expect(&all);
    world.wait_for_answers(&[a.name(), b.name()]);

    drop(serving_a);
    expect(&[backend(a.v4(), "down")]);
    drop(serving_b);
    expect(&[backend(b.v4(), "down"), quorum("down")]);
    let _serving_a = serve(a);
    expect(&[backend(a.v4(), "up"), quorum("up")]);
    world.wait_for_answers(&[a.name()]);
}
