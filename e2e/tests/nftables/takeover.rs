// SPDX-License-Identifier: Apache-2.0

//! Takeover from a kube-proxy of both families by an agent of one.

use portolan_e2e::cluster::{Cluster, PATIENT};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::programs::Source;
use portolan_e2e::rig::{Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::json;
use tempfile::TempDir;

use crate::{WEB, skip};

/// Returns the table of a kube-proxy in nftables mode for the Service `web` in a family.
fn table_of_kube_proxy(family: &str, address: &str) -> String {
    format!(
        "table {family} kube-proxy {{
            chain endpoint {{ accept; }}
            map service-ips {{
                type {}_addr . inet_proto . inet_service : verdict
                elements = {{ {address} . tcp . 80 : goto endpoint }}
            }}
        }}",
        if family == "ip" { "ipv4" } else { "ipv6" }
    )
}

#[test]
fn an_agent_of_one_family_takes_over_that_one_alone() {
    if skip("an_agent_of_one_family_takes_over_that_one_alone") {
        return;
    }
    let files = TempDir::new().unwrap();
    let config = RigConfig {
        nodes: 1,
        clients: 1,
    };
    let rig = Rig::new(config).unwrap();
    let source = Source::Files(files.path().to_owned());
    let cluster = Cluster::without_agents(rig, source).unwrap();
    let mut cluster = cluster.programming("nftables");
    let pod = cluster.add_pod(0, "a").unwrap();
    let objects = [
        vec![service("web", WEB, json!({}))],
        slices("web", &[(&pod, 0)]),
    ];
    let list = json!({"kind": "List", "items": objects.concat()}).to_string();
    std::fs::write(files.path().join("web.json"), list).unwrap();
    let node = cluster.rig.node(0).namespace().clone();
    for (family, address) in ["ip", "ip6"].into_iter().zip(WEB) {
        let table = table_of_kube_proxy(family, address);
        node.exec_with_input(&["nft", "-f", "-"], &table).unwrap();
    }
    let flags = ["--takeover=kube-proxy", "--families=ipv4"];
    cluster.start_agent_with(0, &flags).unwrap();
    wait_for("the takeover to be complete", PATIENT, || {
        let metrics = cluster.agent_metrics(0).ok()?;
        let has = |line: &str| metrics.lines().any(|found| found == line);
        let tables = node.exec(&["nft", "list", "tables"]).ok()?;
        let is_gone = !tables.contains("table ip kube-proxy");
        (is_gone && has("portolan_agent_takeover_pending 0")).then_some(())
    })
    .unwrap();
    let tables = node.exec(&["nft", "list", "tables"]).unwrap();
    for kept in ["table ip portolan", "table ip6 kube-proxy"] {
        assert!(tables.lines().any(|table| table == kept), "{tables}");
    }
}
