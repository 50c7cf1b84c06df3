// SPDX-License-Identifier: Apache-2.0

//! Another program's state in the kernel becomes a file, and the file becomes the same in the kernel.

use portolan_e2e::cluster::{PATIENT, program};
use portolan_e2e::lane::{self, Need};

use super::same::{apply, assert_same, import, servers};
use super::via::run;
use super::world::World;

/// Commands of `ipvsadm` that an operator has run.
const COMMANDS: [&str; 8] = [
    "-A -t 192.0.2.50:80 -s wrr",
    "-a -t 192.0.2.50:80 -r 10.0.0.11:8080 -m -w 3 -x 100 -y 50",
    "-a -t 192.0.2.50:80 -r 10.0.0.12:8080 -m -w 1",
    "-A -u 192.0.2.51:53 -s mh -b flag-1 -o",
    "-a -u 192.0.2.51:53 -r 10.0.0.21:53 -g -w 1",
    "-A -f 7 -s rr -p 600 -M 255.255.255.0",
    "-a -f 7 -r 10.0.0.31:0 -i -w 2 --tun-type gue --tun-port 6080 --tun-csum",
    "--set 900 60 300",
];

/// Has `ipvsadm` run the commands.
fn run_commands(world: &World) {
    for command in COMMANDS {
        run(world.director(), &format!("ipvsadm {command}"));
    }
}

fn state(world: &World) -> [String; 3] {
    let director = world.director();
    let shown = [
        ["ipvsadm", "-Sn"].as_slice(),
        &["ipvsadm", "-Ln", "--thresholds"],
        &["ipvsadm", "-L", "--timeout"],
    ];
    shown.map(|command| director.exec(command).unwrap())
}

#[test]
fn a_kernel_becomes_a_file_that_makes_the_same_kernel() {
    if !lane::provides("import", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(0);
    let director = world.director();
    run_commands(&world);
    let before = state(&world);
    let agent = program("portolan-agent").unwrap();
    // The exit code is 0: all of it has the same meaning.
    let import = format!("{} import kernel --director node1", agent.display());
    let file = director.exec(&["sh", "-c", &import]).unwrap();
    assert_eq!(state(&world), before, "the import changes nothing");

    for command in ["ipvsadm -C", "ipvsadm --set 800 100 200"] {
        director
            .exec(&command.split(' ').collect::<Vec<_>>())
            .unwrap();
    }
    world.write(&file);
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    let sorted = |[servers, thresholds, timeouts]: [String; 3]| {
        let lines = |text: String| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        [lines(servers), lines(thresholds), lines(timeouts)]
    };
    assert_eq!(sorted(state(&world)), sorted(before), "{file}");
}

#[test]
fn what_ipvsadm_saves_makes_the_same_but_for_thresholds() {
    if !lane::provides("import", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(0);
    run_commands(&world);
    let saved = world.ipvsadm();
    // It saves no thresholds: those of the only server that has some are given up here too.
    let without = "ipvsadm -e -t 192.0.2.50:80 -r 10.0.0.11:8080 -m -w 3 -x 0 -y 0";
    run(world.director(), without);
    let before = servers(&world);
    run(world.director(), "ipvsadm -C");
    let yaml = import(&world, "ipvsadm", &saved);
    apply(&world, &yaml);
    assert_same(&world, &before);
}
