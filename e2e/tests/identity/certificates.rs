// SPDX-License-Identifier: Apache-2.0

//! Certificates as `portolan-controller certs` makes them.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::programs::{self, Trust};
use portolan_e2e::rig::{Load, LoadConfig, Process};
use portolan_e2e::wait::{wait_for, wait_with_pauses};
use portolan_tls::NodeName;
use portolan_tls::issue::Authority;
use serde_json::json;

use crate::{WEB, kernel, metric};

/// The validity of the certificate that is replaced while in use.
const VALID: Duration = Duration::from_secs(30);
/// A stream ends a minute after its certificate expires; on a busy guest, somewhat later.
const REOPENED: Duration = Duration::from_secs(180);
/// The pause between two reads of metrics, in waits of a minute.
const LOOK: Duration = Duration::from_millis(250);

/// Two nodes, and a Service with some of its two pods.
struct Secure {
    pods: [EchoPod; 2],
    cluster: Cluster,
}

impl Secure {
    fn start() -> Self {
        let cluster = Cluster::with_certificates().unwrap();
        let pod = |node, name| cluster.add_pod(node, name).unwrap();
        let secure = Self {
            pods: [pod(0, "a"), pod(1, "b")],
            cluster,
        };
        secure.publish(2);
        secure
    }

    fn publish(&self, count: usize) {
        let text = self.objects(count);
        self.cluster.put_text("web.json", &text).unwrap();
    }

    fn objects(&self, count: usize) -> String {
        let pods: Vec<_> = self.pods.iter().zip(0..count).collect();
        let objects = [vec![service("web", WEB, json!({}))], slices("web", &pods)].concat();
        json!({ "kind": "List", "items": objects }).to_string()
    }

    fn vip() -> SocketAddr {
        SocketAddr::new(WEB[0].parse().unwrap(), 80)
    }

    fn controller_metric(&self, name: &str) -> f64 {
        metric(&self.cluster.controller_metrics().unwrap(), name)
    }

    fn agent_metric(&self, number: usize, name: &str) -> f64 {
        metric(&self.cluster.agent_metrics(number).unwrap(), name)
    }

    fn refused(&self, reason: &str) -> f64 {
        let name = "portolan_controller_sessions_refused_total";
        self.controller_metric(&format!("{name}{{reason=\"{reason}\"}}"))
    }

    /// Writes a new certificate for a node, of the same authority.
    fn replace_certificate(&self, node: &str, valid: Duration) {
        let certs = self.cluster.certificates();
        let read = |file: &str| fs::read_to_string(certs.join("ca").join(file)).unwrap();
        let authority = Authority::load(&read("tls.crt"), &read("tls.key")).unwrap();
        let now = SystemTime::now();
        let validity = now - Duration::from_secs(60)..now + valid;
        let name = NodeName::new("", node).unwrap();
        let issued = authority.node(&name, validity).unwrap();
        let directory = certs.join("nodes").join(node);
        fs::write(directory.join("tls.crt"), issued.cert).unwrap();
        fs::write(directory.join("tls.key"), issued.key).unwrap();
    }
}

#[test]
fn no_agent_gets_the_table_of_another_node() {
    let test = "no_agent_gets_the_table_of_another_node";
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let mut secure = Secure::start();
    let victim = Cluster::node_name(0);
    let streams = "portolan_agent_streams_total";
    let (before, opened) = (
        kernel(secure.cluster.rig.node(1)),
        secure.agent_metric(0, streams),
    );
    assert!(before.iter().any(|line| line.contains(WEB[0])));
    secure.cluster.agent(1).unwrap().kill9().unwrap();

    let directory = secure.cluster.directory().join("impostors");
    let server = secure.cluster.control().v4().to_string();
    let names = [victim.clone()];
    let others = Trust::certify(&directory.join("certs"), &server, &names).unwrap();
    let own = Trust::Certificates(secure.cluster.certificates());
    for (trust, shows, reason) in [
        (&own, Cluster::node_name(1), "wrong_node"),
        (&others, victim.clone(), "handshake"),
        (&Trust::Plaintext, victim.clone(), "handshake"),
    ] {
        let refused = secure.refused(reason);
        let state = directory.join(reason);
        let controllers = [secure.cluster.agents_address()];
        let mut command = programs::agent(&victim, &controllers, &state).unwrap();
        trust.of_node(&shows, &mut command);
        let namespace = secure.cluster.rig.node(1).namespace();
        let mut impostor = Process::spawn(namespace, "impostor", &mut command, &directory).unwrap();
        // The agent retries.
        wait_for("refusals", PATIENT, || {
            (secure.refused(reason) >= refused + 2.0).then_some(())
        })
        .unwrap_or_else(|error| panic!("{reason}: {error}: {}", impostor.log().unwrap()));
        assert!(impostor.is_running(), "{}", impostor.log().unwrap());
        let metrics = secure.cluster.agent_metrics(1).unwrap();
        assert_eq!(metric(&metrics, "portolan_agent_commits_total"), 0.0);
        assert_eq!(kernel(secure.cluster.rig.node(1)), before, "{reason}");
    }
    // Neither the impersonated agent nor the node's own agent is affected.
    assert_eq!(secure.agent_metric(0, streams), opened);
    secure.cluster.start_agent(1).unwrap();
    secure.cluster.wait_until_ready(1).unwrap();
    secure.publish(1);
}

#[test]
fn a_certificate_is_replaced_without_a_gap() {
    let test = "a_certificate_is_replaced_without_a_gap";
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let mut secure = Secure::start();
    let name = Cluster::node_name(0);
    secure.cluster.agent(0).unwrap().kill9().unwrap();
    secure.replace_certificate(&name, VALID);
    secure.cluster.start_agent(0).unwrap();
    secure.cluster.wait_until_ready(0).unwrap();
    // Without a table of its stream in time the agent is ready with that on its disk.
    wait_for("the stream's table", PATIENT, || {
        (secure.agent_metric(0, "portolan_agent_commits_total") > 0.0).then_some(())
    })
    .unwrap();
    let opened = secure.agent_metric(0, "portolan_agent_streams_total");
    let resumed = "portolan_controller_sessions_resumed_equal_total";
    let resumed_before = secure.controller_metric(resumed);
    let visitor = secure.cluster.add_pod(0, "v").unwrap();
    let config = LoadConfig {
        timeout: Duration::from_secs(10),
        limit: 100_000,
        pause: Duration::from_millis(20),
        ..LoadConfig::default()
    };
    let load = Load::start(&visitor.pod, &[Secure::vip()], config).unwrap();

    secure.cluster.renew_certificates().unwrap();
    let reloads =
        |program: &str| format!("portolan_{program}_credential_reloads_total{{what=\"tls\"}}");
    wait_with_pauses("new certificates on both sides", PATIENT, LOOK, || {
        let agent = secure.agent_metric(0, &reloads("agent"));
        let controller = secure.controller_metric(&reloads("controller"));
        (agent >= 1.0 && controller >= 1.0).then_some(())
    })
    .unwrap();
    // The old certificate is still valid, and so is the stream opened with it.
    let streams = || secure.agent_metric(0, "portolan_agent_streams_total");
    assert_eq!(streams(), opened);
    secure.publish(1);
    assert_eq!(streams(), opened);
    // The stream ends after the old certificate expires. The new certificate opens the next.
    wait_with_pauses("another stream", REOPENED, LOOK, || {
        let connected = secure.agent_metric(0, "portolan_agent_connected");
        (streams() > opened && connected > 0.0).then_some(())
    })
    .unwrap();
    secure.publish(2);
    assert_eq!(streams(), opened + 1.0, "one stream, and no failed attempt");
    assert_eq!(secure.controller_metric(resumed), resumed_before + 1.0);
    let all_at = load.answered();
    wait_for("both pods", PATIENT, || {
        (load.answered() > all_at + 20).then_some(())
    })
    .unwrap();
    let report = load.stop();
    println!("{} requests, {:?}", report.requests, report.by_name);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.requests > 500, "{}", report.requests);
}
