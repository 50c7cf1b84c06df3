// SPDX-License-Identifier: Apache-2.0

//! Controllers with an authority of their own, on a real API server.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portolan_e2e::programs::program;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use portolan_tls::ClientFiles;
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Long enough for a loaded machine; only a failure ever waits this long.
const PATIENT: Duration = Duration::from_secs(120);
const NAME: &str = "controllers.kube-system.svc";

struct Controller {
    child: Child,
    agents: u16,
}

impl Controller {
    fn start(dir: &Path, name: &str, kubeconfig: &Path) -> Result<Self> {
        let ports = dir.join(format!("{name}.ports"));
        let log = File::create(dir.join(format!("{name}.log")))?;
        let mut command = Command::new(program("portolan-controller")?);
        command
            .args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
            .args(["--debug-listen=", "--events=false"])
            .args([
                "--tls-self-managed=kube-system/authority",
                "--tls-server-names=a.example",
            ])
            .args([
                "--publish=kube-system/published",
                "--publish-service=kube-system/controllers",
            ])
            .args(["--token-issuer=https://kubernetes.default.svc"])
            .args(["--token-service-account=kube-system/agent"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--port-file")
            .arg(&ports)
            .env("HOSTNAME", name)
            .stderr(log);
        let child = command.spawn()?;
        let agents = wait_for("the controller's ports", PATIENT, || {
            let text = std::fs::read_to_string(&ports).ok()?;
            let port = text.strip_prefix("agents=")?.split(' ').next()?;
            port.parse().ok()
        })?;
        Ok(Self { child, agents })
    }

    /// Does a TLS handshake, in trust of these authorities.
    async fn greet(&self, ca: &Path) -> Result<()> {
        let files = ClientFiles {
            ca: ca.to_owned(),
            identity: None,
        };
        let config = Arc::clone(&files.open("test")?.subscribe().borrow());
        let stream = TcpStream::connect(("127.0.0.1", self.agents)).await?;
        let name = ServerName::try_from(NAME)?;
        TlsConnector::from(config).connect(name, stream).await?;
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn apply(servers: &Servers, address: &str) -> Result<()> {
    let meta = |name: &str| json!({"name": name, "namespace": "kube-system"});
    let mut of_service = meta("controllers-1");
    of_service["labels"] = json!({"kubernetes.io/service-name": "controllers"});
    let ports = json!([{"name": "agents", "port": 9443}]);
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta("authority")},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("published")},
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta("published")},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta("controllers"),
            "spec": {"ports": ports}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": of_service,
            "addressType": "IPv4", "ports": ports,
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]},
    ]});
    servers.kubectl_with_input(&["apply", "-f", "-"], &objects.to_string())?;
    Ok(())
}

/// Reads a key of the ConfigMap; `None` while it is absent.
fn published(servers: &Servers, key: &str) -> Option<String> {
    let key = key.replace('.', "\\.");
    let path = format!("jsonpath={{.data.{key}}}");
    let get = [
        "-n",
        "kube-system",
        "get",
        "configmap",
        "published",
        "-o",
        &path,
    ];
    servers.kubectl(&get).ok().filter(|text| !text.is_empty())
}

#[test]
fn controllers_agree_on_an_authority_and_publish_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(servers) = Servers::start_or_skip("self-managed authority", dir.path()) else {
        return;
    };
    apply(&servers, "10.0.0.1").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = |name: &str| Controller::start(dir.path(), name, servers.kubeconfig()).unwrap();
    let controllers = [start("first"), start("second")];

    let wait = |key: &str, wanted: &dyn Fn(&str) -> bool| {
        let found = || published(&servers, key).filter(|text| wanted(text));
        wait_for(key, PATIENT, found).unwrap()
    };
    let ca = wait("ca.crt", &|text| text.contains("CERTIFICATE"));
    assert_eq!(ca.matches("BEGIN").count(), 1);
    wait("controllers", &|text| text == "10.0.0.1:9443\n");

    let bundle = dir.path().join("published-ca.crt");
    std::fs::write(&bundle, &ca).unwrap();
    for controller in &controllers {
        let greet = || runtime.block_on(controller.greet(&bundle)).ok();
        wait_for("a handshake in trust of the ConfigMap", PATIENT, greet).unwrap();
    }
    // The Secret's authority is the published one, and the Lease has a holder.
    let get = |kind: &str, name: &str, path: &str| -> Result<String> {
        let path = format!("jsonpath={path}");
        let args = ["-n", "kube-system", "get", kind, name, "-o", &path];
        let text = servers.kubectl(&args).with_context(|| name.to_owned())?;
        ensure!(!text.is_empty(), "{kind} {name} has no {path}");
        Ok(text)
    };
    get("secret", "authority", "{.data.ca\\.key}").unwrap();
    let holder = get("lease", "published", "{.spec.holderIdentity}").unwrap();
    assert!(
        holder.starts_with("first_") || holder.starts_with("second_"),
        "{holder}"
    );

    // Addresses follow, also when the writer is gone.
    let [first, second] = controllers;
    let (gone, left) = match holder.starts_with("first_") {
        true => (first, second),
        false => (second, first),
    };
    drop(gone);
    let slice = json!({"endpoints": [{"addresses": ["10.0.0.2"]}, {"addresses": ["10.0.0.3"]}]});
    let slice = slice.to_string();
    let patch = [
        "-n",
        "kube-system",
        "patch",
        "endpointslice",
        "controllers-1",
        "--type=merge",
    ];
    let patch = [&patch[..], &["-p", &slice]].concat();
    servers.kubectl(&patch).unwrap();
    wait("controllers", &|text| {
        text == "10.0.0.2:9443\n10.0.0.3:9443\n"
    });
    assert_eq!(published(&servers, "ca.crt").unwrap(), ca);
    drop(left);
}
