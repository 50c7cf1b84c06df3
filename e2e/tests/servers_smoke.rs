//! The real control plane starts, and its endpointslice controller turns a Service and a Pod whose
//! status the test writes into an EndpointSlice.

use std::time::{Duration, Instant};

use anyhow::Result;
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
