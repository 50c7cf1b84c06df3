// SPDX-License-Identifier: Apache-2.0

//! A failing Service, tool or ownership record on a node does not affect other Services.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use portolan_e2e::ask::{address, answers};
use portolan_e2e::clock;
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, ports, service, slices};
use portolan_e2e::rig::{Connection, Family, Host, Load, LoadConfig, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const BAD: [&str; 2] = ["10.96.0.66", "fd00:10:96::66"];
/// A Service with short circuits.
const LOCAL: [&str; 2] = ["10.96.0.20", "fd00:10:96::20"];
const NODE_PORT: u16 = 30080;
/// The drain timeout of `web` where a test waits for its end.
const DRAIN: Duration = Duration::from_secs(5);
/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// The agent of the visitor's node does not read the whole kernel during a test, and glances at it often.
const RARELY: [&str; 2] = ["--sync-period=3600", "--check-period=2"];

/// The Service `web` and its client.
struct World {
    cluster: Cluster,
    a: EchoPod,
    b: EchoPod,
    visitor: EchoPod,
    drain: Duration,
}

impl World {
    fn start_or_skip(test: &str, drain: Duration) -> Option<Self> {
        if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
            return None;
        }
        let mut cluster = Cluster::new().unwrap();
        let add = |node, name| cluster.add_pod(node, name).unwrap();
        let (a, b, visitor) = (add(1, "a"), add(1, "b"), add(0, "v"));
        cluster.agent(0).unwrap().stop(PATIENT).unwrap();
        cluster.start_agent_with(0, &RARELY).unwrap();
        cluster.wait_until_ready(0).unwrap();
        let world = Self {
            cluster,
            a,
            b,
            visitor,
            drain,
        };
        world.publish(&[&world.a]);
        Some(world)
    }

    fn publish(&self, pods: &[&EchoPod]) {
        let seconds = self.drain.as_secs().to_string();
        let mut web = service("web", WEB, json!({}));
        let annotations = json!({ "portolan.dev/drain-timeout": seconds });
        merge(&mut web["metadata"], json!({ "annotations": annotations }));
        let pods: Vec<_> = pods.iter().map(|pod| (*pod, 1)).collect();
        self.put("web.json", &[vec![web], slices("web", &pods)].concat());
    }

    fn put_bad(&self, annotations: Value) {
        let mut bad = service("bad", BAD, json!({}));
        merge(&mut bad["metadata"], json!({ "annotations": annotations }));
        let slices = slices("bad", &[(&self.b, 1)]);
        self.put("bad.json", &[vec![bad], slices].concat());
    }

    /// Writes objects and returns when every node has programmed them, with or without errors.
    fn put(&self, file: &str, objects: &[Value]) {
        let before = self.cluster.revision().unwrap();
        let list = json!({ "kind": "List", "items": objects });
        self.cluster.write(file, &list.to_string()).unwrap();
        wait_for("all nodes to program", PATIENT, || {
            let dump = self.cluster.nodes().ok()?;
            let head = dump["revision"].as_u64().filter(|head| *head > before)?;
            let mut nodes = dump["nodes"].as_array()?.iter();
            let is_there = |node: &Value| node["programmed"].as_u64() == Some(head);
            nodes.all(is_there).then_some(())
        })
        .unwrap();
    }

    /// A Service with pods on the visitor's node only, with or without endpoints.
    fn put_local(&self, is_there: bool) {
        let spec = json!({
            "type": "NodePort",
            "externalTrafficPolicy": "Local",
            "ports": ports(Some(NODE_PORT)),
        });
        let local = service("local", LOCAL, spec);
        let all = [vec![local], slices("local", &[(&self.visitor, 0)])].concat();
        self.put("local.json", if is_there { &all } else { &[] });
    }

    /// Load on the Service `web`, from a pod and from its node.
    fn load(&self) -> [Load; 2] {
        let web = Family::ALL.map(|family| address(WEB, family, 80));
        let config = LoadConfig {
            timeout: PATIENT,
            pause: Duration::from_millis(20),
            ..LoadConfig::default()
        };
        let node: &Host = self.cluster.rig.node(0);
        [&self.visitor.pod, node].map(|from| Load::start(from, &web, config.clone()).unwrap())
    }

    /// The sorted output of a command: the kernel lists objects in no fixed order.
    fn sorted(&self, command: &str) -> Vec<String> {
        let text = self.node(command).unwrap_or_default();
        // A set that is created again has another seed.
        let lines = text.lines().filter(|line| !line.starts_with("create "));
        let mut lines: Vec<String> = lines.map(Into::into).collect();
        lines.sort_unstable();
        lines
    }

    fn open(&self, family: Family) -> Connection {
        let web = address(WEB, family, 80);
        let opened = self.visitor.pod.connect(Protocol::Tcp, web, PATIENT);
        opened.unwrap()
    }

    fn node(&self, command: &str) -> anyhow::Result<String> {
        let words: Vec<_> = command.split(' ').collect();
        self.cluster.rig.node(0).exec(&words)
    }

    /// Waits until the agent of the visitor's node reports errors, or none.
    fn wait_for_errors(&self, some: bool) {
        wait_for("errors", PATIENT, || {
            let metrics = self.cluster.agent_metrics(0).ok()?;
            let name = "portolan_agent_errors_current ";
            let count = metrics.lines().find_map(|line| line.strip_prefix(name))?;
            ((count != "0") == some).then_some(())
        })
        .unwrap();
    }

    /// Asserts that a change arrives, that a drain ends at its deadline, and that a glance repairs a deletion.
    fn assert_others_work(&self, when: &str) {
        let web = address(WEB, Family::V4, 80);
        let mut kept = self.open(Family::V4);
        assert_eq!(kept.ask().unwrap().name, "a");
        let start = Instant::now();
        self.publish(&[&self.b]);
        let answer = self.visitor.pod.request(Protocol::Tcp, web, PATIENT);
        assert_eq!(answer.unwrap().name, "b", "{when}");
        println!("{when}: changed after {:?}", start.elapsed());
        let old = self.a.pod.socket(Family::V4, EchoPod::PORT).to_string();
        wait_for(&format!("{when}: the end of a drain"), PATIENT, || {
            let servers = self.node("ipvsadm -Sn").ok()?;
            (!servers.contains(&old)).then_some(())
        })
        .unwrap();
        println!("{when}: drained after {:?}", start.elapsed());
        self.node("ipvsadm -D -t 10.96.0.10:80").unwrap();
        let start = Instant::now();
        wait_for(&format!("{when}: a glance"), PATIENT, || {
            let servers = self.node("ipvsadm -Sn").ok()?;
            servers.contains("-a -t 10.96.0.10:80").then_some(())
        })
        .unwrap();
        println!("{when}: mended after {:?}", start.elapsed());
        self.publish(&[&self.a]);
    }
}

#[test]
fn a_service_that_the_kernel_refuses_does_not_affect_others() {
    let name = "a_service_that_the_kernel_refuses_does_not_affect_others";
    let Some(world) = World::start_or_skip(name, DRAIN) else {
        return;
    };
    world.assert_others_work("nothing bad");
    // Kernels before 6.2 have no such scheduler.
    world.put_bad(json!({ "portolan.dev/scheduler": "twos" }));
    let has_scheduler = world.node("ipvsadm -Sn").unwrap().contains("-s twos");
    println!("twos: {has_scheduler}");
    if !has_scheduler {
        world.wait_for_errors(true);
        world.assert_others_work("no scheduler");
    }
    world.put_bad(json!({}));
    world.wait_for_errors(false);
    // IPv6 routes disappear and cannot be created again.
    let switch = "sysctl -qw net.ipv6.conf.lo.disable_ipv6";
    world.node(&format!("{switch}=1")).unwrap();
    world.wait_for_errors(true);
    world.assert_others_work("IPv6 is off");
    world.node(&format!("{switch}=0")).unwrap();
    world.wait_for_errors(false);
    for ips in [WEB, BAD] {
        let to = address(ips, Family::V6, 80);
        let answer = world.visitor.pod.request(Protocol::Tcp, to, PATIENT);
        answer.unwrap();
    }
}

/// Commands that damage the ownership record, and whether the agent is down meanwhile. Every pair of command,
/// family and restart occurs.
const LOSSES: [(&str, bool); 4] = [
    ("ipset flush KUBE-PORTOLAN-OWNED", false),
    ("ipset flush KUBE-6-PORTOLAN-OWNED", true),
    ("ipset destroy KUBE-PORTOLAN-OWNED", true),
    ("ipset destroy KUBE-6-PORTOLAN-OWNED", false),
];

fn assert_none_failed(loads: [Load; 2]) {
    for load in loads {
        let report = load.stop();
        println!("{} requests, slowest {}", report.requests, report.slowest);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
    }
}

#[test]
fn a_lost_ownership_record_ends_no_connection() {
    let name = "a_lost_ownership_record_ends_no_connection";
    let Some(mut world) = World::start_or_skip(name, FOR_EVER) else {
        return;
    };
    world.put_local(true);
    // These connections keep a draining real server in both families.
    let mut kept = Family::ALL.map(|family| world.open(family));
    let mut assert_kept = || {
        for connection in &mut kept {
            assert_eq!(connection.ask().unwrap().name, "a");
        }
    };
    assert_kept();
    world.publish(&[&world.b]);
    let state = |world: &World| {
        let record = world.sorted("ipset -s save KUBE-PORTOLAN-OWNED");
        let record_6 = world.sorted("ipset -s save KUBE-6-PORTOLAN-OWNED");
        (record, record_6, world.sorted("ipvsadm -Sn"))
    };
    let before = state(&world);
    assert!(before.2.iter().any(|line| line.starts_with("-A -f ")));
    let loads = world.load();
    for (loss, restart) in LOSSES {
        if restart {
            world.cluster.agent(0).unwrap().kill9().unwrap();
        }
        world.node(loss).unwrap();
        if restart {
            world.cluster.start_agent_with(0, &RARELY).unwrap();
            world.cluster.wait_until_ready(0).unwrap();
        }
        let start = Instant::now();
        wait_for(&format!("{loss:?} to be made good"), PATIENT, || {
            (state(&world) == before).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {:#?} instead of {before:#?}", state(&world)));
        println!("{loss}, restart {restart}: after {:?}", start.elapsed());
        world.wait_for_errors(false);
        assert_kept();
    }
    // A Service that is deleted before the loss is noticed is removed as well.
    world.node(LOSSES[0].0).unwrap();
    world.put_local(false);
    wait_for("a Service to go", PATIENT, || {
        let servers = world.sorted("ipvsadm -Sn").join(" ");
        let is_there = [":30080", LOCAL[0], " -f "].map(|what| servers.contains(what));
        (is_there == [false; 3]).then_some(())
    })
    .unwrap();
    assert_none_failed(loads);
}

/// Wrappers of the iptables tools that hang while a file exists.
struct HangingTools {
    directory: PathBuf,
}

impl HangingTools {
    fn new(directory: &Path) -> Self {
        let directory = directory.join("tools");
        std::fs::create_dir(&directory).unwrap();
        for family in ["iptables", "ip6tables"] {
            for (variant, tool) in ["", "-nft", "-legacy"]
                .into_iter()
                .flat_map(|variant| ["save", "restore"].map(|tool| (variant, tool)))
            {
                let name = format!("{family}{variant}-{tool}");
                let script = format!(
                    "#!/bin/sh\n[ -e {0}/hang ] && exec sleep 600\nPATH=${{PATH#{0}:}}\nexec {name} \"$@\"\n",
                    directory.display()
                );
                std::fs::write(directory.join(&name), script).unwrap();
                let executable = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(directory.join(&name), executable).unwrap();
            }
        }
        Self { directory }
    }

    fn start_agent(&self, cluster: &mut Cluster) {
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", self.directory.display());
        let change = |command: &mut Command| {
            // Short enough for a check of the rules to coincide with every change.
            command.env("PATH", path).arg("--sync-period=2");
        };
        cluster.start_agent_by(0, change).unwrap();
        cluster.wait_until_ready(0).unwrap();
    }

    fn hang(&self, hang: bool) {
        let flag = self.directory.join("hang");
        match hang {
            true => std::fs::write(flag, "").unwrap(),
            false => std::fs::remove_file(flag).unwrap(),
        }
    }
}

#[test]
fn a_hanging_tool_delays_no_endpoint() {
    /// Each of two families may wait 5 s for a tool once; the rest is for a busy machine. A tool hangs for 600 s.
    const LIMIT: Duration = Duration::from_secs(30);
    let name = "a_hanging_tool_delays_no_endpoint";
    let Some(mut world) = World::start_or_skip(name, FOR_EVER) else {
        return;
    };
    let tools = HangingTools::new(world.cluster.directory());
    world.cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    tools.start_agent(&mut world.cluster);
    let loads = world.load();
    tools.hang(true);
    for turn in 0..4 {
        let (pod, answerer) = match turn % 2 {
            0 => (&world.b, "b"),
            _ => (&world.a, "a"),
        };
        let start = Instant::now();
        world.publish(&[pod]);
        let took = start.elapsed();
        println!("turn {turn}: programmed after {took:?}");
        assert!(took < LIMIT, "{took:?}");
        for family in Family::ALL {
            let web = address(WEB, family, 80);
            answers(&world.visitor.pod, Protocol::Tcp, web, &[answerer]);
        }
    }
    // The rules count as in place, so new Services are programmed.
    world.put_bad(json!({}));
    let new = address(BAD, Family::V4, 80);
    answers(&world.visitor.pod, Protocol::Tcp, new, &["b"]);
    tools.hang(false);
    world.node("iptables -t nat -F KUBE-SERVICES").unwrap();
    wait_for("the rules to be mended", PATIENT, || {
        let rules = world.node("iptables -t nat -S KUBE-SERVICES").ok()?;
        rules.contains("-A KUBE-SERVICES").then_some(())
    })
    .unwrap();
    world.wait_for_errors(false);
    assert_none_failed(loads);
}

#[test]
fn a_clock_that_jumps_neither_cuts_nor_prolongs_a_drain() {
    const LIMIT: Duration = Duration::from_secs(20);
    const DAY: i64 = 24 * 60 * 60;
    let name = "a_clock_that_jumps_neither_cuts_nor_prolongs_a_drain";
    if !clock::is_of_guest() {
        println!("SKIP {name}: sets the clock, so it needs a machine of its own");
        return;
    }
    let Some(mut world) = World::start_or_skip(name, LIMIT) else {
        return;
    };
    let loads = world.load();
    for days in [1, -1] {
        let web = address(WEB, Family::V4, 80);
        let node: &Host = world.cluster.rig.node(1);
        let elsewhere = node.connect(Protocol::Tcp, web, PATIENT).unwrap();
        let mut kept = [world.open(Family::V4), elsewhere];
        let mut assert_kept = || {
            for connection in &mut kept {
                assert_eq!(connection.ask().unwrap().name, "a");
            }
        };
        assert_kept();
        let start = Instant::now();
        world.publish(&[&world.b]);
        clock::jump(days * DAY).unwrap();
        // One agent goes on, the other reads its drains from disk.
        world.cluster.agent(0).unwrap().kill9().unwrap();
        world.cluster.start_agent_with(0, &RARELY).unwrap();
        let old = world.a.pod.socket(Family::V4, EchoPod::PORT).to_string();
        let drains = |number: usize| {
            let servers = world.cluster.rig.node(number).exec(&["ipvsadm", "-Sn"]);
            servers.unwrap().contains(&old)
        };
        wait_for("most of the drain", PATIENT, || {
            for number in 0..2 {
                // The time after the look: a busy machine may look after the deadline.
                let is_there = drains(number);
                let elapsed = start.elapsed();
                assert!(
                    is_there || elapsed >= LIMIT,
                    "{days} days: gone from node {number} after {elapsed:?}"
                );
            }
            (start.elapsed() > LIMIT * 2 / 3).then_some(())
        })
        .unwrap();
        if start.elapsed() < LIMIT * 3 / 4 {
            assert_kept();
        }
        world.cluster.wait_until_ready(0).unwrap();
        wait_for("the end of the drain", PATIENT, || {
            (!drains(0) && !drains(1)).then_some(())
        })
        .unwrap();
        println!("{days} days: drained after {:?}", start.elapsed());
        clock::jump(-days * DAY).unwrap();
        world.publish(&[&world.a]);
    }
    assert_none_failed(loads);
}
