//! What goes wrong with one Service, one tool or one record on a node costs the others nothing.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::time::{Duration, Instant};

use portolan_e2e::ask::address;
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, service, slices};
use portolan_e2e::rig::{Connection, Family, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const BAD: [&str; 2] = ["10.96.0.66", "fd00:10:96::66"];
/// How long a real server of `web` keeps its connections.
const DRAIN: Duration = Duration::from_secs(5);
/// A node that is busy with nothing else does what is due within this time.
const SOON: Duration = Duration::from_secs(25);

/// The Service `web`, and who asks it.
struct World {
    cluster: Cluster,
    a: EchoPod,
    b: EchoPod,
    visitor: EchoPod,
}

impl World {
    /// The agent of the visitor's node looks at the whole kernel as good as never by itself.
    fn start_or_skip(test: &str) -> Option<Self> {
        if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
            return None;
        }
        let mut cluster = Cluster::new().unwrap();
        let add = |node, name| cluster.add_pod(node, name).unwrap();
        let (a, b, visitor) = (add(1, "a"), add(1, "b"), add(0, "v"));
        cluster.agent(0).unwrap().stop(PATIENT).unwrap();
        let rarely = "--sync-period=3600";
        cluster.start_agent_with(0, &[rarely]).unwrap();
        cluster.wait_until_ready(0).unwrap();
        let world = Self {
            cluster,
            a,
            b,
            visitor,
        };
        world.publish(&[&world.a]);
        Some(world)
    }

    fn publish(&self, pods: &[&EchoPod]) {
        let seconds = DRAIN.as_secs().to_string();
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

    /// Returns when every node has programmed the objects, with errors or without.
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

    fn open(&self) -> Connection {
        let web = address(WEB, Family::V4, 80);
        let opened = self.visitor.pod.connect(Protocol::Tcp, web, PATIENT);
        opened.unwrap()
    }

    fn node(&self, command: &str) -> anyhow::Result<String> {
        let words: Vec<_> = command.split(' ').collect();
        self.cluster.rig.node(0).exec(&words)
    }

    /// Waits until the visitor's node knows of errors, or of none.
    fn wait_for_errors(&self, some: bool) {
        wait_for("errors", PATIENT, || {
            let metrics = self.cluster.agent_metrics(0).ok()?;
            let name = "portolan_agent_errors_current ";
            let count = metrics.lines().find_map(|line| line.strip_prefix(name))?;
            ((count != "0") == some).then_some(())
        })
        .unwrap();
    }

    /// The deadline of a drain ends it, a change arrives, and a glance sees what somebody deleted.
    fn assert_good_goes_on(&self, when: &str) {
        let web = address(WEB, Family::V4, 80);
        let mut kept = self.open();
        assert_eq!(kept.ask().unwrap().name, "a");
        let start = Instant::now();
        self.publish(&[&self.b]);
        let answer = self.visitor.pod.request(Protocol::Tcp, web, PATIENT);
        assert_eq!(answer.unwrap().name, "b", "{when}");
        println!("{when}: changed after {:?}", start.elapsed());
        let old = self.a.pod.socket(Family::V4, EchoPod::PORT).to_string();
        wait_for(&format!("{when}: the end of a drain"), SOON, || {
            let servers = self.node("ipvsadm -Sn").ok()?;
            (!servers.contains(&old)).then_some(())
        })
        .unwrap();
        println!("{when}: drained after {:?}", start.elapsed());
        self.node("ipvsadm -D -t 10.96.0.10:80").unwrap();
        let start = Instant::now();
        wait_for(&format!("{when}: a glance"), SOON, || {
            let servers = self.node("ipvsadm -Sn").ok()?;
            servers.contains("-a -t 10.96.0.10:80").then_some(())
        })
        .unwrap();
        println!("{when}: mended after {:?}", start.elapsed());
        self.publish(&[&self.a]);
    }
}

#[test]
fn a_service_that_the_kernel_refuses_costs_the_others_nothing() {
    let name = "a_service_that_the_kernel_refuses_costs_the_others_nothing";
    let Some(world) = World::start_or_skip(name) else {
        return;
    };
    world.assert_good_goes_on("nothing bad");
    // Kernels before 6.2 have no such scheduler.
    world.put_bad(json!({ "portolan.dev/scheduler": "twos" }));
    let has_scheduler = world.node("ipvsadm -Sn").unwrap().contains("-s twos");
    println!("twos: {has_scheduler}");
    if !has_scheduler {
        world.wait_for_errors(true);
        world.assert_good_goes_on("no scheduler");
    }
    world.put_bad(json!({}));
    world.wait_for_errors(false);
    // The routes of IPv6 addresses go, and cannot be made anew.
    let switch = "sysctl -qw net.ipv6.conf.lo.disable_ipv6";
    world.node(&format!("{switch}=1")).unwrap();
    world.wait_for_errors(true);
    world.assert_good_goes_on("IPv6 is off");
    world.node(&format!("{switch}=0")).unwrap();
    world.wait_for_errors(false);
    for ips in [WEB, BAD] {
        let to = address(ips, Family::V6, 80);
        let answer = world.visitor.pod.request(Protocol::Tcp, to, PATIENT);
        answer.unwrap();
    }
}
