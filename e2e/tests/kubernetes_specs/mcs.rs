// SPDX-License-Identifier: Apache-2.0

//! The conformance suite of the Multi-Cluster Services API, with names and packets: two clusters of a real kubelet
//! each, served by one controller. `e2e/conformance-mcs` runs it.

use std::env;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portolan_e2e::cluster::{agent_is_ready, control};
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::kubelets::{Kubelets, LIMIT};
use portolan_e2e::mcs::{merged_kubeconfig, permissions, suite};
use portolan_e2e::programs::{self, Source};
use portolan_e2e::rig::{Family, Process};
use portolan_e2e::specs::{Outcome, parse};
use serde_json::{Value, json};

/// The clusters, in the order in which they win ties; the first one exports.
const NAMES: [&str; 2] = ["alpha", "beta"];
/// The number of specs of the suite's release 0.5.0.
const SPECS: usize = 27;
/// The deadline of all specs, in minutes, before that of the guest.
const MINUTES: u64 = 150;
/// The port at which the controller serves agents.
const PORT: u16 = 9443;
/// The port of the names of imports of the first cluster. That of the next one follows.
const NAMES_PORT: u16 = 5301;
/// The account whose permissions are those of the documentation.
const ACCOUNT: &str = "portolan-member";
/// The namespace of the account.
const SYSTEM: &str = "kube-system";

#[test]
#[ignore = "needs the conformance suite of the MCS API, built elsewhere: e2e/conformance-mcs"]
fn the_mcs_suite_passes() {
    let program = env::var_os("PORTOLAN_MCS_SUITE").expect("PORTOLAN_MCS_SUITE");
    let families: &[Family] = match variable("FAMILIES").as_str() {
        "ipv4" => &[Family::V4],
        _ => &Family::ALL,
    };
    let test = "the_mcs_suite_passes";
    let images = &["images", "mcs"];
    let clusters = Kubelets::start_clusters_or_skip(test, 2, families, images);
    let Some(clusters) = clusters else {
        return;
    };
    super::add_default_routes(&clusters[0]);
    let directory = results();
    let programs = start_portolan(&clusters, families, &directory);
    for (number, cluster) in clusters.iter().enumerate() {
        start_coredns(cluster, number);
    }
    let outcomes = run_suite(&clusters, Path::new(&program), &directory);
    let passed = outcomes.iter().filter(|outcome| outcome.passed()).count();
    let mut stdout = std::io::stdout();
    for outcome in &outcomes {
        writeln!(stdout, "{outcome}").unwrap();
    }
    writeln!(stdout, "{passed} of {} specs passed", outcomes.len()).unwrap();
    if passed < outcomes.len() {
        let states = clusters.iter().map(|cluster| cluster.describe(SYSTEM));
        fs::write(directory.join("kube-system"), states.collect::<String>()).unwrap();
    }
    assert!(!outcomes.is_empty(), "no spec matches");
    assert_eq!(passed, outcomes.len(), "some specs failed");
    if variable("FOCUS").is_empty() {
        let goal = Some(Goal::AtLeast(SPECS as f64));
        figure("mcs_suite_passed", passed as f64, "specs", goal);
        assert_eq!(outcomes.len(), SPECS, "the suite has other specs");
    }
    drop(programs);
}

/// A variable of `e2e/conformance-mcs`; empty if it is not set.
fn variable(name: &str) -> String {
    env::var(format!("PORTOLAN_MCS_{name}")).unwrap_or_default()
}

/// Starts the controller of both clusters, and an agent on each node; returns when the agents are ready.
fn start_portolan(clusters: &[Kubelets], families: &[Family], directory: &Path) -> Vec<Process> {
    let control = control(&clusters[0].rig);
    let objects: Vec<String> = std::iter::once(cluster_set())
        .chain(clusters.iter().enumerate().map(|(number, cluster)| {
            let kubeconfig = join(cluster, number);
            member(cluster, number, &kubeconfig, families)
        }))
        .map(|object| object.to_string())
        .collect();
    let policy = clusters[0].directory().join("policy.yaml");
    fs::write(&policy, objects.join("\n---\n")).unwrap();

    let mut command = programs::controller(&Source::Clusters(policy), PORT).unwrap();
    command.args(["--plaintext", "--dns-clusterset-zone=clusterset.local"]);
    for (number, name) in NAMES.iter().enumerate() {
        let address = names_address(&clusters[number], number);
        command.arg(format!("--dns-clusterset-listen={name}={address}"));
    }
    let namespace = control.namespace();
    let controller = Process::spawn(namespace, "controller", &mut command, directory).unwrap();
    let mut all = vec![controller];
    let dataplane = match variable("DATAPLANE") {
        none if none.is_empty() => "ipvs".to_owned(),
        dataplane => dataplane,
    };
    for (cluster, name) in clusters.iter().zip(NAMES) {
        let (node, host) = (cluster.node_name(0), cluster.node(0));
        let address: SocketAddr = (control.v4(), PORT).into();
        let mut command = programs::agent(&node, &[address], cluster.directory()).unwrap();
        command.args(["--plaintext", "--cluster", name]);
        command.arg(format!("--dataplane={dataplane}"));
        all.push(Process::spawn(host.namespace(), &node, &mut command, directory).unwrap());
    }
    for cluster in clusters {
        agent_is_ready(cluster.node(0), LIMIT).unwrap();
    }
    all
}

/// The address at which CoreDNS of a cluster asks for the names of its imports.
fn names_address(cluster: &Kubelets, number: usize) -> SocketAddr {
    let port = NAMES_PORT + u16::try_from(number).unwrap();
    (control(&cluster.rig).v4(), port).into()
}

/// Installs the API's CRDs in a cluster, and the documentation's account for the controller. Returns the account's
/// kubeconfig.
fn join(cluster: &Kubelets, number: usize) -> PathBuf {
    let apply = ["apply", "--server-side", "--filename=-"];
    let crds = fs::read_to_string(cluster.files().join("mcs/crds.yaml")).unwrap();
    for objects in [crds.as_str(), permissions()] {
        cluster.kubectl_with_input(&apply, objects).unwrap();
    }
    let account = ["create", "serviceaccount", ACCOUNT, "--namespace", SYSTEM];
    cluster.kubectl(&account).unwrap();
    let token = ["create", "token", ACCOUNT, "--namespace", SYSTEM];
    let token = cluster.kubectl(&[&token[..], &["--duration=24h"]].concat());
    let text = fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token.unwrap().trim()});
    let path = cluster
        .directory()
        .join(format!("{}.kubeconfig", NAMES[number]));
    fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}

fn cluster_set() -> Value {
    json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "ClusterSet", "metadata": {"name": "suite"},
        "spec": {"endpointSlices": "All"}})
}

fn member(cluster: &Kubelets, number: usize, kubeconfig: &Path, families: &[Family]) -> Value {
    let node = cluster.node(0);
    let mut addresses = vec![format!("10.112.{number}.0/24")];
    if families.contains(&Family::V6) {
        addresses.push(format!("fd00:112:{number}::/112"));
    }
    json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": NAMES[number]},
    "spec": {
        "access": {"kubeconfigFile": kubeconfig},
        "network": {
            "podCIDRs": [node.pod_range_v4(), node.pod_range_v6()],
            "clusterSetIPs": addresses,
        },
    }})
}

/// Starts a cluster's name server: its own names from the API server, those of imports from the controller.
fn start_coredns(cluster: &Kubelets, number: usize) {
    let imports = format!("grpc clusterset.local {}", names_address(cluster, number));
    let names = [&super::OWN_NAMES[..], &[&imports]].concat();
    let objects = include_str!("dns.yaml").replace("$NAMES", &super::indented(&names));
    let apply = ["apply", "--filename=-"];
    cluster.kubectl_with_input(&apply, &objects).unwrap();
    cluster.rolled_out(SYSTEM, "deployment/coredns").unwrap();
}

/// Runs the suite; its report and log go to the directory of results.
fn run_suite(clusters: &[Kubelets], program: &Path, directory: &Path) -> Vec<Outcome> {
    let servers = clusters.iter().map(Kubelets::servers);
    let members: Vec<_> = NAMES.into_iter().zip(servers).collect();
    let kubeconfig = clusters[0].directory().join("suite.kubeconfig");
    fs::write(
        &kubeconfig,
        merged_kubeconfig(&members).unwrap().to_string(),
    )
    .unwrap();
    let report = directory.join("suite.json");
    let mut command = suite(program, &kubeconfig, &NAMES, directory);
    command
        .arg(format!("--ginkgo.timeout={MINUTES}m"))
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .arg(format!("--ginkgo.focus={}", variable("FOCUS")));
    let control = control(&clusters[0].rig);
    let process = Process::spawn(control.namespace(), "suite", &mut command, directory);
    let mut process = process.unwrap();
    // A suite that is over its time still writes its report.
    let limit = Duration::from_secs(60 * (MINUTES + 5));
    process.wait(limit).unwrap();
    let text = fs::read_to_string(&report);
    let text = text.unwrap_or_else(|error| panic!("{error}: {}", process.log().unwrap()));
    parse(&text).unwrap()
}

/// The directory of results, which outlives the guest. `e2e/conformance-mcs` has emptied it.
fn results() -> PathBuf {
    let directory = match env::var_os("PORTOLAN_MCS_RESULTS") {
        Some(directory) => directory.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/mcs-suite"),
    };
    fs::create_dir_all(&directory).unwrap();
    directory
}
