// SPDX-License-Identifier: Apache-2.0

//! Flags, credentials and directories of the servers.

use std::fs::{self, File};
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::rig::Family;

/// kube-controller-manager runs only these. Slices and namespaces are deleted by the last two;
/// controllers that act on nodes without a kubelet would undo the set-up of a test.
const CONTROLLERS: &str = "endpointslice-controller,endpointslice-mirroring-controller,\
    serviceaccount-controller,namespace-controller,garbage-collector-controller";

/// For pods of Deployments and StatefulSets, which [`Phases`](super::Phases) runs.
const WORKLOADS: &str = "deployment-controller,replicaset-controller,statefulset-controller";

/// All controllers but those of clouds, and the one that gives nodes the address ranges that the
/// rig has given them already.
const ALL_CONTROLLERS: &str = "*,-node-ipam-controller,-cloud-node-lifecycle-controller,\
    -node-route-controller,-service-lb-controller";

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

/// The log of requests of users that are no administrators, one JSON object a line.
pub(super) const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY: &str = "audit-policy.json";

/// The kind of nodes that the servers are for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Nodes {
    /// Objects that tests write. The API server listens on loopback and permits everything.
    Written,
    /// The same with pods of Deployments and StatefulSets, and with RBAC.
    Workloads,
    /// Real kubelets, which reach the API server at this address. Services have addresses of these families.
    Kubelets(Ipv4Addr, &'static [Family]),
}

impl Nodes {
    /// The address of the API server in kubeconfigs.
    pub(super) fn api_address(self) -> Ipv4Addr {
        match self {
            Self::Written | Self::Workloads => Ipv4Addr::LOCALHOST,
            Self::Kubelets(address, _) => address,
        }
    }

    /// The families of addresses of Services.
    pub(super) fn families(self) -> &'static [Family] {
        match self {
            Self::Written | Self::Workloads => &Family::ALL,
            Self::Kubelets(_, families) => families,
        }
    }

    fn service_ranges(self) -> String {
        let range = |family: &Family| match family {
            Family::V4 => "10.96.0.0/16",
            Family::V6 => "fd00:10:96::/112",
        };
        let ranges: Vec<_> = self.families().iter().map(range).collect();
        ranges.join(",")
    }

    fn api_args(self) -> Vec<String> {
        match self {
            Self::Written | Self::Workloads => vec![
                "--bind-address=127.0.0.1".into(),
                // With RBAC the server first writes some hundred roles: a third of the whole start.
                match self {
                    Self::Workloads => "--authorization-mode=RBAC".into(),
                    _ => "--authorization-mode=AlwaysAllow".into(),
                },
                // Pods of tests have no token mounted and need not wait for an account.
                "--disable-admission-plugins=ServiceAccount".into(),
                // The service "kubernetes" gets no endpoint, as loopback is not allowed. Without a
                // default route the server still requires an address, which is not used.
                "--advertise-address=192.0.2.1".into(),
                "--endpoint-reconciler-type=none".into(),
            ],
            Self::Kubelets(address, _) => vec![
                "--bind-address=0.0.0.0".into(),
                format!("--advertise-address={address}"),
                "--authorization-mode=Node,RBAC".into(),
                "--enable-admission-plugins=NodeRestriction".into(),
                // Names of nodes are in no DNS: logs and exec use addresses.
                "--kubelet-preferred-address-types=InternalIP".into(),
            ],
        }
    }
}

pub(super) fn api_args(dir: &Path, etcd_port: u16, port: u16, nodes: Nodes) -> Vec<String> {
    let file = |name| dir.join(name).display().to_string();
    let mut args = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        format!("--secure-port={port}"),
        // The server writes its own CA and certificate there.
        format!("--cert-dir={}", file("api")),
        format!("--token-auth-file={}", file("tokens.csv")),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", file("accounts.key")),
        format!(
            "--service-account-signing-key-file={}",
            file("accounts.key")
        ),
        format!("--service-cluster-ip-range={}", nodes.service_ranges()),
        "--enable-priority-and-fairness=false".into(),
        // A single server needs no identity (nor features that build on it). If the machine's host
        // name is not a label value, such as a guest's "(none)", the feature fails and delays the
        // stop.
        "--feature-gates=APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false".into(),
        "--allow-privileged=true".into(),
        "--profiling=false".into(),
    ];
    if let Nodes::Workloads = nodes {
        args.push(format!("--audit-log-path={}", file(AUDIT_LOG)));
        args.push(format!("--audit-policy-file={}", file(AUDIT_POLICY)));
    }
    args.extend(nodes.api_args());
    args
}

pub(super) fn manager_args(dir: &Path, kubeconfig: &Path, nodes: Nodes) -> Vec<String> {
    let controllers = match nodes {
        Nodes::Written => CONTROLLERS.to_owned(),
        Nodes::Workloads => format!("{CONTROLLERS},{WORKLOADS}"),
        Nodes::Kubelets(..) => ALL_CONTROLLERS.to_owned(),
    };
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--controllers={controllers}"),
        // For tokens and the CA in pods.
        format!(
            "--service-account-private-key-file={}",
            dir.join("accounts.key").display()
        ),
        format!("--root-ca-file={}", dir.join("api/apiserver.crt").display()),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
        // No throttle: it would otherwise dominate tests of many services.
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=2000".into(),
    ]
}

/// Writes the administrator's token, the key of service accounts and the kubeconfig. With
/// kubelets, `NAME.kubeconfig` for each of the nodes too, and for users of these names otherwise.
pub(super) fn write_credentials(
    dir: &Path,
    url: &str,
    nodes: &[String],
    of: Nodes,
) -> Result<PathBuf> {
    let admin = random_token()?;
    let mut tokens = format!("{admin},admin,admin,system:masters\n");
    for node in nodes {
        let token = random_token()?;
        let user = match of {
            Nodes::Kubelets(..) => format!("system:node:{node},{node},system:nodes"),
            _ => format!("{node},{node}"),
        };
        tokens += &format!("{token},{user}\n");
        write_kubeconfig(dir, &format!("{node}.kubeconfig"), url, &token)?;
    }
    fs::write(dir.join("tokens.csv"), tokens)?;
    let policy = serde_json::json!({ "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"], "rules": [
            { "level": "None", "userGroups": ["system:masters"] },
            { "level": "Metadata", "users": nodes },
            { "level": "None" },
        ] });
    fs::write(dir.join(AUDIT_POLICY), policy.to_string())?;
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
    write_kubeconfig(dir, "kubeconfig", url, &admin)
}

fn random_token() -> Result<String> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

fn write_kubeconfig(dir: &Path, name: &str, url: &str, token: &str) -> Result<PathBuf> {
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {
            "server": url,
            "certificate-authority": dir.join("api/apiserver.crt"),
        }}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    });
    let path = dir.join(name);
    fs::write(&path, config.to_string())?;
    Ok(path)
}
