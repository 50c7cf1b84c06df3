// SPDX-License-Identifier: Apache-2.0

//! Kubernetes' own end-to-end specs on a cluster of real kubelets, with Portolan installed by its
//! chart, or with a kube-proxy to compare. `e2e/conformance-e2e` chooses other specs than those of
//! Services that are tagged `[Conformance]`.

#![allow(clippy::unwrap_used, reason = "a test")]

mod mcs;

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use portolan_e2e::chart::{Chart, values};
use portolan_e2e::cluster::{Cluster, control};
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::kubelets::Kubelets;
use portolan_e2e::rig::{Family, Process};
use portolan_e2e::servers::{ApiOnLan, KubeProxies, Servers};
use portolan_e2e::specs::{Outcome, Proxy, Run, parse};
use serde_json::json;

/// The number of specs of networks tagged `[Conformance]` in the pinned release.
const CONFORMANCE: f64 = 47.0;
/// The VIP of Portolan's controllers, which CoreDNS asks for names.
const NAMES: &str = "10.96.0.53";
/// The plugin of CoreDNS for the names of a cluster, as its API server has them.
const OWN_NAMES: [&str; 4] = [
    "kubernetes cluster.local in-addr.arpa ip6.arpa {",
    "pods insecure",
    "ttl 5",
    "}",
];
/// Ends a run in good time before the guest's own deadline.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

#[test]
fn kubernetes_specs_pass() {
    let run = Run::from_environment().unwrap();
    let images = &["images", "specs"];
    let test = "kubernetes_specs_pass";
    let Some(kubelets) = Kubelets::start_with_or_skip(test, run.nodes, images) else {
        return;
    };
    add_default_routes(&kubelets);
    spread_over_zones(&kubelets);
    let proxies = start_proxy(&kubelets, &run.proxy);
    let apply = ["apply", "--filename=-"];
    let dns = include_str!("dns.yaml").replace("$NAMES", &names(&run.proxy));
    kubelets.kubectl_with_input(&apply, &dns).unwrap();
    kubelets
        .rolled_out("kube-system", "deployment/coredns")
        .unwrap();

    let outcomes = run_specs(&kubelets, &run);
    let passed = outcomes.iter().filter(|outcome| outcome.passed()).count();
    let left_out = outcomes.iter().filter(|outcome| outcome.left_out()).count();
    let mut table = String::new();
    for outcome in &outcomes {
        table += &format!("{outcome}\n");
    }
    // Straight to the stream: the test harness hides the output of a passing test.
    let mut stdout = std::io::stdout();
    let total = outcomes.len() - left_out;
    let proxy = &run.proxy;
    writeln!(
        stdout,
        "{table}{proxy}: {passed} of {total} passed, {left_out} left themselves out"
    )
    .unwrap();
    if passed < total {
        // A failure may be that of a pod which the kubelet has ended.
        let state = kubelets.describe("kube-system");
        fs::write(results().join(format!("{}.kube-system", run.proxy)), state).unwrap();
    }
    if run.is_conformance() {
        let goal = Some(Goal::AtLeast(CONFORMANCE));
        figure("upstream_conformance_passed", passed as f64, "specs", goal);
        assert!(passed as f64 >= CONFORMANCE, "fewer specs than expected");
    }
    assert!(total > 0, "no spec matches {:?}", run.focus);
    assert_eq!(passed, total, "some specs failed");
    drop(proxies);
}

/// Gives each node a default route, as real ones have: rules that rewrite or refuse a packet, as kube-proxy's in
/// modes iptables and nftables do, see only those that have a route. Nothing is forwarded there.
fn add_default_routes(kubelets: &Kubelets) {
    let router = control(&kubelets.rig);
    for node in kubelets.rig.nodes() {
        for family in Family::ALL {
            node.add_route("default", router.address(family)).unwrap();
        }
    }
}

/// Labels the nodes with three zones in turn, which specs of topology look for.
fn spread_over_zones(kubelets: &Kubelets) {
    for number in 0..kubelets.rig.nodes().len() {
        let zone = format!("topology.kubernetes.io/zone=zone{}", number % 3 + 1);
        let label = ["label", "node", &Cluster::node_name(number), &zone];
        kubelets.kubectl(&label).unwrap();
    }
}

/// The plugin of CoreDNS that knows the names of Services: with Portolan its controllers have them.
fn names(proxy: &Proxy) -> String {
    match proxy {
        Proxy::Portolan(_) => format!("grpc . {NAMES}:5300"),
        Proxy::KubeProxy(_) => indented(&OWN_NAMES),
    }
}

/// Lines in a block of YAML of `dns.yaml`.
fn indented(lines: &[&str]) -> String {
    lines.join("\n        ")
}

/// Starts the service proxy, and waits until it has programmed all nodes.
fn start_proxy(kubelets: &Kubelets, proxy: &Proxy) -> Option<(KubeProxies, ApiOnLan)> {
    let mode = match proxy {
        Proxy::Portolan(dataplane) => {
            install(kubelets, dataplane);
            return None;
        }
        Proxy::KubeProxy(mode) => mode,
    };
    let (rig, directory) = (&kubelets.rig, kubelets.directory());
    let api = ApiOnLan::start(kubelets.servers(), control(rig), directory).unwrap();
    let proxies = KubeProxies::start(mode, rig, api.url(), directory).unwrap();
    Some((proxies, api))
}

/// Installs Portolan's chart with agents of a dataplane.
fn install(kubelets: &Kubelets, dataplane: &str) {
    let chart = Chart::find(kubelets).expect("Helm and the chart");
    let mut values = values(kubelets, "10.96.0.1:443");
    values["dns"] = json!({ "zones": ["cluster.local"], "pods": "insecure" });
    values["controller"]["service"] = json!({ "clusterIP": NAMES });
    values["agent"]["dataplane"] = json!(dataplane);
    chart.install(kubelets, &values).unwrap();
    // As the kernel has it: a value that the chart ignored would leave another dataplane in charge.
    for node in kubelets.rig.nodes() {
        let tables = node.exec(&["nft", "list", "tables"]).unwrap_or_default();
        let is_there = tables.lines().any(|table| table == "table ip portolan");
        assert_eq!(is_there, dataplane == "nftables", "{tables}");
    }
}

/// Runs the specs; report and log go to the directory of results.
fn run_specs(kubelets: &Kubelets, run: &Run) -> Vec<Outcome> {
    let results = results();
    fs::create_dir_all(&results).unwrap();
    let report = results.join(format!("{}.json", run.proxy));
    // That of a former run is no result of this one.
    let _ = fs::remove_file(&report);
    let mut command = specs_command(kubelets, run, &results);
    let name = format!("{}.specs", run.proxy);
    let _ = fs::remove_file(results.join(format!("{name}.log")));
    let control = control(&kubelets.rig);
    let mut process = Process::spawn(control.namespace(), &name, &mut command, &results).unwrap();
    process.wait(LIMIT).unwrap();
    let text = fs::read_to_string(&report);
    let text = text.unwrap_or_else(|error| panic!("{error}: {}", process.log().unwrap()));
    parse(&text).unwrap()
}

/// Ginkgo runs several processes of the specs' program, and merges their reports.
fn specs_command(kubelets: &Kubelets, run: &Run, results: &Path) -> Command {
    let kubectl = Servers::binaries().unwrap().program("kubectl");
    let (directory, programs) = (kubelets.directory(), kubelets.files().join("bin"));
    let mut command = Command::new(programs.join("ginkgo"));
    command
        .args(["-v", "--no-color"])
        .arg(format!("--procs={}", run.at_once))
        .arg(format!("--timeout={}m", run.minutes))
        .arg(format!("--focus={}", run.focus))
        .arg(format!("--skip={}", run.skip))
        .arg(format!("--output-dir={}", results.display()))
        .arg(format!("--json-report={}.json", run.proxy))
        .arg(programs.join("e2e.test"))
        .arg("--")
        .arg(format!("--kubeconfig={}", kubelets.kubeconfig().display()))
        .arg(format!("--kubectl-path={}", kubectl.display()))
        .arg(format!("--e2e-output-dir={}", directory.display()))
        .args(["--provider=skeleton", "--node-os-distro=debian"])
        // Only the first of several processes counts them itself; the others would leave specs out.
        .arg(format!("--num-nodes={}", run.nodes))
        .args(["--dns-domain=cluster.local", "--allowed-not-ready-nodes=0"])
        .arg("--dump-logs-on-failure=false")
        .env("HOME", directory)
        .current_dir(directory);
    command
}

/// The directory of results, which outlives the guest.
fn results() -> PathBuf {
    match env::var_os("PORTOLAN_SPECS_RESULTS") {
        Some(directory) => directory.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kubernetes-specs"),
    }
}
