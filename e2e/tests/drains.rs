//! Endpoints that go away keep the connections that they have, for as long as they are allowed to.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_e2e::ask::address;
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, service, slices};
use portolan_e2e::rig::{Connection, Family, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// A Service whose endpoint moves from the pod `old` to the pod `new`, seen from a third pod.
struct World {
    cluster: Cluster,
    old: EchoPod,
    new: EchoPod,
    visitor: EchoPod,
    deadline: Duration,
}

impl World {
    fn start_or_skip(test: &str, deadline: Duration) -> Option<Self> {
        if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
            return None;
        }
        let cluster = Cluster::new().unwrap();
        let add = |node, name| cluster.add_pod(node, name).unwrap();
        let (old, new, visitor) = (add(0, "old"), add(1, "new"), add(0, "visitor"));
        let world = Self {
            cluster,
            old,
            new,
            visitor,
            deadline,
        };
        world.publish((&world.old, 0));
        Some(world)
    }

    fn publish(&self, endpoint: (&EchoPod, usize)) {
        let mut web = service("web", WEB, json!({}));
        let seconds = self.deadline.as_secs().to_string();
        let annotations = json!({ "portolan.dev/drain-timeout": seconds });
        merge(&mut web["metadata"], json!({ "annotations": annotations }));
        let objects = [vec![web], slices("web", &[endpoint])].concat();
        self.cluster.put("web.json", &objects).unwrap();
    }

    fn open(&self, to: SocketAddr) -> Connection {
        let opened = self.visitor.pod.connect(Protocol::Tcp, to, PATIENT);
        opened.unwrap()
    }

    /// The line of a pod among the real servers of the visitor's node, if it is there.
    fn real_server(&self, pod: &EchoPod, family: Family) -> Option<String> {
        let list = ["ipvsadm", "-Ln"];
        let servers = self.cluster.rig.node(0).exec(&list).unwrap();
        let address = pod.pod.socket(family, EchoPod::PORT).to_string();
        let line = servers
            .lines()
            .skip_while(|line| !(line.starts_with("TCP") && line.contains(WEB[family as usize])))
            .skip(1)
            .take_while(|line| line.trim_start().starts_with("->"))
            .find(|line| line.contains(&format!(" {address} ")));
        line.map(Into::into)
    }
}

#[test]
fn connections_outlive_their_endpoint_and_new_ones_go_elsewhere() {
    const MANY: usize = 200;
    let name = "connections_outlive_their_endpoint_and_new_ones_go_elsewhere";
    let Some(world) = World::start_or_skip(name, Duration::from_secs(3600)) else {
        return;
    };
    let vip = |family| address(WEB, family, 80);
    let mut connections: Vec<_> = (0..MANY)
        .map(|number| world.open(vip(Family::ALL[number % 2])))
        .collect();
    let mut all_answer = |who: &str| {
        for connection in &mut connections {
            assert_eq!(connection.ask().unwrap().name, who);
        }
    };
    all_answer("old");
    world.publish((&world.new, 1));
    for turn in 0..5 {
        all_answer("old");
        for family in Family::ALL {
            for _ in 0..10 {
                let answer = world
                    .visitor
                    .pod
                    .request(Protocol::Tcp, vip(family), PATIENT);
                assert_eq!(answer.unwrap().name, "new", "turn {turn}");
            }
            let line = world.real_server(&world.old, family).expect("still there");
            let words: Vec<_> = line.split_whitespace().collect();
            // -> ADDRESS Masq WEIGHT ACTIVE INACTIVE
            assert_eq!(words[3], "0", "{line}");
            assert_eq!(words[4], (MANY / 2).to_string(), "{line}");
        }
    }
    // When they have ended, and the kernel has forgotten them, it goes.
    connections
        .into_iter()
        .for_each(|connection| connection.reset().unwrap());
    for family in Family::ALL {
        wait_for("the end of the old real server", PATIENT, || {
            world
                .real_server(&world.old, family)
                .is_none()
                .then_some(())
        })
        .unwrap();
        assert!(world.real_server(&world.new, family).is_some());
    }
}

#[test]
fn a_deadline_ends_a_drain_even_if_the_agent_was_restarted_in_between() {
    const DEADLINE: Duration = Duration::from_secs(40);
    let name = "a_deadline_ends_a_drain_even_if_the_agent_was_restarted_in_between";
    let Some(mut world) = World::start_or_skip(name, DEADLINE) else {
        return;
    };
    let mut connection = world.open(address(WEB, Family::V4, 80));
    assert_eq!(connection.ask().unwrap().name, "old");
    world.publish((&world.new, 1));
    let start = Instant::now();
    let is_there = |world: &World| world.real_server(&world.old, Family::V4).is_some();

    // The restart comes late, so that an agent that starts to count anew shows.
    let restart = DEADLINE * 3 / 5;
    wait_for("the time of the restart", DEADLINE, || {
        assert!(is_there(&world), "gone after {:?}", start.elapsed());
        (start.elapsed() >= restart).then_some(())
    })
    .unwrap();
    world.cluster.agent(0).unwrap().kill9().unwrap();
    world.cluster.start_agent(0).unwrap();
    // While it starts nothing ends. On a busy machine it may be ready after the deadline only.
    assert_eq!(connection.ask().unwrap().name, "old");
    world.cluster.wait_until_ready(0).unwrap();

    wait_for("the deadline", PATIENT, || {
        (!is_there(&world)).then_some(())
    })
    .unwrap();
    let lasted = start.elapsed();
    // A look at what drains every few seconds may add some.
    let expected = DEADLINE - Duration::from_secs(1)..restart + DEADLINE - Duration::from_secs(1);
    assert!(expected.contains(&lasted), "{lasted:?} not in {expected:?}");
}
