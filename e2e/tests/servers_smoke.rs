// SPDX-License-Identifier: Apache-2.0

//! The real control plane starts, and its endpointslice controller turns a Service and a Pod whose
//! status the test writes into an EndpointSlice.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use portolan_e2e::cluster::program;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;

const OBJECTS: &str = r"
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: zone-a}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec:
  nodeName: node-a
  containers: [{name: web, image: none}]
";

const STATUS: &str = r#"{"status": {
    "phase": "Running",
    "podIP": "10.1.0.2",
    "podIPs": [{"ip": "10.1.0.2"}, {"ip": "fd00:1::2"}],
    "conditions": [{"type": "Ready", "status": "True"}]
}}"#;

fn service(servers: &Servers, path: &str) -> Result<String> {
    let output = format!("jsonpath={{{path}}}");
    servers.kubectl(&["get", "service", "web", "-o", &output])
}

/// Family, address, readiness, node and zone of every endpoint of the service.
fn endpoints(servers: &Servers) -> Result<Vec<String>> {
    let fields =
        "{.addressType} {.endpoints[*]['addresses', 'conditions.ready', 'nodeName', 'zone']}";
    let output = format!("jsonpath={{range .items[*]}}{fields}{{'\\n'}}{{end}}");
    let selector = "kubernetes.io/service-name=web";
    let text = servers.kubectl(&["get", "endpointslices", "-l", selector, "-o", &output])?;
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
}

#[test]
fn a_ready_pod_appears_in_slices_of_both_families() {
    let dir = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let Some(servers) = Servers::start_or_skip("servers_smoke", dir.path()) else {
        return;
    };
    println!("servers ready after {:.1} s", start.elapsed().as_secs_f32());

    servers
        .kubectl_with_input(&["apply", "-f", "-"], OBJECTS)
        .unwrap();
    let patch = [
        "patch",
        "pod",
        "web-0",
        "--subresource",
        "status",
        "--type",
        "merge",
        "-p",
        STATUS,
    ];
    servers.kubectl(&patch).unwrap();

    let expected = [
        r#"IPv4 ["10.1.0.2"] true node-a zone-a"#,
        r#"IPv6 ["fd00:1::2"] true node-a zone-a"#,
    ];
    let mut seen = Vec::new();
    let appeared = wait_for("slices of the service", Duration::from_secs(60), || {
        seen = endpoints(&servers).unwrap();
        (seen == expected).then_some(())
    });
    assert!(appeared.is_ok(), "{appeared:?}: {seen:?}");

    let addresses = service(&servers, ".spec.clusterIPs").unwrap();
    assert!(
        addresses.contains(r#""10.96."#) && addresses.contains(r#""fd00:10:96::"#),
        "{addresses}"
    );
    let node_port: u16 = service(&servers, ".spec.ports[0].nodePort")
        .unwrap()
        .parse()
        .unwrap();
    assert!((30000..=32767).contains(&node_port), "{node_port}");
    println!("test done after {:.1} s", start.elapsed().as_secs_f32());
}

/// A pod that looks like a controller's of the chart, on a node without a kubelet.
const CONTROLLER: &str = r"
apiVersion: v1
kind: Node
metadata: {name: node-c}
---
apiVersion: v1
kind: Pod
metadata:
  name: controller-0
  namespace: kube-system
  labels: {app.kubernetes.io/component: controller}
spec:
  nodeName: node-c
  containers:
    - name: controller
      image: none
      ports: [{name: agents, containerPort: 9443}, {name: metrics, containerPort: 9444}]
";

/// The port itself would be forwarded by a kubelet, which these servers lack.
#[test]
fn portolanctl_finds_the_pods_of_controllers() {
    let dir = tempfile::tempdir().unwrap();
    let test = "portolanctl_finds_the_pods_of_controllers";
    let Some(servers) = Servers::start_or_skip(test, dir.path()) else {
        return;
    };
    let kubeconfig = format!("--kubeconfig={}", servers.kubeconfig().display());
    let status = |args: &[&str]| {
        let done = Command::new(program("portolanctl").unwrap())
            .args([&kubeconfig, "status"])
            .args(args)
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(2));
        String::from_utf8(done.stderr).unwrap()
    };
    let error = status(&[]);
    assert!(
        error.contains("namespace kube-system: no running pod has the label"),
        "{error}"
    );

    let apply = |input| servers.kubectl_with_input(&["apply", "-f", "-"], input);
    apply(CONTROLLER).unwrap();
    let address = r#"{"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}"#;
    let running = r#"{"status": {"phase": "Running"}}"#;
    let patch = |object: &[&str], status| {
        let flags = ["--subresource", "status", "--type", "merge", "-p", status];
        servers
            .kubectl(&[&["patch"], object, &flags].concat())
            .unwrap();
    };
    patch(&["node", "node-c"], address);
    patch(&["pod", "-n", "kube-system", "controller-0"], running);
    // The API server accepts the request, and dials the node's kubelet.
    let error = status(&[]);
    assert!(error.contains("pod kube-system/controller-0"), "{error}");
    let error = status(&["--namespace=default"]);
    assert!(
        error.contains("namespace default: no running pod"),
        "{error}"
    );
}
