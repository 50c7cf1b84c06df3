// SPDX-License-Identifier: Apache-2.0

//! A real kube-proxy, from its start to its last programmed service. It gets the same objects from an otherwise idle
//! API server.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portolan_e2e::static_api::{self, StaticObjects};
use portolan_e2e::wait::wait_for;
use portolan_netlink::ipvs::Ipvs;
use serde_json::json;

use crate::load::Load;
use crate::{NODE, milliseconds, product, say};

/// The deadline for kube-proxy, far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(150);
/// The pause between two checks; each takes processor time from kube-proxy if there is one
/// processor.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
const NODE_NAME: &str = "node-a";

/// Runs kube-proxy in IPVS mode.
pub(crate) fn run(load: Load) -> Result<()> {
    let expected = (load.services, load.services * load.endpoints);
    let ipvs = Ipvs::open()?;
    measure(load, "ipvs", move || {
        let mut found = (0, 0);
        let seen = ipvs.glance(|_, server| {
            found.0 += 1;
            found.1 += server.real_servers;
        });
        seen.is_ok() && found == expected
    })
}

/// Runs kube-proxy in a mode until it has programmed all services.
pub(crate) fn measure(load: Load, mode: &str, mut is_done: impl FnMut() -> bool) -> Result<()> {
    let Ok(program) = std::env::var("PORTOLAN_KUBE_PROXY") else {
        return Ok(());
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let master = format!("--master={}", static_api::serve(listener, objects(load))?);
    let start = Instant::now();
    let mut child = Killed(
        Command::new(program)
            .args([master.as_str(), "--oom-score-adj=0"])
            .arg(format!("--proxy-mode={mode}"))
            .arg(format!("--hostname-override={NODE_NAME}"))
            .args([
                "--cluster-cidr=10.128.0.0/9",
                "--metrics-bind-address=127.0.0.1:10249",
            ])
            .arg("--healthz-bind-address=127.0.0.1:10256")
            .args(["--conntrack-max-per-core=0", "--conntrack-min=0"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let mut looked = Instant::now();
    let running = wait_for("kube-proxy's virtual servers", PATIENCE, || {
        if !matches!(child.0.try_wait(), Ok(None)) {
            return Some(false);
        }
        if looked.elapsed() < BETWEEN_LOOKS {
            return None;
        }
        looked = Instant::now();
        is_done().then_some(true)
    })?;
    ensure!(running, "kube-proxy ended");
    say("start", milliseconds(start));
    say("rss", product::memory(child.0.id(), "VmRSS:")?);
    Ok(())
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The load as Kubernetes has it.
fn objects(load: Load) -> StaticObjects {
    let (mut services, mut slices) = (Vec::new(), Vec::new());
    for number in 0..load.services {
        let (vip, name) = (load.vip(number), format!("service-{number:05}"));
        let endpoints: Vec<_> = load
            .endpoints_of(number)
            .map(|address| json!({ "addresses": [address], "conditions": { "ready": true } }))
            .collect();
        services.push(json!({
            "metadata": { "name": name, "namespace": "bench", "uid": name, "resourceVersion": "1" },
            "spec": { "clusterIP": vip, "clusterIPs": [vip], "ipFamilies": ["IPv4"], "type": "ClusterIP",
                "ports": [{ "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080 }] },
        }));
        let slice = format!("{name}-1");
        slices.push(json!({
            "metadata": { "name": slice, "namespace": "bench", "uid": slice, "resourceVersion": "1",
                "labels": { "kubernetes.io/service-name": name } },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }],
        }));
    }
    let node = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": NODE_NAME, "uid": "n", "resourceVersion": "1" },
        "spec": { "podCIDR": "10.128.0.0/24", "podCIDRs": ["10.128.0.0/24"] },
        "status": { "addresses": [{ "type": "InternalIP", "address": NODE }] },
    });
    StaticObjects {
        services,
        slices,
        node,
    }
}
