// SPDX-License-Identifier: Apache-2.0

//! A node with a client pod, two server pods, and a service proxy or none.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use portolan_e2e::cluster::{Cluster, http_get};
use portolan_e2e::programs::{AGENT_ADMIN, program};
use portolan_e2e::rig::{Pod, Process, Rig, RigConfig};
use portolan_e2e::servers::KubeProxies;
use portolan_e2e::static_api::{self, StaticObjects};
use portolan_e2e::wait::wait_with_pauses;
use serde_json::json;
use tempfile::TempDir;

use crate::flows::{Client, Kind, PORT, Round, Servers};
use crate::objects;

/// The deadline of a start with 10,000 Services in an emulated guest.
const PATIENCE: Duration = Duration::from_secs(600);

/// A service proxy and its plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    Nftables,
    Ipvs,
    KubeProxyNftables,
    KubeProxyIptables,
    KubeProxyIpvs,
}

impl Way {
    pub(crate) const ALL: [Self; 5] = [
        Self::Nftables,
        Self::Ipvs,
        Self::KubeProxyNftables,
        Self::KubeProxyIptables,
        Self::KubeProxyIpvs,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
            Self::KubeProxyNftables => "kube_proxy_nftables",
            Self::KubeProxyIptables => "kube_proxy_iptables",
            Self::KubeProxyIpvs => "kube_proxy_ipvs",
        }
    }

    pub(crate) const fn needs_ipvs(self) -> bool {
        matches!(self, Self::Ipvs | Self::KubeProxyIpvs)
    }

    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Nftables | Self::Ipvs)
    }

    /// The name of the plane, or of kube-proxy's mode.
    const fn mode(self) -> &'static str {
        match self {
            Self::Nftables | Self::KubeProxyNftables => "nftables",
            Self::Ipvs | Self::KubeProxyIpvs => "ipvs",
            Self::KubeProxyIptables => "iptables",
        }
    }
}

/// The running program, which ends with the machine.
#[derive(Debug)]
enum Running {
    Nothing,
    Agent(#[expect(dead_code, reason = "ends when dropped")] Process),
    KubeProxy(#[expect(dead_code, reason = "ends when dropped")] KubeProxies),
}

/// The machine. Programs before namespaces, in the order in which fields are dropped.
#[derive(Debug)]
pub(crate) struct Machine {
    _running: Running,
    servers: Servers,
    client: Pod,
    target: SocketAddr,
    udp_rounds: AtomicU16,
    _rig: Rig,
    _directory: TempDir,
}

impl Machine {
    /// Without a service proxy. Its kernel tracks connections and has the one rule of NAT that nodes have anyway:
    /// masquerade of what leaves for other networks.
    pub(crate) fn direct() -> Result<Self> {
        let (rig, client, pods) = build()?;
        let target = SocketAddr::new(pods[0].v4().into(), PORT);
        let rules = "table ip node { chain postrouting { type nat hook postrouting priority srcnat; \
                     ip saddr 10.244.0.0/16 ip daddr != { 10.244.0.0/16, 192.168.77.0/24 } masquerade; }; }";
        rig.node(0).exec(&["nft", rules])?;
        Self::with(
            Running::Nothing,
            target,
            client,
            &pods,
            rig,
            TempDir::new()?,
        )
    }

    /// With a service proxy that has programmed a number of Services.
    pub(crate) fn start(way: Way, services: usize) -> Result<Self> {
        let (rig, client, pods) = build()?;
        let directory = TempDir::new()?;
        let objects = objects::objects(services, rig.node(0), &pods);
        let running = match way.is_ours() {
            true => Running::Agent(start_agent(way, objects, &rig, &directory)?),
            false => {
                let node = rig.node(0).namespace();
                let listener = node.run(|| std::net::TcpListener::bind("127.0.0.1:0"))??;
                let url = static_api::serve(listener, objects)?;
                let proxies = KubeProxies::start(way.mode(), &rig, &url, directory.path())?;
                Running::KubeProxy(proxies)
            }
        };
        let target = objects::target(services);
        Self::with(running, target, client, &pods, rig, directory)
    }

    fn with(
        running: Running,
        target: SocketAddr,
        client: Pod,
        pods: &[Pod],
        rig: Rig,
        directory: TempDir,
    ) -> Result<Self> {
        Ok(Self {
            _running: running,
            servers: Servers::bind(pods)?,
            client,
            target,
            udp_rounds: AtomicU16::new(0),
            _rig: rig,
            _directory: directory,
        })
    }

    /// Plays one round.
    pub(crate) fn round(&self, kind: Kind) -> Result<Round> {
        let udp_rounds = match kind {
            Kind::Udp => self.udp_rounds.fetch_add(1, Ordering::Relaxed),
            Kind::Tcp | Kind::Open => 0,
        };
        let client = Client {
            address: self.client.v4().into(),
            target: self.target,
            servers: &self.servers,
            udp_rounds,
        };
        self.client
            .namespace()
            .run(|| client.play(kind))?
            .with_context(|| format!("{kind:?} to {}", self.target))
    }
}

fn build() -> Result<(Rig, Pod, Vec<Pod>)> {
    let rig = Rig::new(RigConfig {
        nodes: 1,
        clients: 0,
    })?;
    let client = rig.node(0).add_pod("client")?;
    let pods = ["a", "b"].map(|name| rig.node(0).add_pod(name));
    let pods = pods.into_iter().collect::<Result<_>>()?;
    Ok((rig, client, pods))
}

/// Starts the agent alone with the objects, and waits until it has programmed them.
fn start_agent(
    way: Way,
    objects: StaticObjects,
    rig: &Rig,
    directory: &TempDir,
) -> Result<Process> {
    let file = directory.path().join("objects.json");
    let mut items = objects.services;
    items.extend(objects.slices);
    items.push(objects.node);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    std::fs::write(&file, list.to_string())?;
    let mut command = Command::new(program("portolan-agent")?);
    command
        .args([
            "--source=file",
            "--cluster-cidr=10.244.0.0/16",
            "--debug-listen=",
        ])
        .arg(format!("--node-name={}", Cluster::node_name(0)))
        .arg(format!("--dataplane={}", way.mode()))
        .arg(format!("--admin-listen=127.0.0.1:{AGENT_ADMIN}"))
        .arg("--file")
        .arg(&file)
        .arg("--state-dir")
        .arg(directory.path().join("state"));
    let node = rig.node(0).namespace();
    let mut process = Process::spawn(node, "agent", &mut command, directory.path())?;
    let ready = wait_with_pauses("the agent", PATIENCE, Duration::from_millis(500), || {
        if !process.is_running() {
            return Some(false);
        }
        http_get(node, AGENT_ADMIN, "/readyz").ok().map(|_| true)
    })?;
    anyhow::ensure!(ready, "the agent ended: {}", process.log()?);
    Ok(process)
}
