// SPDX-License-Identifier: Apache-2.0

//! Debian's keepalived beside two agents: VRRP decides which director answers, the agents have both programmed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use portolan_e2e::cluster::{PATIENT, program};
use portolan_e2e::figure::figure;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::programs::{Unpacked, unpacked};
use portolan_e2e::rig::{Load, LoadConfig, Process};
use portolan_e2e::wait::wait_for;

use super::pair::{LONG, Pair, Survival, TIMEOUT, VIP, first_answer, socket, start_agent, vip};

const GUIDE: &str = include_str!("../../../docs/directors-in-pairs.md");
/// An agent that refuses every command while the file `down` lies beside it. Otherwise it takes each role, and ends
/// with an error, as if the kernel had refused another setting. It notes in the file `told` what it was told.
const AGENT: &str = r#"#!/bin/bash
directory=$(dirname "$0")
if [ -e "$directory/down" ]; then
    echo "$2 refused" >>"$directory/told"
    exit 1
fi
echo "$2 (by command)"
echo "$2 taken" >>"$directory/told"
exit 1
"#;
/// Asks the agent whether the kernel has the newest table, as the example of the package does.
const HEALTHY: &str =
    "/usr/bin/curl --silent --fail --max-time 8 --output /dev/null http://127.0.0.1:10256/healthz";
const TRACKED: &str = "track_script {\n        portolan\n    }\n";
/// A connection that began this long before a switch may be open as it begins.
const IN_FLIGHT: Duration = Duration::from_millis(500);
/// Time for a switch.
const PATIENCE: Duration = Duration::from_secs(40);

/// Owner of the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// keepalived, and the agents bind nothing.
    External,
    /// The agent, by notify scripts of keepalived.
    Command,
}

impl Way {
    fn vips(self) -> &'static str {
        match self {
            Self::External => "vips: {binding: External}",
            Self::Command => "vips: {interface: eth0, role: Command}",
        }
    }
}

/// A pair whose roles keepalived decides; the first director has the higher priority.
struct Vrrp {
    pair: Pair,
    way: Way,
    keepalived: [Process; 2],
}

impl Vrrp {
    /// The first director answers, and both know the connections of the other.
    fn start(way: Way, program: &Unpacked) -> Self {
        let pair = Pair::start(Survival::Synchronised, way.vips());
        let keepalived = [0, 1].map(|number| start_keepalived(&pair, way, program, number));
        let this = Self {
            pair,
            way,
            keepalived,
        };
        this.wait_for_active(0);
        this
    }

    /// Returns `true` if a director answers for the address.
    fn is_active(&self, number: usize) -> bool {
        let host = self.pair.rig.node(number);
        let address = format!("{VIP}/32");
        let shown = match self.way {
            Way::External => host.exec(&["ip", "-4", "address", "show", "to", &address]),
            Way::Command => host.exec(&["ip", "-4", "route", "show", "table", "local", &address]),
        };
        !shown.unwrap().is_empty()
    }

    fn wait_for_active(&self, number: usize) {
        let one = || (self.is_active(number) && !self.is_active(1 - number)).then_some(());
        wait_for("one active director", PATIENCE, one).unwrap_or_else(|error| {
            let mut logs = format!("active: {} {}\n", self.is_active(0), self.is_active(1));
            for process in &self.keepalived {
                let _ = writeln!(logs, "{}", process.log().unwrap());
            }
            panic!("{error}: {logs}");
        });
    }
}

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
}

/// The guide's script that follows keepalived's states.
fn guide_script() -> &'static str {
    let blocks = GUIDE.split("```");
    let mut blocks = blocks.filter_map(|block| block.strip_prefix("sh\n"));
    blocks.find(|block| block.starts_with("#!")).unwrap()
}

/// Writes the guide's script, with the agent of this test. Returns the lines for keepalived.
fn follow_role(pair: &Pair, number: usize) -> String {
    let agent = program("portolan-agent").unwrap();
    let directory = pair.directory.path();
    let command = "portolan-agent director \"$wanted\"";
    assert!(guide_script().contains(command));
    let ours = format!(
        "{agent} director \"$wanted\" --address={address}",
        agent = agent.display(),
        address = socket(directory, number),
    );
    let script = guide_script().replace(command, &ours);
    let (path, fifo) = (
        directory.join(format!("follow{number}")),
        directory.join(format!("fifo{number}")),
    );
    write_program(&path, &script);
    format!(
        "    vrrp_notify_fifo {}\n    vrrp_notify_fifo_script {}\n",
        fifo.display(),
        path.display()
    )
}

/// Returns the configuration of keepalived: VRRP alone, with an advertisement each 0.3 s.
fn configuration(pair: &Pair, way: Way, number: usize) -> String {
    let (address, fifo, more) = match way {
        Way::External => (VIP, String::new(), TRACKED),
        // VRRP needs an address, and the agent answers for the other one.
        Way::Command => ("192.168.77.241", follow_role(pair, number), ""),
    };
    format!(
        "global_defs {{\n    enable_script_security\n    script_user root\n{fifo}}}\n\
         vrrp_script portolan {{\n    script \"{HEALTHY}\"\n    \
         interval 1\n    timeout 9\n    fall 2\n    rise 1\n}}\n\
         vrrp_instance directors {{\n    state BACKUP\n    interface eth0\n    version 3\n    \
         virtual_router_id 51\n    priority {}\n    advert_int 0.3\n    \
         virtual_ipaddress {{\n        {address}/32 dev eth0\n    }}\n    \
         {more}}}\n",
        100 - 10 * number,
    )
}

fn start_keepalived(pair: &Pair, way: Way, program: &Unpacked, number: usize) -> Process {
    let directory = pair.directory.path();
    let path = |name: &str| directory.join(format!("{name}{number}"));
    let file = path("keepalived.conf");
    std::fs::write(&file, configuration(pair, way, number)).unwrap();
    let mut command = program.command("usr/sbin/keepalived");
    command.args([
        "--dont-fork",
        "--log-console",
        "--log-detail",
        "--no-syslog",
        "--vrrp",
    ]);
    command.arg("--use-file").arg(file);
    command.arg("--pid").arg(path("keepalived.pid"));
    command.arg("--vrrp_pid").arg(path("vrrp.pid"));
    let namespace = pair.rig.node(number).namespace();
    Process::spawn(
        namespace,
        &format!("keepalived{number}"),
        &mut command,
        directory,
    )
    .unwrap()
}

/// Times since the begin of the load between which VRRP switched.
type Windows = Vec<(Duration, Duration)>;

/// Has the director move five times under load.
fn switch(vrrp: &mut Vrrp, load: &Load, begin: Instant) -> Windows {
    let way = vrrp.way;
    let mut windows = Windows::new();
    let mut switched = |vrrp: &Vrrp, from: Instant, to: usize, what: &str| {
        vrrp.wait_for_active(to);
        let took = from.elapsed();
        println!("{way:?}: {what}: director {to} active after {took:?}");
        windows.push(((from - begin).saturating_sub(IN_FLIGHT), begin.elapsed()));
        more(load);
    };
    // A dead host: nobody hears of it.
    let link = |vrrp: &Vrrp, state: &str| {
        let node = vrrp.pair.rig.node(0);
        node.exec(&["ip", "link", "set", "eth0", state]).unwrap();
    };
    let from = Instant::now();
    link(vrrp, "down");
    let answered = first_answer(vrrp.pair.client(), from);
    let name = format!("vrrp_{way:?}_first_answer").to_lowercase();
    figure(&name, answered.as_secs_f64() * 1000.0, "ms", None);
    switched(vrrp, from, 1, "the link went");
    // It comes back with the higher priority.
    let from = Instant::now();
    link(vrrp, "up");
    switched(vrrp, from, 0, "the link came back");
    let from = Instant::now();
    vrrp.pair.agents[0].kill9().unwrap();
    // The kernel goes on. The address moves if the script fails; nobody can tell a dead agent of another role.
    let serves = match way {
        Way::External => 1,
        Way::Command => 0,
    };
    switched(vrrp, from, serves, "the agent died");
    let from = Instant::now();
    let directory = vrrp.pair.directory.path().to_owned();
    vrrp.pair.agents[0] = start_agent(&vrrp.pair.rig, directory, 0);
    switched(vrrp, from, 0, "the agent came back");
    // Maintenance: keepalived says that it goes. It ends its scripts at once, so that systemd tells the agent, by
    // `ExecStopPost` of keepalived's service.
    let from = Instant::now();
    vrrp.keepalived[0].stop(PATIENT).unwrap();
    if way == Way::Command {
        vrrp.pair.command(0, "standby");
    }
    switched(vrrp, from, 1, "keepalived ended");
    windows
}

/// Waits for 100 answers.
fn more(load: &Load) {
    let answered = load.answered();
    let enough = || (load.answered() > answered + 100).then_some(());
    wait_for("the load", PATIENT, enough).unwrap();
}

fn moves(way: Way, test: &str) {
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let Some(keepalived) = unpacked("keepalived", "usr/sbin/keepalived") else {
        lane::missing(test, "needs keepalived (e2e/lanes/unpack keepalived)");
        return;
    };
    let mut vrrp = Vrrp::start(way, &keepalived);
    let mut long = vrrp.pair.connect();
    vrrp.pair.wait_until_synchronised(1);
    // About 100 new connections a second.
    let short = LoadConfig {
        workers: 2,
        pause: Duration::from_millis(20),
        timeout: TIMEOUT,
        ..LoadConfig::default()
    };
    let begin = Instant::now();
    let load = Load::start(vrrp.pair.client(), &[vip()], short).unwrap();
    more(&load);
    let windows = switch(&mut vrrp, &load, begin);
    let report = load.stop();
    let within = |at: Duration| windows.iter().any(|(from, to)| (*from..=*to).contains(&at));
    let failures = report.failures.iter();
    let (during, beyond): (Vec<_>, Vec<_>) = failures.partition(|failure| within(failure.at));
    let mut lost = 0;
    for (connection, name) in &mut long {
        lost += usize::from(!matches!(connection.ask(), Ok(answer) if answer.name == *name));
    }
    println!(
        "{way:?}: {lost} of {LONG} long connections lost; of {} short ones {} failed during the switches, {} beyond; \
         slowest {}",
        report.requests,
        during.len(),
        beyond.len(),
        report.slowest,
    );
    let name = format!("vrrp_{way:?}_short_lost").to_lowercase();
    figure(&name, during.len() as f64, "connections", None);
    assert!(beyond.is_empty(), "{beyond:?}, {during:?}, {windows:?}");
    assert_eq!(lost, 0);
}

#[test]
fn keepalived_moves_an_address_of_its_own() {
    moves(Way::External, "keepalived_moves_an_address_of_its_own");
}

#[test]
fn keepalived_commands_the_role_of_the_agents() {
    moves(Way::Command, "keepalived_commands_the_role_of_the_agents");
}

#[test]
fn the_script_of_the_guide_tells_the_newest_state_until_it_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    write_program(&path("portolan-agent"), AGENT);
    // With shorter pauses.
    write_program(&path("follow"), &guide_script().replace("-t 2", "-t 0.1"));
    std::fs::write(path("down"), "").unwrap();
    let made = Command::new("mkfifo").arg(path("fifo")).status().unwrap();
    assert!(made.success());
    let found = std::env::var("PATH").unwrap_or_default();
    let mut script = Command::new("bash")
        .args([path("follow"), path("fifo")])
        .env("PATH", format!("{}:{found}", directory.path().display()))
        .spawn()
        .unwrap();
    // As keepalived opens it: without waiting for a reader.
    let mut fifo = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path("fifo"))
        .unwrap();
    let mut tell = |state: &str| writeln!(fifo, "INSTANCE \"directors\" {state} 100").unwrap();
    let told = || {
        let told = std::fs::read_to_string(path("told")).unwrap_or_default();
        told.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let last = |wanted: &str| {
        let is_last = || (told().last().map(String::as_str) == Some(wanted)).then_some(());
        wait_for(wanted, PATIENCE, is_last).unwrap();
    };

    tell("MASTER");
    let many = || (told().len() > 5).then_some(());
    wait_for("an agent that is told again", PATIENCE, many).unwrap();
    assert!(told().iter().all(|line| line == "active refused"));
    // The older state is not told again.
    tell("BACKUP");
    last("standby refused");
    std::fs::remove_file(path("down")).unwrap();
    last("standby taken");
    // States that mean nothing to the agent repeat nothing.
    (0..3).for_each(|_| tell("STOP"));
    tell("MASTER");
    last("active taken");
    let taken = told().into_iter().filter(|line| line.ends_with("taken"));
    assert_eq!(taken.collect::<Vec<_>>(), ["standby taken", "active taken"]);
    drop(fifo);
    assert!(script.wait().unwrap().success(), "keepalived has ended");
}
