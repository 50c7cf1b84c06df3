// SPDX-License-Identifier: Apache-2.0

//! Removed endpoints keep their connections until the drain timeout.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use portolan_e2e::ask::{PROMPT, address};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, service, slices};
use portolan_e2e::rig::{Connection, Family, Host, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const EXTERNAL: [&str; 2] = ["198.51.100.10", "2001:db8:100::10"];

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
    const MANY: usize = 60;
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
    // The real server is removed once its connections have ended and the kernel has forgotten them.
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
fn a_deadline_ends_a_drain_across_an_agent_restart() {
    const DEADLINE: Duration = Duration::from_secs(30);
    let name = "a_deadline_ends_a_drain_across_an_agent_restart";
    let Some(mut world) = World::start_or_skip(name, DEADLINE) else {
        return;
    };
    let mut connections = Family::ALL.map(|family| world.open(address(WEB, family, 80)));
    let mut assert_kept = || {
        for connection in &mut connections {
            assert_eq!(connection.ask().unwrap().name, "old");
        }
    };
    assert_kept();
    let start = Instant::now();
    world.publish((&world.new, 1));
    let is_there =
        |world: &World| Family::ALL.map(|family| world.real_server(&world.old, family).is_some());

    // The restart is late, so that an agent that restarts the count is noticed.
    let restart = DEADLINE * 3 / 5;
    wait_for("the time of the restart", DEADLINE, || {
        assert_eq!(is_there(&world), [true; 2], "after {:?}", start.elapsed());
        (start.elapsed() >= restart).then_some(())
    })
    .unwrap();
    world.cluster.agent(0).unwrap().kill9().unwrap();
    world.cluster.start_agent(0).unwrap();
    // Nothing ends while the agent starts. On a busy machine it may only be ready after the
    // deadline.
    assert_kept();
    world.cluster.wait_until_ready(0).unwrap();

    wait_for("the deadline", PATIENT, || {
        (is_there(&world) == [false; 2]).then_some(())
    })
    .unwrap();
    let lasted = start.elapsed();
    // The agent checks draining real servers every few seconds.
    let expected = DEADLINE - Duration::from_secs(1)..restart + DEADLINE - Duration::from_secs(1);
    assert!(expected.contains(&lasted), "{lasted:?} not in {expected:?}");
}

/// Schedulers that take turns, hash clients, count connections or remember clients. `dh` hashes the Service's
/// address alone and gives one endpoint all clients; `ovf` gives an endpoint no more connections than its weight.
const SCHEDULERS: [&str; 6] = ["rr", "sh", "mh", "wrr", "wlc", "lblc"];

/// The first three cover turns, and hashes with and without consistency; `PORTOLAN_ALL_SCHEDULERS` adds the rest.
fn schedulers() -> &'static [&'static str] {
    match std::env::var_os("PORTOLAN_ALL_SCHEDULERS") {
        Some(_) => &SCHEDULERS,
        None => &SCHEDULERS[..3],
    }
}

/// Publishes a Service with affinity and these endpoints, and with `over` laid over it.
fn publish_affine(cluster: &Cluster, over: Value, pods: &[(&EchoPod, usize)]) {
    let mut web = service("web", WEB, json!({ "sessionAffinity": "ClientIP" }));
    merge(&mut web, over);
    let objects = [vec![web], slices("web", pods)].concat();
    cluster.put("web.json", &objects).unwrap();
}

/// Adds `count` addresses of each family to a pod on node 0.
fn many_clients(cluster: &Cluster, pod: &Host, count: usize) -> Vec<[IpAddr; 2]> {
    let [here, there] = [0, 1].map(|number| cluster.rig.node(number));
    let addresses: Vec<[IpAddr; 2]> = (1..=count)
        .map(|k| [format!("10.244.201.{k}"), format!("fd00:244:201::{k}")])
        .map(|texts| texts.map(|text| text.parse().unwrap()))
        .collect();
    let add = |[v4, v6]: &[IpAddr; 2]| {
        let v6 = format!("addr add {v6}/128 dev eth0 nodad");
        [format!("addr add {v4}/32 dev eth0"), v6]
    };
    let commands: Vec<_> = addresses.iter().flat_map(add).collect();
    pod.namespace().ip(&commands).unwrap();
    for (range, family) in [
        ("10.244.201.0/24", Family::V4),
        ("fd00:244:201::/64", Family::V6),
    ] {
        here.add_route(range, pod.address(family)).unwrap();
        there.add_route(range, here.address(family)).unwrap();
    }
    addresses
}

/// With `mh` and without its fallback flag, every client of the draining endpoint is refused: half of all.
#[test]
fn a_drain_refuses_no_client_with_affinity() {
    const CLIENTS: usize = 100;
    let name = "a_drain_refuses_no_client_with_affinity";
    if !lane::provides(name, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let add = |node, name| cluster.add_pod(node, name).unwrap();
    let (old, new, visitor) = (add(0, "old"), add(1, "new"), add(0, "visitor"));
    let clients = many_clients(&cluster, &visitor.pod, CLIENTS);
    let connect = |number: usize| {
        let source = clients[number][number % 2];
        // By address, and by the firewall mark of a short circuit.
        let ips = if number % 4 < 2 { WEB } else { EXTERNAL };
        let to = address(ips, Family::ALL[number % 2], 80);
        let source = SocketAddr::new(source, 0);
        let open = || Connection::open_at(source, Protocol::Tcp, to, PROMPT);
        let mut connection = visitor.pod.namespace().run(open).unwrap()?;
        connection.ask().map(|answer| (connection, answer.name))
    };
    for scheduler in schedulers() {
        let over = json!({
            "metadata": { "annotations": { "portolan.dev/scheduler": scheduler } },
            "spec": { "externalIPs": EXTERNAL, "externalTrafficPolicy": "Local" },
        });
        publish_affine(&cluster, over.clone(), &[(&old, 0), (&new, 1)]);
        let before: Vec<_> = (0..CLIENTS).map(|k| connect(k).unwrap()).collect();
        let on_old = before.iter().filter(|(_, name)| name == "old").count();
        assert!(on_old > 0, "{scheduler}: nobody has anything to lose");

        publish_affine(&cluster, over, &[(&new, 1)]);
        // One after the other, to limit the number of open descriptors.
        let lost: Vec<String> = (0..CLIENTS)
            .filter_map(|k| match connect(k) {
                Ok((connection, name)) => {
                    connection.reset().unwrap();
                    (name != "new").then_some(format!("{k}: answered by {name}"))
                }
                Err(error) => Some(format!("{k}: {error}")),
            })
            .collect();
        let what = format!("clients_lost_in_a_drain_{scheduler}");
        let count = u32::try_from(lost.len()).unwrap();
        figure(&what, count.into(), "clients", Some(Goal::AtMost(0.0)));
        assert!(lost.is_empty(), "{scheduler}, of {on_old}: {lost:?}");
        for (mut connection, name) in before {
            assert_eq!(connection.ask().unwrap().name, name, "{scheduler}");
            connection.reset().unwrap();
        }
    }
}

#[test]
fn a_client_changes_endpoints_when_its_affinity_times_out() {
    let name = "a_client_changes_endpoints_when_its_affinity_times_out";
    if !lane::provides(name, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    // Affinity lasts for as long as the kernel remembers connections.
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    cluster
        .start_agent_with(0, &["--ipvs-udp-timeout=1s"])
        .unwrap();
    cluster.wait_until_ready(0).unwrap();
    let add = |node, name| cluster.add_pod(node, name).unwrap();
    let (a, b, visitor) = (add(0, "a"), add(1, "b"), add(0, "visitor"));
    let seconds = json!({ "clientIP": { "timeoutSeconds": 3 } });
    let over = json!({ "spec": { "sessionAffinityConfig": seconds } });
    publish_affine(&cluster, over, &[(&a, 0), (&b, 1)]);
    let ask = |family| {
        let to = address(WEB, family, 80);
        let answer = visitor.pod.request(Protocol::Udp, to, PATIENT);
        answer.unwrap().name
    };
    for family in Family::ALL {
        let first = ask(family);
        for _ in 0..5 {
            assert_eq!(ask(family), first);
        }
        wait_for("the affinity's end", PATIENT, || {
            let list = ["ipvsadm", "-L", "-n", "-c"];
            let known = cluster.rig.node(0).exec(&list).unwrap();
            let client = visitor.pod.address(family).to_string();
            (!known.contains(&client)).then_some(())
        })
        .unwrap();
        assert_ne!(ask(family), first, "{family:?}");
    }
}
