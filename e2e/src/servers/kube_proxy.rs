// SPDX-License-Identifier: Apache-2.0

//! A real kube-proxy on the nodes of a rig, in place of the agents.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::Servers;
use crate::cluster::{Cluster, POD_RANGES, http_get};
use crate::rig::{Host, Process, Rig};
use crate::wait::wait_with_pauses;

/// The deadline of a start, sufficient for an emulated guest in which the API server starts too.
const START_LIMIT: Duration = Duration::from_secs(480);
/// The port of each metrics server, in its node's namespace.
const METRICS: u16 = 10249;

/// kubectl as a proxy on the LAN without TLS: the API server itself listens on loopback only.
#[derive(Debug)]
pub struct ApiOnLan {
    url: String,
    _process: Process,
}

impl ApiOnLan {
    /// Starts it on the machine that the servers run on; its log goes to `directory`.
    pub fn start(servers: &Servers, control: &Host, directory: &Path) -> Result<Self> {
        let mut command = Command::new(Servers::binaries()?.program("kubectl"));
        command
            .args(["proxy", "--port=0", "--address=0.0.0.0"])
            .args(["--accept-hosts=.*", "--kubeconfig"])
            .arg(servers.kubeconfig())
            .env("KUBECTL_KUBERC", "false");
        let mut process = Process::spawn(control.namespace(), "api", &mut command, directory)?;
        let line = process.wait_for_log("Starting to serve on", START_LIMIT)?;
        let port: u16 = line
            .rsplit(':')
            .next()
            .and_then(|port| port.trim().parse().ok())
            .with_context(|| format!("no port in {line:?}"))?;
        Ok(Self {
            url: format!("http://{}:{port}", control.v4()),
            _process: process,
        })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// kube-proxy on every node. Dropping it leaves its kernel objects; see [`Self::clean_up`].
#[derive(Debug)]
pub struct KubeProxies {
    processes: Vec<Process>,
}

impl KubeProxies {
    /// Starts them in a mode, and waits until each has programmed both families from the objects of
    /// the API server at a URL that the nodes reach.
    pub fn start(mode: &str, rig: &Rig, api: &str, directory: &Path) -> Result<Self> {
        let mut processes = Vec::new();
        for (number, node) in rig.nodes().iter().enumerate() {
            let name = Cluster::node_name(number);
            let mut command = Command::new(program()?);
            command
                .args([
                    format!("--master={api}"),
                    format!("--hostname-override={name}"),
                    format!("--proxy-mode={mode}"),
                    format!("--cluster-cidr={POD_RANGES}"),
                    format!("--metrics-bind-address=127.0.0.1:{METRICS}"),
                ])
                .args([
                    "--healthz-bind-address=127.0.0.1:10256",
                    "--oom-score-adj=0",
                ])
                // Keeps the kernel's limits: a namespace may not change them.
                .args(["--conntrack-max-per-core=0", "--conntrack-min=0"]);
            let log = format!("kube-proxy-{mode}-{name}");
            processes.push(Process::spawn(
                node.namespace(),
                &log,
                &mut command,
                directory,
            )?);
        }
        let mut this = Self { processes };
        this.wait_until_programmed(rig)?;
        Ok(this)
    }

    fn wait_until_programmed(&mut self, rig: &Rig) -> Result<()> {
        for (process, node) in self.processes.iter_mut().zip(rig.nodes()) {
            // Each check takes processor time from the processes that are awaited.
            let pause = Duration::from_millis(500);
            let what = "kube-proxy's first synchronization";
            let waited = wait_with_pauses(what, START_LIMIT, pause, || {
                if !process.is_running() {
                    return Some(false);
                }
                let metrics = http_get(node.namespace(), METRICS, "/metrics").ok()?;
                is_up_to_date(&metrics).then_some(true)
            });
            let running = waited.with_context(|| process.log().unwrap_or_default())?;
            ensure!(running, "kube-proxy ended: {}", process.log()?);
        }
        Ok(())
    }

    /// Stops them and removes their kernel objects.
    pub fn clean_up(self, rig: &Rig) -> Result<()> {
        drop(self);
        let program = program()?;
        let program = program.to_str().context("path is not UTF-8")?;
        rig.nodes()
            .iter()
            .try_for_each(|node| node.exec(&[program, "--cleanup"]).map(drop))
    }
}

fn program() -> Result<std::path::PathBuf> {
    Ok(Servers::binaries()?.program("kube-proxy"))
}

/// True if both families have been programmed, and since the last change was queued.
fn is_up_to_date(metrics: &str) -> bool {
    ["IPv4", "IPv6"].iter().all(|family| {
        let at = |name: &str| {
            let start = format!("kubeproxy_sync_proxy_rules_last_{name}timestamp_seconds{{");
            let label = format!("ip_family=\"{family}\"");
            let is_it = |line: &&str| line.starts_with(&start) && line.contains(&label);
            let line = metrics.lines().find(is_it)?;
            line.rsplit(' ').next()?.parse::<f64>().ok()
        };
        let programmed = at("").unwrap_or_default();
        programmed > 0.0 && programmed >= at("queued_").unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::is_up_to_date;

    #[test]
    fn both_families_are_programmed_after_their_last_change() {
        const NAME: &str = "kubeproxy_sync_proxy_rules_last";
        let metrics = |queued, v4, v6| {
            format!(
                "{NAME}_queued_timestamp_seconds{{ip_family=\"IPv6\"}} {queued}\n\
                 {NAME}_timestamp_seconds{{ip_family=\"IPv4\"}} {v4}\n\
                 {NAME}_timestamp_seconds{{ip_family=\"IPv6\"}} {v6}\n"
            )
        };
        let (before, after) = ("1.7649e+09", "1.765e+09");
        assert!(is_up_to_date(&metrics("0", before, before)));
        assert!(is_up_to_date(&metrics(before, after, after)));
        assert!(!is_up_to_date(&metrics("0", before, "0")));
        assert!(!is_up_to_date(&metrics(after, after, before)));
        assert!(!is_up_to_date(""));
    }
}
