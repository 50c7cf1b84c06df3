// SPDX-License-Identifier: Apache-2.0

//! Flags, credentials and directories of the servers.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// kube-controller-manager runs only these. Slices and namespaces are deleted by the last two;
/// controllers that act on nodes without a kubelet would undo the set-up of a test.
const CONTROLLERS: &str = "endpointslice-controller,endpointslice-mirroring-controller,\
    serviceaccount-controller,namespace-controller,garbage-collector-controller";

pub(super) fn etcd_args(dir: &Path, port: u16, peer_port: u16) -> Vec<String> {
    let client = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    vec![
        format!("--data-dir={}", dir.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--logger=zap".into(),
        // The data need not survive the test.
        "--unsafe-no-fsync".into(),
    ]
}

pub(super) fn api_args(dir: &Path, etcd_port: u16, port: u16) -> Vec<String> {
    let file = |name| dir.join(name).display().to_string();
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        // The server writes its own CA and certificate there.
        format!("--cert-dir={}", file("api")),
        format!("--token-auth-file={}", file("tokens.csv")),
        // With RBAC the server first writes some hundred roles: a third of the whole start.
        "--authorization-mode=AlwaysAllow".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", file("accounts.key")),
        format!(
            "--service-account-signing-key-file={}",
            file("accounts.key")
        ),
        // Pods of tests have no token mounted and need not wait for an account.
        "--disable-admission-plugins=ServiceAccount".into(),
        "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112".into(),
        // The service "kubernetes" gets no endpoint, as loopback is not allowed. Without a default
        // route the server still requires an address, which is not used.
        "--advertise-address=192.0.2.1".into(),
        "--endpoint-reconciler-type=none".into(),
        "--enable-priority-and-fairness=false".into(),
        // A single server needs no identity (nor features that build on it). If the machine's host
        // name is not a label value, such as a guest's "(none)", the feature fails and delays the
        // stop.
        "--feature-gates=APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false".into(),
        "--allow-privileged=true".into(),
        "--profiling=false".into(),
    ]
}

pub(super) fn manager_args(kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--controllers={CONTROLLERS}"),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
        // No throttle: it would otherwise dominate tests of many services.
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=2000".into(),
    ]
}

/// Writes the administrator's token, the key of service accounts and the kubeconfig.
pub(super) fn write_credentials(dir: &Path, url: &str) -> Result<PathBuf> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let token = format!("{:032x}", u128::from_ne_bytes(random));
    fs::write(
        dir.join("tokens.csv"),
        format!("{token},admin,admin,system:masters\n"),
    )?;
    let curve = ["ecparam", "-name", "prime256v1", "-genkey", "-noout"];
    let key = Command::new("openssl")
        .args(curve)
        .arg("-out")
        .arg(dir.join("accounts.key"))
        .output()
        .context("openssl")?;
    ensure!(
        key.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&key.stderr)
    );
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {
            "server": url,
            "certificate-authority": dir.join("api/apiserver.crt"),
        }}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    });
    let path = dir.join("kubeconfig");
    fs::write(&path, config.to_string())?;
    Ok(path)
}
