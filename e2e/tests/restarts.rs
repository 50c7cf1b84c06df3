// SPDX-License-Identifier: Apache-2.0

//! Killed agents and controllers, scaling and leaving endpoints fail no request.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::net::SocketAddr;
use std::time::Duration;

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::rig::{Family, Load, LoadConfig, LoadReport, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// A Service under load from a pod (cluster IP) and from outside (node port).
struct Loaded {
    cluster: Cluster,
    pods: Vec<(EchoPod, usize)>,
    loads: Vec<Load>,
    _visitor: EchoPod,
}

impl Loaded {
    fn start() -> Self {
        let cluster = Cluster::new().unwrap();
        let pods = vec![
            (cluster.add_pod(0, "a").unwrap(), 0),
            (cluster.add_pod(1, "b").unwrap(), 1),
        ];
        let visitor = cluster.add_pod(0, "v").unwrap();
        let mut this = Self {
            cluster,
            pods,
            loads: Vec::new(),
            _visitor: visitor,
        };
        this.publish(2);
        let config = load_config();
        let vip: SocketAddr = format!("{}:80", WEB[0]).parse().unwrap();
        let node_port = SocketAddr::new(this.cluster.rig.node(0).v4().into(), 30080);
        this.loads = vec![
            Load::start(&this._visitor.pod, &[vip], config.clone()).unwrap(),
            Load::start(this.cluster.rig.client(), &[node_port], config).unwrap(),
        ];
        this.wait_for_more();
        this
    }

    /// Publishes the Service with its first `count` pods.
    fn publish(&self, count: usize) {
        let pods: Vec<_> = self.pods[..count]
            .iter()
            .map(|(pod, node)| (pod, *node))
            .collect();
        let web = service(
            "web",
            WEB,
            json!({ "type": "NodePort", "ports": ports(Some(30080)) }),
        );
        let objects = [vec![web], slices("web", &pods)].concat();
        self.cluster.put("web.json", &objects).unwrap();
    }

    /// Waits until each load has a hundred more answers.
    fn wait_for_more(&self) {
        for load in &self.loads {
            let before = load.answered();
            wait_for("more answers", PATIENT, || {
                (load.answered() > before + 100).then_some(())
            })
            .unwrap();
        }
    }

    fn stop(&mut self) -> Vec<LoadReport> {
        self.loads.drain(..).map(Load::stop).collect()
    }
}

/// A load that lasts longer than a test, slow enough to leave source ports free.
fn load_config() -> LoadConfig {
    LoadConfig {
        timeout: PATIENT,
        limit: 1_000_000,
        pause: Duration::from_millis(10),
        ..LoadConfig::default()
    }
}

fn sessions_resumed_equal(metrics: &str) -> u64 {
    let name = "portolan_controller_sessions_resumed_equal_total ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().parse().unwrap()
}

fn assert_no_failures(reports: &[LoadReport], what: &str) {
    for report in reports {
        println!(
            "{what}: {} requests, {} failed, slowest {}, by {:?}",
            report.requests,
            report.failures.len(),
            report.slowest,
            report.by_name
        );
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert!(report.requests > 200);
    }
}

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Ipvs])
}

#[test]
fn an_agent_that_is_killed_and_restarted_fails_no_request() {
    if skip("an_agent_that_is_killed_and_restarted_fails_no_request") {
        return;
    }
    let mut loaded = Loaded::start();
    for _ in 0..3 {
        loaded.cluster.agent(0).unwrap().kill9().unwrap();
        loaded.wait_for_more();
        loaded.cluster.start_agent(0).unwrap();
        loaded.cluster.wait_until_ready(0).unwrap();
        loaded.wait_for_more();
    }
    // A restarted agent finds the kernel in the desired state, including the constant rules.
    let metrics = loaded.cluster.agent_metrics(0).unwrap();
    assert!(
        metrics.contains("portolan_agent_objects_changed_total 0\n"),
        "{metrics}"
    );
    assert_no_failures(&loaded.stop(), "agent killed");
}

/// A reboot in an outage: the kernel is empty and no controller is reachable.
#[test]
fn an_agent_that_finds_no_controller_programs_its_last_good_table() {
    if skip("an_agent_that_finds_no_controller_programs_its_last_good_table") {
        return;
    }
    let mut loaded = Loaded::start();
    loaded.stop();
    loaded.cluster.controller().unwrap().kill9().unwrap();
    let agent = loaded.cluster.agent(0).unwrap();
    agent.stop(PATIENT).unwrap();
    loaded.cluster.clean_up(0).unwrap();
    loaded.cluster.start_agent(0).unwrap();
    loaded.cluster.wait_until_ready(0).unwrap();
    let vip: SocketAddr = format!("{}:80", WEB[0]).parse().unwrap();
    let load = Load::start(&loaded._visitor.pod, &[vip], load_config()).unwrap();
    loaded.loads.push(load);
    loaded.wait_for_more();
    loaded.wait_for_more();
    assert_no_failures(&loaded.stop(), "no controller");
}

#[test]
fn a_controller_that_is_killed_and_restarted_fails_no_request() {
    if skip("a_controller_that_is_killed_and_restarted_fails_no_request") {
        return;
    }
    let mut loaded = Loaded::start();
    for _ in 0..3 {
        loaded.cluster.controller().unwrap().kill9().unwrap();
        loaded.wait_for_more();
        loaded.cluster.start_controller().unwrap();
        loaded.cluster.wait_until_programmed(0).unwrap();
        loaded.wait_for_more();
    }
    // The agents have the table already, so no snapshot is sent. A busy agent may connect twice.
    let metrics = loaded.cluster.controller_metrics().unwrap();
    assert!(
        metrics.contains("portolan_controller_snapshots_sent_total 0\n"),
        "{metrics}"
    );
    assert!(
        sessions_resumed_equal(&metrics) >= 2,
        "both agents resumed: {metrics}"
    );
    assert_no_failures(&loaded.stop(), "controller killed");
}

#[test]
fn scaling_while_agent_and_controller_restart_fails_no_request() {
    if skip("scaling_while_agent_and_controller_restart_fails_no_request") {
        return;
    }
    let mut loaded = Loaded::start();
    for number in 0..2 {
        let pod = loaded
            .cluster
            .add_pod(number, &format!("more{number}"))
            .unwrap();
        loaded.pods.push((pod, number));
    }
    // Endpoints are only added here, so no request may fail.
    loaded.publish(3);
    loaded.cluster.agent(0).unwrap().kill9().unwrap();
    loaded.cluster.controller().unwrap().kill9().unwrap();
    loaded.wait_for_more();
    loaded.cluster.start_controller().unwrap();
    loaded.cluster.start_agent(0).unwrap();
    loaded.cluster.wait_until_ready(0).unwrap();
    loaded.publish(4);
    loaded.wait_for_more();
    let reports = loaded.stop();
    assert_no_failures(&reports, "scaled between restarts");
    assert_eq!(reports[0].by_name.len(), 4, "{:?}", reports[0].by_name);
}

#[test]
fn endpoints_that_leave_drain_and_fail_no_request() {
    if skip("endpoints_that_leave_drain_and_fail_no_request") {
        return;
    }
    let mut loaded = Loaded::start();
    let mut connection = loaded
        .cluster
        .rig
        .client()
        .connect(
            Protocol::Tcp,
            loaded.cluster.rig.node(0).socket(Family::V4, 30080),
            PATIENT,
        )
        .unwrap();
    let kept = connection.ask().unwrap().name;
    // The endpoint of the connection leaves.
    loaded.pods.sort_by_key(|(pod, _)| pod.pod.name() == kept);
    loaded.publish(1);
    loaded.wait_for_more();
    assert_eq!(
        connection.ask().unwrap().name,
        kept,
        "the connection survives its endpoint"
    );
    assert_no_failures(&loaded.stop(), "endpoint left");
    drop(connection);
}
