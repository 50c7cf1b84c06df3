// SPDX-License-Identifier: Apache-2.0

//! ServiceAccount tokens of a real API server.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use portolan_e2e::cluster::{
    Cluster, EchoPod, PATIENT, POD_RANGES, agent_is_ready, control, http_get,
};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::programs::{self, AGENT_ADMIN, Source, Trust};
use portolan_e2e::rig::{Process, Protocol, Rig};
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::{wait_for, wait_with_pauses};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{WEB, kernel, metric};

const PORT: u16 = 9443;
const ACCOUNT: &str = "portolan-agent";
const AUDIENCE: &str = "portolan-controller";

/// The cluster of the control plane, where the controller serves several.
const MEMBER: &str = "eu-1";

/// The centre that a controller is.
#[derive(Clone, Copy)]
enum Centre {
    /// Of the control plane's cluster alone.
    One,
    /// Of a policy whose only cluster is that of the control plane.
    Many,
}

/// A control plane, and a Portolan controller that accepts its tokens.
struct World {
    // Fields drop in this order: clients before the servers they use.
    controller: Process,
    servers: Servers,
    directory: TempDir,
    rig: Rig,
    /// Flags of the agents.
    agent_flags: Vec<String>,
}

impl World {
    /// Starts both, with these additional flags of the controller.
    fn start_or_skip(test: &str, centre: Centre, flags: &[&str]) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let (rig, servers) = Servers::in_rig_or_skip(test, directory.path())?;
        let host = control(&rig);
        let server = host.v4().to_string();
        let certs = directory.path().join("certs");
        let nodes = [Cluster::node_name(0)];
        let trust = Trust::certify(&certs, &server, &nodes).unwrap();
        let get = |path: &str| {
            let answer = host
                .namespace()
                .run(|| servers.kubectl(&["get", "--raw", path]));
            answer.unwrap().unwrap()
        };
        let configuration = get("/.well-known/openid-configuration");
        let configuration: Value = serde_json::from_str(&configuration).unwrap();
        let issuer = configuration["issuer"].as_str().unwrap();
        let policy = directory.path().join("policy.yaml");
        let source = match centre {
            Centre::One => Source::Kubernetes(servers.kubeconfig().to_owned()),
            Centre::Many => Source::Clusters(policy.clone()),
        };
        let mut command = programs::controller(&source, PORT).unwrap();
        trust.of_controller(&mut command);
        let mut agent_flags = Vec::new();
        match centre {
            Centre::One => {
                command
                    .arg(format!("--token-issuer={issuer}"))
                    .arg(format!("--token-service-account=default/{ACCOUNT}"));
            }
            Centre::Many => {
                let kubeconfig = servers.kubeconfig();
                let member = member(kubeconfig, issuer, &get("/openid/v1/jwks"));
                fs::write(policy, member.to_string()).unwrap();
                command.arg("--cluster-tokens");
                agent_flags.push(format!("--cluster={MEMBER}"));
            }
        }
        command.args(flags);
        let controller = Process::spawn(
            host.namespace(),
            "controller",
            &mut command,
            directory.path(),
        );
        Some(Self {
            controller: controller.unwrap(),
            servers,
            directory,
            rig,
            agent_flags,
        })
    }

    fn kubectl(&self, args: &[&str], input: &str) -> String {
        let run = || self.servers.kubectl_with_input(args, input);
        control(&self.rig).namespace().run(run).unwrap().unwrap()
    }

    /// Nodes, the agents' account, a pod of theirs on each node, and a Service.
    fn write_objects(&self, pod: &EchoPod) {
        let mut objects = vec![json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": ACCOUNT },
        })];
        for number in 0..2 {
            let name = Cluster::node_name(number);
            objects.push(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            }));
            objects.push(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": agent_pod(number) },
                "spec": {
                    "nodeName": name,
                    "serviceAccountName": ACCOUNT,
                    "containers": [{ "name": "agent", "image": "none" }],
                },
            }));
        }
        let policy = json!({ "ipFamilyPolicy": "RequireDualStack" });
        objects.push(service("web", WEB, policy));
        objects.extend(slices("web", &[(pod, 0)]));
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let apply = ["apply", "--server-side", "-f", "-"];
        self.kubectl(&apply, &list.to_string());
    }

    /// Puts the token of the agent's pod on a node into a file, as a kubelet does.
    fn write_token(&self, number: usize, file: &Path) {
        let pod = agent_pod(number);
        let create = ["create", "token", ACCOUNT, "--audience", AUDIENCE];
        let bound = ["--bound-object-kind=Pod", "--bound-object-name", &pod];
        let token = self.kubectl(&[&create[..], &bound[..]].concat(), "");
        let hidden = file.with_extension("new");
        fs::write(&hidden, token.trim()).unwrap();
        fs::rename(hidden, file).unwrap();
    }

    /// The agent of a node, with a token in a file and no certificate.
    fn agent(&self, number: usize, token: &Path) -> Process {
        let name = Cluster::node_name(number);
        let controllers = [SocketAddr::from((control(&self.rig).v4(), PORT))];
        let mut command = programs::agent(&name, &controllers, self.directory.path()).unwrap();
        command
            .arg("--tls-ca")
            .arg(self.directory.path().join("certs/ca/tls.crt"))
            .arg("--token-file")
            .arg(token)
            .args(&self.agent_flags);
        let namespace = self.rig.node(number).namespace();
        Process::spawn(namespace, &name, &mut command, self.directory.path()).unwrap()
    }

    fn controller_metric(&self, name: &str) -> f64 {
        let namespace = control(&self.rig).namespace();
        metric(&http_get(namespace, PORT + 1, "/metrics").unwrap(), name)
    }

    fn refused(&self, reason: &str) -> f64 {
        let name = "portolan_controller_sessions_refused_total";
        self.controller_metric(&format!("{name}{{reason=\"{reason}\"}}"))
    }

    fn reviewed(&self, result: &str) -> f64 {
        let name = "portolan_controller_token_reviews_total";
        self.controller_metric(&format!("{name}{{result=\"{result}\"}}"))
    }

    fn agent_metric(&self, number: usize, name: &str) -> f64 {
        let namespace = self.rig.node(number).namespace();
        metric(&http_get(namespace, AGENT_ADMIN, "/metrics").unwrap(), name)
    }

    fn is_connected(&self, number: usize) -> bool {
        self.agent_metric(number, "portolan_agent_connected") > 0.0
    }
}

/// The policy of a centre of the control plane's cluster.
fn member(kubeconfig: &Path, issuer: &str, keys: &str) -> Value {
    let tokens = json!({
        "issuer": issuer, "jwks": keys, "serviceAccounts": [format!("default/{ACCOUNT}")],
    });
    json!({
        "apiVersion": "portolan.dev/v1alpha1", "kind": "Cluster", "metadata": { "name": MEMBER },
        "spec": {
            "access": { "kubeconfigFile": kubeconfig },
            "agents": { "tokens": tokens },
            "network": { "podCIDRs": POD_RANGES.split(',').collect::<Vec<_>>() },
        },
    })
}

fn agent_pod(number: usize) -> String {
    format!("agent-{}", Cluster::node_name(number))
}

#[test]
fn a_service_account_token_names_its_node() {
    tokens_name_nodes("a_service_account_token_names_its_node", Centre::One);
}

#[test]
fn a_token_of_a_member_cluster_names_its_node() {
    tokens_name_nodes("a_token_of_a_member_cluster_names_its_node", Centre::Many);
}

fn tokens_name_nodes(test: &str, centre: Centre) {
    let Some(mut world) = World::start_or_skip(test, centre, &[]) else {
        return;
    };
    let pod = EchoPod::new(world.rig.node(0), "a").unwrap();
    world.write_objects(&pod);
    let tokens = [0, 1].map(|number| world.directory.path().join(format!("token{number}")));
    world.write_token(0, &tokens[0]);
    let _first = world.agent(0, &tokens[0]);
    agent_is_ready(world.rig.node(0), PATIENT)
        .unwrap_or_else(|error| panic!("{error}: {}", world.controller.log().unwrap()));
    let visitor = EchoPod::new(world.rig.node(0), "v").unwrap();
    let vip = SocketAddr::new(WEB[0].parse().unwrap(), 80);
    wait_for("an answer of the pod", PATIENT, || {
        let answer = visitor.pod.request(Protocol::Tcp, vip, PATIENT);
        (answer.ok()?.name == "a").then_some(())
    })
    .unwrap();

    // The other node presents the first node's token.
    world.write_token(0, &tokens[1]);
    let second = world.agent(1, &tokens[1]);
    wait_for("refusals", PATIENT, || {
        (world.refused("wrong_node") >= 2.0).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", second.log().unwrap()));
    assert_eq!(kernel(world.rig.node(1)), [].into());
    let log = second.log().unwrap();
    assert!(log.contains("node2"), "{log}");
    // The agent accepts its own token without a restart.
    world.write_token(1, &tokens[1]);
    agent_is_ready(world.rig.node(1), PATIENT).unwrap();
    let table = kernel(world.rig.node(1));
    assert!(table.iter().any(|line| line.contains(WEB[0])), "{table:?}");
    assert!(world.controller.is_running());
}

/// The pause between two reads of metrics.
const LOOK: Duration = Duration::from_millis(100);

#[test]
fn a_stream_ends_when_the_pod_of_its_token_is_deleted() {
    let test = "a_stream_ends_when_the_pod_of_its_token_is_deleted";
    let flags = ["--token-review", "--token-review-period=1"];
    let Some(world) = World::start_or_skip(test, Centre::One, &flags) else {
        return;
    };
    let pod = EchoPod::new(world.rig.node(0), "a").unwrap();
    world.write_objects(&pod);
    let tokens = [0, 1].map(|number| world.directory.path().join(format!("token{number}")));
    let agents = [0, 1].map(|number| {
        world.write_token(number, &tokens[number]);
        world.agent(number, &tokens[number])
    });
    for number in [0, 1] {
        agent_is_ready(world.rig.node(number), PATIENT).unwrap();
    }
    let visitor = EchoPod::new(world.rig.node(0), "v").unwrap();
    let vip = SocketAddr::new(WEB[0].parse().unwrap(), 80);
    let answers = || {
        wait_for("an answer of the pod", PATIENT, || {
            let answer = visitor.pod.request(Protocol::Tcp, vip, PATIENT);
            (answer.ok()?.name == "a").then_some(())
        })
        .unwrap();
    };
    answers();
    let streams = "portolan_agent_streams_total";
    let opened = [0, 1].map(|number| world.agent_metric(number, streams));
    let good = world.reviewed("good");
    wait_with_pauses("several reviews", PATIENT, LOOK, || {
        (world.reviewed("good") >= good + 4.0).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", world.controller.log().unwrap()));
    for (number, before) in opened.iter().enumerate() {
        assert_eq!(world.agent_metric(number, streams), *before, "{number}");
        assert!(world.is_connected(number), "{number}");
    }
    assert_eq!(
        (world.refused("revoked"), world.reviewed("revoked")),
        (0.0, 0.0)
    );

    let before = kernel(world.rig.node(0));
    let gone = agent_pod(0);
    world.kubectl(&["delete", "pod", &gone, "--grace-period=0", "--force"], "");
    // Both its stream and its next attempt are refused.
    wait_with_pauses("refusals", PATIENT, LOOK, || {
        let ended = world.refused("revoked") >= 2.0 && !world.is_connected(0);
        ended.then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", world.controller.log().unwrap()));
    assert!(world.reviewed("revoked") >= 1.0);
    assert_eq!(kernel(world.rig.node(0)), before);
    answers();
    let good = world.reviewed("good");
    wait_with_pauses("reviews of the other", PATIENT, LOOK, || {
        (world.reviewed("good") >= good + 3.0).then_some(())
    })
    .unwrap();
    assert_eq!(world.agent_metric(1, streams), opened[1]);
    assert!(world.is_connected(1) && !world.is_connected(0));

    // The node's next pod has a token of its own.
    world.write_objects(&pod);
    world.write_token(0, &tokens[0]);
    wait_with_pauses("a stream", PATIENT, LOOK, || {
        world.is_connected(0).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", agents[0].log().unwrap()));
    assert_eq!(kernel(world.rig.node(0)), before);
}
