// SPDX-License-Identifier: Apache-2.0

//! The programs of a test: CoreDNS, an etcd of its own, the controller.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use portolan_e2e::cluster::program;
use portolan_e2e::ports;
pub(crate) use portolan_e2e::programs::coredns_or_skip;
use portolan_e2e::servers::Servers;

/// A program that is killed on drop.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts a program; its output goes to `<directory>/<name>.log`.
    pub(crate) fn start(directory: &Path, name: &str, command: &mut Command) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {name}: {command:?}"))?;
        Ok(Self { child, log })
    }

    /// Kills it, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(15).collect();
            println!("{}:", self.log.display());
            lines.iter().rev().for_each(|line| println!("  {line}"));
        }
    }
}

/// The address that everything listens at.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);

/// An address of this machine that is not of its loopback.
pub(crate) fn an_own_address() -> Result<String> {
    let all = Command::new("ip")
        .args(["-json", "-4", "address", "show", "scope", "global"])
        .output()?;
    let all: serde_json::Value = serde_json::from_slice(&all.stdout)?;
    let links = all.as_array().into_iter().flatten();
    let mut addresses = links.flat_map(|link| link["addr_info"].as_array().into_iter().flatten());
    let address = addresses.find_map(|info| info["local"].as_str());
    Ok(address
        .context("this machine has no address but the loopback's")?
        .to_owned())
}

pub(crate) fn local(port: u16) -> SocketAddr {
    (HOST, port).into()
}

/// An etcd of the test's own.
pub(crate) fn etcd(directory: &Path, port: u16) -> Result<Running> {
    let [peer] = ports::reserve()?;
    let (client, peer) = (url(port), url(peer));
    let mut command = Command::new(Servers::binaries()?.program("etcd"));
    command
        .arg("--data-dir")
        .arg(directory.join("dns-etcd"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .arg("--unsafe-no-fsync");
    Running::start(directory, "dns-etcd", &mut command)
}

pub(crate) fn url(port: u16) -> String {
    format!("http://{HOST}:{port}")
}

/// The controller, for an API server.
pub(crate) fn controller(
    directory: &Path,
    name: &str,
    listen: SocketAddr,
    kubeconfig: &Path,
    args: &[String],
) -> Result<Running> {
    let mut command = Command::new(program("portolan-controller")?);
    command
        .arg("--plaintext")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg(format!("--listen={listen}"))
        .args(["--admin-listen=127.0.0.1:0", "--debug-listen="])
        .args(["--dns-zone", "cluster.local"])
        .args(args);
    Running::start(directory, name, &mut command)
}

/// Long enough for a loaded machine; only a failure ever waits this long.
pub(crate) const PATIENT: Duration = Duration::from_secs(120);
